"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


@pytest.fixture
async def put_forward() -> Callable[[float], None]:
    """Moves the clock of the event loop on, by seconds; timers that are due go off at its next turn."""
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    time = loop.time
    loop.time = lambda: time() + ahead_s  # type: ignore[method-assign]

    def put_forward(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    return put_forward
