"""What a refusal carries for programs: reason, violations, when to retry; and how little space that takes."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from api.api_server import TIMEOUT_S, ApiServer
from api.conftest import ServeApi
from api.refusals import Refusal, read_refusal, refusal_of
from seqenc.v1 import encoder_pb2 as pb

PRIVATE = "xyzzy-plugh"
# What clients take of headers and trailers together unless told otherwise.
METADATA_LIMIT = 8192
GOOD = pb.EncodeRequest(inputs=[pb.Sequence(text="What a long day!")])


def request_of(*inputs: pb.Sequence, **options: object) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=inputs, options=pb.EncodeOptions(**options))  # type: ignore[arg-type]


def too_long() -> pb.Sequence:
    return pb.Sequence(text=f"{PRIVATE} " * 20)


def trailer_bytes(error: Any) -> int:
    """As HTTP/2 counts headers: uncompressed, and 32 bytes for each besides its text."""
    message = quote(error.details(), safe=" !\"#$&'()*+,/:;<=>?@[\\]^_`{|}~")
    size = len("grpc-message") + len(message) + 32
    for key, value in error.trailing_metadata():
        size += len(key) + len(base64.b64encode(value) if isinstance(value, bytes) else value) + 32
    return size + len("grpc-status3") + 32


def assert_small(refusal: Refusal) -> None:
    assert 1 <= len(refusal.violations) <= 16
    size = sum(len(field.encode()) + len(text.encode()) for field, text in refusal.violations)
    assert size <= 1024


def test_a_refusal_has_a_reason_of_our_domain(server: ApiServer) -> None:
    refusal = refusal_of(server.encoder.Encode, request_of(too_long()))
    assert (refusal.domain, refusal.reason) == ("seqenc", "INVALID_INPUT")
    assert refusal.fields == ["inputs[0].text"]
    assert refusal.retry_delay is None


def test_violations_are_the_first_sixteen_and_a_kibibyte(server: ApiServer) -> None:
    refusal = refusal_of(server.encoder.Encode, request_of(*[too_long()] * 100))
    assert_small(refusal)
    assert refusal.fields == [f"inputs[{index}].text" for index in range(len(refusal.violations))]
    assert refusal.message.endswith("(and 99 more)")
    assert PRIVATE.encode() not in refusal.raw


def test_short_violations_stop_at_sixteen(server: ApiServer) -> None:
    refusal = refusal_of(server.encoder.Encode, request_of(*[pb.Sequence()] * 30))
    assert_small(refusal)
    assert len(refusal.violations) == 16


def test_options_are_all_named_at_once(server: ApiServer) -> None:
    attention = pb.AttentionOptions(layers=[5], heads=[-7])
    refusal = refusal_of(
        server.encoder.Encode,
        request_of(
            pb.Sequence(text=PRIVATE),
            dimensions=-1,
            max_tokens=0,
            prompt=PRIVATE,
            prompt_name=PRIVATE,
            priority=4,
            attention=attention,
        ),
    )
    assert sorted(refusal.fields) == [
        "options.attention.heads[0]",
        "options.attention.layers[0]",
        "options.dimensions",
        "options.max_tokens",
        "options.priority",
        "options.prompt",
    ]
    assert PRIVATE.encode() not in refusal.raw


@pytest.fixture
def wordy_server(serve: ServeApi, prompted_artifact: Path, tmp_path: Path) -> Iterator[ApiServer]:
    """Its names have as many bytes as a folder's may, and its prompts far more than an error may carry."""
    artifact = tmp_path / "artifact"
    shutil.copytree(prompted_artifact, artifact)
    manifest = json.loads((artifact / "manifest.json").read_text())
    manifest["name"] = "語" * 85
    manifest["prompts"] = {f"{number}-" + "語彙検索" * 10: "query: " for number in range(100)}
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    with serve(artifact) as server:
        yield server


WORDY = {
    "prompt": request_of(pb.Sequence(text=PRIVATE), prompt_name=PRIVATE),
    "model": pb.EncodeRequest(model=PRIVATE, inputs=GOOD.inputs),
    "revision": pb.EncodeRequest(expected_revision=PRIVATE, inputs=GOOD.inputs),
    "inputs": request_of(*[too_long()] * 100),
}


@pytest.mark.parametrize("kind", WORDY)
def test_a_refusal_fits_the_metadata_that_clients_take(wordy_server: ApiServer, kind: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        wordy_server.encoder.Encode(WORDY[kind], timeout=30)
    refusal = read_refusal(raised.value)
    assert refusal.code in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")
    assert trailer_bytes(raised.value) < METADATA_LIMIT
    assert PRIVATE.encode() not in refusal.raw


def test_a_full_queue_says_when_to_come_again(serve: ServeApi) -> None:
    with serve(lanes=1, max_inputs=1, max_queued_inputs=2) as server:
        server.engine.gate.clear()
        calls = [server.encoder.Encode.future(GOOD, timeout=TIMEOUT_S)]
        assert server.engine.held.wait(TIMEOUT_S)
        # With one in the lane, two of three are queued and one is refused; only that one ends.
        ended: SimpleQueue[Any] = SimpleQueue()
        calls += [server.encoder.Encode.future(GOOD, timeout=TIMEOUT_S) for _ in range(3)]
        for call in calls:
            call.add_done_callback(ended.put)
        refused = ended.get(timeout=TIMEOUT_S)
        server.engine.gate.set()
        outcomes = [call.code().name for call in calls]
    refusal = read_refusal(refused)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert refusal.retry_delay is not None
    assert 0.05 <= refusal.retry_delay.ToNanoseconds() / 1e9 <= 30
    assert sorted(outcomes) == ["OK", "OK", "OK", "RESOURCE_EXHAUSTED"]


def test_a_reply_too_large_is_not_to_be_retried(small_reply_server: ApiServer) -> None:
    request = request_of(*[pb.Sequence(text="a b c d e")] * 200, token_embeddings=True)
    refusal = refusal_of(small_reply_server.encoder.Encode, request)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
    assert refusal.retry_delay is None
    assert refusal.violations == []


def test_tokens_that_would_be_too_large_a_reply(small_reply_server: ApiServer) -> None:
    request = pb.TokenizeRequest(inputs=[pb.Sequence(text="a b c d e " * 5)] * 200)
    refusal = refusal_of(small_reply_server.encoder.Tokenize, request)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
    small = pb.TokenizeRequest(inputs=request.inputs[:10])
    assert small_reply_server.encoder.Tokenize(small, timeout=30).ByteSize() <= 1 << 16


def test_a_failure_of_ours_tells_nothing_of_its_cause(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(PRIVATE)

    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "run", fail)
        refusal = refusal_of(server.encoder.Encode, GOOD)
    assert (refusal.code, refusal.reason) == ("INTERNAL", "INTERNAL")
    assert PRIVATE.encode() not in refusal.raw
    assert PRIVATE in caplog.text
    assert server.encoder.Encode(GOOD, timeout=30).results[0].token_count > 0


def test_a_bad_input_among_good_ones_carries_the_same_details(server: ApiServer) -> None:
    request = request_of(GOOD.inputs[0], too_long(), on_error=pb.ON_ERROR_PER_INPUT)
    good, bad = server.encoder.Encode(request, timeout=30).results
    assert not good.HasField("status")
    assert bad.status.code == code_pb2.INVALID_ARGUMENT
    info, violations = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert bad.status.details[0].Unpack(info)
    assert bad.status.details[1].Unpack(violations)
    assert (info.domain, info.reason) == ("seqenc", "INVALID_INPUT")
    assert [violation.field for violation in violations.field_violations] == ["inputs[1].text"]
