"""Balances connections, not calls, as kube-proxy does: each new one goes to the next backend in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count


class ConnectionBalancer:
    """`backends` are host:port, and may be added to while it runs."""

    def __init__(self, backends: list[str]) -> None:
        self.backends = backends
        self.address = ""
        self._turns = count()

    async def serve(self, started: threading.Event, stopped: asyncio.Event) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stopped.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.backends[next(self._turns) % len(self.backends)].rpartition(":")
        backend_reader, backend_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_copy(reader, backend_writer), _copy(backend_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@contextmanager
def balance_connections(backends: list[str]) -> Iterator[ConnectionBalancer]:
    balancer, started = ConnectionBalancer(backends), threading.Event()
    loop, stopped = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[balancer.serve(started, stopped)])
    thread.start()
    assert started.wait(60)
    try:
        yield balancer
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
