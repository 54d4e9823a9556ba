"""What a scrape sees from the first one on, and that its size is bounded."""

from __future__ import annotations

from prometheus_client import generate_latest

from service.errors import Code
from service.metrics import CODES, METHODS, Metrics

NAMES = [
    "requests_total",
    "request_duration_seconds",
    "inputs_total",
    "tokens_total",
    "padding_tokens_total",
    "truncated_inputs_total",
    "input_tokens",
    "tokenize_duration_seconds",
    "queue_duration_seconds",
    "inference_duration_seconds",
    "batch_inputs",
    "batch_tokens",
    "queued_inputs",
    "queued_tokens",
    "inflight_requests",
    "lanes",
    "busy_lanes",
    "rejected_total",
    "stream_messages_total",
    "model_info",
]


def series(metrics: Metrics) -> set[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_every_metric_is_there_under_its_name() -> None:
    text = generate_latest(Metrics().registry).decode()
    declared = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert declared == {f"seqenc_{name}" for name in NAMES}


def test_labelled_series_exist_from_the_first_scrape() -> None:
    found = series(Metrics())
    for method in METHODS:
        assert f'seqenc_request_duration_seconds_count{{method="{method}"}}' in found
        for code in ("OK", *map(str, Code)):
            assert f'seqenc_requests_total{{code="{code}",method="{method}"}}' in found
    for code in CODES:
        assert f'seqenc_stream_messages_total{{code="{code}"}}' in found
    for graph in ("encoder", "attention"):
        assert f'seqenc_inference_duration_seconds_count{{graph="{graph}"}}' in found
    assert 'seqenc_rejected_total{reason="QUEUE_FULL"}' in found
    assert 'seqenc_inputs_total{outcome="ok"}' in found


def test_use_adds_no_series() -> None:
    metrics = Metrics()
    before = series(metrics)
    for value in range(300):
        metrics.input_tokens.observe(value)
        metrics.batch_tokens.observe(value)
        metrics.requests_total.labels(METHODS[value % len(METHODS)], CODES[value % len(CODES)]).inc()
    assert series(metrics) == before


def test_a_gauge_follows_what_it_is_told_to() -> None:
    metrics, waiting = Metrics(), [3]
    metrics.follow(metrics.queued_inputs, lambda: waiting[0])
    assert metrics.registry.get_sample_value("seqenc_queued_inputs") == 3
    waiting[0] = 0
    assert metrics.registry.get_sample_value("seqenc_queued_inputs") == 0


def test_two_servers_in_one_process_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.tokens_total.inc(5)
    assert second.registry.get_sample_value("seqenc_tokens_total") == 0
