"""Jobs of the tiny model, and its encoder."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.job_files import Jobs
from service.job_settings import JobSettings
from service.jobs.build_encoder import build_local_encoder
from service.jobs.encode_local import LocalEncoder

# Ray is an extra of its own, and large.
collect_ignore = [] if importlib.util.find_spec("ray") else ["test_encode_ray.py"]


@pytest.fixture
def jobs(tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Jobs]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Jobs(tiny_artifact, tmp_path, capsys)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def encoder(tiny_artifact: Path) -> Iterator[LocalEncoder]:
    """Cuts what is too long."""
    settings = JobSettings(inputs=("unused",), out=Path("unused"), artifact=tiny_artifact, truncation="right")
    with closing(build_local_encoder(settings)) as encoder:
        yield encoder
