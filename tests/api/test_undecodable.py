"""Bytes that are no message of their type are the caller's fault on every rpc of every service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from api.api_server import ApiServer
from api.refusals import Refusal, read_refusal
from seqenc.v1 import encoder_pb2 as pb

UNARY = (
    "/seqenc.v1.EncoderService/Encode",
    "/seqenc.v1.EncoderService/Tokenize",
    "/seqenc.v1.EncoderService/GetModel",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelInfer",
    "/grpc.health.v1.Health/Check",
)
STREAMS = {
    "/seqenc.v1.EncoderService/EncodeStream": "stream_stream",
    "/grpc.health.v1.Health/Watch": "unary_stream",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream_stream",
}
BYTES = {
    "cut short": b"\x0a\x7fxyzzy",
    "a tag without end": b"\xff" * 11,
    "groups without end": b"\x0b" * 2000,
    "a huge length": b"\x0a\xff\xff\xff\xff\x0f",
}
NOT_UTF_8 = {
    "/seqenc.v1.EncoderService/Encode": b"\x12\x07\x0a\x05xyz\xc3\x28",  # inputs[0].text
    "/seqenc.v1.EncoderService/Tokenize": b"\x0a\x05xyz\xf0\x9f",  # model, as below
    "/seqenc.v1.EncoderService/GetModel": b"\x0a\x05xyz\xed\xa0",
    "/inference.GRPCInferenceService/ModelReady": b"\x0a\x05xyz\xff\xff",
    "/inference.GRPCInferenceService/ModelMetadata": b"\x0a\x05xyz\xc0\x80",
    "/inference.GRPCInferenceService/ModelInfer": b"\x2a\x07\x0a\x05xyz\xc3\x28",  # inputs[0].name
    "/grpc.health.v1.Health/Check": b"\x0a\x05xyz\xf0\x9f",
}


def refusal(send: Callable[[], Any]) -> Refusal:
    with pytest.raises(grpc.RpcError) as raised:
        send()
    return read_refusal(raised.value)


def assert_invalid(found: Refusal) -> None:
    assert found.code == "INVALID_ARGUMENT"
    assert (found.reason, found.fields) == ("INVALID_INPUT", ["request"])
    assert b"xyz" not in found.raw
    assert b"DecodeError" not in found.raw


def assert_good(server: ApiServer) -> None:
    response = server.encoder.Encode(pb.EncodeRequest(inputs=[pb.Sequence(text="fine")]), timeout=30)
    assert response.results[0].token_count > 0


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("method", UNARY)
def test_undecodable_bytes_are_invalid(server: ApiServer, method: str, kind: str) -> None:
    call = server.channel.unary_unary(method, None, None)
    assert_invalid(refusal(lambda: call(BYTES[kind], timeout=30)))
    assert_good(server)


@pytest.mark.parametrize("method", NOT_UTF_8)
def test_text_that_is_not_utf_8_is_invalid(server: ApiServer, method: str) -> None:
    call = server.channel.unary_unary(method, None, None)
    assert_invalid(refusal(lambda: call(NOT_UTF_8[method], timeout=30)))
    assert_good(server)


@pytest.mark.parametrize("kind", ["cut short", "groups without end"])
@pytest.mark.parametrize("method", STREAMS)
def test_undecodable_bytes_end_a_stream_as_invalid(server: ApiServer, method: str, kind: str) -> None:
    call = getattr(server.channel, STREAMS[method])(method, None, None)
    message = iter([BYTES[kind]]) if STREAMS[method] == "stream_stream" else BYTES[kind]
    assert_invalid(refusal(lambda: list(call(message, timeout=30))))
    assert_good(server)


def test_a_stream_answers_what_was_sent_before_the_undecodable_bytes(server: ApiServer) -> None:
    good = pb.EncodeRequest(inputs=[pb.Sequence(text="fine")], request_id="1").SerializeToString()
    call = server.channel.stream_stream(
        "/seqenc.v1.EncoderService/EncodeStream", None, pb.EncodeStreamResponse.FromString
    )
    answers = iter(call(iter([good, good, BYTES["cut short"], good]), timeout=30))
    assert [next(answers).response.request_id for _ in range(2)] == ["1", "1"]
    assert_invalid(refusal(lambda: next(answers)))
