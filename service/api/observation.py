"""What is told of a call once it has ended: to the metrics, to the request log, to a trace.

Where a call's time went is gathered while it runs, in the task of the call and those that it starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from service.api.request_log import RequestLog
from service.errors import ServiceError
from service.metrics import REJECTION_REASONS, Metrics
from service.types import Timeline

# Of the messages of a long stream only the first ones are traced.
_MAX_TRACED = 32
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(slots=True)
class CallRecord:
    """`slowest_s` is the longest time of a timeline: of the call's work, or of a stream's message."""

    method: str
    begun: float
    ended: float = 0.0
    code: str = "OK"
    input_count: int = 0
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    slowest_s: float = 0.0
    timelines: list[Timeline] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def add(self, timeline: Timeline) -> None:
        self.input_count += timeline.input_count
        self.tokenize_s += timeline.tokenize_s
        self.queue_s += timeline.queue_s
        self.inference_s += timeline.inference_s
        self.slowest_s = max(self.slowest_s, timeline.seconds)
        if len(self.timelines) < _MAX_TRACED:
            self.timelines.append(timeline)


class Tracing(Protocol):
    def trace(self, record: CallRecord, metadata: Metadata) -> str:
        """The id of the call's trace; empty when nothing of it is sent."""

    def close(self) -> None: ...


_record: ContextVar[CallRecord] = ContextVar("record")


@contextmanager
def timed(input_count: int) -> Iterator[Timeline]:
    """For the inputs of the call that this is run for, or of one message of it."""
    timeline = Timeline(time.perf_counter(), input_count)
    try:
        yield timeline
    finally:
        timeline.ended = time.perf_counter()
        _record.get().add(timeline)


class Observer:
    def __init__(self, metrics: Metrics, log: RequestLog, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._log = log
        self._tracing = tracing

    def begin(self, method: str) -> CallRecord:
        record = CallRecord(method, time.perf_counter())
        _record.set(record)
        self._metrics.inflight_requests.inc()
        return record

    def end(self, record: CallRecord, code: str, failure: ServiceError | None, metadata: Metadata) -> None:
        record.code, record.ended = code, time.perf_counter()
        metrics = self._metrics
        metrics.inflight_requests.dec()
        metrics.requests_total.labels(record.method, code).inc()
        if failure and failure.reason in REJECTION_REASONS:
            metrics.rejected_total.labels(failure.reason).inc()
        trace_id = self._tracing.trace(record, metadata) if self._tracing else ""
        exemplar = {"trace_id": trace_id} if trace_id else None
        metrics.request_duration_seconds.labels(record.method).observe(record.seconds, exemplar)
        self._log.write(record, trace_id)

    def answer_message(self, code: str) -> None:
        """Of a stream."""
        self._metrics.stream_messages_total.labels(code).inc()

    def close(self) -> None:
        if self._tracing:
            self._tracing.close()
