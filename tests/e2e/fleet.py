"""Several servers of one model on fixed ports, each of which can be replaced."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.server_process import ServerProcess, start_server

DRAIN_DELAY_S = 0.5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fleet:
    """`servers` by place; a replaced one keeps its gRPC and HTTP ports."""

    def __init__(self, artifact: Path, flags: tuple[str, ...], stack: ExitStack) -> None:
        self.servers: list[ServerProcess] = []
        self._places: list[tuple[str, str]] = []
        self._artifact = artifact
        self._flags = ("--drain-delay-s", str(DRAIN_DELAY_S), *flags)
        self._stack = stack

    @property
    def addresses(self) -> list[str]:
        return [grpc_address for grpc_address, _ in self._places]

    @property
    def http_addresses(self) -> list[str]:
        return [http_address for _, http_address in self._places]

    def add(self) -> ServerProcess:
        self._places.append((f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"))
        self.servers.append(self._start(len(self._places) - 1))
        return self.servers[-1]

    def replace(self, place: int, wait_until_used: Callable[[], None]) -> None:
        """As a rolling update does: SIGTERM, the drain, then a ready server in the same place.

        It stands still for a moment before, so that it has calls in flight.
        """
        old = self.servers[place]
        old.process.send_signal(signal.SIGSTOP)
        wait_until_used()
        old.process.send_signal(signal.SIGTERM)
        old.process.send_signal(signal.SIGCONT)
        assert old.wait() == 0
        self.servers[place] = self._start(place)

    def requests(self) -> list[float]:
        """Calls that each has answered since it started."""
        return [server.metrics()["requests_total", "OK", "Encode"] for server in self.servers]

    def _start(self, place: int) -> ServerProcess:
        grpc_address, http_address = self._places[place]
        addresses = ("--grpc-address", grpc_address, "--http-address", http_address)
        return self._stack.enter_context(start_server(self._artifact, *addresses, *self._flags))


@contextmanager
def start_fleet(artifact: Path, size: int, *flags: str) -> Iterator[Fleet]:
    with ExitStack() as stack:
        fleet = Fleet(artifact, flags, stack)
        for _ in range(size):
            fleet.add()
        yield fleet
