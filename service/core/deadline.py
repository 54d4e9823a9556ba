"""The end of a call's time: keeping to it, and telling whether a caller left because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import DeadlineExceededError

# gRPC rounds a deadline up on its way to the server, by as much as a hundredth.
_ROUNDING = 0.01
# How much later than the caller's the server's clock may have begun.
_TRAVEL_S = 0.02


@asynccontextmanager
async def until(deadline: float | None) -> AsyncIterator[None]:
    """Raises DeadlineExceededError when what is inside is not done by then, in the event loop's time."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceededError from None


def is_over(remaining_s: float, given_s: float) -> bool:
    """`remaining_s` of the `given_s` that the server thought the caller would wait."""
    return remaining_s <= given_s * _ROUNDING + _TRAVEL_S
