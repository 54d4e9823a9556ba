"""SIGTERM under load: who was let in is answered, and the exit is clean."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import grpc

from chaos.callers import FAREWELLS, GOOD, Load, calling, vectors_alone
from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.faults import Fault
from chaos.tally import Tally

CALLERS = 8
LANES = 2


def wait_until_all_are_in(server: ChaosServer) -> None:
    while server.gauges["inflight_requests"] < CALLERS:
        pass


async def test_sigterm(tiny_artifact: Path, tally: Tally) -> None:
    with start_chaos_server(tiny_artifact, tally) as server:
        expected = await vectors_alone(server.grpc_address)
        server.inject(Fault.SLOW, 1000)
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            load = Load(channel, expected, tally, random.Random(0))
            async with calling(load, GOOD, CALLERS):
                await asyncio.to_thread(wait_until_all_are_in, server)
                server.process.send_signal(signal.SIGTERM)
                tally.faults += 1
                assert await asyncio.to_thread(server.wait) == 0
    assert set(load.codes) <= {"OK", *FAREWELLS}
    assert load.codes["OK"] >= CALLERS
    assert server.worst_events == []


def hang_every_lane(server: ChaosServer) -> None:
    while server.inject(Fault.HANG, LANES) < LANES:
        pass


async def test_sigterm_while_every_lane_hangs(tiny_artifact: Path, tally: Tally) -> None:
    """Long before a run is too long."""
    flags = ("--drain-timeout-s", "1", "--run-timeout-s", "600")
    with start_chaos_server(tiny_artifact, tally, *flags) as server:
        expected = await vectors_alone(server.grpc_address)
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            load = Load(channel, expected, tally, random.Random(0))
            async with calling(load, GOOD, CALLERS):
                await asyncio.to_thread(hang_every_lane, server)
                await asyncio.to_thread(wait_until_all_are_in, server)
                server.process.send_signal(signal.SIGTERM)
                tally.faults += 1
                assert await asyncio.to_thread(server.wait) == 70
    assert load.codes["UNAVAILABLE"] == CALLERS
    assert set(load.codes) <= {"OK", "UNAVAILABLE"}
    assert server.worst_events == ["a batch outlasted the drain; ending without it"]
