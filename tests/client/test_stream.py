"""encode_stream of both clients, over a real socket."""

import grpc
import numpy as np
import pytest

import seqenc
from seqenc import RetryPolicy
from seqenc.stream import WINDOW
from seqenc.v1 import encoder_pb2 as pb

TEXTS = [f"text {i}" for i in range(1000)]


def rows(encodings):
    return np.stack([encoding.embedding for encoding in encodings])


def test_one_result_an_input_in_order(client, server):
    done = []
    encodings = list(client.encode_stream(iter(TEXTS), progress=done.append, pooling="cls"))
    np.testing.assert_array_equal(rows(encodings), server.rows(TEXTS))
    assert [len(request.inputs) for request in server.requests] == [64] * 15 + [40]
    assert {request.options.pooling for request in server.requests} == {pb.POOLING_CLS}
    assert done == [*range(64, 1000, 64), 1000]
    assert (server.streams_opened, server.streams_finished) == (1, 1)


def test_batches_keep_within_the_servers_limits(client, server):
    server.model.max_input_count = 10
    assert len(list(client.encode_stream(TEXTS[:95], batch_size=64))) == 95
    assert [len(request.inputs) for request in server.requests] == [10] * 9 + [5]


def test_no_inputs_give_no_results(client, server):
    assert list(client.encode_stream(iter([]))) == []
    assert server.requests == []


def test_inputs_are_read_only_a_window_ahead(client):
    taken = 0

    def source():
        nonlocal taken
        while True:
            taken += 1
            yield f"text {taken}"

    stream = client.encode_stream(source(), batch_size=5)
    for received in range(1, 400):
        next(stream)
        assert taken - received <= 5 * (WINDOW + 1)
    stream.close()


def test_leaving_early_ends_the_stream_at_the_server(client, server):
    stream = client.encode_stream(iter(TEXTS * 100))
    next(stream)
    stream.close()
    assert server.stream_gone.wait(timeout=30)
    assert server.streams_finished == 0


def test_an_error_of_the_source_reaches_the_caller(client):
    def source():
        yield from TEXTS[:100]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(client.encode_stream(source()))


def test_a_bad_input_is_named_by_its_index(client):
    with pytest.raises(TypeError, match=r"inputs\[70\]: .*not float"):
        list(client.encode_stream([*TEXTS[:70], float("nan")]))


def test_bad_options_are_refused_at_once(client, server):
    with pytest.raises(ValueError, match="pooling"):
        list(client.encode_stream(TEXTS, pooling="sum"))
    assert server.streams_opened == 0


@pytest.mark.parametrize("answers", [0, 1, 4, 15])
def test_a_broken_stream_is_resumed_at_the_first_unanswered_message(client, server, answers):
    server.breaks.append(answers)
    done = []
    encodings = list(client.encode_stream(TEXTS, progress=done.append))
    np.testing.assert_array_equal(rows(encodings), server.rows(TEXTS))
    resumed_at = [request.inputs[0].text for request in server.requests[answers:]]
    assert resumed_at == TEXTS[::64][-len(resumed_at) :]
    assert done == [*range(64, 1000, 64), 1000]
    assert (server.streams_opened, server.streams_finished) == (2, 1)


def test_a_stream_that_gets_somewhere_may_break_any_number_of_times(connect, server):
    client = connect(server.address, retry=RetryPolicy(max_attempts=2, jitter=lambda: 0.0))
    server.breaks.extend([1] * 10)
    assert len(list(client.encode_stream(TEXTS))) == 1000
    assert server.streams_opened == 11


def test_a_stream_that_gets_nowhere_fails(connect, server):
    client = connect(server.address, retry=RetryPolicy(max_attempts=3, jitter=lambda: 0.0))
    server.breaks.extend([2, 0, 0, 0])
    stream = client.encode_stream(TEXTS)
    with pytest.raises(seqenc.UnavailableError):
        list(stream)
    assert server.streams_opened == 3


def test_a_message_that_may_pass_later_is_sent_again(client, server):
    server.fail("RESOURCE_EXHAUSTED", "quota", reason="QUOTA", retry_after_s=0)
    encodings = list(client.encode_stream(TEXTS[:300], on_error="per_input"))
    np.testing.assert_array_equal(rows(encodings), server.rows(TEXTS[:300]))
    assert server.streams_opened == 2


def test_a_refused_message_ends_the_call_with_its_error(client, server):
    def answer(request):
        if request.inputs[0].text == "text 64":
            server.fail("INVALID_ARGUMENT", "inputs[3]: bad", violations={"inputs[3].text": "bad"})
        return server_answer(request)

    server_answer, server.answer = server.answer, answer
    received = []
    with pytest.raises(seqenc.InvalidInputError) as caught:
        received.extend(client.encode_stream(TEXTS))
    assert caught.value.violations[0].field == "inputs[131].text"


def test_per_input_a_refused_message_is_the_status_of_its_inputs(client, server):
    server.fail("INVALID_ARGUMENT", "too large", reason="INVALID_INPUT")
    encodings = list(client.encode_stream(TEXTS[:130], on_error="per_input"))
    assert [isinstance(e.status, seqenc.InvalidInputError) for e in encodings] == [True] * 64 + [False] * 66
    assert {encoding.embedding is None for encoding in encodings[:64]} == {True}
    np.testing.assert_array_equal(rows(encodings[64:]), server.rows(TEXTS[64:130]))


def test_per_input_a_bad_input_carries_its_own_status(client, server, build_status):
    bad = build_status(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations={"inputs[2].text": "bad"})

    def answer(request):
        response = server_answer(request)
        response.results[2].status.CopyFrom(bad)
        return response

    server_answer, server.answer = server.answer, answer
    encodings = list(client.encode_stream(TEXTS[:128], on_error="per_input"))
    failed = [i for i, encoding in enumerate(encodings) if encoding.status]
    assert failed == [2, 66]
    assert encodings[66].status.violations[0].field == "inputs[66].text"


def test_another_revision_in_mid_stream_ends_it(client, server):
    def answer(request):
        response = server_answer(request)
        response.revision = "r1" if len(server.requests) < 5 else "r2"
        return response

    server_answer, server.answer = server.answer, answer
    stream = client.encode_stream(TEXTS)
    assert len([next(stream) for _ in range(4 * 64)]) == 256
    with pytest.raises(seqenc.RevisionMismatchError):
        next(stream)


def test_a_stream_has_a_deadline_only_where_it_says_so(connect, server):
    client = connect(server.address, deadline_s=3000)
    list(client.encode_stream(TEXTS[:3]))
    list(client.encode_stream(TEXTS[:3], deadline_s=2000))
    unlimited, limited = server.timeouts
    assert unlimited is None or unlimited > 1e6
    assert limited == pytest.approx(2000, abs=100)
