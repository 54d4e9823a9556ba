"""Admits the sequences of calls, keeps the lanes busy with batches of them, and settles each call once.

Single-threaded on the event loop, but for `_run`, which is a lane's thread. The planner decides what runs
together; nothing here knows tokenizers, gRPC or what the vectors are for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from service.core.collation import BatchArrays, Collector, Row, collate, distribute, output_names
from service.core.deadline import until
from service.core.engine import GraphKind
from service.core.lanes import Lanes, StopSignal
from service.core.planner import Entry, Flow, Group, Planner
from service.errors import InternalError, QueueFullError, ServiceError
from service.metrics import Metrics
from service.types import Array, BatchRun, Outputs, Timeline, TokenizedSequence

logger = logging.getLogger(__name__)
_RATE_WEIGHT = 0.2
_RETRY_AFTER_S = (0.05, 30.0)


class Runner(Protocol):
    """What runs a batch; the engine, or a fake of it in tests. Called on `lanes` threads at once."""

    @property
    def lanes(self) -> int: ...

    def run(
        self, graph: GraphKind, arrays: BatchArrays, output_names: Sequence[str], stop: StopSignal
    ) -> dict[str, Array]: ...


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    max_queued_inputs: int
    max_queued_tokens: int
    hidden_size: int
    head_count: int
    pad_id: int
    length_multiple: int = 1
    run_timeout_s: float = 60.0


@dataclass(slots=True, eq=False)
class _Call:
    collector: Collector
    flow: Flow
    settled: asyncio.Future[None]
    submitted_at: float
    deadline: float | None
    timeline: Timeline
    entries: list[Entry[_Work]] = field(default_factory=list)
    remaining: int = 0
    errors: dict[int, ServiceError] = field(default_factory=dict)
    queue_s: float = 0.0
    inference_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(entry.length for entry in self.entries)


@dataclass(slots=True, eq=False)
class _Work:
    call: _Call
    row: Row
    failed_before: bool = False


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """`errors` by index of the sequence; the times are those of the sequence that finished last."""

    collector: Collector
    errors: dict[int, ServiceError]
    queue_s: float
    inference_s: float


_Entry = Entry[_Work]


class Batcher:
    """Owns the queue and the lanes' threads. Not thread-safe: one event loop calls it."""

    def __init__(
        self, runner: Runner, planner: Planner[_Work], config: BatcherConfig, metrics: Metrics
    ) -> None:
        self._runner = runner
        self._planner = planner
        self._config = config
        self._metrics = metrics
        self._lanes = Lanes(runner.lanes, run_timeout_s=config.run_timeout_s)
        self._calls: set[_Call] = set()
        self._again: deque[_Entry] = deque()  # entries of failed batches, each to run alone
        self._waiters: deque[_Call] = deque()  # calls that wait for room in the queue
        self._dispatch_due = False
        self._lane_tokens_per_s = 0.0
        metrics.lanes.set(runner.lanes)
        metrics.follow(metrics.queued_inputs, lambda: self.queued_inputs)
        metrics.follow(metrics.queued_tokens, lambda: planner.waiting_tokens)
        metrics.follow(metrics.busy_lanes, lambda: runner.lanes - self._lanes.idle)

    @property
    def queued_inputs(self) -> int:
        return self._planner.waiting_inputs + len(self._again)

    @property
    def lost(self) -> asyncio.Event:
        """Set when a lane hangs or dies: nothing more can be promised, call `abandon` and end the process."""
        return self._lanes.lost

    @property
    def quiet(self) -> asyncio.Event:
        """Set while no lane runs anything."""
        return self._lanes.quiet

    def abandon(self, error: ServiceError) -> None:
        """Answers every call that is not settled with `error`."""
        for call in self._calls:
            if not call.settled.done():
                call.settled.set_exception(error)

    def close(self) -> None:
        self._lanes.close()

    def check_room(self, count: int) -> None:
        """Raises QueueFullError when `run` would refuse `count` sequences, however short they are."""
        if not self._has_room(count, 0):
            raise self._queue_full(f"{count} inputs")

    async def run(
        self,
        sequences: Sequence[TokenizedSequence],
        outputs: Outputs,
        *,
        priority: int = 0,
        deadline: float | None = None,
        wait_for_room: bool = False,
        timeline: Timeline | None = None,
    ) -> BatchedResult:
        """Runs a call's sequences; `deadline` in the event loop's time; `timeline` gets the batches.

        Raises QueueFullError, unless the call may wait for room, and DeadlineExceededError. Leaving early, by
        deadline or cancellation, takes what still waits out of the queue.
        """
        call = self._build_call(sequences, outputs, priority, deadline, timeline or Timeline())
        self._calls.add(call)
        try:
            async with until(deadline):
                self._admit(call, wait_for_room)
                await call.settled
        finally:
            self._withdraw(call)
        return BatchedResult(call.collector, call.errors, call.queue_s, call.inference_s)

    def _build_call(
        self,
        sequences: Sequence[TokenizedSequence],
        outputs: Outputs,
        priority: int,
        deadline: float | None,
        timeline: Timeline,
    ) -> _Call:
        collector = Collector(sequences, outputs, self._config.hidden_size)
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = _Call(collector, Flow(priority), settled, time.perf_counter(), deadline, timeline)
        group = tuple(sorted(outputs.attention.layers)) if outputs.attention else ()
        cells = len(group) * self._config.head_count
        call.entries = [
            Entry(len(sequence), _Work(call, Row(collector, index)), group, cells)
            for index, sequence in enumerate(sequences)
        ]
        call.remaining = len(call.entries)
        return call

    def _admit(self, call: _Call, wait_for_room: bool) -> None:
        if self._fits(call) and not (wait_for_room and self._waiters):
            self._enqueue(call)
        elif wait_for_room:
            self._waiters.append(call)
        else:
            raise self._queue_full(f"{len(call.entries)} inputs and {call.tokens} tokens")

    def _fits(self, call: _Call) -> bool:
        return self._has_room(len(call.entries), call.tokens)

    def _has_room(self, inputs: int, tokens: int) -> bool:
        """Whether the queue can take a call; an empty queue takes any."""
        waiting = self.queued_inputs
        return waiting == 0 or (
            waiting + inputs <= self._config.max_queued_inputs
            and self._planner.waiting_tokens + tokens <= self._config.max_queued_tokens
        )

    def _queue_full(self, call: str) -> QueueFullError:
        config, queued_tokens = self._config, self._planner.waiting_tokens
        rate = self._lane_tokens_per_s * self._runner.lanes
        lowest, highest = _RETRY_AFTER_S
        return QueueFullError(
            f"the queue holds {self.queued_inputs} of {config.max_queued_inputs} inputs and "
            f"{queued_tokens} of {config.max_queued_tokens} tokens; this call of {call} does not fit: "
            "send it again after the given delay",
            retry_after_s=min(max(queued_tokens / rate if rate else 1.0, lowest), highest),
        )

    def _enqueue(self, call: _Call) -> None:
        if not call.entries:
            call.settled.set_result(None)
        self._planner.add(call.flow, call.entries)
        self._schedule_dispatch()

    def _withdraw(self, call: _Call) -> None:
        """Entries refer to their call: letting go of them frees its arrays at once, not at a collection."""
        if call in self._waiters:
            self._waiters.remove(call)
        if self._again:
            self._again = deque(entry for entry in self._again if entry.payload.call is not call)
        for entry in call.entries:
            self._planner.remove(entry)
        call.entries.clear()
        self._calls.discard(call)
        if self._waiters:
            self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        """A batch is cut after this turn of the event loop, so that what arrived with it is in the queue."""
        if not self._dispatch_due:
            self._dispatch_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        while self._lanes.idle and (batch := self._next_batch()):
            self._start(batch)
        self._admit_waiters()

    def _next_batch(self) -> list[_Entry]:
        """Entries whose caller has left or whose deadline has passed are dropped here at the latest."""
        while self._again:
            if self._is_awaited(entry := self._again.popleft()):
                return [entry]
        while batch := self._planner.next_batch(self._lanes.idle):
            if awaited := [entry for entry in batch if self._is_awaited(entry)]:
                return awaited
        return []

    def _is_awaited(self, entry: _Entry) -> bool:
        call = entry.payload.call
        in_time = call.deadline is None or asyncio.get_running_loop().time() < call.deadline
        return in_time and not call.settled.done()

    def _admit_waiters(self) -> None:
        """Lets in, first come first served, the waiting calls that fit."""
        while self._waiters and self._fits(self._waiters[0]):
            self._enqueue(self._waiters.popleft())

    def _start(self, batch: list[_Entry]) -> None:
        run = BatchRun(_graph_of(batch[0].group), len(batch), time.perf_counter())
        for entry in batch:
            self._metrics.queue_duration_seconds.observe(run.started - entry.payload.call.submitted_at)
        for call in {entry.payload.call for entry in batch}:
            call.timeline.batches.append(run)
        rows = [entry.payload.row for entry in batch]
        self._lanes.start(partial(self._run, rows, batch[0].group), partial(self._finish, batch, run))

    def _run(self, rows: Sequence[Row], group: Group, stop: StopSignal) -> int:
        """On a lane's thread: returns the batch's tokens, padding included."""
        config = self._config
        arrays = collate(rows, pad_id=config.pad_id, length_multiple=config.length_multiple)
        distribute(rows, self._runner.run(_graph_of(group), arrays, output_names(rows, group), stop))
        return arrays.padded_tokens

    def _finish(self, batch: list[_Entry], run: BatchRun, future: asyncio.Future[int]) -> None:
        run.ended = time.perf_counter()
        if error := future.exception():
            self._handle_failure(batch, error)
        else:
            seconds = run.ended - run.started
            self._observe(batch, run.graph, future.result(), seconds)
            for entry in batch:
                self._settle(entry.payload, run.started, seconds)
        self._dispatch()

    def _handle_failure(self, batch: list[_Entry], error: BaseException) -> None:
        """Runs each entry of a failed batch once more, alone; one that fails again gets InternalError."""
        logger.error("a batch of %d inputs failed", len(batch), exc_info=error)
        for entry in batch:
            work = entry.payload
            if work.failed_before:
                work.call.errors[work.row.index] = InternalError()
                self._settle(work, time.perf_counter(), 0.0)
            else:
                work.failed_before = True
                self._again.append(entry)

    def _settle(self, work: _Work, started: float, seconds: float) -> None:
        call = work.call
        call.remaining -= 1
        call.queue_s = started - call.submitted_at
        call.inference_s = seconds
        if call.remaining == 0 and not call.settled.done():
            call.settled.set_result(None)

    def _observe(self, batch: list[_Entry], graph: str, padded_tokens: int, seconds: float) -> None:
        metrics = self._metrics
        tokens = sum(entry.payload.row.sequence.token_count for entry in batch)
        metrics.tokens_total.inc(tokens)
        metrics.padding_tokens_total.inc(padded_tokens - tokens)
        metrics.batch_inputs.observe(len(batch))
        metrics.batch_tokens.observe(padded_tokens)
        metrics.inference_duration_seconds.labels(graph).observe(seconds)
        rate = tokens / max(seconds, 1e-6)
        known = self._lane_tokens_per_s or rate
        self._lane_tokens_per_s = (1 - _RATE_WEIGHT) * known + _RATE_WEIGHT * rate


def _graph_of(group: Group) -> GraphKind:
    return "attention" if group else "encoder"
