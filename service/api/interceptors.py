"""What a call, but of health, passes before its request is read: bearer tokens, the limit on calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from service.api import encode, health, open_inference
from service.api.callers import remember_token_name
from service.api.handlers import refusal
from service.api.observation import Observer
from service.api.rereading import Rereading
from service.api.tokens import Tokens
from service.errors import QueueFullError, ServiceError, UnauthenticatedError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

_HEALTH = f"/{health.SERVICE_NAME}/"
_COUNTED = (f"/{encode.SERVICE_NAME}/", f"/{open_inference.SERVICE_NAME}/")
_INTERVAL_WEIGHT = 0.2
_RETRY_AFTER_S = (0.05, 30.0)


class RequireToken(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    def __init__(self, tokens: Rereading[Tokens], observer: Observer) -> None:
        self._tokens = tokens
        self._observer = observer

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> Handler:
        if not details.method.startswith(_HEALTH):
            name = self._tokens.current().name_of(_authorization(details))
            if name is None:
                return _refuse(details, UnauthenticatedError(), self._observer)
            remember_token_name(name)
        return await continuation(details)


class LimitCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """A call counts until its task ends, however it ends."""

    def __init__(self, limit: int, observer: Observer) -> None:
        self._limit = limit
        self._observer = observer
        self._calls: set[asyncio.Task[Any]] = set()
        self._ended_at = 0.0
        self._interval_s = 1.0

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> Handler:
        if details.method.startswith(_HEALTH):
            return await continuation(details)
        if len(self._calls) >= self._limit:
            return _refuse(details, self._full(), self._observer)
        call = _current_task()
        self._calls.add(call)
        call.add_done_callback(self._end)
        return await continuation(details)

    async def wait_for_ends(self, timeout_s: float) -> None:
        """Of the calls in work."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=timeout_s)

    def _full(self) -> QueueFullError:
        lowest, highest = _RETRY_AFTER_S
        return QueueFullError(
            f"{len(self._calls)} calls are in work, the limit is {self._limit} (--max-concurrent-calls); "
            "try again later or call another server",
            retry_after_s=min(max(self._interval_s, lowest), highest),
        )

    def _end(self, call: asyncio.Task[Any]) -> None:
        now = asyncio.get_running_loop().time()
        self._interval_s += _INTERVAL_WEIGHT * (now - self._ended_at - self._interval_s)
        self._ended_at = now
        self._calls.discard(call)


def _authorization(details: grpc.HandlerCallDetails) -> str:
    """The one value of that header; empty when there is none or more than one."""
    values = [value for key, value in details.invocation_metadata or () if key == "authorization"]
    return str(values[0]) if len(values) == 1 else ""


def _refuse(details: grpc.HandlerCallDetails, error: ServiceError, observer: Observer) -> Handler:
    """Counted under the methods that the metrics know."""
    counted = details.method.startswith(_COUNTED)
    return refusal(details.method.rpartition("/")[2] if counted else None, error, observer)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("an interceptor is run by the task of its call")
    return task
