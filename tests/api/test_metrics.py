"""Every call, however it ends, moves the counters that it should by one, and no gauge for good."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly

from api.calls_of_every_kind import METHODS, TEXTS, UNDECODABLE, Method
from api.own_server import TIMEOUT_S, OwnServer, raw_stream, serve_here, until
from api.tensors import infer_request
from seqenc.v1 import encoder_pb2 as pb
from service.core.engine import Engine
from service.core.tokenization import Tokenization
from service.metrics import METHODS as COUNTED_METHODS
from service.metrics import Metrics

pytestmark = pytest.mark.asyncio(loop_scope="module")

GAUGES = ("queued_inputs", "queued_tokens", "inflight_requests", "busy_lanes")
EVERY_METHOD = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
ENCODE, STREAM, TOKENIZE, INFER = (
    METHODS[name] for name in ("Encode", "EncodeStream", "Tokenize", "ModelInfer")
)
ENCODING_METHOD = pytest.mark.parametrize("method", [ENCODE, STREAM, INFER], ids=lambda method: method.name)
TOKENS = 3  # of the good request's text
TOKENIZED = {"tokenize_duration_seconds_count": 1}
BATCH = {
    "tokens_total": TOKENS,
    "queue_duration_seconds_count": 1,
    "batch_inputs_count": 1,
    "batch_tokens_count": 1,
    "inference_duration_seconds_count encoder": 1,
}
LONG = pb.Sequence(text="a " * 1000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tiny_artifact: Path) -> AsyncIterator[OwnServer]:
    """With one lane and room for one input."""
    settings = {"lanes": 1, "max_queued_inputs": 1, "max_inputs": 1}
    async with serve_here(tiny_artifact, **settings) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def channel(server: OwnServer) -> AsyncIterator[grpc.aio.Channel]:
    async with server.channel() as channel:
        yield channel


class Gate:
    """Keeps what it guards from beginning until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_call(*arguments: Any) -> Any:
            assert self._opened.wait(TIMEOUT_S)
            return function(*arguments)

        return wait_and_call

    def open(self) -> None:
        self._opened.set()


@pytest_asyncio.fixture(loop_scope="module")
async def busy_server(server: OwnServer, channel: grpc.aio.Channel) -> AsyncIterator[OwnServer]:
    """Its lane is taken: what comes waits."""
    gate = Gate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", gate.guard(Engine.run))
        taking = asyncio.ensure_future(ENCODE.code(channel))
        await until(lambda: samples(server.metrics)["busy_lanes"] == 1)
        yield server
        gate.open()
        assert await taking == "OK"


