"""Servers of the default model and of a tiny one, shared by all tests of this folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from e2e.oracle import BertOracle
from e2e.server_process import BIN, ServerProcess, connect, start_server
from model.source import default_checkpoint
from seqenc import Client

ROOT = Path(__file__).parents[2]


def export(source: str | Path, target: Path) -> Path:
    subprocess.run([BIN / "seqenc-model", "export", source, "--out", target], check=True, capture_output=True)
    return target


def is_current(artifact: Path) -> bool:
    """Whether it is there and was written by this version of the exporter."""
    try:
        manifest = json.loads((artifact / "manifest.json").read_text())
    except OSError:
        return False
    return bool(manifest["tool_versions"]["seqenc"] == version("seqenc"))


@pytest.fixture(scope="session")
def default_artifact(run_folder: Path) -> Path:
    ready = ROOT / "artifacts" / "all-MiniLM-L6-v2"
    if is_current(ready):
        return ready
    target = run_folder / ready.name
    with FileLock(target.with_suffix(".lock")):
        return target if target.exists() else export("default", target)


@pytest.fixture(scope="session")
def native_artifact(tiny_native: Path) -> Path:
    return tiny_native.with_name("tiny-native")


@pytest.fixture(scope="session")
def oracle() -> BertOracle:
    torch.set_num_threads(1)
    return BertOracle(default_checkpoint())


@pytest.fixture(scope="session")
def server(default_artifact: Path) -> Iterator[ServerProcess]:
    """Of the default model."""
    with start_server(default_artifact) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc_address, deadline_s=120) as client:
        yield client


@pytest.fixture(scope="session")
def stub(server: ServerProcess) -> Iterator[Any]:
    """The default model's server without the client in between."""
    with connect(server) as stub:
        yield stub


@pytest.fixture(scope="session")
def tiny_server(tiny_artifact: Path) -> Iterator[ServerProcess]:
    with start_server(tiny_artifact) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_client(tiny_server: ServerProcess) -> Iterator[Client]:
    with Client(tiny_server.grpc_address, deadline_s=120) as client:
        yield client


@pytest.fixture(scope="session")
def tiny_stub(tiny_server: ServerProcess) -> Iterator[Any]:
    with connect(tiny_server) as stub:
        yield stub
