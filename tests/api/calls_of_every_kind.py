"""A good request of every method that the metrics know, and what calls with it come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from api.own_server import code_of, raw_stream, raw_unary, read_all
from api.tensors import infer_request
from seqenc.v1 import encoder_pb2 as pb
from service.api.inference import open_inference_pb2 as inference

ENCODER, INFERENCE = "/seqenc.v1.EncoderService/", "/inference.GRPCInferenceService/"
UNDECODABLE = b"\xff"
TEXTS = [pb.Sequence(text="a")]


@dataclass(frozen=True)
class Method:
    service: str
    name: str
    good: Message

    @property
    def path(self) -> str:
        return self.service + self.name

    async def code(self, channel: grpc.aio.Channel, request: bytes | None = None, **options: Any) -> str:
        """Of a call with the good request or another one."""
        data = self.good.SerializeToString() if request is None else request
        if self.name == "EncodeStream":
            return await code_of(read_all(raw_stream(channel, self.path)(iter([data]), **options)))
        return await code_of(raw_unary(channel, self.path)(data, **options))


METHODS = {
    method.name: method
    for method in (
        Method(ENCODER, "Encode", pb.EncodeRequest(inputs=TEXTS)),
        Method(ENCODER, "EncodeStream", pb.EncodeRequest(inputs=TEXTS)),
        Method(ENCODER, "Tokenize", pb.TokenizeRequest(inputs=TEXTS)),
        Method(ENCODER, "GetModel", pb.GetModelRequest()),
        Method(INFERENCE, "ServerLive", inference.ServerLiveRequest()),
        Method(INFERENCE, "ServerReady", inference.ServerReadyRequest()),
        Method(INFERENCE, "ModelReady", inference.ModelReadyRequest()),
        Method(INFERENCE, "ServerMetadata", inference.ServerMetadataRequest()),
        Method(INFERENCE, "ModelMetadata", inference.ModelMetadataRequest()),
        Method(INFERENCE, "ModelInfer", infer_request({"text": ["a"]})),
    )
}
