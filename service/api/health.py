"""grpc.health.v1: whether calls are served, asked once or watched; a watch ends when the server drains.

gRPC's own servicer keeps its watches open until the drain has timed out, and one watcher that reads nothing
can keep it from changing its status at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE_NAME = "grpc.health.v1.Health"
_Context = grpc.aio.ServicerContext[Any, Any]
_Response = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """All `names` have the same status, NOT_SERVING at first."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._status = _Response.NOT_SERVING
        self._changed = asyncio.Event()
        self._closed = False

    def set_serving(self, serving: bool) -> None:
        self._status = _Response.SERVING if serving else _Response.NOT_SERVING
        self._wake()

    def close(self) -> None:
        """Ends the watches."""
        self._closed = True
        self._wake()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> Any:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return _Response(status=self._status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: _Context) -> None:
        written = None
        while not self._closed:
            changed = self._changed
            status = self._status if request.service in self._names else _Response.SERVICE_UNKNOWN
            if status != written:
                await context.write(_Response(status=status))
                written = status
            await changed.wait()

    def _wake(self) -> None:
        """Each event is of one state and is set when that has passed."""
        self._changed.set()
        self._changed = asyncio.Event()
