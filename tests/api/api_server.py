"""The gRPC address of a server in this process, on an event loop of its own, with an engine to watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import grpc

from seqenc.v1.encoder_pb2_grpc import EncoderServiceStub
from service.api.grpc_server import GrpcServer
from service.api.inference import open_inference_pb2 as inference
from service.api.lifecycle import Lifecycle
from service.config import ServeSettings
from service.core.collation import BatchArrays
from service.core.engine import Engine, GraphKind
from service.core.pipeline import Pipeline
from service.metrics import Metrics
from service.types import Array
from service.wiring import build_pipeline

TIMEOUT_S = 30.0
Result = TypeVar("Result")
_NO_LIMIT = (("grpc.max_receive_message_length", -1),)


class WatchedEngine(Engine):
    """`runs` has the graph and the output names of every batch; batches wait while `gate` is not set.

    `held` is set once one has come to wait.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.runs: list[tuple[GraphKind, tuple[str, ...]]] = []
        self.held = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def run(
        self, graph: GraphKind, arrays: BatchArrays, output_names: Sequence[str], *rest: Any
    ) -> dict[str, Array]:
        self.runs.append((graph, tuple(output_names)))
        if not self.gate.is_set():
            self.held.set()
        if not self.gate.wait(TIMEOUT_S):
            raise TimeoutError("the test never opened the gate")
        return super().run(graph, arrays, output_names, *rest)


class InferenceStub:
    """The Open Inference Protocol's calls; its generated stubs are not shipped."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=getattr(inference, f"{name}Request").SerializeToString,
            response_deserializer=getattr(inference, f"{name}Response").FromString,
        )


@dataclass(frozen=True)
class ApiServer:
    engine: WatchedEngine
    pipeline: Pipeline
    lifecycle: Lifecycle
    channel: grpc.Channel

    @property
    def encoder(self) -> EncoderServiceStub:
        return EncoderServiceStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def inference(self) -> InferenceStub:
        return InferenceStub(self.channel)


@contextmanager
def serve_api(artifact: Path, *, ready: bool = True, **settings: Any) -> Iterator[ApiServer]:
    """With the model ready unless told otherwise; stops when left."""
    given = ServeSettings(artifact=artifact, grpc_address="127.0.0.1:0", **settings)
    engines: list[WatchedEngine] = []

    def build_engine(*arguments: Any) -> WatchedEngine:
        engines.append(WatchedEngine(*arguments))
        return engines[-1]

    lifecycle, metrics = Lifecycle(), Metrics()
    with mock.patch("service.wiring.Engine", build_engine):
        pipeline = build_pipeline(given, metrics)
    if ready:
        lifecycle.serve(pipeline)
    engines[0].runs.clear()
    with _running_loop() as loop:
        server = _in(loop, _start(given, lifecycle, metrics))
        try:
            with grpc.insecure_channel(server.address, _NO_LIMIT) as channel:
                yield ApiServer(engines[0], pipeline, lifecycle, channel)
        finally:
            engines[0].gate.set()
            _in(loop, server.stop(0))


async def _start(settings: ServeSettings, lifecycle: Lifecycle, metrics: Metrics) -> GrpcServer:
    server = GrpcServer(settings, lifecycle, metrics)
    await server.start()
    return server


@contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="api", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


def _in(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(TIMEOUT_S)
