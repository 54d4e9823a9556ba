"""No text of a user's in logs, metrics or errors, whatever happens to the call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client import generate_latest

from api.own_server import TIMEOUT_S, raw_stream, raw_unary, serve_here
from api.tensors import infer_request
from seqenc.v1 import encoder_pb2 as pb
from service.api.inference import open_inference_pb2 as inference
from service.core.engine import Engine
from service.logs import configure_logging

# Of letters that survive lower-casing and tokenisation as parts of themselves.
MARK = "zanzibar"
LONG = f"{MARK} " * 80
ENCODE = "/seqenc.v1.EncoderService/Encode"
STREAM = "/seqenc.v1.EncoderService/EncodeStream"
TOKENIZE = "/seqenc.v1.EncoderService/Tokenize"
GET_MODEL = "/seqenc.v1.EncoderService/GetModel"
INFERENCE = "/inference.GRPCInferenceService"
INFER = f"{INFERENCE}/ModelInfer"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIMITS = {"max_text_characters": 1000, "max_message_bytes": 1 << 16, "attention_maps": False}


@dataclass(frozen=True)
class Case:
    """`code` is what the call, or else its only input or message, comes to."""

    method: str
    request: Message | bytes
    code: str
    settings: dict[str, Any] = field(default_factory=dict)
    before: Callable[[pytest.MonkeyPatch], None] | None = None
    with_artifact: bool = True

    @property
    def data(self) -> bytes:
        return self.request if isinstance(self.request, bytes) else self.request.SerializeToString()


def encode(text: str = f"where is {MARK}?", **fields: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=[pb.Sequence(text=text)], **fields)


def infer(**fields: Any) -> inference.ModelInferRequest:
    return infer_request({"text": [f"where is {MARK}?"]}, **fields)


def options(**fields: Any) -> pb.EncodeOptions:
    return pb.EncodeOptions(**fields)


def fail_engine(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the engine failed")

    patch.setattr(Engine, "run", fail)


def shrink_engine_outputs(patch: pytest.MonkeyPatch) -> None:
    run = Engine.run

    def shrink(*arguments: Any) -> Any:
        return {name: output[:0] for name, output in run(*arguments).items()}

    patch.setattr(Engine, "run", shrink)


PAIR = pb.EncodeRequest(inputs=[pb.Sequence(text_pair=pb.TextPair(first=MARK, second=LONG))])
ENCODES = {
    "good": Case(ENCODE, encode(request_id=MARK), "OK"),
    "good with tokens": Case(ENCODE, encode(options=options(tokens=True)), "OK"),
    "too long": Case(ENCODE, encode(LONG), "INVALID_ARGUMENT"),
    "too long, per input": Case(
        ENCODE, encode(LONG, options=options(on_error=pb.ON_ERROR_PER_INPUT)), "INVALID_ARGUMENT"
    ),
    "too many characters": Case(ENCODE, encode(LONG * 3), "INVALID_ARGUMENT"),
    "long pair": Case(ENCODE, PAIR, "INVALID_ARGUMENT"),
    "unknown model": Case(ENCODE, encode(model=MARK), "NOT_FOUND"),
    "other revision": Case(ENCODE, encode(expected_revision=MARK), "FAILED_PRECONDITION"),
    "unknown prompt": Case(ENCODE, encode(options=options(prompt_name=MARK)), "INVALID_ARGUMENT"),
    "long prompt": Case(ENCODE, encode(options=options(prompt=LONG)), "INVALID_ARGUMENT"),
    "two prompts": Case(ENCODE, encode(options=options(prompt=MARK, prompt_name=MARK)), "INVALID_ARGUMENT"),
    "bad dimensions": Case(ENCODE, encode(options=options(dimensions=9999)), "INVALID_ARGUMENT"),
    "no maps": Case(ENCODE, encode(options=options(attention={})), "FAILED_PRECONDITION"),
    "large reply": Case(
        ENCODE,
        pb.EncodeRequest(inputs=encode().inputs[:] * 200, options=options(token_embeddings=True)),
        "RESOURCE_EXHAUSTED",
    ),
    "not UTF-8": Case(ENCODE, b"\x12\x0c\x0a\x0a" + MARK.encode() + b"\xc3\x28", "INVALID_ARGUMENT"),
    "over the message limit": Case(ENCODE, encode(LONG * 200), "RESOURCE_EXHAUSTED"),
    "not ready": Case(ENCODE, encode(), "UNAVAILABLE", with_artifact=False),
    "failing engine": Case(ENCODE, encode(), "INTERNAL", before=fail_engine),
    "wrong shape": Case(ENCODE, encode(), "INTERNAL", before=shrink_engine_outputs),
    "too late": Case(ENCODE, encode(), "DEADLINE_EXCEEDED", {"default_deadline_s": 1e-6}),
}
OTHERS = {
    "tokenize": Case(TOKENIZE, pb.TokenizeRequest(inputs=encode().inputs), "OK"),
    "tokenize too long": Case(TOKENIZE, pb.TokenizeRequest(inputs=encode(LONG).inputs), "INVALID_ARGUMENT"),
    "tokenize unknown model": Case(TOKENIZE, pb.TokenizeRequest(inputs=PAIR.inputs, model=MARK), "NOT_FOUND"),
    "model": Case(GET_MODEL, pb.GetModelRequest(model=MARK), "NOT_FOUND"),
    "infer": Case(INFER, infer(id=MARK), "OK"),
    "infer unknown model": Case(INFER, infer(model_name=MARK), "NOT_FOUND"),
    "infer other version": Case(INFER, infer(model_version=MARK), "FAILED_PRECONDITION"),
    "infer long": Case(INFER, infer_request({"text": [LONG]}), "INVALID_ARGUMENT"),
    "infer input name": Case(INFER, infer_request({MARK: [MARK]}), "INVALID_ARGUMENT"),
    "infer output name": Case(INFER, infer(outputs=[MARK]), "INVALID_ARGUMENT"),
    "infer parameter name": Case(INFER, infer(parameters={MARK: MARK}), "INVALID_ARGUMENT"),
    "infer parameter value": Case(INFER, infer(parameters={"pooling": MARK}), "INVALID_ARGUMENT"),
    "infer failing engine": Case(INFER, infer(), "INTERNAL", before=fail_engine),
    "infer model ready": Case(f"{INFERENCE}/ModelReady", inference.ModelReadyRequest(name=MARK), "NOT_FOUND"),
    "infer metadata": Case(
        f"{INFERENCE}/ModelMetadata", inference.ModelMetadataRequest(name=MARK), "NOT_FOUND"
    ),
    "health": Case("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=MARK), "NOT_FOUND"),
    "reflection": Case(
        REFLECTION, reflection_pb2.ServerReflectionRequest(host=MARK, file_containing_symbol=MARK), "OK"
    ),
    "unknown method": Case(f"/{MARK}.Service/{MARK}", b"", "UNIMPLEMENTED"),
}
STREAMED = {
    f"streamed, {name}": Case(STREAM, case.request, case.code, case.settings, case.before, case.with_artifact)
    for name, case in ENCODES.items()
}


@pytest.fixture
def debug_log() -> Iterator[None]:
    """The server's own log, at its lowest level, on standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging("json", "debug")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    "case", [*ENCODES.values(), *STREAMED.values(), *OTHERS.values()], ids=[*ENCODES, *STREAMED, *OTHERS]
)
async def test_what_is_logged_counted_and_refused(
    case: Case,
    tiny_artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    debug_log: None,
) -> None:
    artifact = tiny_artifact if case.with_artifact else None
    async with serve_here(artifact, **LIMITS | case.settings) as server, server.channel() as channel:
        if case.before:
            case.before(monkeypatch)
        code, refused = await asyncio.wait_for(call(channel, case), TIMEOUT_S)
        metrics = generate_latest(server.metrics.registry).decode()
    output = capfd.readouterr()
    assert code == case.code
    assert "listening" in output.err
    for text in (refused, metrics, output.err, output.out):
        assert MARK not in text.lower()


