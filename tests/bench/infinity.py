"""Infinity as its users run it: its own HTTP server, and callers of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import aiohttp

_START_S = 120.0
_ENVIRONMENT = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


class Infinity:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self._loop = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def wait_until_ready(self) -> None:
        self._loop.run(self._wait_until_ready())

    def run(self, texts: Sequence[str], callers: int) -> float:
        """Seconds until all texts are answered, one a call, each caller taking the next when it is free."""
        return self._loop.run(self._run(texts, callers))

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        answer = self._loop.run(self._post(list(texts)))
        return [item["embedding"] for item in answer["data"]]

    def close(self) -> None:
        if self._session:
            self._loop.run(self._session.close())
        self._loop.close()

    async def _wait_until_ready(self) -> None:
        self._session = aiohttp.ClientSession(self._url)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                async with self._session.get("/health") as reply:
                    if reply.ok:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.2)
        raise RuntimeError(f"infinity is not ready after {_START_S:.0f} s, or ended")

    async def _run(self, texts: Sequence[str], callers: int) -> float:
        waiting = iter(texts)

        async def call_while(waiting: Iterator[str]) -> None:
            for text in waiting:
                await self._post([text])

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(call_while(waiting))
        return time.perf_counter() - started

    async def _post(self, texts: list[str]) -> dict[str, Any]:
        assert self._session is not None
        async with self._session.post("/embeddings", json={"model": "m", "input": texts}) as reply:
            reply.raise_for_status()
            answer: dict[str, Any] = await reply.json()
        return answer


@contextmanager
def start_infinity(bin_folder: Path, model: Path, log: IO[str], *flags: str) -> Iterator[Infinity]:
    port = _free_port()
    command = [str(bin_folder / "infinity_emb"), "v2", "--model-id", str(model), "--served-model-name", "m"]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--engine",
        "torch",
        "--no-bettertransformer",
        *flags,
    ]
    with subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stdout=log, stderr=log) as process:
        server = Infinity(process, port)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.close()
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
