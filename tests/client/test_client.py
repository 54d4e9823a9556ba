"""What both clients do, over a real socket."""

import inspect
import threading
from queue import SimpleQueue

import numpy as np
import pytest

import seqenc
from seqenc import AsyncClient, Client, RetryPolicy
from seqenc.v1 import encoder_pb2 as pb


def test_one_text_gives_one_row(client, server):
    result = client.encode("document", request_id="r7")
    np.testing.assert_array_equal(result.embeddings, server.rows(["document"]))
    assert (result.model, result.revision, result.precision, result.request_id) == (
        "fake",
        "r1",
        "fp32",
        "r7",
    )
    assert result.results[0].token_count == 8
    assert result.results[0].status is None


def test_options_and_what_the_client_pins_are_sent(connect, server):
    client = connect(server.address, model="fake", expected_revision="r1")
    client.encode(["a"], pooling="mean", truncation="right", attention=True)
    request = server.requests[0]
    assert (request.model, request.expected_revision) == ("fake", "r1")
    assert request.options == pb.EncodeOptions(
        pooling=pb.POOLING_MEAN, truncation=pb.TRUNCATION_RIGHT, attention=pb.AttentionOptions()
    )


def test_a_long_list_is_split_and_comes_back_in_order(client, server):
    texts = [f"text {i}" for i in range(1234)]
    result = client.encode(texts)
    np.testing.assert_array_equal(result.embeddings, server.rows(texts))
    assert [encoding.token_count for encoding in result.results] == [len(text) for text in texts]
    assert sorted(len(request.inputs) for request in server.requests) == [34] + [100] * 12


def test_no_request_passes_the_servers_message_limit(client, server):
    server.model.max_message_bytes = 5000
    texts = [f"{i} " + "x" * (i % 400) for i in range(90)]
    np.testing.assert_array_equal(client.encode(texts).embeddings, server.rows(texts))
    assert max(request.ByteSize() for request in server.requests) <= 5000


def test_parts_run_side_by_side_and_not_more_than_allowed(connect, server):
    server.model.max_input_count = 1
    together = threading.Barrier(3)
    running = threading.Semaphore(3)

    def answer(request):
        assert running.acquire(blocking=False), "more calls than allowed"
        together.wait(timeout=30)
        running.release()
        return server_answer(request)

    server_answer, server.answer = server.answer, answer
    client = connect(server.address, max_concurrent_calls=3)
    texts = [str(i) for i in range(9)]
    np.testing.assert_array_equal(client.encode(texts).embeddings, server.rows(texts))


def test_no_inputs_need_no_call(client, server):
    assert client.encode([]).embeddings.shape == (0, 4)
    assert client.encode(iter([]), dimensions=2).embeddings.shape == (0, 2)
    assert client.tokenize([]) == []
    assert server.requests == []


def test_bad_inputs_are_refused_before_anything_is_sent(client, server):
    with pytest.raises(TypeError, match=r"inputs\[1\]"):
        client.encode(["a", float("nan"), None, 3])
    with pytest.raises(ValueError, match="pooling"):
        client.encode(["a"], pooling="sum")
    with pytest.raises(TypeError, match="unexpected keyword"):
        client.encode(["a"], poolng="mean")
    assert server.requests == []


def test_tokenize_is_split_and_merged_too(client, server):
    texts = [f"text {i}" for i in range(150)]
    results = client.tokenize(texts, truncation="left")
    assert [result.tokens[0].text for result in results] == texts
    assert sorted(len(request.inputs) for request in server.requests) == [50, 100]
    assert {request.options.truncation for request in server.requests} == {pb.TRUNCATION_LEFT}


def test_model_asks_afresh(client, server):
    assert client.model() == seqenc.ModelInfo(
        name="fake",
        revision="r1",
        family="",
        hidden_size=0,
        embedding_size=4,
        layer_count=0,
        head_count=0,
        vocabulary_size=0,
        max_tokens=0,
        max_positions=0,
        pooling="mean",
        normalize=False,
        prompts={"query": "query: "},
        precision="fp32",
        provider="",
        attention_maps=False,
        max_input_count=100,
        max_message_bytes=1 << 20,
        fidelity=0.0,
    )
    server.model.revision = "r2"
    assert client.model().revision == "r2"


def test_health(client, server):
    assert client.health() == "SERVING"
    server.health.set("draining", 2)
    assert client.health("draining") == "NOT_SERVING"
    assert client.health("nope") == "SERVICE_UNKNOWN"


