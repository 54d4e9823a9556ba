"""The blocking client. It may be shared by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Unpack

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue

from seqenc.calls import Caller, CallGroup, Exchange, LoneCaller
from seqenc.channel import Address, Rotation, Stubs, build_connection
from seqenc.checks import check_text
from seqenc.decode import decode_model, empty_result, merge_encoded, merge_tokenized
from seqenc.errors import ReplyTooLargeError, SeqencError, error_from_call
from seqenc.health import health_of_error, health_of_response
from seqenc.inputs import build_sequence, build_sequences, each_input
from seqenc.options import build_options, build_tokenize_options
from seqenc.requests import Chunk, split
from seqenc.retry import DEFAULT_RETRY, Attempts, Deadline, RetryPolicy
from seqenc.settings import ClientSettings
from seqenc.stream import Progress, StreamWindow
from seqenc.types import (
    EncodeOptions,
    EncodeResult,
    Encoding,
    Inputs,
    ModelInfo,
    Tls,
    Tokenization,
    TokenizeOptions,
)
from seqenc.v1 import encoder_pb2 as pb

_ALONE = LoneCaller()


class Client:
    """address: host:port, several of them (a list, or one string with commas), or dns:///name:port; load is
    spread over all addresses. tls: True, the path of a CA file, or Tls. token: a bearer token, also sent
    over a plain connection. deadline_s: the default of calls; of streams only where they say so.
    expected_revision: servers of another revision refuse.
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
        self._channels = connection.open(grpc)
        self._stubs = Rotation([Stubs(channel) for channel in self._channels])
        self._closed = False
        self._info: ModelInfo | None = None
        self._info_lock = threading.Lock()

    def encode(
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
        info = self._limits(deadline)
        if not sequences:
            return empty_result(info, template.options, request_id)
        chunks = split(sequences, template.chunker(info))
        return merge_encoded(self._answers("encode", template.encode, list(chunks), deadline))

    def encode_stream(
        self,
        inputs: Inputs,
        *,
        batch_size: int = 64,
        progress: Progress | None = None,
        deadline_s: float | None = None,
        request_id: str = "",
        **options: Unpack[EncodeOptions],
    ) -> Iterator[Encoding]:
        """One Encoding an input, in order, in bounded memory: inputs are read a few batches ahead of the
        results. A broken stream is resumed. progress is called with the number of inputs done.

        Inputs are what encode takes; a file gives its lines, line ends included.
        """
        template = self._settings.template(build_options(**options), request_id)
        window = StreamWindow(template, batch_size, progress)
        return self._stream(each_input(inputs), window, Deadline(deadline_s))

    def tokenize(
        self, inputs: Inputs, *, deadline_s: float | None = None, **options: Unpack[TokenizeOptions]
    ) -> list[Tokenization]:
        """Tokens as encode would see them."""
        template = self._settings.template(build_tokenize_options(**options))
        sequences = build_sequences(inputs)
        if not sequences:
            return []
        deadline = self._settings.deadline(deadline_s)
        chunks = split(sequences, template.chunker(self._limits(deadline)))
        return merge_tokenized(self._answers("tokenize", template.tokenize, list(chunks), deadline))

    def model(self, *, deadline_s: float | None = None) -> ModelInfo:
        """Asks the server, whose limits the client then keeps to."""
        return self._ask_model(self._settings.deadline(deadline_s))

    def health(self, service: str = "", *, deadline_s: float | None = None) -> str:
        """SERVING, NOT_SERVING or SERVICE_UNKNOWN. Not retried: raises where there is no answer."""
        check_text("service", service)
        options = self._call_options(self._settings.deadline(deadline_s))
        try:
            response = self._next_stubs().check_health(StringValue(value=service), **options)
        except grpc.RpcError as error:
            return health_of_error(self._settings.connection.explain(error_from_call(error)))
        return health_of_response(response)

    def close(self) -> None:
        """Cancels what is in flight. A closed client stays closed."""
        self._closed = True
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Client:
        self._next_stubs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be pickled or copied: make one in each process")

    def _next_stubs(self) -> Stubs:
        if self._closed:
            raise ValueError("this client is closed: make another")
        return self._stubs.next()

    def _limits(self, deadline: Deadline) -> ModelInfo:
        with self._info_lock:
            info = self._info
        return info or self._ask_model(deadline)

    def _ask_model(self, deadline: Deadline) -> ModelInfo:
        response = self._call("get_model", pb.GetModelRequest(model=self._settings.model), deadline)
        info = decode_model(response.model)
        with self._info_lock:
            self._info = info
        return info

    def _answers(
        self, rpc: str, build: Callable[[Chunk], Message], chunks: list[Chunk], deadline: Deadline
    ) -> list[tuple[int, Any]]:
        """The offset and the answer of every chunk, in order."""
        if len(chunks) == 1:
            return self._answer(rpc, build, chunks[0], deadline, _ALONE)
        calls = CallGroup()

        def answer(chunk: Chunk) -> list[tuple[int, Any]]:
            return self._answer(rpc, build, chunk, deadline, calls)

        parts = calls.map(answer, chunks, min(len(chunks), self._settings.max_concurrent_calls))
        return list(chain.from_iterable(parts))

    def _answer(
        self, rpc: str, build: Callable[[Chunk], Message], chunk: Chunk, deadline: Deadline, caller: Caller
    ) -> list[tuple[int, Any]]:
        """A chunk whose reply would be too large is refused before it is computed, and sent in halves."""
        try:
            return [(chunk.offset, self._call(rpc, build(chunk), deadline, chunk.offset, caller))]
        except ReplyTooLargeError:
            if len(chunk.sequences) == 1:
                raise
        parts = (self._answer(rpc, build, half, deadline, caller) for half in chunk.halves())
        return list(chain.from_iterable(parts))

    def _call(
        self, rpc: str, request: Message, deadline: Deadline, offset: int = 0, caller: Caller = _ALONE
    ) -> Any:
        attempts = Attempts(self._settings.retry, deadline)
        while True:
            method = getattr(self._next_stubs(), rpc)
            try:
                return caller.invoke(method, request, **self._call_options(deadline))
            except grpc.RpcError as error:
                failure = self._settings.connection.explain(error_from_call(error, offset))
                delay_s = attempts.next_delay_s(failure)
            caller.pause(delay_s)

    def _call_options(self, deadline: Deadline) -> dict[str, Any]:
        return {"timeout": deadline.remaining_s(), "metadata": self._settings.connection.metadata}

    def _stream(
        self, inputs: Iterable[object], window: StreamWindow, deadline: Deadline
    ) -> Iterator[Encoding]:
        chunks = split(map(build_sequence, inputs, count()), window.chunker(self._limits(deadline)))
        attempts = Attempts(self._settings.retry, deadline)
        exchange = self._exchange(window, deadline)
        try:
            while True:
                while window.wants_more:
                    exchange.send(window.push(next(chunks, None)))
                if window.finished:
                    break
                try:
                    encodings = window.answer(exchange.receive())
                except SeqencError as error:
                    exchange.close()
                    time.sleep(attempts.next_delay_s(self._settings.connection.explain(error)))
                    exchange = self._exchange(window, deadline)
                    continue
                attempts.succeeded()
                yield from encodings
            exchange.wait_for_end()
        finally:
            exchange.close()

    def _exchange(self, window: StreamWindow, deadline: Deadline) -> Exchange:
        method = self._next_stubs().encode_stream
        return Exchange(method, window.requests, **self._call_options(deadline))