async def call(channel: grpc.aio.Channel, case: Case) -> tuple[str, str]:
    """The code, and all that a caller is told of why."""
    headers = (("x-request-id", MARK),)
    try:
        if case.method in (STREAM, REFLECTION):
            stream = raw_stream(channel, case.method)(iter([case.data]), metadata=headers)
            (reply,) = [message async for message in stream]
        else:
            reply = await raw_unary(channel, case.method)(case.data, metadata=headers)
    except grpc.aio.AioRpcError as error:
        return error.code().name, f"{error.details()} {tuple(error.trailing_metadata())}"
    statuses = statuses_of(case.method, reply)
    codes = [grpc_code(status.code) for status in statuses if status.code]
    return (codes or ["OK"])[0], str([status.SerializeToString() for status in statuses])


def statuses_of(method: str, reply: bytes) -> list[Any]:
    if method == ENCODE:
        return [result.status for result in pb.EncodeResponse.FromString(reply).results]
    if method == STREAM:
        answer = pb.EncodeStreamResponse.FromString(reply)
        return [answer.error, *(result.status for result in answer.response.results)]
    return []


def grpc_code(number: int) -> str:
    return next(code.name for code in grpc.StatusCode if code.value[0] == number)


async def test_calls_that_are_refused_unread_or_left(
    tiny_artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], debug_log: None
) -> None:
    """By the token, the quota and the limit on calls; and a caller that goes away."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice:{MARK}-secret-0123456789\n")
    told = [
        await refused_by(tiny_artifact, settings)
        for settings in ({"tokens_file": tokens}, {"quota_inputs_per_s": 1e-3}, {"max_concurrent_calls": 1})
    ]
    assert [code for code, _ in told] == ["UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
    output = capfd.readouterr()
    for text in (output.err, output.out, *(text for _, text in told)):
        assert MARK not in text.lower()


async def refused_by(artifact: Path, settings: dict[str, Any]) -> tuple[str, str]:
    async with serve_here(artifact, **settings) as server, server.channel() as channel:
        held = raw_stream(channel, STREAM)()
        if "tokens_file" not in settings:
            await held.write(encode().SerializeToString())
            await held.read()
        told = await call(channel, Case(ENCODE, encode(), ""))
        held.cancel()
        assert MARK not in generate_latest(server.metrics.registry).decode()
        return told
