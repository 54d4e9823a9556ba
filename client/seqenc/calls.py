"""Blocking calls: one alone, several side by side that end together, and a stream."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from seqenc.errors import CallCancelledError, error_from_call
from seqenc.stream import ended_early
from seqenc.v1 import encoder_pb2 as pb

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


class Caller(Protocol):
    """Makes a call and waits between its tries."""

    def invoke(self, method: Any, request: Message, **options: Any) -> Any: ...
    def pause(self, delay_s: float) -> None: ...


class LoneCaller:
    """In the caller's own thread: a third faster than a call that another thread can cancel."""

    def invoke(self, method: Any, request: Message, **options: Any) -> Any:
        return method(request, **options)

    def pause(self, delay_s: float) -> None:
        time.sleep(delay_s)


class CallGroup:
    """Calls on several threads; stop cancels those in flight, wakes those that wait and refuses new ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[Any] = set()
        self._stopped = threading.Event()

    def invoke(self, method: Any, request: Message, **options: Any) -> Any:
        call = method.future(request, **options)
        with self._lock:
            self._in_flight.add(call)
            if self._stopped.is_set():
                call.cancel()
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise CallCancelledError(grpc.StatusCode.CANCELLED, "the call was cancelled") from None
        finally:
            with self._lock:
                self._in_flight.discard(call)

    def pause(self, delay_s: float) -> None:
        self._stopped.wait(delay_s)

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            in_flight = list(self._in_flight)
        for call in in_flight:
            call.cancel()

    def map(
        self, function: Callable[[Argument], Answer], arguments: Iterable[Argument], thread_count: int
    ) -> list[Answer]:
        """Answers in the order of the arguments. The first failure stops the other calls and is raised."""
        with ThreadPoolExecutor(thread_count) as pool:
            futures = [pool.submit(function, argument) for argument in arguments]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                return [future.result() for future in _failed(futures, done) or futures]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()


class Exchange:
    """One EncodeStream call: messages to send are queued for gRPC's own thread."""

    def __init__(self, method: Any, requests: Iterable[pb.EncodeRequest | None], **options: Any) -> None:
        self._requests: queue.SimpleQueue[pb.EncodeRequest | None] = queue.SimpleQueue()
        for request in requests:
            self.send(request)
        self._call = method(iter(self._requests.get, None), **options)
        self._responses: Iterator[pb.EncodeStreamResponse] = iter(self._call)

    def send(self, request: pb.EncodeRequest | None) -> None:
        """None is the end of the stream."""
        self._requests.put(request)

    def receive(self) -> pb.EncodeStreamResponse:
        try:
            return next(self._responses)
        except StopIteration:
            raise ended_early() from None
        except grpc.RpcError as error:
            raise error_from_call(error) from error

    def wait_for_end(self) -> None:
        """After the last answer, so that the server sees the stream end and not break."""
        self._call.code()

    def close(self) -> None:
        self._call.cancel()
        self.send(None)


def _failed(futures: list[Future[Answer]], done: set[Future[Answer]]) -> list[Future[Answer]]:
    return [future for future in futures if future in done and future.exception()]
