"""Health on the gRPC address and on the probes' own: who is answered what, and how watches end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from api.certificates import CertificateFiles
from api.own_server import OWN_CONNECTION, TIMEOUT_S, check_health, code_of, raw_stream, raw_unary, serve_here
from service.errors import StartError

NAMES = ["", "seqenc.v1.EncoderService", "inference.GRPCInferenceService"]
WATCH = "/grpc.health.v1.Health/Watch"
NOT_SERVING, SERVING, UNKNOWN = b"\x08\x02", b"\x08\x01", b"\x08\x03"
PROBES: dict[str, Any] = {"health_address": "127.0.0.1:0"}


def probe(address: str | None) -> grpc.aio.Channel:
    assert address
    return grpc.aio.insecure_channel(address, OWN_CONNECTION)


async def read(watch: Any) -> bytes:
    return bytes(await asyncio.wait_for(watch.read(), TIMEOUT_S))


async def test_every_name_has_the_same_health() -> None:
    async with serve_here() as server, server.channel() as channel:
        assert {await check_health(channel, name) for name in NAMES} == {"NOT_SERVING"}
        server.server.set_serving(True)
        assert {await check_health(channel, name) for name in NAMES} == {"SERVING"}
        server.server.set_serving(False)
        assert {await check_health(channel, name) for name in NAMES} == {"NOT_SERVING"}
        assert await check_health(channel, "nobody") == "NOT_FOUND"


async def test_probes_are_answered_in_plaintext_and_without_a_token(tmp_path: Path) -> None:
    files, tokens = CertificateFiles(tmp_path), tmp_path / "tokens"
    files.issue(trustme.CA())
    tokens.write_text("alice:alice-secret-0123456789\n")
    settings: dict[str, Any] = {
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tokens_file": tokens,
        **PROBES,
    }
    async with serve_here(**settings) as server, probe(server.server.health_address) as channel:
        assert {await check_health(channel, name) for name in NAMES} == {"NOT_SERVING"}
        server.server.set_serving(True)
        assert {await check_health(channel, name) for name in NAMES} == {"SERVING"}
        assert await check_health(channel, "nobody") == "NOT_FOUND"


@pytest.mark.parametrize(
    "method",
    [
        "/seqenc.v1.EncoderService/Encode",
        "/inference.GRPCInferenceService/ModelInfer",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_probes_get_nothing_but_health(method: str) -> None:
    async with serve_here(**PROBES) as server, probe(server.server.health_address) as channel:
        assert await code_of(raw_unary(channel, method)(b"")) == "UNIMPLEMENTED"


async def test_the_probes_port_of_another_is_refused() -> None:
    async with serve_here(**PROBES) as server:
        taken = server.server.health_address
        with pytest.raises(StartError, match=f"--health-address {taken} cannot be used"):
            async with serve_here(health_address=taken):
                pass


async def test_a_watch_sees_every_change() -> None:
    async with serve_here() as server, server.channel() as channel:
        watch, stranger = (raw_stream(channel, WATCH)(iter([name])) for name in (b"", b"\x0a\x06nobody"))
        assert await read(watch) == NOT_SERVING
        assert await read(stranger) == UNKNOWN
        server.server.set_serving(True)
        assert await read(watch) == SERVING
        server.server.set_serving(False)
        assert await read(watch) == NOT_SERVING


async def test_watches_end_with_the_server_and_do_not_hold_it_up() -> None:
    async with (
        serve_here(**PROBES) as server,
        server.channel() as channel,
        probe(server.server.health_address) as probing,
    ):
        watches = [raw_stream(one, WATCH)(iter([b""])) for one in (channel, probing)]
        for watch in watches:
            assert await read(watch) == NOT_SERVING
        await asyncio.wait_for(server.server.stop(600), TIMEOUT_S)
        assert {await watch.code() for watch in watches} == {grpc.StatusCode.OK}