@pytest.mark.parametrize(
    "failure", [{"code": "UNAVAILABLE"}, {"code": "RESOURCE_EXHAUSTED", "retry_after_s": 0}]
)
def test_what_will_pass_is_tried_again(client, server, failure):
    server.fail(**failure, times=3)
    np.testing.assert_array_equal(client.encode("a").embeddings, server.rows(["a"]))
    assert len(server.requests) == 4


def test_tries_are_limited(connect, server):
    client = connect(server.address, retry=RetryPolicy(max_attempts=3, jitter=lambda: 0.0))
    server.fail("UNAVAILABLE", "draining", reason="DRAINING", times=10)
    with pytest.raises(seqenc.UnavailableError, match="draining") as caught:
        client.encode("a")
    assert caught.value.reason == "DRAINING"
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL", "UNAUTHENTICATED"])
def test_what_will_not_pass_is_tried_once(client, server, code):
    server.fail(code, "no")
    with pytest.raises(seqenc.SeqencError, match=f"{code}: no"):
        client.encode("a")
    assert len(server.requests) == 1


def test_a_retry_that_would_pass_the_deadline_is_not_waited_for(client, server):
    server.fail("RESOURCE_EXHAUSTED", "full", reason="QUEUE_FULL", retry_after_s=3600)
    with pytest.raises(seqenc.OverloadedError) as caught:
        client.encode("a", deadline_s=30)
    assert caught.value.retry_after_s == 3600


def test_the_deadline_reaches_the_server_and_ends_the_call(connect, server):
    client = connect(server.address, deadline_s=3000)
    client.encode("a")
    assert server.timeouts[-1] == pytest.approx(3000, abs=100)
    client.encode("a", deadline_s=1500)
    assert server.timeouts[-1] == pytest.approx(1500, abs=100)
    opened = threading.Event()
    server.answer = lambda _: opened.wait(timeout=30)
    try:
        with pytest.raises(seqenc.DeadlineExceededError):
            client.encode("a", deadline_s=0.05)
    finally:
        opened.set()


def test_an_error_of_a_part_names_the_input_of_the_whole_call(client, server):
    def before(request, context):
        if request.inputs[0].text == "100":
            violations = {"inputs[7].text": "bad"}
            server.abort(context, "INVALID_ARGUMENT", "inputs[7]: bad", violations=violations)

    server.before = before
    with pytest.raises(seqenc.InvalidInputError, match=r"inputs\[107\]") as caught:
        client.encode([str(i) for i in range(150)])
    assert caught.value.violations[0].field == "inputs[107].text"


def test_the_first_failure_cancels_the_other_parts(client, server):
    server.model.max_input_count = 1
    both_arrived = threading.Barrier(2)
    cancelled = SimpleQueue()

    def before(request, context):
        if request.inputs[0].text == "waits":
            gone = threading.Event()
            context.add_callback(gone.set)
            both_arrived.wait(timeout=30)
            cancelled.put(gone.wait(timeout=30))
        else:
            both_arrived.wait(timeout=30)
            server.abort(context, "INVALID_ARGUMENT", "bad")

    server.before = before
    with pytest.raises(seqenc.InvalidInputError):
        client.encode(["waits", "fails"])
    assert cancelled.get(timeout=60)


def test_vectors_of_two_revisions_do_not_get_into_one_result(client, server):
    def answer(request):
        response = server_answer(request)
        response.revision = "r2" if request.inputs[0].text == "100" else "r1"
        return response

    server_answer, server.answer = server.answer, answer
    with pytest.raises(seqenc.RevisionMismatchError):
        client.encode([str(i) for i in range(150)])


def test_many_threads_share_a_client(server):
    with Client(server.address) as client:
        results = {}

        def work(name):
            texts = [f"c{name} item {i}" * (1 + i % 3) for i in range(120)]
            results[name] = (client.encode(texts).embeddings, server.rows(texts))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 6
    for found, expected in results.values():
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "name", ["encode", "encode_stream", "tokenize", "model", "health", "close", "__init__"]
)
def test_both_clients_take_the_same_arguments(name):
    sync, aio = (inspect.signature(getattr(kind, name)).parameters for kind in (Client, AsyncClient))
    assert [(p.name, p.kind, p.default) for p in sync.values()] == [
        (p.name, p.kind, p.default) for p in aio.values()
    ]


def test_a_number_of_calls_below_one_is_refused():
    with pytest.raises(ValueError, match="max_concurrent_calls=0"):
        Client("localhost:1", max_concurrent_calls=0)
