"""The quota of inputs a second: its arithmetic, whose it is, and what a caller over it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from api.calls_of_every_kind import METHODS
from api.certificates import SERVER_NAME, CertificateFiles, client_credentials
from api.own_server import TIMEOUT_S, OwnServer, code_of, serve_here
from api.refusals import read_refusal
from seqenc.v1 import encoder_pb2 as pb
from seqenc.v1.encoder_pb2_grpc import EncoderServiceStub
from service.api.quota import BURST_S, MAX_CLIENTS, Quota

# One input at once and a thousand seconds to the next.
SLOW = {"quota_inputs_per_s": 1e-3}
COUNTED = ("Encode", "Tokenize", "ModelInfer")
ALICE, BOB = "alice-secret-0123456789", "bob-secret-0123456789"


class TestQuota:
    def test_a_new_client_has_a_full_bucket(self) -> None:
        quota = Quota(10)
        assert quota.take("a", int(10 * BURST_S), now=0) == 0
        assert quota.take("a", 1, now=0) == pytest.approx(0.1)

    def test_nothing_is_taken_from_who_is_refused(self) -> None:
        quota = Quota(10)
        quota.take("a", 45, now=0)
        assert [quota.take("a", 10, now=0) for _ in range(3)] == pytest.approx([0.5] * 3)
        assert quota.take("a", 5, now=0) == 0

    def test_after_the_wait_it_is_there(self) -> None:
        quota = Quota(7)
        quota.take("a", 35, now=0)
        wait_s = quota.take("a", 3, now=0)
        assert quota.take("a", 3, now=wait_s * 0.99) > 0
        assert quota.take("a", 3, now=wait_s) == 0

    def test_a_call_larger_than_the_bucket_takes_it_full_and_leaves_a_debt(self) -> None:
        quota = Quota(10)
        quota.take("a", 1, now=0)
        assert quota.take("a", 1000, now=0) == pytest.approx(0.1)
        assert quota.take("a", 1000, now=0.1) == 0
        assert quota.take("a", 1, now=0.1) == pytest.approx(95.1)

    def test_a_rate_below_one_lets_one_input_through(self) -> None:
        quota = Quota(0.01)
        assert quota.take("a", 1, now=0) == 0
        assert quota.take("a", 1, now=0) == pytest.approx(100)

    def test_clients_have_buckets_of_their_own(self) -> None:
        quota = Quota(1)
        quota.take("a", 5, now=0)
        assert quota.take("a", 1, now=0) > 0
        assert quota.take("b", 5, now=0) == 0

    def test_as_many_clients_as_may_be_are_remembered(self) -> None:
        quota = Quota(1)
        quota.take("first", 5, now=0)
        for number in range(MAX_CLIENTS - 1):
            quota.take(str(number), 1, now=0)
        assert quota.take("first", 1, now=0) > 0
        for number in range(MAX_CLIENTS - 1):
            quota.take(f"new {number}", 1, now=0)
        assert quota.take("first", 1, now=0) > 0
        for number in range(MAX_CLIENTS):
            quota.take(f"newer {number}", 1, now=0)
        assert quota.client_count == MAX_CLIENTS
        assert quota.take("first", 1, now=0) == 0

    @given(
        rate=st.floats(0.1, 1000),
        calls=st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 10)), max_size=40),
    )
    def test_no_client_gets_more_than_its_rate(self, rate: float, calls: list[tuple[int, float]]) -> None:
        quota, now, taken, largest = Quota(rate), 0.0, 0, 0
        for count, pause in calls:
            now += pause
            if quota.take("a", count, now) == 0:
                taken += count
                largest = max(largest, count)
        assert taken <= max(1.0, rate * BURST_S) + rate * now + largest + 1e-3


def encode_request(count: int) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=[pb.Sequence(text="a")] * count)


def encoder(channel: grpc.aio.Channel) -> Any:
    return EncoderServiceStub(channel)  # type: ignore[no-untyped-call]


async def encode(channel: grpc.aio.Channel, token: str | None = None, count: int = 1) -> str:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return await code_of(encoder(channel).Encode(encode_request(count), timeout=TIMEOUT_S, metadata=metadata))


def counted(server: OwnServer, metric: str, *labels: str) -> float:
    return float(getattr(server.metrics, metric).labels(*labels)._value.get())


async def test_a_caller_over_its_quota_is_told_when_to_return(tiny_artifact: Path) -> None:
    async with serve_here(tiny_artifact, **SLOW) as server, server.channel() as channel:
        assert await encode(channel) == "OK"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await encoder(channel).Encode(encode_request(3), timeout=TIMEOUT_S)
        refusal = read_refusal(raised.value)
        assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "QUOTA")
        assert "0.001 inputs a second (--quota-inputs-per-s)" in refusal.message
        assert refusal.retry_delay is not None
        assert refusal.retry_delay.ToMilliseconds() / 1000 == pytest.approx(1000, abs=100)
        assert counted(server, "rejected_total", "QUOTA") == 1
        assert counted(server, "inputs_total", "rejected") == 3
        assert counted(server, "requests_total", "Encode", "RESOURCE_EXHAUSTED") == 1


@pytest.mark.parametrize("name", COUNTED)
async def test_every_call_with_inputs_counts(tiny_artifact: Path, name: str) -> None:
    async with serve_here(tiny_artifact, **SLOW) as server, server.channel() as channel:
        assert await METHODS[name].code(channel) == "OK"
        assert {await METHODS[other].code(channel) for other in COUNTED} == {"RESOURCE_EXHAUSTED"}
        assert await METHODS["GetModel"].code(channel) == "OK"


async def test_a_refused_input_costs_nothing(tiny_artifact: Path) -> None:
    async with serve_here(tiny_artifact, **SLOW) as server, server.channel() as channel:
        for _ in range(3):
            assert await encode(channel, count=0) == "INVALID_ARGUMENT"
        assert await encode(channel) == "OK"


async def test_each_token_has_its_own(tiny_artifact: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice:{ALICE}\nbob:{BOB}\nalice:{ALICE}-2\n")
    settings = {"tokens_file": tokens, **SLOW}
    async with serve_here(tiny_artifact, **settings) as server, server.channel() as channel:
        assert await encode(channel, ALICE) == "OK"
        assert await encode(channel, f"{ALICE}-2") == "RESOURCE_EXHAUSTED"
        assert await encode(channel, BOB) == "OK"


@pytest.mark.parametrize("common", [True, False], ids=["common name", "alternative name"])
async def test_each_certificate_name_has_its_own(tiny_artifact: Path, tmp_path: Path, common: bool) -> None:
    authority, files = trustme.CA(), CertificateFiles(tmp_path)
    files.issue(authority)
    files.trust(authority)
    flags = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": files.client_ca}

    async def call(name: str) -> str:
        own = authority.issue_cert(f"{name}.test", common_name=name if common else None)
        async with server.secure_channel(client_credentials(authority, own), SERVER_NAME) as channel:
            return await encode(channel)

    async with serve_here(tiny_artifact, **flags, **SLOW) as server:
        assert [await call("a"), await call("b")] == ["OK", "OK"]
        assert [await call("a"), await call("b")] == ["RESOURCE_EXHAUSTED"] * 2


async def test_callers_without_a_name_share_one(tiny_artifact: Path) -> None:
    async with (
        serve_here(tiny_artifact, **SLOW) as server,
        server.channel() as one,
        server.channel() as other,
    ):
        assert await encode(one) == "OK"
        assert await encode(other) == "RESOURCE_EXHAUSTED"


async def test_a_stream_waits_for_its_share(tiny_artifact: Path) -> None:
    async with serve_here(tiny_artifact, quota_inputs_per_s=20) as server:
        async with server.channel() as channel:
            loop = asyncio.get_running_loop()
            started = loop.time()
            requests = iter([encode_request(100), encode_request(4), encode_request(2)])
            answers = [answer async for answer in encoder(channel).EncodeStream(requests, timeout=TIMEOUT_S)]
            assert [len(answer.response.results) for answer in answers] == [100, 4, 2]
            assert loop.time() - started > 0.29
        assert counted(server, "rejected_total", "QUOTA") == 0


async def test_a_message_that_would_wait_past_its_deadline_is_told_at_once(tiny_artifact: Path) -> None:
    async with serve_here(tiny_artifact, default_deadline_s=100, **SLOW) as server:
        async with server.channel() as channel:
            requests = iter([encode_request(1), encode_request(1)])
            async with asyncio.timeout(TIMEOUT_S):
                answers = [answer async for answer in encoder(channel).EncodeStream(requests)]
        assert [answer.error.code for answer in answers] == [0, grpc.StatusCode.DEADLINE_EXCEEDED.value[0]]
        assert counted(server, "inputs_total", "expired") == 1


async def test_without_a_quota_nobody_is_refused(tiny_artifact: Path) -> None:
    async with serve_here(tiny_artifact) as server, server.channel() as channel:
        assert {await encode(channel, count=50) for _ in range(10)} == {"OK"}
