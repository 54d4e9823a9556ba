"""A server on the test's own event loop, with settings of the test, and what calls to it come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.api.grpc_server import GrpcServer
from service.api.lifecycle import Lifecycle
from service.config import ServeSettings
from service.metrics import Metrics
from service.wiring import build_pipeline

TIMEOUT_S = 30.0
# Channels of one process share connections unless told not to.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True)
class OwnServer:
    server: GrpcServer
    lifecycle: Lifecycle
    metrics: Metrics

    def channel(self, *options: tuple[str, Any]) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.server.address, (*OWN_CONNECTION, *options))

    def secure_channel(self, credentials: grpc.ChannelCredentials, name: str) -> grpc.aio.Channel:
        options = (*OWN_CONNECTION, ("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(self.server.address, credentials, options)


@asynccontextmanager
async def serve_here(artifact: Path | None = None, **settings: Any) -> AsyncIterator[OwnServer]:
    """Without an artifact its calls are answered NOT_READY."""
    given = ServeSettings(artifact=artifact or Path(), grpc_address="127.0.0.1:0", **settings)
    lifecycle, metrics = Lifecycle(), Metrics()
    server = GrpcServer(given, lifecycle, metrics)
    if artifact:
        lifecycle.serve(build_pipeline(given, metrics))
    try:
        await server.start()
        yield OwnServer(server, lifecycle, metrics)
    finally:
        await server.stop(0)
        lifecycle.close()


async def check_health(channel: grpc.aio.Channel, service: str = "") -> str:
    """The name of the status, of the service's health or of the call that failed."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def code_of(call: Awaitable[Any]) -> str:
    try:
        await asyncio.wait_for(call, TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def read_all(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not reached():  # noqa: ASYNC110  # neither a metric nor a log tells anybody that it moved
            await asyncio.sleep(0)


def raw_unary(channel: grpc.aio.Channel, method: str) -> Any:
    """Sends and gets bytes."""
    return channel.unary_unary(method, request_serializer=None, response_deserializer=None)


def raw_stream(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.stream_stream(method, request_serializer=None, response_deserializer=None)
