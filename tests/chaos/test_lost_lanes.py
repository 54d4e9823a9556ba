"""A lane that hangs or dies: the server says so, answers who waits, and ends for its supervisor."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest

from api.own_server import check_health
from chaos.callers import FAREWELLS, GOOD, Load, calling, vectors_alone
from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.faults import Fault
from chaos.tally import Tally

CALLERS = 8
LANES = 2
RUN_TIMEOUT_S = 1.0
# Ten times what is promised.
NOTICED_S = 50.0
# Longer than a test waits for the end: that it comes shows that every call has been answered.
LAST_ANSWERS_S = 600.0
LOST = "a lane is lost; ending, to be restarted by the supervisor"


def start(
    artifact: Path, tally: Tally, *flags: str, last_answers_s: float | None = LAST_ANSWERS_S
) -> AbstractContextManager[ChaosServer]:
    flags = ("--run-timeout-s", str(RUN_TIMEOUT_S), *flags)
    return start_chaos_server(artifact, tally, *flags, last_answers_s=last_answers_s)


def assert_told(load: Load, server: ChaosServer) -> None:
    """That callers were, and that the log says what happened."""
    assert FAREWELLS & set(load.codes)
    assert set(load.codes) <= {"OK", *FAREWELLS}
    assert server.worst_events == [LOST]


# Where one lane goes on, calls still come when gRPC closes, and it may leave one without an answer.
@pytest.mark.parametrize(
    ("fault", "lanes", "last_answers_s"), [(Fault.HANG, LANES, LAST_ANSWERS_S), (Fault.DIE, 1, None)]
)
async def test_the_process_ends(
    tiny_artifact: Path, tally: Tally, fault: Fault, lanes: int, last_answers_s: float | None
) -> None:
    with start(tiny_artifact, tally, last_answers_s=last_answers_s) as server:
        expected = await vectors_alone(server.grpc_address)
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            load = Load(channel, expected, tally, random.Random(0))
            async with calling(load, GOOD, CALLERS):
                server.inject(fault, lanes)
                async with asyncio.timeout(NOTICED_S):
                    while await check_health(channel) == "SERVING":
                        pass
        assert await asyncio.to_thread(server.wait) == 70
        tally.faults += lanes
    assert_told(load, server)


async def test_a_lane_lost_while_callers_leave_ends_the_drain(tiny_artifact: Path, tally: Tally) -> None:
    with start(tiny_artifact, tally, "--drain-delay-s", "600") as server:
        expected = await vectors_alone(server.grpc_address)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, "draining")
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            load = Load(channel, expected, tally, random.Random(0))
            async with calling(load, GOOD, CALLERS):
                server.inject(Fault.HANG, LANES)
                assert await asyncio.to_thread(server.wait) == 70
        tally.faults += LANES
    assert_told(load, server)


async def test_a_lane_lost_while_calls_finish_ends_the_drain(tiny_artifact: Path, tally: Tally) -> None:
    with start(tiny_artifact, tally, "--drain-timeout-s", "600") as server:
        expected = await vectors_alone(server.grpc_address)
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            load = Load(channel, expected, tally, random.Random(0))
            async with calling(load, GOOD, CALLERS):
                while await asyncio.to_thread(server.inject, Fault.HANG, LANES) < LANES:
                    pass
                server.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(server.wait) == 70
    assert_told(load, server)
