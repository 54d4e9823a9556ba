"""`seqenc probe`: whether the server beside it takes calls.

A container's health check runs it every few seconds, so it imports nothing large. It asks at the HTTP
address, which has neither TLS nor tokens. Where that is, the server's own settings say: the flag in the
command of process 1, which is the server or an init that starts it, or else the variable.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Sequence

_FLAG = "--http-address"
_VARIABLE = "SEQENC_HTTP_ADDRESS"
_DEFAULT = "0.0.0.0:9090"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_TIMEOUT_S = 5.0


def probe() -> int:
    """Print what the server says of itself; return 0 if it takes calls."""
    address = _read_flag(_read_command_of_process_1()) or _read_variable() or _DEFAULT
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if not (host and port.isdecimal()):
            raise ValueError("expected host:port")
        answer = _get("/readyz", _ANY_ADDRESS.get(host, host), int(port))
    except (OSError, ValueError, OverflowError) as error:
        print(f"seqenc probe: the server cannot be asked at {_FLAG} {address}: {error}", file=sys.stderr)
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode(errors="replace").strip() or "no answer")
    return 0 if head.startswith(b"HTTP/1.1 200 ") and body == b"ready\n" else 1


def _get(path: str, host: str, port: int) -> bytes:
    with socket.create_connection((host, port), _TIMEOUT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


def _read_command_of_process_1() -> Sequence[str]:
    try:
        with open("/proc/1/cmdline", "rb") as file:
            return os.fsdecode(file.read()).split("\0")
    except OSError:
        return ()


def _read_flag(command: Sequence[str]) -> str | None:
    """The last one wins, as where the server reads it."""
    found = None
    if "serve" in command:
        for word, following in itertools.pairwise(command):
            if word == _FLAG:
                found = following
            elif word.startswith(f"{_FLAG}="):
                found = word.removeprefix(f"{_FLAG}=")
    return found


def _read_variable() -> str | None:
    return next((value for name, value in os.environ.items() if name.upper() == _VARIABLE), None)
