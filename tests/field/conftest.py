"""Jobs as their users run them; what the commands change in this process is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from field_jobs import JobCommand


@pytest.fixture
def isolated_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def run_job(
    tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], isolated_logging: None
) -> JobCommand:
    return JobCommand(tiny_artifact, tmp_path, capsys)
