"""Callers whose calls may be refused: what each came to, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

ENCODE = "/seqenc.v1.EncoderService/Encode"
Encode = Callable[[bytes], Awaitable[bytes]]
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True)
class Outcome:
    """`seconds` from when the call was due; `ended` counts from the start of all."""

    code: str
    seconds: float
    ended: float


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, _UNLIMITED)


def encode_of(channel: grpc.aio.Channel) -> Encode:
    """Sends and gets bytes."""
    return channel.unary_unary(ENCODE, None, None)


async def send(encode: Encode, request: bytes, started: float, due: float) -> Outcome:
    """Times are time.perf_counter's."""
    code = "OK"
    try:
        await encode(request)
    except grpc.aio.AioRpcError as error:
        code = error.code().name
    ended = time.perf_counter()
    return Outcome(code, ended - due, ended - started)


async def open_loop(encode: Encode, requests: Sequence[bytes], arrivals: Sequence[float]) -> list[Outcome]:
    """Each call is sent at its time, however late the answers are; requests are used in turn."""
    started = time.perf_counter()
    calls = []
    async with asyncio.TaskGroup() as tasks:
        for place, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, started + arrival - time.perf_counter()))
            request = requests[place % len(requests)]
            calls.append(tasks.create_task(send(encode, request, started, started + arrival)))
    return [call.result() for call in calls]


async def closed_loop(
    encode: Encode, requests: Sequence[bytes], callers: int, seconds: float
) -> list[Outcome]:
    """Each caller sends again when it has its answer, until the time is up."""
    started = time.perf_counter()
    outcomes: list[Outcome] = []

    async def call_on(caller: int) -> None:
        place = caller
        while (now := time.perf_counter()) < started + seconds:
            outcomes.append(await send(encode, requests[place % len(requests)], started, now))
            place += callers

    async with asyncio.TaskGroup() as tasks:
        for caller in range(callers):
            tasks.create_task(call_on(caller))
    return outcomes
