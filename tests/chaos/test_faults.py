"""Faults that a server survives: under load, each call has one outcome, and afterwards all is as before."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from chaos import connections
from chaos.callers import LEAVING, PATIENT, Load, Vectors, calling, sixteen_texts, vectors_alone
from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.faults import Fault
from chaos.tally import Tally

MAX_INPUTS = 32
FLAGS = ("--max-inputs", str(MAX_INPUTS), "--max-queued-inputs", str(2 * MAX_INPUTS))
SETTLE_S = 30.0
# Of the process, for what the allocator keeps.
SLACK_MIB = 64
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
Trouble = Callable[[ChaosServer, float], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tiny_artifact: Path, tally: Tally) -> Iterator[ChaosServer]:
    with start_chaos_server(tiny_artifact, tally, *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: ChaosServer) -> dict[str, Vectors]:
    return asyncio.run(vectors_alone(server.grpc_address))


@asynccontextmanager
async def connect(
    server: ChaosServer, expected: dict[str, Vectors], tally: Tally, seed: int
) -> AsyncIterator[Load]:
    async with grpc.aio.insecure_channel(server.grpc_address, OWN_CONNECTION) as channel:
        yield Load(channel, expected, tally, random.Random(seed))


def injecting(fault: Fault) -> Trouble:
    async def make_trouble(server: ChaosServer, seconds: float) -> None:
        for _ in pace(seconds):
            server.inject(fault, 5)
            await asyncio.sleep(0.1)

    return make_trouble


def pace(seconds: float) -> Iterator[int]:
    """Counts for so long."""
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        yield number
        number += 1


async def none(_: ChaosServer, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def bad_connections(server: ChaosServer, seconds: float) -> None:
    host, _, port = server.grpc_address.rpartition(":")
    with connections.half_open(host, int(port)):
        for number in pace(seconds):
            await asyncio.to_thread(connections.send_garbage, host, int(port), seed=number)
            server.tally.faults += 1


@pytest.mark.parametrize(
    "trouble",
    [none, injecting(Fault.RAISE), injecting(Fault.SHAPE), injecting(Fault.SLOW), bad_connections],
    ids=["none", "raise", "shape", "slow", "connections"],
)
async def test_under_load(
    server: ChaosServer, expected: dict[str, Vectors], tally: Tally, seconds: float, trouble: Trouble
) -> None:
    before, resident_mib = server.metrics(), server.resident_mib
    async with (
        connect(server, expected, tally, 1) as patient,
        connect(server, expected, tally, 2) as leaving,
        connect(server, expected, tally, 3) as streaming,
    ):
        async with (
            calling(patient, PATIENT, 8),
            calling(leaving, LEAVING, 4),
            calling(streaming, (Load.stream,), 2),
        ):
            await trouble(server, seconds)
        settle(server)
        assert_adds_up(server.metrics(), before, patient, leaving, streaming)
        assert patient.codes["OK"] > 0
        assert set(patient.codes) <= {"OK", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED"}
        assert set(streaming.codes) == {"OK"}
        await assert_places_are_back(patient)
    assert server.resident_mib < resident_mib + SLACK_MIB


async def test_a_full_queue_refuses_and_recovers(
    server: ChaosServer, expected: dict[str, Vectors], tally: Tally, seconds: float
) -> None:
    before = server.metrics()
    async with connect(server, expected, tally, 1) as crowd, connect(server, expected, tally, 2) as leaving:
        async with calling(crowd, (sixteen_texts,), 16), calling(leaving, LEAVING, 4):
            for _ in range(30):
                await injecting(Fault.SLOW)(server, seconds)
                if crowd.codes["RESOURCE_EXHAUSTED"]:
                    break
        settle(server)
        assert_adds_up(server.metrics(), before, crowd, leaving)
        assert set(crowd.codes) == {"OK", "RESOURCE_EXHAUSTED"}
        await assert_places_are_back(crowd)


async def test_good_inputs_beside_a_poisonous_one(
    server: ChaosServer, expected: dict[str, Vectors], tally: Tally
) -> None:
    """The other seven are answered, in whatever place it stands."""
    async with connect(server, expected, tally, 1) as load:
        for _ in range(20):
            assert await load.poison() == "OK"
    assert load.good_answers == 20 * 7


def settle(server: ChaosServer) -> None:
    """Waits until nothing is in work."""
    end = time.perf_counter() + SETTLE_S
    while any(server.gauges.values()):
        assert time.perf_counter() < end, f"not back after {SETTLE_S} s: {server.gauges}"


async def assert_places_are_back(load: Load) -> None:
    """All of the queue's."""
    assert await asyncio.gather(*(load.encode(MAX_INPUTS) for _ in range(2))) == ["OK", "OK"]


def assert_adds_up(
    after: dict[tuple[str, ...], float],
    before: dict[tuple[str, ...], float],
    patient: Load,
    leaving: Load,
    streaming: Load | None = None,
) -> None:
    """The server's account against the callers': of those that left it knows only how many there can be."""
    served: Counter[str] = Counter()
    inputs = 0
    for name, value in after.items():
        count = int(value - before[name])
        if name[0] == "requests_total" and name[2] == "Encode":
            served[name[1]] += count
        elif name[0] == "inputs_total":
            inputs += count
    served.subtract(patient.codes)
    assert min(served.values()) >= 0, served
    answered_to_leaving = leaving.calls - leaving.codes["CANCELLED"] - leaving.codes["DEADLINE_EXCEEDED"]
    assert answered_to_leaving <= served.total() <= leaving.calls
    surely = patient.inputs
    if streaming:
        surely += streaming.inputs
        ended = ("requests_total", "OK", "EncodeStream")
        assert after[ended] - before[ended] == streaming.calls
    assert surely <= inputs <= surely + leaving.inputs
