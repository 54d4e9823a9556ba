"""The HTTP address: its three pages, and how anything else is refused without repeating or logging it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest import mock

import pytest

from service.api.http import MAX_CONNECTIONS, MAX_HEAD_BYTES, HttpServer
from service.api.lifecycle import Lifecycle
from service.errors import StartError
from service.metrics import Metrics

TIMEOUT_S = 30
MARK = "secret-marker"


@asynccontextmanager
async def serve() -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", Lifecycle(), Metrics())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def send(server: HttpServer, data: bytes) -> str:
    """All that comes back until the server closes the connection."""
    reader, writer = await connect(server)
    writer.write(data)
    received = b""
    try:
        # A refusal may come before all was sent; the connection is then reset behind it.
        with suppress(ConnectionError):
            while part := await asyncio.wait_for(reader.read(1 << 16), TIMEOUT_S):
                received += part
        return received.decode()
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def get(server: HttpServer, target: str, method: str = "GET") -> tuple[str, str]:
    """Status line and body."""
    reply = await send(server, f"{method} {target} HTTP/1.1\r\nHost: {MARK}\r\n\r\n".encode())
    head, _, body = reply.partition("\r\n\r\n")
    return head.partition("\r\n")[0], body


async def test_the_pages() -> None:
    async with serve() as server:
        assert await get(server, "/healthz") == ("HTTP/1.1 200 OK", "ok\n")
        status, metrics = await get(server, "/metrics")
        assert status == "HTTP/1.1 200 OK"
        assert 'seqenc_rejected_total{reason="QUOTA"} 0.0' in metrics


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text/plain"),
        ("Accept: */*", "text/plain"),
        ("accept:text/html;q=0.5", "text/plain"),
        (
            "ACCEPT: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1",
            "application/openmetrics-text",
        ),
        ("Accept: \xff\x00;;=,", "text/plain"),
        ("Not-Accept: application/openmetrics-text", "text/plain"),
    ],
)
async def test_the_form_of_the_metrics(accept: str, form: str) -> None:
    async with serve() as server:
        lines = ["GET /metrics HTTP/1.1", "Host: x", *([accept] if accept else []), "", ""]
        reply = await send(server, "\r\n".join(lines).encode("latin-1"))
    head, _, body = reply.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert f"Content-Type: {form}" in head
    assert body.endswith("# EOF\n") == (form != "text/plain")


async def test_readiness_follows_the_lifecycle() -> None:
    lifecycle = Lifecycle()
    server = HttpServer("127.0.0.1:0", lifecycle, Metrics())
    await server.start()
    assert await get(server, "/readyz") == ("HTTP/1.1 503 Service Unavailable", "starting\n")
    lifecycle.serve(mock.Mock())
    assert await get(server, "/readyz") == ("HTTP/1.1 200 OK", "ready\n")
    lifecycle.drain()
    assert await get(server, "/readyz") == ("HTTP/1.1 503 Service Unavailable", "draining\n")
    await server.stop()


async def test_the_head_of_a_page_is_that_of_the_page_without_its_body() -> None:
    request = " /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve() as server:
        whole, head = (
            await send(server, b"GET" + request.encode()),
            await send(server, b"HEAD" + request.encode()),
        )
    assert "Content-Length: 3\r\n" in head
    assert whole == head + "ok\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (f"GET /{MARK}?{MARK} HTTP/1.1\r\n\r\n", "404 Not Found"),
        (f"GET / HTTP/1.1\r\nHost: {MARK}\r\n\r\n", "404 Not Found"),
        (f"GET /metrics/{MARK} HTTP/1.1\r\n\r\n", "404 Not Found"),
        (f"GET /../metrics/%{MARK} HTTP/1.1\r\n\r\n", "404 Not Found"),
        (f"GET http://{MARK}:99999/ HTTP/1.1\r\n\r\n", "404 Not Found"),
        (f"POST /{MARK} HTTP/1.1\r\n\r\n", "404 Not Found"),
        (f"POST /metrics HTTP/1.1\r\nContent-Length: 13\r\n\r\n{MARK}", "405 Method Not Allowed"),
        (f"{MARK} /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (f"{MARK}\r\n\r\n", "400 Bad Request"),
        (f"GET /{MARK}\r\n\r\n", "400 Bad Request"),
        (f"GET /metrics HTTP/2.0\r\n{MARK}: {MARK}\r\n\r\n", "400 Bad Request"),
        (f"GET /{MARK}\x00 {MARK}\r\n\r\n", "400 Bad Request"),
        (
            f"GET /metrics HTTP/1.1\r\nX: {MARK * (MAX_HEAD_BYTES // 10)}\r\n\r\n",
            "431 Request Header Fields Too Large",
        ),
        (f"GET /{MARK * (MAX_HEAD_BYTES // 10)} HTTP/1.1\r\n\r\n", "431 Request Header Fields Too Large"),
        (MARK * MAX_HEAD_BYTES, "431 Request Header Fields Too Large"),
        ("\r\n\r\n", "400 Bad Request"),
    ],
    ids=range(16),
)
async def test_anything_else_is_refused_and_not_repeated(
    data: str, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve() as server:
        reply = await send(server, data.encode())
    assert reply.startswith(f"HTTP/1.1 {status}\r\n")
    assert MARK not in reply
    assert MARK not in str([vars(record) for record in caplog.records])


async def test_callers_that_say_nothing_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as server:
        with monkeypatch.context() as patch:
            patch.setattr("service.api.http._TIMEOUT_S", 0.1)
            assert await send(server, b"") == ""
            assert await send(server, b"GET /healthz HTTP/1.1\r\n") == ""
        assert (await get(server, "/healthz"))[1] == "ok\n"


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.http._TIMEOUT_S", TIMEOUT_S)
    async with serve() as server:
        held = [await connect(server) for _ in range(MAX_CONNECTIONS)]
        assert await get(server, "/healthz") == ("", "")
        await close(held[0][1])
        assert await until_answered(server) == ("HTTP/1.1 200 OK", "ok\n")
        for _, writer in held:
            await close(writer)


async def until_answered(server: HttpServer) -> tuple[str, str]:
    """The server learns of a closed connection after its client."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if (answer := await get(server, "/healthz"))[0]:
                return answer


async def test_stopping_waits_for_nobody() -> None:
    async with serve() as server:
        reader, writer = await connect(server)
        assert (await get(server, "/healthz"))[1] == "ok\n"
        await server.stop()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        await close(writer)


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "no.such.host.invalid:0", "203.0.113.1:0"])
async def test_an_address_that_cannot_be_used(address: str) -> None:
    async with serve() as server:
        address = address.format(port=server.address.rsplit(":", 1)[1])
        other: Any = HttpServer(address, Lifecycle(), Metrics())
        with pytest.raises(StartError, match=f"--http-address {address} cannot be used"):
            await other.start()
        await other.stop()
