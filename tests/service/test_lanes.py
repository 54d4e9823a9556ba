"""Lanes' threads: side by side, watched, and given up when they do not stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from service.core.lanes import Lanes, StopSignal

TIMEOUT_S = 60
# Of the clock that a test puts forward.
RUN_TIMEOUT_S = STOP_GRACE_S = 1000.0


@asynccontextmanager
async def open_lanes(count: int = 1) -> AsyncIterator[Lanes]:
    lanes = Lanes(count, run_timeout_s=RUN_TIMEOUT_S, stop_grace_s=STOP_GRACE_S)
    try:
        yield lanes
    finally:
        lanes.close()


@contextmanager
def gate() -> Iterator[threading.Event]:
    """An event that is set in the end, so that no thread waits for it for ever."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


class Job:
    """Runs `work` on a lane and keeps what came of it."""

    def __init__(self, lanes: Lanes, work: Callable[[StopSignal], int]) -> None:
        self._lanes = lanes
        self._done: asyncio.Future[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self.idle_when_done = -1
        lanes.start(work, self._on_done)

    def _on_done(self, future: asyncio.Future[int]) -> None:
        self.idle_when_done = self._lanes.idle
        self._done.set_result(future)

    async def outcome(self) -> asyncio.Future[int]:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._done


async def lost(lanes: Lanes) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await lanes.lost.wait()


async def due_timers() -> None:
    """Until those that are due have gone off."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0, passed.set)
    await passed.wait()


async def test_a_result_comes_back_when_the_lane_is_idle_again() -> None:
    async with open_lanes() as lanes:
        job = Job(lanes, lambda _: 7)
        assert lanes.idle == 0
        assert (await job.outcome()).result() == 7
        assert job.idle_when_done == lanes.idle == lanes.count == 1


async def test_lanes_run_side_by_side() -> None:
    async with open_lanes(2) as lanes:
        meeting = threading.Barrier(2)
        jobs = [Job(lanes, lambda _: meeting.wait(TIMEOUT_S)) for _ in range(2)]
        assert {(await job.outcome()).result() for job in jobs} == {0, 1}


async def test_an_error_is_the_jobs_and_the_lane_goes_on() -> None:
    def fail(_: StopSignal) -> int:
        raise ValueError("bad batch")

    async with open_lanes() as lanes:
        assert isinstance((await Job(lanes, fail).outcome()).exception(), ValueError)
        assert (await Job(lanes, lambda _: 1).outcome()).result() == 1
        assert not lanes.lost.is_set()


async def test_a_run_past_its_timeout_is_told_to_stop(put_forward: Callable[[float], None]) -> None:
    async with open_lanes() as lanes:
        with gate() as stopped:

            def run(stop: StopSignal) -> int:
                stop.on_stop(stopped.set)
                assert stopped.wait(TIMEOUT_S)
                raise RuntimeError("terminated")

            job = Job(lanes, run)
            put_forward(RUN_TIMEOUT_S)
            error = (await job.outcome()).exception()
            assert str(error) == "terminated"
            assert lanes.idle == 1
            assert not lanes.lost.is_set()


async def test_a_lane_that_stops_within_its_grace_is_not_lost(put_forward: Callable[[float], None]) -> None:
    async with open_lanes() as lanes:
        with gate() as stopped:

            def run(stop: StopSignal) -> int:
                stop.on_stop(stopped.set)
                return int(stopped.wait(TIMEOUT_S))

            job = Job(lanes, run)
            put_forward(RUN_TIMEOUT_S)
            assert (await job.outcome()).result() == 1
            put_forward(STOP_GRACE_S)
            await due_timers()
            assert not lanes.lost.is_set()


async def test_a_run_that_does_not_stop_loses_the_lanes(put_forward: Callable[[float], None]) -> None:
    async with open_lanes() as lanes:
        with gate() as never:
            job = Job(lanes, lambda _: int(never.wait(TIMEOUT_S)))
            put_forward(RUN_TIMEOUT_S)
            await due_timers()
            assert not lanes.lost.is_set()
            put_forward(STOP_GRACE_S)
            await due_timers()
            assert lanes.lost.is_set()
            assert lanes.idle == 0
        await job.outcome()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
async def test_a_thread_that_dies_loses_the_lanes(error: BaseException) -> None:
    def die(_: StopSignal) -> int:
        raise error

    async with open_lanes() as lanes:
        assert (await Job(lanes, die).outcome()).exception() is error
        await lost(lanes)


async def test_a_run_in_time_is_not_told_to_stop(put_forward: Callable[[float], None]) -> None:
    signals: list[StopSignal] = []

    async with open_lanes() as lanes:
        await Job(lanes, lambda signal: signals.append(signal) or 0).outcome()  # type: ignore[func-returns-value]
        put_forward(RUN_TIMEOUT_S)
        await due_timers()
        told = []
        signals[0].on_stop(lambda: told.append(True))
        assert told == []


def test_a_signal_given_before_anybody_listens_is_not_lost() -> None:
    signal, told = StopSignal(), []
    signal.give()
    signal.on_stop(lambda: told.append(True))
    assert told == [True]


async def test_quiet_is_while_nothing_runs() -> None:
    with gate() as opened:
        async with open_lanes(2) as lanes:
            assert lanes.quiet.is_set()
            jobs = [Job(lanes, lambda _: int(opened.wait(TIMEOUT_S))) for _ in range(2)]
            assert not lanes.quiet.is_set()
            opened.set()
            for job in jobs:
                await job.outcome()
            assert lanes.quiet.is_set()
