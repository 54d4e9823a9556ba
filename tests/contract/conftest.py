"""A server of the tiny model in a process of its own, and our client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.toolchains import node_folder, tritonclient_python
from e2e.server_process import ServerProcess, start_server
from seqenc import Client


@pytest.fixture(scope="session")
def server(tiny_artifact: Path) -> Iterator[ServerProcess]:
    with start_server(tiny_artifact) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc_address, deadline_s=30) as client:
        yield client


@pytest.fixture(scope="session")
def triton_python() -> Path:
    return tritonclient_python()


@pytest.fixture(scope="session")
def node_example() -> Path:
    """Skips where Node.js is not installed."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    return node_folder() / "encode.mjs"
