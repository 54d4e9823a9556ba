"""haproxy in front of a fleet: balances the calls of HTTP/2 connections and follows each server's /readyz."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.fleet import Fleet, free_port

_CONFIGURATION = """
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    timeout check 10s
    option redispatch
frontend calls
    bind 127.0.0.1:{port} proto h2
    default_backend servers
backend servers
    balance roundrobin
{servers}
backend health
    option httpchk GET /readyz
{checks}
"""


@contextmanager
def run_haproxy(program: str, fleet: Fleet, folder: Path) -> Iterator[str]:
    """Its address, once it takes connections."""
    port = free_port()
    servers = "\n".join(
        f"    server s{place} {address} proto h2 track health/s{place}"
        for place, address in enumerate(fleet.addresses)
    )
    checks = "\n".join(
        f"    server s{place} {address} check inter 100ms fall 1 rise 1"
        for place, address in enumerate(fleet.http_addresses)
    )
    configuration = folder / "haproxy.cfg"
    configuration.write_text(_CONFIGURATION.format(port=port, servers=servers, checks=checks))
    with subprocess.Popen([program, "-db", "-f", configuration], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_open(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError(f"haproxy ended with status {process.returncode}")
