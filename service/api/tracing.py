"""Calls as OpenTelemetry spans, sent to a collector over OTLP. Needs the extra `otel`.

A call is a span with one child for each stage; what it waited for in the engine, the batches, have traces of
their own, since each is of many calls, and are linked.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import grpc
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from seqenc.proxy import proxy_variable
from service.api.observation import CallRecord, Metadata
from service.types import BatchRun, Timeline

# More are dropped by OpenTelemetry as well.
_MAX_LINKS = 128
_EXPORT_TIMEOUT_S = 5
# Faults of the server, by OpenTelemetry's conventions for gRPC.
_FAULTS = ("DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE")


class OtlpTracing:
    def __init__(self, endpoint: str) -> None:
        own = Resource({"service.name": "seqenc", "service.version": version("seqenc")})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
        proxied = proxy_variable(urlsplit(endpoint).netloc) is not None
        exporter = OTLPSpanExporter(
            endpoint,
            timeout=_EXPORT_TIMEOUT_S,
            channel_options=(("grpc.enable_http_proxy", int(proxied)),),  # type: ignore[arg-type]
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("seqenc")
        self._propagator = TraceContextTextMapPropagator()
        self._batches: WeakKeyDictionary[BatchRun, SpanContext] = WeakKeyDictionary()

    def trace(self, record: CallRecord, metadata: Metadata) -> str:
        clock = _Clock()
        span = self._tracer.start_span(
            record.method,
            self._parent(metadata),
            SpanKind.SERVER,
            {
                "rpc.system": "grpc",
                "rpc.method": record.method,
                "rpc.grpc.status_code": grpc.StatusCode[record.code].value[0],
                "seqenc.inputs": record.input_count,
            },
            start_time=clock.nanoseconds(record.begun),
        )
        if recorded := span.is_recording():
            for timeline in record.timelines:
                self._trace_stages(span, timeline, clock)
        if record.code in _FAULTS:
            span.set_status(Status(StatusCode.ERROR, record.code))
        span.end(clock.nanoseconds(record.ended))
        return f"{span.get_span_context().trace_id:032x}" if recorded else ""

    def close(self) -> None:
        """Sends what is left, if there is a collector to take it."""
        self._provider.shutdown()

    def _parent(self, metadata: Metadata) -> Context:
        """The caller's span, where it sent one."""
        headers = {key: value for key, value in metadata if isinstance(value, str)}
        return self._propagator.extract(headers, Context())

    def _trace_stages(self, span: Span, timeline: Timeline, clock: _Clock) -> None:
        context = set_span_in_context(span, Context())
        for stage, (begun, ended) in timeline.stages.items():
            ran = timeline.batches[-_MAX_LINKS:] if stage == "inference" else ()
            links = [Link(self._batch(batch, clock)) for batch in ran if batch.ended]
            start = clock.nanoseconds(begun)
            child = self._tracer.start_span(stage, context, links=links, start_time=start)
            child.end(clock.nanoseconds(ended))

    def _batch(self, batch: BatchRun, clock: _Clock) -> SpanContext:
        """Its span, made for the first call that tells of it."""
        if known := self._batches.get(batch):
            return known
        span = self._tracer.start_span(
            "batch",
            Context(),
            attributes={"seqenc.inputs": batch.input_count, "seqenc.graph": batch.graph},
            start_time=clock.nanoseconds(batch.started),
        )
        span.end(clock.nanoseconds(batch.ended))
        return self._batches.setdefault(batch, span.get_span_context())


class _Clock:
    """Moments of time.perf_counter as nanoseconds since 1970."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def nanoseconds(self, moment: float) -> int:
        return self._offset + int(moment * 1e9)
