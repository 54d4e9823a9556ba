"""A small server on a real socket whose answers a test can compute, and both clients behind one interface."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from seqenc import AsyncClient, Client, RetryPolicy
from seqenc.v1 import encoder_pb2 as pb
from seqenc.v1 import encoder_pb2_grpc

DIMENSIONS = 4
IMMEDIATE = RetryPolicy(jitter=lambda: 0.0)


def build_status(
    code: grpc.StatusCode,
    message: str = "",
    *,
    reason: str = "",
    violations: dict[str, str] | None = None,
    retry_after_s: float | None = None,
) -> status_pb2.Status:
    packed = []
    if reason:
        packed.append(details.ErrorInfo(reason=reason, domain="seqenc"))
    if violations:
        fields = [
            details.BadRequest.FieldViolation(field=name, description=text)
            for name, text in violations.items()
        ]
        packed.append(details.BadRequest(field_violations=fields))
    if retry_after_s is not None:
        retry = details.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(retry_after_s * 1e9))
        packed.append(retry)
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in packed:
        status.details.append(Packed())
        status.details[-1].Pack(detail)
    return status


def vector_of(sequence: pb.Sequence) -> np.ndarray:
    """Distinct for distinct texts of a test, in place of an encoder."""
    data = sequence.SerializeToString()
    return np.array([len(data), *np.frombuffer(data[-3:].rjust(3), np.uint8)], np.float32)


def encode(request: pb.EncodeRequest) -> pb.EncodeResponse:
    rows = np.stack([vector_of(sequence) for sequence in request.inputs])
    return pb.EncodeResponse(
        request_id=request.request_id,
        embeddings=pb.Tensor(type=pb.DATA_TYPE_FLOAT32, shape=rows.shape, data=rows.tobytes()),
        results=[pb.Encoding(token_count=len(sequence.text)) for sequence in request.inputs],
        model="fake",
        revision="r1",
        precision="fp32",
        timing=pb.Timing(total_seconds=len(request.inputs)),
    )


def tokenize(request: pb.TokenizeRequest) -> pb.TokenizeResponse:
    results = [
        pb.TokenizedSequence(tokens=[pb.Token(id=7, text=sequence.text, end=len(sequence.text))])
        for sequence in request.inputs
    ]
    return pb.TokenizeResponse(results=results)


@dataclass
class FakeEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Gives its failures one a call, or one a message of a stream, and answers after them."""

    model: pb.Model = field(
        default_factory=lambda: pb.Model(
            name="fake",
            revision="r1",
            embedding_size=DIMENSIONS,
            precision="fp32",
            pooling=pb.POOLING_MEAN,
            prompts={"query": "query: "},
            max_input_count=100,
            max_message_bytes=1 << 20,
        )
    )
    answer: Callable[[pb.EncodeRequest], pb.EncodeResponse] = encode
    before: Callable[[Any, grpc.ServicerContext], None] | None = None
    failures: deque[status_pb2.Status] = field(default_factory=deque)
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)
    breaks: deque[int] = field(default_factory=deque)  # a stream each: answers it gives before it breaks
    streams_opened: int = 0
    streams_finished: int = 0
    stream_gone: threading.Event = field(default_factory=threading.Event)
    health: health.HealthServicer = field(default_factory=health.HealthServicer)
    address: str = ""

    def fail(self, code: str, message: str = "", *, times: int = 1, **details: Any) -> None:
        """The next calls, or the next messages of a stream, fail."""
        self.failures.extend([build_status(grpc.StatusCode[code], message, **details)] * times)

    def abort(self, context: grpc.ServicerContext, code: str, message: str = "", **details: Any) -> None:
        """One call alone, from within `before`."""
        abort(context, build_status(grpc.StatusCode[code], message, **details))

    def rows(self, texts: Iterable[str]) -> np.ndarray:
        return np.stack([vector_of(pb.Sequence(text=text)) for text in texts])

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:
        self._enter(request, context)
        return self.answer(request)

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeResponse:
        self._enter(request, context)
        return tokenize(request)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=self.model)

    def EncodeStream(
        self, requests: Iterator[pb.EncodeRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.EncodeStreamResponse]:
        self.streams_opened += 1
        context.add_callback(self.stream_gone.set)
        self.timeouts.append(context.time_remaining())
        answers_left = self.breaks.popleft() if self.breaks else None
        for request in requests:
            if answers_left == 0:
                abort(context, build_status(grpc.StatusCode.UNAVAILABLE, "draining", reason="DRAINING"))
            self.requests.append(request)
            yield self._stream_response(request)
            if answers_left is not None:
                answers_left -= 1
        self.streams_finished += 1

    def _stream_response(self, request: pb.EncodeRequest) -> pb.EncodeStreamResponse:
        if self.failures:
            return pb.EncodeStreamResponse(error=self.failures.popleft())
        return pb.EncodeStreamResponse(response=self.answer(request))

    def _enter(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.timeouts.append(context.time_remaining())
        if self.before:
            self.before(request, context)
        if self.failures:
            abort(context, self.failures.popleft())


def abort(context: grpc.ServicerContext, status: status_pb2.Status) -> None:
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.abort(code, status.message)


class Blocking:
    """An AsyncClient used like a Client."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def encode_stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        stream = self._client.encode_stream(*args, **options)
        try:
            while (encoding := self._runner.run(anext(stream, None))) is not None:
                yield encoding
        finally:
            self._runner.run(stream.aclose())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **options: self._runner.run(method(*args, **options))


@pytest.fixture(name="build_status")
def build_status_fixture() -> Callable[..., status_pb2.Status]:
    return build_status


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeEncoder]]:
    """Starts servers that stop with the test."""
    with ExitStack() as stack:

        def start(credentials: grpc.ServerCredentials | None = None, **settings: Any) -> FakeEncoder:
            encoder = FakeEncoder(**settings)
            server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
            encoder_pb2_grpc.add_EncoderServiceServicer_to_server(encoder, server)
            health_pb2_grpc.add_HealthServicer_to_server(encoder.health, server)
            encoder.health.set("", health_pb2.HealthCheckResponse.SERVING)
            if credentials:
                port = server.add_secure_port("127.0.0.1:0", credentials)
            else:
                port = server.add_insecure_port("127.0.0.1:0")
            encoder.address = f"127.0.0.1:{port}"
            server.start()
            stack.callback(lambda: server.stop(grace=None).wait())
            return encoder

        yield start


@pytest.fixture
def server(serve: Callable[..., FakeEncoder]) -> FakeEncoder:
    return serve()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients, of either kind, that close with the test and do not wait between retries."""
    with ExitStack() as stack:

        def build(address: Any, **options: Any) -> Any:
            options = {"retry": IMMEDIATE, **options}
            if request.param == "sync":
                return stack.enter_context(Client(address, **options))
            runner = stack.enter_context(asyncio.Runner())
            client = Blocking(AsyncClient(address, **options), runner)
            stack.callback(client.close)
            return client

        yield build


@pytest.fixture
def client(connect: Callable[..., Any], server: FakeEncoder) -> Any:
    return connect(server.address)
