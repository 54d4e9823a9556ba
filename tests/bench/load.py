"""Callers of the server, at little cost of their own: requests are built before, replies are not decoded.

Closed loop: a caller sends when it has its last answer. Open loop: calls arrive when a schedule says so,
however late the server is, and a latency counts from then (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType

import grpc
import grpc.aio

from seqenc.v1 import encoder_pb2 as pb

_SERVICE = "/seqenc.v1.EncoderService/"
_UNLIMITED = (("grpc.max_receive_message_length", -1),)


def build_requests(texts: Sequence[str], size: int, *, token_embeddings: bool = False) -> list[bytes]:
    """Requests of `size` texts each, serialised."""
    options = pb.EncodeOptions(truncation=pb.TRUNCATION_RIGHT, token_embeddings=token_embeddings)
    return [
        pb.EncodeRequest(
            inputs=[pb.Sequence(text=text) for text in texts[start : start + size]], options=options
        ).SerializeToString()
        for start in range(0, len(texts), size)
    ]


def poisson_arrivals(rate: float, seconds: float, *, seed: int = 0) -> list[float]:
    """Times of arrival in seconds from the start, `rate` a second on average."""
    draw = random.Random(seed)
    times, now = [], draw.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(rate)
    return times


def _as_is(data: bytes) -> bytes:
    return data


class LoadGenerator:
    """One connection, kept over all measurements. Any failed call ends the measurement with its error."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.Runner()
        self._loop.run(self._connect(address))

    async def _connect(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, _UNLIMITED)
        self._encode = self._channel.unary_unary(_SERVICE + "Encode", _as_is, _as_is)
        self._encode_stream = self._channel.stream_stream(_SERVICE + "EncodeStream", _as_is, _as_is)

    def call(self, request: bytes) -> pb.EncodeResponse:
        return pb.EncodeResponse.FromString(self._loop.run(self._send(request)))

    def closed(self, requests: Sequence[bytes], callers: int) -> float:
        """Seconds until all are answered, each caller taking the next request when it is free."""
        return self._loop.run(self._closed(requests, callers))

    def alone(self, requests: Sequence[bytes]) -> list[float]:
        """Seconds of each call of a lone caller."""
        return self._loop.run(self._alone(requests))

    def stream(self, requests: Sequence[bytes]) -> float:
        """Seconds until one stream of all requests is answered."""
        return self._loop.run(self._stream(requests))

    def open(self, requests: Sequence[bytes], arrivals: Sequence[float]) -> list[float]:
        """Latencies in seconds, each from its scheduled arrival; requests are used in turn."""
        return self._loop.run(self._open(requests, arrivals))

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._channel.close(None))
        self._loop.close()

    async def _send(self, request: bytes) -> bytes:
        return bytes(await self._encode(request))

    async def _closed(self, requests: Sequence[bytes], callers: int) -> float:
        waiting = iter(requests)

        async def call_while(waiting: Iterator[bytes]) -> None:
            for request in waiting:
                await self._encode(request)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(call_while(waiting))
        return time.perf_counter() - started

    async def _alone(self, requests: Sequence[bytes]) -> list[float]:
        latencies = []
        for request in requests:
            started = time.perf_counter()
            await self._encode(request)
            latencies.append(time.perf_counter() - started)
        return latencies

    async def _stream(self, requests: Sequence[bytes]) -> float:
        async def messages() -> AsyncIterator[bytes]:
            for request in requests:
                yield request

        started = time.perf_counter()
        answers = [None async for _ in self._encode_stream(messages())]
        if len(answers) != len(requests):
            raise RuntimeError(f"{len(requests)} messages sent, {len(answers)} answered")
        return time.perf_counter() - started

    async def _open(self, requests: Sequence[bytes], arrivals: Sequence[float]) -> list[float]:
        latencies = [0.0] * len(arrivals)

        async def call(place: int, due: float) -> None:
            await self._encode(requests[place % len(requests)])
            latencies[place] = time.perf_counter() - due

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for place, arrival in enumerate(arrivals):
                due = started + arrival
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(call(place, due))
        return latencies
