"""What is refused before anything runs: replies too large, full queues, other models and other revisions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.faults import Fault
from chaos.tally import Tally
from e2e.oracle import BertOracle
from e2e.refusals import reason, refusal, status_of, violations
from e2e.server_process import ServerProcess, connect, start_server
from seqenc import (
    Client,
    NoAttentionMapsError,
    ReplyTooLargeError,
    RetryPolicy,
    RevisionMismatchError,
    UnknownModelError,
)
from seqenc.v1 import encoder_pb2 as pb

GOOD = pb.Sequence(text="a good text")
TEXT_OF_512 = "word " * 510
LANES = 2
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def runs(server: ServerProcess) -> dict[str, float]:
    metrics = server.metrics()
    return {graph: metrics["inference_duration_seconds_count", graph] for graph in ("encoder", "attention")}


def test_all_maps_of_a_long_text_are_refused_before_anything_runs(client: Any, server: ServerProcess) -> None:
    before = runs(server)
    with pytest.raises(ReplyTooLargeError) as refused:
        client.encode(TEXT_OF_512, max_tokens=512, attention=True)
    assert runs(server) == before
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_s is None
    sizes = [int(word) for word in refused.value.message.replace(",", " ").split() if word.isdigit()]
    assert sizes[1] == 64 << 20
    assert 0 <= sizes[0] - 6 * 12 * 512**2 * 4 < 100_000


def test_one_layer_of_a_long_text_arrives_and_is_right(client: Any, oracle: BertOracle) -> None:
    (encoding,) = client.encode(TEXT_OF_512, max_tokens=512, attention={"layers": [4]}).results
    expected = oracle(TEXT_OF_512).attention[4:5]
    assert encoding.attention.nbytes == 12 * 512**2 * 4
    np.testing.assert_allclose(encoding.attention, expected, atol=1e-5)


def test_the_refusal_keeps_to_the_flag(tiny_artifact: Path) -> None:
    small = start_server(tiny_artifact, "--max-message-bytes", "65536")
    with small as server, Client(server.grpc_address) as connected, connect(server) as stub:
        client: Any = connected
        assert client.model().max_message_bytes == 65536
        row = pb.Sequence(token_ids=pb.TokenIds(ids=[7] * 60))
        options = pb.EncodeOptions(token_embeddings=True)
        status = status_of(stub.Encode, pb.EncodeRequest(inputs=[row] * 10, options=options))
        assert reason(status) == "REPLY_TOO_LARGE"
        assert "65536" in status.message
        assert client.encode(["word " * 20] * 2000).embeddings.shape == (2000, 32)
        assert len(stub.Encode(pb.EncodeRequest(inputs=[GOOD], request_id="x" * 60_000)).results) == 1
        for size in (64 << 10, 1 << 20):
            status = status_of(stub.Encode, pb.EncodeRequest(inputs=[GOOD], request_id="x" * size))
            assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@pytest.mark.parametrize("method", ["Encode", "Tokenize", "GetModel"])
def test_another_model(stub: Any, server: ServerProcess, method: str) -> None:
    before = runs(server)
    request = getattr(pb, f"{method}Request")(model="another")
    if method != "GetModel":
        request.inputs.append(GOOD)
    status = status_of(getattr(stub, method), request)
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert reason(status) == "UNKNOWN_MODEL"
    assert "all-MiniLM-L6-v2" in status.message
    assert runs(server) == before
    request.model = "all-MiniLM-L6-v2"
    getattr(stub, method)(request)


def test_another_revision(stub: Any, server: ServerProcess) -> None:
    revision = stub.GetModel(pb.GetModelRequest()).model.revision
    before = runs(server)
    for other in ("0" * 64, revision[:-1], revision.upper(), "x"):
        request = pb.EncodeRequest(inputs=[GOOD], expected_revision=other)
        status = status_of(stub.Encode, request)
        assert status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        assert reason(status) == "REVISION_MISMATCH"
        assert revision in status.message
        (answer,) = stub.EncodeStream(iter([request]))
        assert reason(answer.error) == "REVISION_MISMATCH"
    assert runs(server) == before
    response = stub.Encode(pb.EncodeRequest(inputs=[GOOD], expected_revision=revision))
    assert response.revision == revision


def test_the_client_raises_what_the_server_says(server: ServerProcess) -> None:
    with Client(server.grpc_address, model="another") as client, pytest.raises(UnknownModelError):
        client.encode("a")
    with Client(server.grpc_address, expected_revision="x") as client, pytest.raises(RevisionMismatchError):
        client.encode("a")


def test_a_server_without_maps_says_so(tiny_artifact: Path) -> None:
    bare = start_server(tiny_artifact, "--attention-maps", "false")
    with bare as server, Client(server.grpc_address) as connected, connect(server) as stub:
        client: Any = connected
        assert not client.model().attention_maps
        with pytest.raises(NoAttentionMapsError) as refused:
            client.encode("a", attention=True)
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert client.encode("a").embeddings.shape == (1, 32)
        wrong = pb.EncodeOptions(attention=pb.AttentionOptions(layers=[9]))
        status = refusal(stub.Encode, pb.EncodeRequest(inputs=[GOOD], options=wrong))
        assert violations(status)[0][0] == "options.attention.layers[0]"


@pytest.fixture(scope="module")
def narrow_server(tiny_artifact: Path) -> Iterator[ChaosServer]:
    flags = ("--max-queued-inputs", "64", "--max-inputs", "64", "--max-batch-tokens", "128")
    with start_chaos_server(tiny_artifact, Tally(), *flags) as server:
        yield server


def test_a_full_queue_refuses_calls_whole_and_says_when_to_come_back(narrow_server: ChaosServer) -> None:
    rows = pb.EncodeRequest(inputs=[pb.Sequence(token_ids=pb.TokenIds(ids=[7] * 64))] * 64)
    patient = RetryPolicy(max_attempts=100)
    with (
        ThreadPoolExecutor(2) as callers,
        connect(narrow_server) as stub,
        Client(narrow_server.grpc_address, retry=patient) as client,
    ):
        narrow_server.inject(Fault.HANG, LANES)
        busy = callers.submit(stub.Encode, rows)
        while not narrow_server.metrics()["queued_inputs",]:
            pass
        status = status_of(stub.Encode, pb.EncodeRequest(inputs=[GOOD] * 64))
        assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert reason(status) == "QUEUE_FULL"
        assert 0.05 <= retry_delay_s(status) <= 30
        assert narrow_server.metrics()["rejected_total", "QUEUE_FULL"] == 1
        again = callers.submit(client.encode, ["again until there is room"] * 64)
        while narrow_server.metrics()["rejected_total", "QUEUE_FULL"] == 1:
            pass
        narrow_server.inject(Fault.NONE, 0)
        assert len(again.result().results) == 64
        assert len(busy.result().results) == 64
    assert narrow_server.metrics()["queued_inputs",] == 0


def test_more_than_a_call_may_have_is_invalid_not_exhausted(narrow_server: ChaosServer) -> None:
    with connect(narrow_server) as stub:
        ((field, text),) = violations(refusal(stub.Encode, pb.EncodeRequest(inputs=[GOOD] * 65)))
        assert (field, "1 to 64" in text) == ("inputs", True)
        assert len(stub.Encode(pb.EncodeRequest(inputs=[GOOD] * 64)).results) == 64


def retry_delay_s(status: Any) -> float:
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    return float(retry.retry_delay.ToTimedelta().total_seconds())
