"""What a call may use: time where it brings no deadline, and its client's share of the quota."""

from __future__ import annotations

import asyncio

from service.api.callers import caller_of
from service.api.handlers import Context
from service.api.quota import Quota
from service.config import ServeSettings
from service.errors import DeadlineExceededError, QuotaExceededError
from service.metrics import Metrics


class Allowance:
    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self._default_deadline_s = settings.default_deadline_s
        self._quota = Quota(settings.quota_inputs_per_s) if settings.quota_inputs_per_s else None
        self._metrics = metrics

    def deadline_of(self, context: Context) -> float | None:
        """The caller's deadline in the event loop's time, or else the server's own; None for none."""
        remaining = context.time_remaining()
        if remaining is None:
            remaining = self._default_deadline_s or None
        return None if remaining is None else _now() + remaining

    def take(self, context: Context, count: int, *, counted: bool = True) -> None:
        """Raises QuotaExceededError; `counted`: in the inputs that the metrics know."""
        if self._quota and (wait_s := self._quota.take(caller_of(context), count, _now())):
            if counted:
                self._metrics.inputs_total.labels("rejected").inc(count)
            raise QuotaExceededError(
                f"this client sends more than {self._quota.rate:g} inputs a second (--quota-inputs-per-s); "
                "try again later or send fewer",
                retry_after_s=wait_s,
            )

    async def wait(self, context: Context, count: int, deadline: float | None) -> None:
        """As `take`, but in time rather than refused; raises DeadlineExceededError when that is too late."""
        if not self._quota:
            return
        caller = caller_of(context)
        while wait_s := self._quota.take(caller, count, _now()):
            if deadline is not None and _now() + wait_s > deadline:
                self._metrics.inputs_total.labels("expired").inc(count)
                raise DeadlineExceededError
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                self._metrics.inputs_total.labels("cancelled").inc(count)
                raise


def _now() -> float:
    return asyncio.get_running_loop().time()
