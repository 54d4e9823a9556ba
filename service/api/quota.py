"""Inputs a second for each client, as token buckets; pure: knows no clock, no calls and no gRPC.

A bucket holds a few seconds' worth. A call larger than that takes a full bucket and leaves it in debt: no
call is too large for ever, and the average stays at the rate.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

BURST_S = 5.0
# Beyond it those that have not called for longest start with a full bucket again.
MAX_CLIENTS = 10_000
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Bucket:
    level: float
    filled_at: float


class Quota:
    def __init__(self, inputs_per_s: float) -> None:
        self.rate = inputs_per_s
        self._capacity = max(1.0, inputs_per_s * BURST_S)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    @property
    def client_count(self) -> int:
        """How many are remembered."""
        return len(self._buckets)

    def take(self, client: str, count: int, now: float) -> float:
        """0 when `count` inputs were taken, else the seconds until they can be."""
        bucket = self._filled(client, now)
        needed = min(count, self._capacity)
        if bucket.level + _ROUNDING >= needed:
            bucket.level -= count
            return 0.0
        return (needed - bucket.level) / self.rate

    def _filled(self, client: str, now: float) -> _Bucket:
        bucket = self._buckets.setdefault(client, _Bucket(self._capacity, now))
        self._buckets.move_to_end(client)
        bucket.level = min(self._capacity, bucket.level + (now - bucket.filled_at) * self.rate)
        bucket.filled_at = now
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return bucket
