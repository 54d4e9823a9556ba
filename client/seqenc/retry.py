"""When a failed call is worth another try, and how long to wait before it; does not wait itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from seqenc.checks import check_integer, check_seconds, kind
from seqenc.errors import SeqencError


class Deadline:
    """A moment by which a whole call, its retries included, must be over; None: never.

    Raises TypeError or ValueError for what is not a time from now.
    """

    def __init__(self, after_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moment = None
        if after_s is not None:
            seconds = check_seconds(
                "deadline_s", after_s, "a number of seconds over 0 and up to 1e9, or None"
            )
            self._moment = clock() + seconds

    def remaining_s(self) -> float | None:
        return None if self._moment is None else max(0.0, self._moment - self._clock())


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, for UNAVAILABLE and for errors that say when to retry.

    jitter draws from [0, 1).
    """

    max_attempts: int = 8
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        check_integer("max_attempts", self.max_attempts, "an int of at least 1", range(1, 2**31))
        for name in ("first_delay_s", "max_delay_s"):
            check_seconds(name, getattr(self, name), "a number of seconds from 0 to 1e9", zero=True)
        if not callable(self.jitter):
            raise TypeError(f"jitter: expected a function that draws from [0, 1), not {kind(self.jitter)}")

    def delay_s(self, attempt: int, error: SeqencError) -> float | None:
        """The wait after the attempt-th try, counted from 1, failed; None: give up."""
        if not error.retryable or attempt >= self.max_attempts:
            return None
        ceiling_s = min(self.max_delay_s, self.first_delay_s * 2.0 ** (attempt - 1))
        return (error.retry_after_s or 0.0) + self.jitter() * ceiling_s


DEFAULT_RETRY = RetryPolicy()


class Attempts:
    """The tries of one call under one deadline."""

    def __init__(self, policy: RetryPolicy, deadline: Deadline) -> None:
        self._policy = policy
        self._deadline = deadline
        self._failed = 0

    def next_delay_s(self, error: SeqencError) -> float:
        """The wait before the next try. Raises the error where there is to be none."""
        self._failed += 1
        delay_s = self._policy.delay_s(self._failed, error)
        remaining_s = self._deadline.remaining_s()
        if delay_s is None or (remaining_s is not None and delay_s >= remaining_s):
            raise error
        return delay_s

    def succeeded(self) -> None:
        """Starts counting again: a stream got an answer."""
        self._failed = 0
