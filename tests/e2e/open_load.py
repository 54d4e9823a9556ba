"""Calls at a fixed pace, whether or not earlier ones have been answered: as many users would make them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from seqenc import Client, RetryPolicy

WAIT_S = 60.0


class Retries:
    """Counts a client's retries: a policy's jitter is drawn once for each."""

    def __init__(self) -> None:
        self.count = 0
        self.policy = RetryPolicy(jitter=self._draw)

    def _draw(self) -> float:
        self.count += 1
        return 0.5


class OpenLoad:
    """`failures` counts the calls that failed for good, by error; `slowest_s` is of a call that succeeded."""

    def __init__(self, calls_per_s: float) -> None:
        self.failures: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._interval_s = 1 / calls_per_s
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._done = 0

    @property
    def count(self) -> int:
        return self._done

    def wait_for_more(self, calls: int) -> None:
        """Until so many more have been answered."""
        with self._changed:
            goal = self._done + calls
            assert self._changed.wait_for(lambda: self._done >= goal, WAIT_S), "calls are not answered"

    def stop(self) -> None:
        self._stopped.set()

    def run(self, client: Client) -> None:
        with ThreadPoolExecutor(32) as callers:
            while not self._stopped.wait(self._interval_s):
                callers.submit(self._call, client).add_done_callback(self._note)

    def _call(self, client: Client) -> float:
        started = time.monotonic()
        assert len(client.encode(["a text", "and another"]).results) == 2
        return time.monotonic() - started

    def _note(self, call: Future[float]) -> None:
        with self._changed:
            if error := call.exception():
                self.failures[repr(error)] += 1
            else:
                self.slowest_s = max(self.slowest_s, call.result())
            self._done += 1
            self._changed.notify_all()


@contextmanager
def open_load(client: Client, calls_per_s: float = 40) -> Iterator[OpenLoad]:
    load = OpenLoad(calls_per_s)
    runner = threading.Thread(target=load.run, args=[client])
    runner.start()
    try:
        yield load
    finally:
        load.stop()
        runner.join()
