"""Stands in for the engine: batches wait at a gate, and every vector tells which sequence it is of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.core.collation import BatchArrays
from service.core.engine import GraphKind
from service.core.lanes import StopSignal
from service.types import Array, TokenizedSequence

HIDDEN_SIZE = 4
HEAD_COUNT = 2
TIMEOUT_S = 60


def sequence_of(*ids: int) -> TokenizedSequence:
    return TokenizedSequence(np.array(ids, np.int64), mask=None, type_ids=None, token_count=len(ids))


def vector_of(sequence: TokenizedSequence) -> list[float]:
    ids = sequence.ids
    return [float(ids.sum()), float(len(ids)), float(ids[0]), float(ids[-1])]


def outputs_of(arrays: BatchArrays, names: Sequence[str]) -> dict[str, Array]:
    """(B, D) sum, count, first and last of the real ids; (B, S, D) id, position, type, 1."""
    outputs = {name: _output(name, arrays) for name in names}
    return {name: output.astype(np.float32) for name, output in outputs.items()}


def _output(name: str, arrays: BatchArrays) -> Array:
    ids, mask = arrays.input_ids, arrays.attention_mask
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    if name.startswith("attentions_"):
        layer = int(name.removeprefix("attentions_"))
        heads = np.arange(HEAD_COUNT)[:, None, None]
        return (layer * 10 + heads + ids[:, None, :, None] / 100) * mask[:, None, None, :]
    if name == "token_embeddings":
        return np.stack([ids, positions, arrays.token_type_ids, np.ones_like(ids)], axis=-1)
    real = [row[kept == 1] for row, kept in zip(ids, mask, strict=True)]
    return np.array([[row.sum(), len(row), row[0], row[-1]] for row in real])


@dataclass
class Batch:
    """What one `run` was given."""

    graph: GraphKind
    arrays: BatchArrays
    output_names: list[str]

    @property
    def first_ids(self) -> list[int]:
        return [int(row[0]) for row in self.arrays.input_ids]


@dataclass
class FakeRunner:
    """`gated`: each batch waits for a `release`. `failure` may raise, or change what is returned."""

    lanes: int = 1
    gated: bool = False
    failure: Callable[[Batch, dict[str, Array]], dict[str, Array]] | None = None
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Queue[Batch] = asyncio.Queue()
        self._permits = threading.Semaphore(0)

    def run(
        self,
        graph: GraphKind,
        arrays: BatchArrays,
        output_names: Sequence[str],
        stop: StopSignal | None = None,
    ) -> dict[str, Array]:
        batch = Batch(graph, arrays, list(output_names))
        self.batches.append(batch)
        self._loop.call_soon_threadsafe(self._begun.put_nowait, batch)
        if self.gated and not self._permits.acquire(timeout=TIMEOUT_S):
            raise TimeoutError("the test never released this batch")
        outputs = outputs_of(arrays, output_names)
        return self.failure(batch, outputs) if self.failure else outputs

    async def begun(self) -> Batch:
        """The next batch that a lane has taken up."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._begun.get()

    def release(self, count: int = 1) -> None:
        self._permits.release(count)

    def open(self) -> None:
        """Lets every batch through from here on."""
        self.gated = False
        self._permits.release(self.lanes)

    @property
    def seen(self) -> set[int]:
        """The first ids of all sequences that were ever run."""
        return {first for batch in self.batches for first in batch.first_ids}
