"""Spans as a collector receives them over OTLP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly

from api.calls_of_every_kind import METHODS, Method
from api.own_server import TIMEOUT_S, raw_stream, serve_here
from seqenc.v1 import encoder_pb2 as pb
from service.errors import StartError

ENCODE, STREAM, INFER, TOKENIZE = (
    METHODS[name] for name in ("Encode", "EncodeStream", "ModelInfer", "Tokenize")
)
STAGES = ["tokenize", "queue", "inference"]
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ERROR = 2


class Collector(TraceServiceServicer):
    """`spans` come when the server has stopped, at the latest."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.address = ""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            self.resources.append(
                {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            )
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Any) -> list[Any]:
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, STAGES.index(span.name)))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr("service.api.tracing._EXPORT_TIMEOUT_S", TIMEOUT_S)
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(0).wait()


async def traced(collector: Collector, artifact: Path, *calls: Method, **options: Any) -> None:
    """By a server that has stopped since."""
    async with serve_here(artifact, otlp_endpoint=collector.address) as server, server.channel() as channel:
        for method in calls:
            await method.code(channel, **options)


@pytest.mark.parametrize("method", [ENCODE, STREAM, INFER], ids=lambda method: method.name)
async def test_a_call_and_its_stages(collector: Collector, tiny_artifact: Path, method: Method) -> None:
    await traced(collector, tiny_artifact, method)
    (call,) = collector.named(method.name)
    stages = collector.children(call)
    assert [stage.name for stage in stages] == STAGES
    assert {stage.trace_id for stage in stages} == {call.trace_id}
    assert call.start_time_unix_nano <= stages[0].start_time_unix_nano
    for before, after in pairwise(stages):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    assert stages[-1].end_time_unix_nano <= call.end_time_unix_nano
    assert attributes(call) == {
        "rpc.system": "grpc",
        "rpc.method": method.name,
        "rpc.grpc.status_code": 0,
        "seqenc.inputs": 1,
    }
    assert collector.resources[0]["service.name"] == "seqenc"


async def test_the_batch_is_linked_from_all_calls_in_it(collector: Collector, tiny_artifact: Path) -> None:
    settings = {"otlp_endpoint": collector.address, "lanes": 1}
    async with serve_here(tiny_artifact, **settings) as server, server.channel() as channel:
        stream = raw_stream(channel, STREAM.path)(iter([STREAM.good.SerializeToString()] * 3))
        assert len([answer async for answer in stream]) == 3
    batches = {batch.span_id: batch for batch in collector.named("batch")}
    links = [link for span in collector.named("inference") for link in span.links]
    assert len(links) == 3
    assert {link.span_id for link in links} == set(batches)
    assert sum(attributes(batch)["seqenc.inputs"] for batch in batches.values()) == 3
    assert all(attributes(batch)["seqenc.graph"] == "encoder" for batch in batches.values())
    assert not {batch.trace_id for batch in batches.values()} & {collector.named("EncodeStream")[0].trace_id}


async def test_the_callers_context_is_taken_up(collector: Collector, tiny_artifact: Path) -> None:
    metadata = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)
    await traced(collector, tiny_artifact, TOKENIZE, metadata=metadata)
    (call,) = collector.named("Tokenize")
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert [stage.name for stage in collector.children(call)] == ["tokenize"]


async def test_what_the_caller_does_not_sample_is_not_sent(collector: Collector, tiny_artifact: Path) -> None:
    metadata = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00"),)
    await traced(collector, tiny_artifact, ENCODE, metadata=metadata)
    assert collector.spans == []


@pytest.mark.parametrize(("flags", "shown"), [("01", True), ("00", False)])
async def test_the_trace_is_named_in_the_log_and_beside_the_histogram(
    collector: Collector, caplog: pytest.LogCaptureFixture, flags: str, shown: bool
) -> None:
    caplog.set_level("INFO")
    settings: dict[str, Any] = {"otlp_endpoint": collector.address, "log_sample_rate": 1, "slow_call_s": 0}
    async with serve_here(**settings) as server, server.channel() as channel:
        await ENCODE.code(channel, metadata=(("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-{flags}"),))
        page = generate_openmetrics(server.metrics.registry).decode()  # type: ignore[no-untyped-call]
    (line,) = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "call"]
    assert line.get("trace_id") == (TRACE_ID if shown else None)
    families = {family.name: family for family in parse_strictly(page)}  # type: ignore[no-untyped-call]
    samples = families["seqenc_request_duration_seconds"].samples
    exemplars = [sample.exemplar.labels for sample in samples if sample.exemplar]
    assert exemplars == ([{"trace_id": TRACE_ID}] if shown else [])


@pytest.mark.parametrize("value", ["", "zz", f"00-{'0' * 32}-{SPAN_ID}-01", "00-" * 400])
async def test_a_context_that_cannot_be_read_is_left_aside(
    collector: Collector, tiny_artifact: Path, value: str
) -> None:
    await traced(collector, tiny_artifact, ENCODE, metadata=(("traceparent", value),))
    (call,) = collector.named("Encode")
    assert not call.parent_span_id


async def test_a_call_that_fails(collector: Collector) -> None:
    async with serve_here(otlp_endpoint=collector.address) as server, server.channel() as channel:
        assert await ENCODE.code(channel) == "UNAVAILABLE"
        assert await ENCODE.code(channel, b"\xff") == "INVALID_ARGUMENT"
    fault, refused = collector.named("Encode")
    assert (fault.status.code, attributes(fault)["rpc.grpc.status_code"]) == (ERROR, 14)
    assert (refused.status.code, attributes(refused)["rpc.grpc.status_code"]) == (0, 3)


async def test_no_text_is_traced(collector: Collector, tiny_artifact: Path) -> None:
    request = pb.EncodeRequest(inputs=[pb.Sequence(text="zanzibar")], request_id="zanzibar", model="zanzibar")
    async with (
        serve_here(tiny_artifact, otlp_endpoint=collector.address) as server,
        server.channel() as channel,
    ):
        for model in ("", "zanzibar"):
            request.model = model
            await ENCODE.code(channel, request.SerializeToString(), metadata=(("x-id", "zanzibar"),))
    assert len(collector.named("Encode")) == 2
    assert "zanzibar" not in str(collector.spans)


async def test_a_collector_that_is_not_there_harms_no_call(tiny_artifact: Path) -> None:
    async with (
        serve_here(tiny_artifact, otlp_endpoint="http://127.0.0.1:1") as server,
        server.channel() as channel,
    ):
        assert await ENCODE.code(channel) == "OK"


async def test_off_by_default(tiny_artifact: Path) -> None:
    with without_opentelemetry():
        async with serve_here(tiny_artifact) as server, server.channel() as channel:
            assert await ENCODE.code(channel) == "OK"


async def test_without_the_extra_the_start_says_so() -> None:
    with without_opentelemetry(), pytest.raises(StartError, match="--otlp-endpoint needs the extra otel"):
        async with serve_here(otlp_endpoint="http://127.0.0.1:1"):
            pass


@contextmanager
def without_opentelemetry() -> Iterator[None]:
    """As where it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*sys.modules]:
            if name.partition(".")[0] == "opentelemetry" or name == "service.api.tracing":
                patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "opentelemetry", None)
        yield


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}
