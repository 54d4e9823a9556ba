"""What every RPC has around it: decoding that cannot fail, one translation of errors, metrics.

gRPC's generated deserialisers answer undecodable bytes with UNKNOWN and a Python repr; these return a
marker, so that the call is refused properly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from service.api.convert import status_of
from service.api.observation import Observer
from service.core.deadline import is_over
from service.errors import Code, InternalError, InvalidInputError, ServiceError

logger = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
UnaryMethod = Callable[[Any, Context], Awaitable[Message]]
StreamMethod = Callable[[Context], Awaitable[None]]
_STATUS_KEY = "grpc-status-details-bin"


class Undecodable:
    """Stands for a request whose bytes are not a message of its type."""

    def __init__(self, message_name: str) -> None:
        self.message_name = message_name

    def error(self) -> InvalidInputError:
        return InvalidInputError.of(
            "request",
            f"its bytes cannot be decoded as {self.message_name}; "
            "send valid protobuf, with UTF-8 in every string field",
        )


def decoder(message: type[Message]) -> Callable[[bytes], Message | Undecodable]:
    def decode(data: bytes) -> Message | Undecodable:
        try:
            return message.FromString(data)
        except DecodeError:
            return Undecodable(message.DESCRIPTOR.name)

    return decode


class RefuseUndecodable(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """The same answer from services of gRPC's own packages: health and reflection."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(details)
        if handler is None or not details.method.startswith("/grpc."):
            return handler
        return _refuse_undecodable(handler)


def _refuse_undecodable(handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """A method handler as it was, but for bytes that its request_deserializer, FromString, cannot decode."""

    async def call(request: Any, context: Context) -> Any:
        await _abort_undecodable(request, context)
        return await (handler.unary_unary or handler.unary_stream)(request, context)

    async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async def decoded() -> AsyncIterator[Any]:
            async for request in requests:
                await _abort_undecodable(request, context)
                yield request

        async for response in handler.stream_stream(decoded(), context):
            yield response

    refusing: grpc.RpcMethodHandler[Any, Any] = handler._replace(
        request_deserializer=decoder(handler.request_deserializer.__self__),
        unary_unary=handler.unary_unary and call,
        unary_stream=handler.unary_stream and call,
        stream_stream=handler.stream_stream and stream,
    )
    return refusing


async def _abort_undecodable(request: Message | Undecodable, context: Context) -> None:
    if isinstance(request, Undecodable):
        await _abort(context, request.error())


def check_decoded(request: Message | Undecodable) -> None:
    if isinstance(request, Undecodable):
        raise request.error()


def unary(
    name: str, request: type[Message], method: UnaryMethod, observer: Observer
) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(message: Message | Undecodable, context: Context) -> Message:
        async with _observe(name, context, observer):
            check_decoded(message)
            return await method(message, context)

    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=decoder(request), response_serializer=_serialize
    )


def stream(
    name: str, request: type[Message], method: StreamMethod, observer: Observer
) -> grpc.RpcMethodHandler[Any, Any]:
    """`method` reads from its context, which may give Undecodable, and writes to it."""

    async def handle(_: object, context: Context) -> None:
        async with _observe(name, context, observer):
            await method(context)

    return grpc.stream_stream_rpc_method_handler(
        handle, request_deserializer=decoder(request), response_serializer=_serialize
    )


def refusal(name: str | None, error: ServiceError, observer: Observer) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers any kind of call without waiting for its request; without a name it is in no metric."""

    async def handle(_: object, context: Context) -> None:
        if name is None:
            await _abort(context, error)
        async with _observe(name, context, observer):
            raise error

    return grpc.stream_stream_rpc_method_handler(handle)


def as_service_error(error: Exception) -> ServiceError:
    """What a caller is told; an error that is not ours goes to the log and becomes a fixed text."""
    if isinstance(error, ServiceError):
        return error
    logger.error("unexpected error", exc_info=error)
    return InternalError()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


@asynccontextmanager
async def _observe(name: str, context: Context, observer: Observer) -> AsyncIterator[None]:
    record = observer.begin(name)
    code = "OK"
    failure: ServiceError | None = None
    try:
        yield
        # An answer that comes too late is not passed on.
        if context.time_remaining() == 0:
            code = Code.DEADLINE_EXCEEDED
    except (asyncio.CancelledError, grpc.aio.InternalError):
        # gRPC's own InternalError: what was written found no caller any more.
        code = _cancel_code(context, time.perf_counter() - record.begun)
        raise asyncio.CancelledError from None
    except Exception as raised:
        failure = as_service_error(raised)
        code = str(failure.code)
    finally:
        observer.end(record, code, failure, context.invocation_metadata() or ())
    # Only then is the caller answered, so that a scrape after the answer shows the call.
    if failure:
        await _abort(context, failure)


def _cancel_code(context: Context, elapsed_s: float) -> Code:
    remaining_s = context.time_remaining()
    over = remaining_s is not None and is_over(remaining_s, remaining_s + elapsed_s)
    return Code.DEADLINE_EXCEEDED if over else Code.CANCELLED


async def _abort(context: Context, error: ServiceError) -> NoReturn:
    status: status_pb2.Status = status_of(error)
    await context.abort(
        grpc.StatusCode[error.code],
        status.message,
        trailing_metadata=((_STATUS_KEY, status.SerializeToString()),),
    )
