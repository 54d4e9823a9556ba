"""Limits on calls at once, calls of a connection, metadata, and the time of calls that bring no deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from api.own_server import TIMEOUT_S, check_health, code_of, raw_stream, raw_unary, serve_here
from api.refusals import Refusal, read_refusal
from api.tensors import infer_request
from seqenc.v1 import encoder_pb2 as pb
from seqenc.v1.encoder_pb2_grpc import EncoderServiceStub
from service.api.allowance import Allowance
from service.core.engine import Engine
from service.core.tokenizer import Tokenizer

ENCODE = "/seqenc.v1.EncoderService/Encode"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/seqenc.v1.EncoderService/EncodeStream"
CUT = pb.EncodeOptions(truncation=pb.TRUNCATION_RIGHT)
REQUEST = pb.EncodeRequest(inputs=[pb.Sequence(text="a")])


def encoder(channel: grpc.aio.Channel) -> Any:
    return EncoderServiceStub(channel)  # type: ignore[no-untyped-call]


async def call(channel: grpc.aio.Channel, **options: Any) -> str:
    """A call that was let in is answered NOT_READY."""
    return await code_of(raw_unary(channel, ENCODE)(b"", timeout=TIMEOUT_S, **options))


async def once_let_in(call: Callable[[], Awaitable[str]]) -> str:
    """A place is free only after the call that had it is over for its caller."""
    async with asyncio.timeout(TIMEOUT_S):
        while (code := await call()) == "RESOURCE_EXHAUSTED":
            pass
    return code


async def hold(channel: grpc.aio.Channel) -> Any:
    """A call that lasts, once the server has it in work."""
    stream = raw_stream(channel, STREAM)()
    # What is not ready is answered inside the stream.
    await stream.write(b"")
    await asyncio.wait_for(stream.read(), TIMEOUT_S)
    return stream


async def hold_once_let_in(channel: grpc.aio.Channel) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return await hold(channel)


async def release(stream: Any) -> None:
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def refusal_of(channel: grpc.aio.Channel) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw_unary(channel, ENCODE)(b"", timeout=TIMEOUT_S)
    return read_refusal(raised.value)


class TestCallsAtOnce:
    async def test_one_more_is_refused_until_one_ends(self) -> None:
        async with serve_here(max_concurrent_calls=2) as server, server.channel() as channel:
            first, second = await hold(channel), await hold(channel)
            assert await call(channel) == "RESOURCE_EXHAUSTED"
            await release(first)
            assert await once_let_in(lambda: call(channel)) == "UNAVAILABLE"
            await release(second)

    async def test_the_refusal_says_the_limit_and_when_to_return(self) -> None:
        async with serve_here(max_concurrent_calls=1) as server, server.channel() as channel:
            held = await hold(channel)
            refusal = await refusal_of(channel)
            assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
            assert "1 calls are in work, the limit is 1 (--max-concurrent-calls)" in refusal.message
            assert refusal.retry_delay is not None
            assert 50 <= refusal.retry_delay.ToMilliseconds() <= 30_000
            assert server.metrics.rejected_total.labels("QUEUE_FULL")._value.get() == 1
            assert server.metrics.requests_total.labels("Encode", "RESOURCE_EXHAUSTED")._value.get() == 1
            await release(held)

    async def test_a_stream_is_refused_before_it_sends_anything(self) -> None:
        async with serve_here(max_concurrent_calls=1) as server, server.channel() as channel:
            held = await hold(channel)
            assert await raw_stream(channel, STREAM)().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await release(held)

    async def test_health_is_exempt(self) -> None:
        async with serve_here(max_concurrent_calls=1) as server, server.channel() as channel:
            held = await hold(channel)
            for _ in range(3):
                assert await check_health(channel) == "NOT_SERVING"
            await release(held)

    async def test_no_place_leaks(self) -> None:
        """However calls end: answered, refused, or left by their caller before, while or after they begin."""
        async with serve_here(max_concurrent_calls=3) as server, server.channel() as channel:
            for _ in range(50):
                streams = [raw_stream(channel, STREAM)() for _ in range(5)]
                await asyncio.gather(*(call(channel) for _ in range(3)))
                for stream in streams:
                    stream.cancel()
                await call(channel, metadata=(("x", "y"),))
            held = [await hold_once_let_in(channel) for _ in range(3)]
            assert await call(channel) == "RESOURCE_EXHAUSTED"
            for stream in held:
                await release(stream)

    async def test_a_method_that_does_not_exist_frees_its_place(self) -> None:
        async with serve_here(max_concurrent_calls=1) as server, server.channel() as channel:
            missing = raw_unary(channel, "/no.such.Service/Call")
            for _ in range(3):
                assert await once_let_in(lambda: code_of(missing(b""))) == "UNIMPLEMENTED"


async def test_further_calls_of_a_connection_wait_there() -> None:
    async with serve_here(max_streams_per_connection=2) as server, server.channel() as channel:
        first, second = await hold(channel), await hold(channel)
        waiting = asyncio.ensure_future(call(channel))
        async with server.channel() as other:
            assert await call(other) == "UNAVAILABLE"
        assert not waiting.done()
        await release(first)
        assert await waiting == "UNAVAILABLE"
        await release(second)


@pytest.mark.parametrize(
    ("limit", "size", "code"),
    [
        (1 << 14, 15_000, "UNAVAILABLE"),
        (1 << 14, 17_000, "RESOURCE_EXHAUSTED"),
        (1 << 10, 2_000, "RESOURCE_EXHAUSTED"),
        (1 << 16, 60_000, "UNAVAILABLE"),
    ],
)
async def test_metadata(limit: int, size: int, code: str) -> None:
    async with serve_here(max_metadata_bytes=limit) as server, server.channel() as channel:
        for _ in range(5):
            assert await call(channel, metadata=(("x-large", "x" * size),)) == code
        assert await call(channel) == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("size", "code"), [(1 << 16, "INVALID_ARGUMENT"), ((1 << 16) + 1, "RESOURCE_EXHAUSTED")]
)
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_message_counts_by_what_it_unpacks_to(
    size: int, code: str, compression: grpc.Compression
) -> None:
    async with serve_here(max_message_bytes=1 << 16) as server, server.channel() as channel:
        sent = raw_unary(channel, ENCODE)(bytes(size), compression=compression, timeout=TIMEOUT_S)
        assert await code_of(sent) == code


def stopped_engine() -> AbstractContextManager[None]:
    """Batches that begin inside end when it is left."""
    return _stopped(Engine, "run")


def stopped_tokenizer() -> AbstractContextManager[None]:
    return _stopped(Tokenizer, "tokenize_texts")


@contextmanager
def _stopped(owner: type, name: str) -> Iterator[None]:
    gate, run = threading.Event(), getattr(owner, name)

    def wait_and_run(*arguments: Any) -> Any:
        gate.wait(TIMEOUT_S)
        return run(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wait_and_run)
        try:
            yield
        finally:
            gate.set()


class TestDefaultDeadline:
    async def test_of_a_call_that_brings_none(self, tiny_artifact: Path) -> None:
        async with serve_here(tiny_artifact, default_deadline_s=0.2) as server, server.channel() as channel:
            with stopped_engine():
                assert await code_of(encoder(channel).Encode(REQUEST)) == "DEADLINE_EXCEEDED"
            assert server.metrics.inputs_total.labels("expired")._value.get() == 1
            assert server.metrics.requests_total.labels("Encode", "DEADLINE_EXCEEDED")._value.get() == 1

    async def test_a_callers_own_stands(self, tiny_artifact: Path) -> None:
        async with serve_here(tiny_artifact, default_deadline_s=0.2) as server, server.channel() as channel:
            with stopped_engine():
                own = asyncio.ensure_future(code_of(encoder(channel).Encode(REQUEST, timeout=TIMEOUT_S)))
                assert await code_of(encoder(channel).Encode(REQUEST)) == "DEADLINE_EXCEEDED"
                assert not own.done()
            assert await own == "OK"

    async def test_of_each_message_of_a_stream(
        self, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serve_here(tiny_artifact, default_deadline_s=0.2) as server, server.channel() as channel:
            stream = encoder(channel).EncodeStream()
            for _ in range(2):
                with stopped_engine():
                    await stream.write(REQUEST)
                    answer = await stream.read()
                assert answer.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
            monkeypatch.setattr(Allowance, "deadline_of", lambda *_: None)
            await stream.write(REQUEST)
            assert len((await stream.read()).response.results) == 1
            await release(stream)

    async def test_covers_tokenising(self, tiny_artifact: Path) -> None:
        async with serve_here(tiny_artifact, default_deadline_s=0.2) as server, server.channel() as channel:
            stub, given = encoder(channel), {"inputs": [pb.Sequence(text="a " * 2_000)], "options": CUT}
            infer = infer_request({"text": ["a " * 2_000]}, parameters={"truncation": "right"})
            with stopped_tokenizer():
                for sent in (
                    stub.Tokenize(pb.TokenizeRequest(**given)),
                    stub.Encode(pb.EncodeRequest(**given)),
                    raw_unary(channel, INFER)(infer.SerializeToString()),
                ):
                    assert await code_of(sent) == "DEADLINE_EXCEEDED"
            assert server.metrics.inputs_total.labels("expired")._value.get() == 2
            assert await code_of(stub.Tokenize(pb.TokenizeRequest(**given), timeout=TIMEOUT_S)) == "OK"

    async def test_zero_is_none(self, tiny_artifact: Path) -> None:
        async with serve_here(tiny_artifact, default_deadline_s=0) as server, server.channel() as channel:
            assert await code_of(encoder(channel).Encode(REQUEST)) == "OK"