def samples(metrics: Metrics) -> dict[str, float]:
    """Every one by name and labels' values, but for the sums and buckets of histograms."""
    return {
        " ".join((sample.name.removeprefix("seqenc_"), *sample.labels.values())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_sum", "_bucket"))
    }


def series(metrics: Metrics) -> list[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]


async def moved(metrics: Metrics, calls: Coroutine[Any, Any, None]) -> dict[str, float]:
    """What the calls changed, once the server has done with them: no gauge, and no series is new."""
    before = samples(metrics)
    await calls
    await until(lambda: samples(metrics) != before and gauges(samples(metrics)) == gauges(before))
    after = samples(metrics)
    assert after.keys() == before.keys()
    return {name: after[name] - value for name, value in before.items() if after[name] != value}


def gauges(found: dict[str, float]) -> list[float]:
    return [found[name] for name in GAUGES]


def ended(method: Method, code: str) -> dict[str, float]:
    """What every call moves."""
    return {f"requests_total {method.name} {code}": 1, f"request_duration_seconds_count {method.name}": 1}


def message(method: Method, code: str) -> dict[str, float]:
    return {f"stream_messages_total {code}": 1} if method is STREAM else {}


async def expect(code: str, call: Awaitable[str]) -> None:
    assert await asyncio.wait_for(call, TIMEOUT_S) == code


async def leave(call: Coroutine[Any, Any, str], metrics: Metrics, gauge: str) -> None:
    """As its caller, once it is the one that the gauge counts."""
    leaving = asyncio.ensure_future(call)
    await until(lambda: samples(metrics)[gauge] == 1)
    leaving.cancel()


async def test_every_counted_method_is_called_here() -> None:
    assert set(METHODS) == set(COUNTED_METHODS)


class TestGood:
    @ENCODING_METHOD
    async def test_encoding(self, server: OwnServer, channel: grpc.aio.Channel, method: Method) -> None:
        assert await moved(server.metrics, expect("OK", method.code(channel))) == {
            **ended(method, "OK"),
            **message(method, "OK"),
            **TOKENIZED,
            **BATCH,
            "input_tokens_count": 1,
            "inputs_total ok": 1,
        }

    @pytest.mark.parametrize(
        "method", [method for method in METHODS.values() if method not in (ENCODE, STREAM, INFER)]
    )
    async def test_other_calls(self, server: OwnServer, channel: grpc.aio.Channel, method: Method) -> None:
        expected = ended(method, "OK") | (TOKENIZED if method is TOKENIZE else {})
        assert await moved(server.metrics, expect("OK", method.code(channel))) == expected

    async def test_padding_truncation_and_maps(self, server: OwnServer, channel: grpc.aio.Channel) -> None:
        options = pb.EncodeOptions(truncation=pb.TRUNCATION_RIGHT, max_tokens=TOKENS, attention={})
        request = pb.EncodeRequest(inputs=[LONG], options=options).SerializeToString()
        changes = await moved(server.metrics, expect("OK", ENCODE.code(channel, request)))
        assert changes["truncated_inputs_total"] == 1
        assert changes["inference_duration_seconds_count attention"] == 1
        assert "inference_duration_seconds_count encoder" not in changes
        assert "padding_tokens_total" not in changes


class TestBad:
    @EVERY_METHOD
    async def test_undecodable(self, server: OwnServer, channel: grpc.aio.Channel, method: Method) -> None:
        calls = expect("INVALID_ARGUMENT", method.code(channel, UNDECODABLE))
        assert await moved(server.metrics, calls) == ended(method, "INVALID_ARGUMENT")

    @ENCODING_METHOD
    async def test_a_text_too_long(
        self, server: OwnServer, channel: grpc.aio.Channel, method: Method
    ) -> None:
        request: Message = infer_request({"text": [LONG.text]}) if method is INFER else encode_request(LONG)
        code = "OK" if method is STREAM else "INVALID_ARGUMENT"
        calls = expect(code, method.code(channel, request.SerializeToString()))
        assert await moved(server.metrics, calls) == {
            **ended(method, code),
            **message(method, "INVALID_ARGUMENT"),
            **TOKENIZED,
            "inputs_total invalid": 1,
        }

    async def test_inputs_of_one_call_that_fare_differently(self, tiny_artifact: Path) -> None:
        options = pb.EncodeOptions(on_error=pb.ON_ERROR_PER_INPUT)
        request = encode_request(LONG, *TEXTS, LONG, options=options).SerializeToString()
        async with serve_here(tiny_artifact) as server, server.channel() as channel:
            changes = await moved(server.metrics, expect("OK", ENCODE.code(channel, request)))
        assert (changes["inputs_total ok"], changes["inputs_total invalid"]) == (1, 2)
        assert changes["requests_total Encode OK"] == changes["input_tokens_count"] == 1

    async def test_a_reply_too_large(self, tiny_artifact: Path) -> None:
        options = pb.EncodeOptions(token_embeddings=True)
        request = encode_request(*TEXTS * 200, options=options).SerializeToString()
        async with (
            serve_here(tiny_artifact, max_message_bytes=1 << 16) as server,
            server.channel() as channel,
        ):
            calls = expect("RESOURCE_EXHAUSTED", ENCODE.code(channel, request))
            assert await moved(server.metrics, calls) == {
                **ended(ENCODE, "RESOURCE_EXHAUSTED"),
                **TOKENIZED,
                "inputs_total rejected": 200,
                "rejected_total REPLY_TOO_LARGE": 1,
            }

    @ENCODING_METHOD
    async def test_a_failing_engine(
        self,
        server: OwnServer,
        channel: grpc.aio.Channel,
        method: Method,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("the engine failed")

        monkeypatch.setattr(Engine, "run", fail)
        code = "OK" if method is STREAM else "INTERNAL"
        assert await moved(server.metrics, expect(code, method.code(channel))) == {
            **ended(method, code),
            **message(method, "INTERNAL"),
            **TOKENIZED,
            # It is run once more, alone.
            "queue_duration_seconds_count": 2,
            "inputs_total failed": 1,
        }


class TestCancelled:
    @ENCODING_METHOD
    async def test_in_the_queue(
        self, busy_server: OwnServer, channel: grpc.aio.Channel, method: Method
    ) -> None:
        leaving = leave(method.code(channel), busy_server.metrics, "queued_inputs")
        assert await moved(busy_server.metrics, leaving) == {
            **ended(method, "CANCELLED"),
            **TOKENIZED,
            "inputs_total cancelled": 1,
        }

    async def test_in_the_tokenizer(
        self, server: OwnServer, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = tokenizer_gate(monkeypatch)

        leaving = leave(TOKENIZE.code(channel), server.metrics, "inflight_requests")
        assert await moved(server.metrics, leaving) == ended(TOKENIZE, "CANCELLED")
        gate.open()


class TestExpired:
    """By the caller's clock: the server sees it leave, with little time left."""

    @pytest.fixture(autouse=True)
    def any_time_is_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.core.deadline._TRAVEL_S", TIMEOUT_S)

    @ENCODING_METHOD
    async def test_in_the_queue(
        self, busy_server: OwnServer, channel: grpc.aio.Channel, method: Method
    ) -> None:
        leaving = leave(method.code(channel, timeout=TIMEOUT_S), busy_server.metrics, "queued_inputs")
        assert await moved(busy_server.metrics, leaving) == {
            **ended(method, "DEADLINE_EXCEEDED"),
            **TOKENIZED,
            "inputs_total expired": 1,
        }

    async def test_in_the_tokenizer(
        self, server: OwnServer, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = tokenizer_gate(monkeypatch)
        leaving = leave(TOKENIZE.code(channel, timeout=TIMEOUT_S), server.metrics, "inflight_requests")
        assert await moved(server.metrics, leaving) == ended(TOKENIZE, "DEADLINE_EXCEEDED")
        gate.open()


class TestOverloaded:
    @EVERY_METHOD
    async def test_by_calls(self, tiny_artifact: Path, method: Method) -> None:
        async with serve_here(max_concurrent_calls=1) as server, server.channel() as channel:
            held = raw_stream(channel, STREAM.path)()
            await held.write(STREAM.good.SerializeToString())
            await held.read()
            assert await moved(server.metrics, expect("RESOURCE_EXHAUSTED", method.code(channel))) == {
                **ended(method, "RESOURCE_EXHAUSTED"),
                "rejected_total QUEUE_FULL": 1,
            }
            held.cancel()

    @pytest.mark.parametrize("method", [ENCODE, INFER], ids=lambda method: method.name)
    async def test_by_inputs(self, busy_server: OwnServer, channel: grpc.aio.Channel, method: Method) -> None:
        waiting = asyncio.ensure_future(ENCODE.code(channel))
        await until(lambda: samples(busy_server.metrics)["queued_inputs"] == 1)
        assert await moved(busy_server.metrics, expect("RESOURCE_EXHAUSTED", method.code(channel))) == {
            **ended(method, "RESOURCE_EXHAUSTED"),
            "inputs_total rejected": 1,
            "rejected_total QUEUE_FULL": 1,
        }
        waiting.cancel()
        await until(lambda: samples(busy_server.metrics)["queued_inputs"] == 0)

    @pytest.mark.parametrize("method", [ENCODE, INFER, TOKENIZE], ids=lambda method: method.name)
    async def test_by_the_quota(self, tiny_artifact: Path, method: Method) -> None:
        async with serve_here(tiny_artifact, quota_inputs_per_s=1e-3) as server, server.channel() as channel:
            await expect("OK", method.code(channel))
            assert await moved(server.metrics, expect("RESOURCE_EXHAUSTED", method.code(channel))) == {
                **ended(method, "RESOURCE_EXHAUSTED"),
                **({} if method is TOKENIZE else {"inputs_total rejected": 1}),
                "rejected_total QUOTA": 1,
            }


class TestNotServing:
    @EVERY_METHOD
    async def test_before_it_is_ready(self, method: Method) -> None:
        open_to_all = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata")
        async with serve_here() as server, server.channel() as channel:
            code = "OK" if method.name in open_to_all or method is STREAM else "UNAVAILABLE"
            assert await moved(server.metrics, expect(code, method.code(channel))) == {
                **ended(method, code),
                **message(method, "UNAVAILABLE"),
                **({"rejected_total NOT_READY": 1} if code == "UNAVAILABLE" else {}),
            }


class TestSize:
    async def test_unknown_names_add_no_series(self, server: OwnServer, channel: grpc.aio.Channel) -> None:
        before = series(server.metrics)
        for number in range(300):
            name = f"model-{number}"
            request = encode_request(*TEXTS, model=name, request_id=name).SerializeToString()
            await expect("NOT_FOUND", ENCODE.code(channel, request))
            request = infer_request({"text": ["a"]}, model_name=name, id=name).SerializeToString()
            await expect("NOT_FOUND", INFER.code(channel, request))
        await expect("UNIMPLEMENTED", Method(ENCODE.service, "Nothing", ENCODE.good).code(channel))
        assert series(server.metrics) == before

    async def test_clients_add_no_series(self, tiny_artifact: Path, tmp_path: Path) -> None:
        tokens = [f"client-{number:03}-0123456789" for number in range(300)]
        (tmp_path / "tokens").write_text("".join(f"{token[:10]}:{token}\n" for token in tokens))
        settings = {"tokens_file": tmp_path / "tokens", "quota_inputs_per_s": 1e-3}
        async with serve_here(tiny_artifact, **settings) as server, server.channel() as channel:
            before = series(server.metrics)
            for token in tokens:
                metadata = (("authorization", f"Bearer {token}"),)
                await expect("OK", ENCODE.code(channel, metadata=metadata))
                await expect("RESOURCE_EXHAUSTED", ENCODE.code(channel, metadata=metadata))
            assert series(server.metrics) == before

    async def test_lengths_add_no_series(self, tiny_artifact: Path) -> None:
        async with serve_here(tiny_artifact) as server, server.channel() as channel:
            before = series(server.metrics)
            for count in range(1, 60):
                request = encode_request(pb.Sequence(text="a " * count)).SerializeToString()
                await expect("OK", ENCODE.code(channel, request))
            assert series(server.metrics) == before


async def test_the_page_is_well_formed(server: OwnServer) -> None:
    page = generate_openmetrics(server.metrics.registry).decode()  # type: ignore[no-untyped-call]
    names = [family.name for family in parse_strictly(page)]  # type: ignore[no-untyped-call]
    assert len(names) == len(set(names)) == len(vars(server.metrics)) - 1
    if promtool := shutil.which("promtool"):
        found = await asyncio.to_thread(lint, promtool, generate_latest(server.metrics.registry))
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def lint(promtool: str, page: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)


def encode_request(*inputs: pb.Sequence, **fields: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=inputs, **fields)


def tokenizer_gate(patch: pytest.MonkeyPatch) -> Gate:
    """Before the tokenizer's thread, which every text then goes through."""
    gate = Gate()
    patch.setattr("service.core.tokenization._INLINE_LENGTH", 0)
    patch.setattr(Tokenization, "_tokenize", gate.guard(Tokenization._tokenize))
    return gate
