"""What the commands change in this process is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def isolated_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
