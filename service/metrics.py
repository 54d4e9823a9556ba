"""Every metric of the server, in one registry; nothing here knows when they move."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from service.errors import Code

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_INFERENCE_METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
)
METHODS = ("Encode", "EncodeStream", "Tokenize", "GetModel", *_INFERENCE_METHODS)
CODES = ("OK", *(str(code) for code in Code))
OUTCOMES = ("ok", "invalid", "rejected", "failed", "expired", "cancelled")
REJECTION_REASONS = ("QUEUE_FULL", "QUOTA", "REPLY_TOO_LARGE", "NOT_READY", "DRAINING")


class Metrics:
    """Each attribute is the metric `seqenc_<attribute>`; labelled series exist from the first scrape."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests_total = self._counter("requests_total", "calls ended, by status code", "method", "code")
        self.stream_messages_total = self._counter(
            "stream_messages_total", "messages of EncodeStream answered, by status code", "code"
        )
        self.request_duration_seconds = self._histogram(
            "request_duration_seconds", "time of a call in the server", _SECONDS, "method"
        )
        self.inputs_total = self._counter(
            "inputs_total", "inputs of Encode and ModelInfer, by outcome", "outcome"
        )
        self.tokens_total = self._counter("tokens_total", "real tokens run through the encoder")
        self.padding_tokens_total = self._counter(
            "padding_tokens_total", "padding run through the encoder, in tokens"
        )
        self.truncated_inputs_total = self._counter(
            "truncated_inputs_total", "inputs that lost tokens to a limit"
        )
        self.input_tokens = self._histogram("input_tokens", "real tokens of an input", _TOKENS)
        self.tokenize_duration_seconds = self._histogram(
            "tokenize_duration_seconds", "time to tokenise the inputs of a call", _SECONDS
        )
        self.queue_duration_seconds = self._histogram(
            "queue_duration_seconds", "time an input waited for a lane", _SECONDS
        )
        self.inference_duration_seconds = self._histogram(
            "inference_duration_seconds", "time of a batch in ONNX Runtime", _SECONDS, "graph"
        )
        self.batch_inputs = self._histogram("batch_inputs", "inputs of a batch", _INPUTS)
        self.batch_tokens = self._histogram("batch_tokens", "tokens of a batch, padding included", _TOKENS)
        self.queued_inputs = self._gauge("queued_inputs", "inputs waiting for a lane")
        self.queued_tokens = self._gauge("queued_tokens", "tokens waiting for a lane")
        self.inflight_requests = self._gauge("inflight_requests", "calls being worked on")
        self.lanes = self._gauge("lanes", "batches that can run side by side")
        self.busy_lanes = self._gauge("busy_lanes", "lanes running a batch")
        self.rejected_total = self._counter("rejected_total", "calls refused to protect the server", "reason")
        self.model_info = self._gauge(
            "model_info", "1, labelled with what is served", "name", "revision", "provider", "precision"
        )
        self._create_series()

    def _create_series(self) -> None:
        for method in METHODS:
            self.request_duration_seconds.labels(method)
            for code in CODES:
                self.requests_total.labels(method, code)
        for code in CODES:
            self.stream_messages_total.labels(code)
        for outcome in OUTCOMES:
            self.inputs_total.labels(outcome)
        for graph in ("encoder", "attention"):
            self.inference_duration_seconds.labels(graph)
        for reason in REJECTION_REASONS:
            self.rejected_total.labels(reason)

    def follow(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Makes a gauge show what `read` returns at each scrape."""
        gauge.set_function(read)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="seqenc", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="seqenc", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="seqenc", registry=self.registry, buckets=buckets)
