"""Jobs as their users run them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from field_jobs import JobCommand


@pytest.fixture
def run_job(tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[JobCommand]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield JobCommand(tiny_artifact, tmp_path, capsys)
    root.handlers[:] = handlers
    root.setLevel(level)
