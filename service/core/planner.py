"""Decides which waiting entries form the next batch.

Pure policy: no clock, no I/O, no threads, and no knowledge of what an entry carries. Rules it keeps:

- Every entry leaves exactly once, by `next_batch` or by `remove`.
- Fair across calls (start-time fair queueing, Goyal et al. 1996): an entry's tag is the later of the virtual
  time and its call's last tag; the call's last tag then grows by tokens / 2^priority. The entry with the
  smallest (tag, arrival), the anchor, is in every next batch.
- A call of less than `HEAD_START` tokens gets the rest of them as a start: a lone text does not wait until
  each of many long calls, all equally due, has had its turn.
- The virtual time follows the anchors' tags and advances by `ADVANCE` tokens a batch besides: held still by a
  steady stream of fresh small calls, it would starve what waits further on.
- Others join by nearness of length to the anchor, then by tag, while the padded tokens stay within the budget
  and the padding stays under `MAX_PADDING` of them. An entry that is longer than the budget runs alone.
- Idle lanes share the work: a batch takes at most an equal share of the real tokens that wait.
- Entries of different groups (sets of attention layers) are never mixed; a group's batch also keeps a budget
  in map cells.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

MAX_PADDING = 0.1
HEAD_START = 128  # tokens
ADVANCE = 4  # tokens

Payload = TypeVar("Payload")
Group = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Flow:
    """One call's share of the lanes; a priority of p gives it 2^p times the share."""

    priority: int = 0
    last_tag: float = 0.0


@dataclass(slots=True, eq=False)
class Entry(Generic[Payload]):
    """One waiting sequence. `group` empty: no maps; else the layers whose maps it wants."""

    length: int  # in tokens
    payload: Payload
    group: Group = ()
    cells_per_square_token: int = 0  # layers x heads of its maps
    tag: float = 0.0
    arrival: int = 0
    waiting: bool = False

    @property
    def order(self) -> tuple[float, int]:
        return self.tag, self.arrival


@dataclass(slots=True)
class _Bucket(Generic[Payload]):
    """The waiting entries of one group and length, first by tag; removed ones linger for a while."""

    heap: list[tuple[float, int, Entry[Payload]]] = field(default_factory=list)

    def push(self, entry: Entry[Payload]) -> None:
        heapq.heappush(self.heap, (entry.tag, entry.arrival, entry))

    def peek(self) -> Entry[Payload] | None:
        while self.heap and not self.heap[0][2].waiting:
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None

    def sweep(self) -> None:
        self.heap = [item for item in self.heap if item[2].waiting]
        heapq.heapify(self.heap)


