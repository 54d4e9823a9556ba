"""Connections that no gRPC client would make: garbage at every stage of HTTP/2, and silence."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes(3) + b"\x04" + bytes(5)
_TIMEOUT_S = 5.0
# Closing then resets the connection.
_RESET = struct.pack("ii", 1, 0)
HALVES = (b"", PREFACE[:10], PREFACE, PREFACE + SETTINGS, PREFACE + SETTINGS + b"\x00\x10\x00\x01")


def send_garbage(host: str, port: int, *, seed: int) -> None:
    """After nothing, the preface or the settings; the connection is then closed, or reset."""
    draw = random.Random(seed)
    begun = draw.choice((b"", PREFACE, PREFACE + SETTINGS))
    with _connect(host, port) as connection, suppress(OSError):
        connection.sendall(begun + draw.choice((_frames, _noise))(draw))
        if draw.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass


def _noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 5000))


def _frames(draw: random.Random) -> bytes:
    """Well-formed frames of any kind, flags and stream, with noise in them."""
    frames = b""
    for _ in range(draw.randrange(1, 20)):
        payload = draw.randbytes(draw.randrange(100))
        head = struct.pack(">I", len(payload))[1:] + bytes([draw.randrange(12), draw.randrange(256)])
        frames += head + struct.pack(">I", draw.randrange(8)) + payload
    return frames


@contextmanager
def half_open(host: str, port: int) -> Iterator[None]:
    """Connections that say a part of what they should, and then nothing."""
    with ExitStack() as stack:
        for half in HALVES * 4:
            connection = stack.enter_context(_connect(host, port))
            with suppress(OSError):
                connection.sendall(half)
        yield


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=_TIMEOUT_S)
