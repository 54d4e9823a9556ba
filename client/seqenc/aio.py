"""The asyncio client: the same as the blocking one, for one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar, Unpack

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue

from seqenc.channel import Address, Rotation, Stubs, build_connection
from seqenc.checks import check_text
from seqenc.decode import decode_model, empty_result, merge_encoded, merge_tokenized
from seqenc.errors import CallCancelledError, ReplyTooLargeError, SeqencError, error_from_call
from seqenc.health import health_of_error, health_of_response
from seqenc.inputs import build_sequence, build_sequences, each_input
from seqenc.options import build_options, build_tokenize_options
from seqenc.requests import Chunk, Chunker, split
from seqenc.retry import DEFAULT_RETRY, Attempts, Deadline, RetryPolicy
from seqenc.settings import ClientSettings
from seqenc.stream import Progress, StreamWindow, ended_early
from seqenc.types import (
    EncodeOptions,
    EncodeResult,
    Encoding,
    Input,
    Inputs,
    ModelInfo,
    Tls,
    Tokenization,
    TokenizeOptions,
)
from seqenc.v1 import encoder_pb2 as pb

T = TypeVar("T")
_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# In which process grpc.aio was first used: in one that is forked from it every call would wait for ever.
_process: int | None = None


class AsyncClient:
    """Takes what Client takes. Connects on first use, so it may be made outside of the event loop.

    It belongs to one event loop at a time: once that is closed, as asyncio.run leaves it, to the next one.
    """

    def __init__(
        self,
        address: Address,
        *,
        tls: bool | str | Path | Tls | None = None,
        token: str | None = None,
        model: str = "",
        expected_revision: str = "",
        deadline_s: float | None = None,
        max_concurrent_calls: int = 4,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        connection = build_connection(address, tls, token)
        self._settings = ClientSettings(
            connection, model, expected_revision, deadline_s, max_concurrent_calls, retry
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: Rotation[Stubs] = Rotation([])
        self._closed = False
        self._info: ModelInfo | None = None

    async def encode(
        self,
        inputs: Inputs,
        *,
        deadline_s: float | None = None,
        request_id: str = "",
        **options: Unpack[EncodeOptions],
    ) -> EncodeResult:
        """Raises SeqencError where the call fails; with on_error="per_input" bad inputs only get a status."""
        template = self._settings.template(build_options(**options), request_id)
        sequences = build_sequences(inputs)
        deadline = self._settings.deadline(deadline_s)
        info = await self._limits(deadline)
        if not sequences:
            return empty_result(info, template.options, request_id)
        chunks = split(sequences, template.chunker(info))
        return merge_encoded(await self._answers("encode", template.encode, list(chunks), deadline))

    def encode_stream(
        self,
        inputs: Inputs | AsyncIterable[Input],
        *,
        batch_size: int = 64,
        progress: Progress | None = None,
        deadline_s: float | None = None,
        request_id: str = "",
        **options: Unpack[EncodeOptions],
    ) -> AsyncGenerator[Encoding]:
        """One Encoding an input, in order, in bounded memory: inputs are read a few batches ahead of the
        results. A broken stream is resumed. progress is called with the number of inputs done.

        Inputs are what encode takes, or an asynchronous iterable; a file gives its lines, line ends included.
        """
        template = self._settings.template(build_options(**options), request_id)
        window = StreamWindow(template, batch_size, progress)
        values = inputs if isinstance(inputs, AsyncIterable) else each_input(inputs)
        return self._stream(values, window, Deadline(deadline_s))

    async def tokenize(
        self, inputs: Inputs, *, deadline_s: float | None = None, **options: Unpack[TokenizeOptions]
    ) -> list[Tokenization]:
        """Tokens as encode would see them."""
        template = self._settings.template(build_tokenize_options(**options))
        sequences = build_sequences(inputs)
        if not sequences:
            return []
        deadline = self._settings.deadline(deadline_s)
        chunks = split(sequences, template.chunker(await self._limits(deadline)))
        return merge_tokenized(await self._answers("tokenize", template.tokenize, list(chunks), deadline))

    async def model(self, *, deadline_s: float | None = None) -> ModelInfo:
        """Asks the server, whose limits the client then keeps to."""
        return await self._ask_model(self._settings.deadline(deadline_s))

    async def health(self, service: str = "", *, deadline_s: float | None = None) -> str:
        """SERVING, NOT_SERVING or SERVICE_UNKNOWN. Not retried: raises where there is no answer."""
        check_text("service", service)
        options = self._call_options(self._settings.deadline(deadline_s))
        try:
            with self._unless_closed():
                response = await self._next_stubs().check_health(StringValue(value=service), **options)
        except grpc.aio.AioRpcError as error:
            return health_of_error(self._settings.connection.explain(error_from_call(error)))
        return health_of_response(response)

    async def close(self) -> None:
        """Cancels what is in flight. A closed client stays closed."""
        connected = self._is_here()
        self._closed = True
        if connected:
            for channel in self._channels:
                await channel.close(grace=None)

    async def __aenter__(self) -> AsyncClient:
        self._next_stubs()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncClient cannot be pickled or copied: make one in each process")

    def _next_stubs(self) -> Stubs:
        if self._closed:
            raise ValueError("this client is closed: make another")
        global _process
        _process = _process or os.getpid()
        if _process != os.getpid():
            raise RuntimeError(
                "asyncio clients do not work in a process forked from one that used them: start processes "
                "with spawn or forkserver, or use Client"
            )
        if not self._is_here():
            self._channels = self._settings.connection.open(grpc.aio)
            self._stubs = Rotation([Stubs(channel) for channel in self._channels])
            self._loop = asyncio.get_running_loop()
        return self._stubs.next()

    def _is_here(self) -> bool:
        """Whether the channels are those of the running loop. Raises RuntimeError where another has them."""
        here = self._loop is asyncio.get_running_loop()
        if self._loop and not here and not self._loop.is_closed():
            raise RuntimeError("this client is in use on another event loop: make one for each loop")
        return here

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """gRPC reports calls that `close` has ended as if their task had been cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task and task.cancelling()):
                raise
            raise CallCancelledError(grpc.StatusCode.CANCELLED, "the client was closed") from None

    async def _limits(self, deadline: Deadline) -> ModelInfo:
        return self._info or await self._ask_model(deadline)

    async def _ask_model(self, deadline: Deadline) -> ModelInfo:
        response = await self._call("get_model", pb.GetModelRequest(model=self._settings.model), deadline)
        self._info = decode_model(response.model)
        return self._info

    async def _answers(
        self, rpc: str, build: Callable[[Chunk], Message], chunks: list[Chunk], deadline: Deadline
    ) -> list[tuple[int, Any]]:
        """The offset and the answer of every chunk, in order. The first failure cancels the other calls."""
        slots = asyncio.Semaphore(self._settings.max_concurrent_calls)

        async def answer(chunk: Chunk) -> list[tuple[int, Any]]:
            async with slots:
                return await self._answer(rpc, build, chunk, deadline)

        tasks = [asyncio.create_task(answer(chunk)) for chunk in chunks]
        try:
            return list(chain.from_iterable(await asyncio.gather(*tasks)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _answer(
        self, rpc: str, build: Callable[[Chunk], Message], chunk: Chunk, deadline: Deadline
    ) -> list[tuple[int, Any]]:
        """A chunk whose reply would be too large is refused before it is computed, and sent in halves."""
        try:
            return [(chunk.offset, await self._call(rpc, build(chunk), deadline, chunk.offset))]
        except ReplyTooLargeError:
            if len(chunk.sequences) == 1:
                raise
        parts = [await self._answer(rpc, build, half, deadline) for half in chunk.halves()]
        return list(chain.from_iterable(parts))

    async def _call(self, rpc: str, request: Message, deadline: Deadline, offset: int = 0) -> Any:
        attempts = Attempts(self._settings.retry, deadline)
        while True:
            method = getattr(self._next_stubs(), rpc)
            try:
                with self._unless_closed():
                    return await method(request, **self._call_options(deadline))
            except grpc.aio.AioRpcError as error:
                failure = self._settings.connection.explain(error_from_call(error, offset))
                delay_s = attempts.next_delay_s(failure)
            await asyncio.sleep(delay_s)

    def _call_options(self, deadline: Deadline) -> dict[str, Any]:
        return {"timeout": deadline.remaining_s(), "metadata": self._settings.connection.metadata}

    async def _stream(
        self,
        inputs: Iterable[object] | AsyncIterable[object],
        window: StreamWindow,
        deadline: Deadline,
    ) -> AsyncGenerator[Encoding]:
        chunker = window.chunker(await self._limits(deadline))
        attempts = Attempts(self._settings.retry, deadline)
        exchange = self._exchange(window, deadline)
        try:
            async with aclosing(_chunks(inputs, chunker)) as chunks:
                while True:
                    while window.wants_more:
                        exchange.send(window.push(await anext(chunks, None)))
                    if window.finished:
                        break
                    try:
                        with self._unless_closed():
                            encodings = window.answer(await exchange.receive())
                    except SeqencError as error:
                        exchange.close()
                        failure = self._settings.connection.explain(error)
                        await asyncio.sleep(attempts.next_delay_s(failure))
                        exchange = self._exchange(window, deadline)
                        continue
                    attempts.succeeded()
                    for encoding in encodings:
                        yield encoding
            await exchange.wait_for_end()
        finally:
            exchange.close()

    def _exchange(self, window: StreamWindow, deadline: Deadline) -> _Exchange:
        method = self._next_stubs().encode_stream
        return _Exchange(method, window.requests, **self._call_options(deadline))


class _Exchange:
    """One EncodeStream call: messages to send are queued for gRPC's own task."""

    def __init__(self, method: Any, requests: Iterable[pb.EncodeRequest | None], **options: Any) -> None:
        self._requests: asyncio.Queue[pb.EncodeRequest | None] = asyncio.Queue()
        for request in requests:
            self.send(request)
        self._call = method(self._queued(), **options)

    def send(self, request: pb.EncodeRequest | None) -> None:
        """None is the end of the stream."""
        self._requests.put_nowait(request)

    async def receive(self) -> pb.EncodeStreamResponse:
        try:
            response: pb.EncodeStreamResponse = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _stream_error(error) from error
        if response is _END:
            raise ended_early()
        return response

    async def wait_for_end(self) -> None:
        """After the last answer, so that the server sees the stream end and not break."""
        await self._call.code()

    def close(self) -> None:
        self._call.cancel()

    async def _queued(self) -> AsyncIterator[pb.EncodeRequest]:
        while (request := await self._requests.get()) is not None:
            yield request


def _stream_error(error: grpc.aio.AioRpcError) -> SeqencError:
    """Where a write fails because the server has ended the stream, grpc.aio replaces the server's status by
    one of its own (grpc/grpc#36066); what a new stream is told is the server's word.
    """
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core":
        return ended_early()
    return error_from_call(error)


async def _chunks(
    inputs: Iterable[object] | AsyncIterable[object], chunker: Chunker
) -> AsyncGenerator[Chunk]:
    indices = count()
    async with aclosing(_each(inputs)) as values:
        async for value in values:
            if chunk := chunker.add(build_sequence(value, next(indices))):
                yield chunk
    if chunk := chunker.take():
        yield chunk


async def _each(inputs: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T]:
    if isinstance(inputs, AsyncIterable):
        async for value in inputs:
            yield value
    else:
        for value in inputs:
            yield value
