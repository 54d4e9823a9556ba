"""EncodeStream: order, errors in their place, back-pressure, undecodable messages, memory that stays flat."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

import corpus
from e2e.oracle import assert_same
from e2e.refusals import check_refusal, reason, violations
from e2e.server_process import ServerProcess, connect, start_server
from seqenc import Client, InvalidInputError
from seqenc.v1 import encoder_pb2 as pb

TEXTS = corpus.sentences(200)
MANY = 100_000
METHOD = "/seqenc.v1.EncoderService/EncodeStream"


def message(*texts: str, request_id: str = "", **options: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(
        inputs=[pb.Sequence(text=text) for text in texts],
        options=pb.EncodeOptions(**options),
        request_id=request_id,
    )


def vectors_of(response: pb.EncodeResponse) -> Any:
    return np.frombuffer(response.embeddings.data, "<f4").reshape(response.embeddings.shape)


def test_answers_have_the_order_of_the_messages(stub: Any) -> None:
    sizes = [1, 50, 2, 30, 1, 1, 20, 3, 40, 1, 5, 46]
    texts = iter(TEXTS)
    messages = [message(*islice(texts, size), request_id=f"n{place}") for place, size in enumerate(sizes)]
    answers = list(stub.EncodeStream(iter(messages)))
    assert [answer.request_id for answer in answers] == [sent.request_id for sent in messages]
    for answer, sent in zip(answers, messages, strict=True):
        assert answer.response.request_id == sent.request_id
        assert_same(vectors_of(answer.response), vectors_of(stub.Encode(sent)))


def test_every_message_has_its_own_options(stub: Any) -> None:
    options: list[dict[str, Any]] = [
        {"dimensions": 8},
        {"pooling": pb.POOLING_CLS},
        {"attention": pb.AttentionOptions(layers=[0])},
        {"tokens": True, "pooling": pb.POOLING_NONE},
        {"embedding_type": pb.DATA_TYPE_INT8},
    ]
    messages = [message("one text", "and another", **chosen) for chosen in options]
    for answer, sent in zip(stub.EncodeStream(iter(messages)), messages, strict=True):
        alone = stub.Encode(sent)
        alone.timing.Clear()
        answer.response.timing.Clear()
        assert answer.response.embeddings.shape == alone.embeddings.shape
        assert answer.response.embeddings.type == alone.embeddings.type
        assert [len(encoding.tokens) for encoding in answer.response.results] == [
            len(encoding.tokens) for encoding in alone.results
        ]
        assert [encoding.attention.shape for encoding in answer.response.results] == [
            encoding.attention.shape for encoding in alone.results
        ]


def test_bad_messages_get_their_error_in_their_place(stub: Any) -> None:
    bad = [
        pb.EncodeRequest(request_id="empty"),
        message("word " * 300, request_id="long"),
        message("a", request_id="options", dimensions=0),
        message("a", request_id="enum", pooling=99),
    ]
    messages = [part for wrong in bad for part in (message("good", request_id="good"), wrong)]
    answers = list(stub.EncodeStream(iter(messages)))
    assert [answer.request_id for answer in answers] == [sent.request_id for sent in messages]
    for answer in answers[::2]:
        assert answer.WhichOneof("outcome") == "response"
    fields = [violations(check_refusal(answer.error))[0][0] for answer in answers[1::2]]
    assert fields == ["inputs", "inputs[0].text", "options.dimensions", "options.pooling"]


def test_other_refusals_do_not_end_the_stream_either(stub: Any) -> None:
    foreign = pb.EncodeRequest(model="another", inputs=[pb.Sequence(text="a")])
    large = message("word " * 254, attention=pb.AttentionOptions())
    large.inputs.extend([pb.Sequence(text="word " * 254)] * 5)
    answers = list(stub.EncodeStream(iter([foreign, large, message("good")])))
    assert [reason(answer.error) for answer in answers[:2]] == ["UNKNOWN_MODEL", "REPLY_TOO_LARGE"]
    assert len(answers[2].response.results) == 1


def test_an_undecodable_message_ends_the_stream_after_the_answers_before_it(server: ServerProcess) -> None:
    parts = [message("one").SerializeToString(), message("two").SerializeToString(), b"\xff\xff"]
    with grpc.insecure_channel(server.grpc_address) as opened:
        channel: Any = opened
        call = channel.stream_stream(METHOD)(iter(parts))
        answers = [pb.EncodeStreamResponse.FromString(data) for data in islice(call, 2)]
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
    assert all(len(answer.response.results) == 1 for answer in answers)
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_stream_of_nothing_ends_well(stub: Any) -> None:
    assert list(stub.EncodeStream(iter([]))) == []


def test_messages_are_read_no_further_than_is_in_work(default_artifact: Path) -> None:
    """But for what the connection itself holds, some tens of megabytes."""
    with start_server(default_artifact, "--max-stream-inflight", "2") as server, connect(server) as stub:
        taken = 0

        def requests() -> Iterator[pb.EncodeRequest]:
            nonlocal taken
            while taken < 400:
                taken += 1
                yield message(*["word " * 250] * 8, request_id="x" * 1_000_000)

        call = stub.EncodeStream(requests())
        for _ in range(3):
            next(call)
        assert taken < 100
        call.cancel()
        while server.metrics()["queued_inputs",] or server.metrics()["inflight_requests",]:
            pass
        assert len(stub.Encode(message("good")).results) == 1


def test_a_stream_waits_for_room_where_a_call_is_refused(tiny_artifact: Path) -> None:
    narrow = start_server(tiny_artifact, "--max-queued-inputs", "32", "--max-inputs", "32", "--lanes", "1")
    with narrow as server, connect(server) as stub:
        for answer in stub.EncodeStream(message(*["word " * 50] * 32) for _ in range(100)):
            assert len(answer.response.results) == 32
        assert server.metrics()["rejected_total", "QUEUE_FULL"] == 0


def test_many_streams_at_once_do_not_mix(stub: Any) -> None:
    expected = vectors_of(stub.Encode(message(*TEXTS)))

    def run(start: int) -> None:
        order = [(start + place * 7) % len(TEXTS) for place in range(30)]
        answers = stub.EncodeStream(message(TEXTS[place], TEXTS[-place]) for place in order)
        for place, answer in zip(order, answers, strict=True):
            assert_same(vectors_of(answer.response), expected[[place, -place]])

    with ThreadPoolExecutor(6) as callers:
        for caller in [callers.submit(run, start) for start in range(6)]:
            caller.result()


def test_the_client_names_a_bad_input_by_its_own_index(client: Any) -> None:
    inputs = ["good"] * 100
    inputs[70] = "word " * 300
    with pytest.raises(InvalidInputError, match=r"inputs\[70\]\.text"):
        list(client.encode_stream(inputs, batch_size=16))
    results = list(client.encode_stream(inputs, batch_size=16, on_error="per_input"))
    assert [place for place, encoding in enumerate(results) if encoding.status] == [70]
    assert results[70].status.violations[0].field == "inputs[70].text"


def test_100_000_texts_in_flat_memory_and_in_order(tiny_server: ServerProcess) -> None:
    """The texts come from 1,000 different ones in an order that never repeats within a thousand."""
    pool = [f"{number} {'the ' * (number % 5)}" for number in range(1000)]
    client_process = psutil.Process()
    memory: list[tuple[float, float]] = []
    with Client(tiny_server.grpc_address) as connected:
        client: Any = connected
        expected = client.encode(pool).embeddings
        order = [(place * 617 + place // 1000) % 1000 for place in range(MANY)]
        stream = client.encode_stream(pool[place] for place in order)
        for start in range(0, MANY, 10_000):
            got = np.stack([encoding.embedding for encoding in islice(stream, 10_000)])
            np.testing.assert_allclose(got, expected[order[start : start + 10_000]], atol=1e-5)
            memory.append((tiny_server.resident_mib, client_process.memory_info().rss / (1 << 20)))
        assert next(stream, None) is None
    settled, at_the_end = np.array(memory[2:5]).max(axis=0), np.array(memory[-2:]).max(axis=0)
    assert (at_the_end < settled * 1.05 + 4).all(), memory
