"""The life of a connection: keepalive pings, silence, age and idleness."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from api.http2 import connect
from api.own_server import check_health, code_of, raw_stream, read_all, serve_here
from service.api.transport import transport_options
from service.config import ServeSettings

MILLISECOND = 0.001


async def ping_often(address: str, *, interval_s: float) -> str | None:
    """Why the server goes away within a dozen pings without a call."""
    async with connect(address) as connection:
        await connection.begin()
        for _ in range(12):
            if reason := await connection.ping():
                return reason
            await asyncio.sleep(interval_s)
    return None


async def test_pings_at_the_least_interval_are_fine_without_calls() -> None:
    async with serve_here(min_ping_interval_s=0.05) as server:
        assert await ping_often(server.server.address, interval_s=0.1) is None


async def test_pings_more_often_than_that_end_the_connection() -> None:
    async with serve_here() as server:
        assert await ping_often(server.server.address, interval_s=MILLISECOND) == "too_many_pings"


def test_pings_of_ten_seconds_are_fine_by_default() -> None:
    options = dict(transport_options(ServeSettings(artifact=Path())))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.transport._HANDSHAKE_TIMEOUT_S", 0.2)
    async with serve_here() as server, connect(server.server.address) as connection:
        reason = await connection.wait_for_goodbye()
        assert reason is None or "handshake timeout" in reason


async def test_an_old_connection_is_closed_and_the_client_makes_another() -> None:
    async with serve_here(max_connection_age_s=0.2) as server:
        async with connect(server.server.address) as connection:
            await connection.begin()
            assert await connection.wait_for_goodbye() == "max_age"
        async with server.channel() as channel:
            assert await check_health(channel) == "NOT_SERVING"
            await wait_until_not_ready(channel)
            assert await check_health(channel) == "NOT_SERVING"


async def test_a_call_outlives_its_connections_age() -> None:
    async with serve_here(max_connection_age_s=0.2) as server, server.channel() as channel:
        watch = raw_stream(channel, "/grpc.health.v1.Health/Watch")(iter([b""]))
        assert await watch.read() == b"\x08\x02"
        await wait_until_not_ready(channel)
        server.server.set_serving(True)
        assert await watch.read() == b"\x08\x01"


async def test_a_call_past_the_grace_is_cut_off() -> None:
    async with (
        serve_here(max_connection_age_s=0.2, max_connection_age_grace_s=0.2) as server,
        server.channel() as channel,
    ):
        watch = raw_stream(channel, "/grpc.health.v1.Health/Watch")(iter([b""]))
        assert await code_of(read_all(watch)) == "UNAVAILABLE"


async def test_an_idle_connection_is_closed() -> None:
    async with serve_here(max_connection_idle_s=0.2) as server, server.channel() as channel:
        assert await check_health(channel) == "NOT_SERVING"
        await wait_until_not_ready(channel)
        assert await check_health(channel) == "NOT_SERVING"


def test_zero_is_no_limit() -> None:
    settings = ServeSettings(
        artifact=Path(), max_connection_age_s=0, max_connection_age_grace_s=0, max_connection_idle_s=0
    )
    assert not [name for name, _ in transport_options(settings) if name.startswith("grpc.max_connection")]


async def wait_until_not_ready(channel: grpc.aio.Channel) -> None:
    await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 30)
