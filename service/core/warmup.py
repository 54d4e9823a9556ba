"""Runs every shape that batches may have, for providers that compile a shape when they first see it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.core.collation import BatchArrays
from service.core.engine import Engine

# Lengths are rounded up to this: on real text 6.6 % padding for an eighth of the shapes.
COMPILED_MULTIPLE = 8


def warm_up(engine: Engine, *, max_tokens: int, max_batch_tokens: int, multiple: int) -> None:
    """Every length up to `max_tokens` by every batch size that the planner makes, on all lanes."""
    with ThreadPoolExecutor(engine.lanes) as lanes:
        list(lanes.map(lambda shape: _run(engine, *shape), _shapes(max_tokens, max_batch_tokens, multiple)))


def _shapes(max_tokens: int, max_batch_tokens: int, multiple: int) -> Iterator[tuple[int, int]]:
    for length in range(multiple, max_tokens + multiple, multiple):
        size = 1
        while size == 1 or size * length <= max_batch_tokens:
            yield size, length
            size *= 2


def _run(engine: Engine, size: int, length: int) -> None:
    ids = np.zeros((size, length), np.int64)
    arrays = BatchArrays(ids, np.ones_like(ids), np.zeros_like(ids))
    engine.run("encoder", arrays, ["pooled_mean"])
