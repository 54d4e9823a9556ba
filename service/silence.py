"""Notices that servers do not answer, for somebody who would otherwise look at a terminal that does nothing.

A thread of its own counts the time since the last answer while any call is open. It knows nothing of calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

# The first word comes soon, each one after it when twice the time has passed, up to a minute.
_FIRST_S = 1.0
_LONGEST_S = 60.0


class SilenceWatch:
    """`say` is told the seconds of silence, `stop` is called once when they reach `limit_s`. Both are called
    on the watch's thread.
    """

    def __init__(
        self,
        say: Callable[[float], None],
        *,
        limit_s: float = math.inf,
        stop: Callable[[], None] | None = None,
    ) -> None:
        self._say = say
        self._stop = stop
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._open_calls = 0
        self._heard_at = 0.0
        self._said_at = 0.0
        self._patience_s = _FIRST_S
        self._closed = False
        self.expired = False
        self._thread = threading.Thread(target=self._run, name="silence", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """There was an answer."""
        self._heard_at = time.monotonic()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """An answer is waited for in here."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside of `calling`: it is not, for what comes next has to be read first."""
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __enter__(self) -> SilenceWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, calls: int) -> None:
        with self._changed:
            if not self._open_calls:
                self._heard_at = time.monotonic()
                self._changed.notify()
            self._open_calls += calls

    def _run(self) -> None:
        while (silent_s := self._wait()) is not None:
            if silent_s >= self._limit_s and self._stop is not None:
                self.expired = True
                self._stop()
                return
            with suppress(OSError):
                self._say(silent_s)

    def _wait(self) -> float | None:
        """Until there is something to say: the seconds of silence; None once the watch is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = max(self._heard_at, self._said_at) + self._patience_s
                due = min(due, self._heard_at + self._limit_s)
                if self._open_calls and now >= due:
                    self._said_at = now
                    self._patience_s = min(2 * self._patience_s, _LONGEST_S)
                    return now - self._heard_at
                self._changed.wait(due - now if self._open_calls else None)
            return None
