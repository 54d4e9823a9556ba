"""Servers of the tiny model in this process, and what a refusal looks like to a caller."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from api.api_server import ApiServer, serve_api

ServeApi = Callable[..., AbstractContextManager[ApiServer]]


@pytest.fixture(scope="session")
def prompted_artifact(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with prompts."""
    artifact = tmp_path_factory.mktemp("prompted") / "tiny-bert"
    shutil.copytree(tiny_artifact, artifact)
    manifest = json.loads((artifact / "manifest.json").read_text())
    manifest["prompts"] = {"query": "query: ", "passage": "this is a passage: "}
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    return artifact


@pytest.fixture(scope="session")
def serve(prompted_artifact: Path) -> ServeApi:
    """Starts a server of the tiny model with other settings."""

    def start(artifact: Path = prompted_artifact, **settings: Any) -> AbstractContextManager[ApiServer]:
        return serve_api(artifact, **settings)

    return start


@pytest.fixture(scope="session")
def running(serve: ServeApi) -> Iterator[ApiServer]:
    with serve() as server:
        yield server


@pytest.fixture
def server(running: ApiServer) -> ApiServer:
    """With default settings; `runs` has the batches of this test."""
    running.engine.runs.clear()
    return running


@pytest.fixture(scope="session")
def small_reply_server(serve: ServeApi) -> Iterator[ApiServer]:
    """Of the least --max-message-bytes."""
    with serve(max_message_bytes=1 << 16) as server:
        yield server
