"""The HTTP address: /metrics, /healthz (the process works) and /readyz (it takes calls), and nothing else.

One short request a connection. What a caller sends is neither repeated to it nor logged, as HTTP libraries do
with what they cannot parse.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import choose_encoder

from service.api.lifecycle import Lifecycle
from service.errors import StartError
from service.logs import log_event
from service.metrics import Metrics

logger = logging.getLogger(__name__)
MAX_HEAD_BYTES = 8 << 10
MAX_CONNECTIONS = 256
_TIMEOUT_S = 10.0
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class _Page:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def to_bytes(self, *, with_body: bool = True) -> bytes:
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class HttpServer:
    """Once started, `address` has the port that was taken for port 0."""

    def __init__(self, address: str, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.address = address
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Raises StartError."""
        host, _, port = self.address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise StartError(
                f"--http-address {self.address} cannot be used ({error}); choose a free host:port"
            ) from error
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        log_event(logger, logging.INFO, "listening", http_address=self.address)

    async def stop(self) -> None:
        """Waits for no caller."""
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The task of one connection."""
        if connection := asyncio.current_task():
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if len(self._connections) <= MAX_CONNECTIONS:
                    writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(_END_OF_HEAD)
        except asyncio.LimitOverrunError:
            return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE).to_bytes()
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _error(HTTPStatus.BAD_REQUEST).to_bytes()
        page = self._page(path.partition(b"?")[0], _accepted(head))
        if method not in (b"GET", b"HEAD") and page.status is not HTTPStatus.NOT_FOUND:
            page = _error(HTTPStatus.METHOD_NOT_ALLOWED)
        return page.to_bytes(with_body=method != b"HEAD")

    def _page(self, path: bytes, accepted: str) -> _Page:
        if path == b"/metrics":
            generate, content_type = choose_encoder(accepted)
            return _Page(HTTPStatus.OK, generate(self._metrics.registry), content_type)
        if path == b"/healthz":
            return _Page(HTTPStatus.OK, b"ok\n")
        if path == b"/readyz":
            return self._readiness()
        return _error(HTTPStatus.NOT_FOUND)

    def _readiness(self) -> _Page:
        if self._lifecycle.is_serving:
            return _Page(HTTPStatus.OK, b"ready\n")
        text = b"draining\n" if self._lifecycle.is_draining else b"starting\n"
        return _Page(HTTPStatus.SERVICE_UNAVAILABLE, text)


def _accepted(head: bytes) -> str:
    """Media types; of the metrics' forms, only OpenMetrics has exemplars."""
    headers = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return next((value.decode("latin-1") for name, _, value in headers if name.lower() == b"accept"), "")


def _error(status: HTTPStatus) -> _Page:
    return _Page(status, f"{status.phrase.lower()}\n".encode())
