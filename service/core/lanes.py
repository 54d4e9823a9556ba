"""The threads that run batches side by side, and the watch over how long each run takes.

Knows nothing of what a job does. A job gets a StopSignal; when its run passes the timeout the signal is
given, and when it does not end soon after that, or its thread dies, the lanes are lost for good.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
# How long a run gets to end once it was told to stop.
_STOP_GRACE_S = 2.0


class StopSignal:
    """Tells a run to end early, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._given = False

    def on_stop(self, stop: Callable[[], None]) -> None:
        """What ends the run; called at once if the signal was given already."""
        with self._lock:
            self._stop = stop
            given = self._given
        if given:
            stop()

    def give(self) -> None:
        with self._lock:
            self._given = True
            stop = self._stop
        if stop:
            stop()


class Lanes:
    """Not thread-safe: one event loop calls it. `lost` is set when a run hangs or its thread dies;
    `quiet` while no lane runs anything.
    """

    def __init__(self, count: int, *, run_timeout_s: float, stop_grace_s: float = _STOP_GRACE_S) -> None:
        self.count = count
        self.idle = count
        self.lost = asyncio.Event()
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._run_timeout_s = run_timeout_s
        self._stop_grace_s = stop_grace_s
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lane")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(
        self, job: Callable[[StopSignal], Result], on_done: Callable[[asyncio.Future[Result]], None]
    ) -> None:
        """Takes an idle lane; `on_done` is called on the event loop once the lane is idle again."""
        loop = asyncio.get_running_loop()
        signal = StopSignal()
        self.idle -= 1
        self.quiet.clear()
        future = loop.run_in_executor(self._threads, job, signal)
        watch = loop.call_later(self._run_timeout_s, self._stop, signal, future)

        def finish(done: asyncio.Future[Result]) -> None:
            watch.cancel()
            self.idle += 1
            if self.idle == self.count:
                self.quiet.set()
            if not done.cancelled():
                self._check_alive(done.exception())
                on_done(done)

        future.add_done_callback(finish)

    def _stop(self, signal: StopSignal, future: asyncio.Future[Result]) -> None:
        logger.error("a batch has run for %s s (--run-timeout-s); stopping it", self._run_timeout_s)
        signal.give()
        asyncio.get_running_loop().call_later(self._stop_grace_s, self._check_stopped, future)

    def _check_stopped(self, future: asyncio.Future[Result]) -> None:
        if not future.done():
            logger.error("a batch did not stop within %s s; its lane is lost", self._stop_grace_s)
            self.lost.set()

    def _check_alive(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Exception):
            logger.error("a lane's thread died", exc_info=error)
            self.lost.set()
