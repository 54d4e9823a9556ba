"""Deals the input's rows into shards of a fixed number of rows, and each shard into blocks.

Both depend on the rows alone, not on how they were read, so that a shard done again is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.jobs.encoded import Model, VectorShape
from service.jobs.rows import ID, PROBLEM, TEXT, Piece

# Enough for full batches of one length, and little enough for memory.
BLOCK_ROWS = 8192
_BLOCK_BYTES = 16 << 20
_TOKEN_BYTES = 64 << 20  # of a block's token embeddings


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A block has at most `block_rows` rows, and its texts at most `block_bytes` up to the last one."""

    rows_per_shard: int
    block_rows: int = BLOCK_ROWS
    block_bytes: int = _BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one shard that are encoded together. `position`: bytes of the input read so far."""

    shard: int
    first_row: int
    rows: pa.Table
    position: int

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def ids(self) -> pa.ChunkedArray | pa.Array:
        """The id column, or the rows' numbers."""
        if ID in self.rows.schema.names:
            return self.rows.column(ID)
        return pa.array(np.arange(self.first_row, self.first_row + len(self), dtype=np.int64))

    @property
    def texts(self) -> list[str | None]:
        return list(self.rows.column(TEXT).to_pylist())

    @property
    def problems(self) -> list[str | None]:
        return list(self.rows.column(PROBLEM).to_pylist())


def plan_shards(
    rows_per_shard: int, model: Model, shape: VectorShape, block_rows: int = BLOCK_ROWS
) -> ShardPlan:
    """Token embeddings of a block must fit in memory even where every text is as long as allowed."""
    if shape.token_size is not None:
        block_rows = min(block_rows, _TOKEN_BYTES // (model.max_tokens * shape.token_size * 4))
    return ShardPlan(rows_per_shard, max(1, block_rows))


class ShardChoice:
    """The shards of one run: its share of all, without those that are finished."""

    def __init__(
        self,
        rows_per_shard: int,
        index: int,
        count: int,
        finished: Collection[int],
        range_: range | None = None,
    ) -> None:
        self._rows_per_shard = rows_per_shard
        self._index = index
        self._count = count
        self._finished = frozenset(finished)
        self._range = range_

    def within(self, first: int, stop: int) -> ShardChoice:
        """The same, of shards in [first, stop) only."""
        return ShardChoice(self._rows_per_shard, self._index, self._count, self._finished, range(first, stop))

    def is_dealt(self, shard: int) -> bool:
        return shard % self._count == self._index

    def has(self, shard: int) -> bool:
        return (
            self.is_dealt(shard)
            and shard not in self._finished
            and (self._range is None or shard in self._range)
        )

    def wants(self, start: int, stop: int) -> bool:
        """Whether any of the rows [start, stop) is in one of the shards."""
        first, last = start // self._rows_per_shard, (stop - 1) // self._rows_per_shard
        return any(self.has(shard) for shard in range(first, last + 1))


def cut_blocks(
    pieces: Iterable[Piece], schema: pa.Schema, plan: ShardPlan, choice: ShardChoice
) -> Iterator[Block]:
    """The blocks of the chosen shards, in order."""
    return (block for block in _cut(pieces, schema, plan) if choice.has(block.shard))


def _cut(pieces: Iterable[Piece], schema: pa.Schema, plan: ShardPlan) -> Iterator[Block]:
    cutter = _Cutter(schema, plan)
    for piece in pieces:
        yield from cutter.skip(piece) if piece.rows is None else cutter.add(piece)
    yield from cutter.finish()


class _Cutter:
    def __init__(self, schema: pa.Schema, plan: ShardPlan) -> None:
        self._schema = schema
        self._plan = plan
        self._next_row = 0
        self._position = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, piece: Piece) -> Iterator[Block]:
        self._position = piece.position
        assert piece.rows is not None  # noqa: S101
        rows, done = piece.rows, 0
        sizes = _text_bytes(rows)
        while done < rows.num_rows:
            count = self._room(sizes[done:])
            self._pending.append(rows.slice(done, count))
            self._pending_bytes += int(sizes[done : done + count].sum())
            self._pending_rows += count
            self._next_row += count
            done += count
            if self._is_full:
                yield self._take()

    def skip(self, piece: Piece) -> Iterator[Block]:
        """Rows of shards that are not wanted: whatever is pending ends here."""
        yield from self.finish()
        self._position = piece.position
        self._next_row += piece.count

    def finish(self) -> Iterator[Block]:
        if self._pending_rows:
            yield self._take()

    def _room(self, sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """How many of the next rows go into the pending block."""
        count = min(self._plan.block_rows - self._pending_rows, self._left_in_shard, len(sizes))
        reach = self._pending_bytes + np.cumsum(sizes[:count])
        full = np.flatnonzero(reach >= self._plan.block_bytes)
        return int(full[0]) + 1 if len(full) else count

    @property
    def _left_in_shard(self) -> int:
        return self._plan.rows_per_shard - self._next_row % self._plan.rows_per_shard

    @property
    def _is_full(self) -> bool:
        return (
            self._pending_rows == self._plan.block_rows
            or self._pending_bytes >= self._plan.block_bytes
            or self._next_row % self._plan.rows_per_shard == 0
        )

    def _take(self) -> Block:
        first = self._next_row - self._pending_rows
        rows = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        return Block(first // self._plan.rows_per_shard, first, rows, self._position)


def _text_bytes(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = rows.column(TEXT).fill_null("").cast(pa.large_binary())
    return np.asarray(pa.compute.binary_length(lengths), dtype=np.int64)