class Planner(Generic[Payload]):
    """For providers that compile each shape: lengths count as rounded up to a multiple of `length_multiple`,
    and with `powers_of_two` a batch has 1, 2, 4 … entries.
    """

    def __init__(
        self,
        *,
        max_batch_tokens: int,
        max_batch_cells: int,
        length_multiple: int = 1,
        powers_of_two: bool = False,
    ) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_cells = max_batch_cells
        self._length_multiple = length_multiple
        self._powers_of_two = powers_of_two
        self._buckets: dict[tuple[Group, int], _Bucket[Payload]] = {}
        self._virtual_time = float(HEAD_START)
        self._arrivals = itertools.count()
        self._removed = 0  # since the last sweep
        self.waiting_inputs = 0
        self.waiting_tokens = 0

    def add(self, flow: Flow, entries: Sequence[Entry[Payload]]) -> None:
        start = self._virtual_time - max(0, HEAD_START - sum(entry.length for entry in entries))
        for entry in entries:
            entry.tag = max(start, flow.last_tag)
            flow.last_tag = entry.tag + entry.length / 2.0**flow.priority
            entry.arrival = next(self._arrivals)
            self._insert(entry)

    def remove(self, entry: Entry[Payload]) -> None:
        """Takes an entry out, if it is still waiting: its call was cancelled or has expired."""
        if entry.waiting:
            self._take(entry)
            self._removed += 1
            if self._removed > self.waiting_inputs:
                self._sweep()

    def next_batch(self, idle_lanes: int) -> list[Entry[Payload]]:
        """Takes the next batch, anchor first; empty when nothing waits. `idle_lanes` >= 1 share the work."""
        anchor = self._anchor()
        if anchor is None:
            return []
        self._advance(anchor.tag)
        share = ceil(self.waiting_tokens / idle_lanes)
        batch = _Batch(anchor, share, self._max_batch_tokens, self._max_batch_cells, self._length_multiple)
        self._take(anchor)
        for bucket in self._by_nearness(anchor):
            while (entry := bucket.peek()) and batch.admits(entry):
                self._take(entry)
                batch.join(entry)
            if batch.full:
                break
        if self._powers_of_two:
            size = 1 << (len(batch.entries).bit_length() - 1)
            for entry in batch.entries[size:]:
                self._insert(entry)
            return batch.entries[:size]
        return batch.entries

    def _advance(self, tag: float) -> None:
        """Never so far past what is being served that a fresh call would wait behind those before it."""
        later = max(self._virtual_time, tag) + ADVANCE
        self._virtual_time = min(later, tag + 2 * HEAD_START)

    def _insert(self, entry: Entry[Payload]) -> None:
        entry.waiting = True
        self._buckets.setdefault((entry.group, entry.length), _Bucket()).push(entry)
        self.waiting_inputs += 1
        self.waiting_tokens += entry.length

    def _take(self, entry: Entry[Payload]) -> None:
        entry.waiting = False
        self.waiting_inputs -= 1
        self.waiting_tokens -= entry.length

    def _sweep(self) -> None:
        """Lets go of removed entries, so that memory is bounded by what waits, not by what was cancelled."""
        for bucket in self._buckets.values():
            bucket.sweep()
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.heap}
        self._removed = 0

    def _anchor(self) -> Entry[Payload] | None:
        heads = []
        for key, bucket in list(self._buckets.items()):
            if head := bucket.peek():
                heads.append(head)
            else:
                del self._buckets[key]
        return min(heads, key=lambda head: head.order, default=None)

    def _by_nearness(self, anchor: Entry[Payload]) -> Iterator[_Bucket[Payload]]:
        def key(item: tuple[int, Entry[Payload]]) -> tuple[int, tuple[float, int]]:
            return abs(item[0] - anchor.length), item[1].order

        heads = [
            (length, head)
            for (group, length), bucket in self._buckets.items()
            if group == anchor.group and (head := bucket.peek())
        ]
        for length, _ in sorted(heads, key=key):
            yield self._buckets[anchor.group, length]


class _Batch(Generic[Payload]):
    """`share` bounds the real tokens, `budget` the padded ones."""

    def __init__(
        self, anchor: Entry[Payload], share: int, budget: int, cell_budget: int, length_multiple: int
    ) -> None:
        self.entries = [anchor]
        self._share = share
        self._budget = budget
        self._cell_budget = cell_budget
        self._length_multiple = length_multiple
        self._tokens = anchor.length
        self._longest = self._rounded(anchor.length)

    @property
    def full(self) -> bool:
        """Whether not even an entry without padding of its own could join."""
        return self._tokens >= self._share or not self._fits(self._longest, self.entries[0])

    def admits(self, entry: Entry[Payload]) -> bool:
        longest = max(self._longest, self._rounded(entry.length))
        padded = (len(self.entries) + 1) * longest
        padding = padded - self._tokens - entry.length
        return (
            self._tokens + entry.length <= self._share
            and self._fits(longest, entry)
            and (padding < MAX_PADDING * padded or self._is_rounding(entry))
        )

    def join(self, entry: Entry[Payload]) -> None:
        self.entries.append(entry)
        self._tokens += entry.length
        self._longest = max(self._longest, self._rounded(entry.length))

    def _fits(self, longest: int, entry: Entry[Payload]) -> bool:
        count = len(self.entries) + 1
        cells = count * longest * longest * entry.cells_per_square_token
        return count * longest <= self._budget and cells <= self._cell_budget

    def _is_rounding(self, entry: Entry[Payload]) -> bool:
        """Whether a joining entry is padded by rounding alone, as it would be in a batch of its own."""
        return self._rounded(entry.length) == self._longest

    def _rounded(self, length: int) -> int:
        return -(-length // self._length_multiple) * self._length_multiple
