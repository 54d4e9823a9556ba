"""A bare HTTP/2 connection, for what no gRPC client does: pings at any pace, and saying nothing at all."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ACK = 1
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    payload: bytes


class Http2Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def begin(self) -> None:
        """The client's side of the preface."""
        self._writer.write(_PREFACE)
        await self._send(_SETTINGS)

    async def ping(self) -> str | None:
        """Why the server goes away; None when it answers the ping."""
        await self._send(_PING, payload=bytes(8))
        while frame := await self._read():
            if frame.kind == _GOAWAY:
                return _reason(frame)
            if frame.kind == _PING and frame.flags & _ACK:
                return None
            if frame.kind == _SETTINGS and not frame.flags & _ACK:
                await self._send(_SETTINGS, _ACK)
        raise ConnectionError("the server closed the connection without saying why")

    async def wait_for_goodbye(self) -> str | None:
        """Says nothing. Why the server goes away; None when it closes without a word."""
        while frame := await self._read():
            if frame.kind == _GOAWAY:
                return _reason(frame)
        return None

    async def _send(self, kind: int, flags: int = 0, payload: bytes = b"") -> None:
        header = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4)
        self._writer.write(header + payload)
        await self._writer.drain()

    async def _read(self) -> Frame | None:
        """None at the end of the connection."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                header = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(header[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        return Frame(header[3], header[4], payload)


def _reason(goaway: Frame) -> str:
    return goaway.payload[8:].decode()


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Http2Connection]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Http2Connection(reader, writer)
    finally:
        writer.close()
