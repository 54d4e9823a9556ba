"""Shards and blocks depend on the rows alone, whatever pieces they come in and whatever was done before."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.encoded import Model, VectorShape
from service.jobs.rows import PROBLEM, TEXT, Piece
from service.jobs.shards import Block, ShardChoice, ShardPlan, cut_blocks, plan_shards
from service.types import DataType

SCHEMA = pa.schema([(TEXT, pa.large_string()), (PROBLEM, pa.string())])
PLAN = ShardPlan(rows_per_shard=10, block_rows=4, block_bytes=30)
ALL = ShardChoice(10, 0, 1, ())

texts = st.lists(st.none() | st.integers(0, 40).map(lambda size: "x" * size), max_size=60)


def pieces(texts: list[str | None], sizes: list[int], choice: ShardChoice) -> Iterator[Piece]:
    start = 0
    for size in [*sizes, len(texts)]:
        part = texts[start : start + size]
        if part:
            rows = None
            if choice.wants(start, start + len(part)):
                rows = pa.record_batch(
                    [pa.array(part, pa.large_string()), pa.nulls(len(part), pa.string())], schema=SCHEMA
                )
            start += len(part)
            yield Piece(len(part), rows, start)


def cut(texts: list[str | None], sizes: list[int], choice: ShardChoice = ALL) -> list[Block]:
    return list(cut_blocks(pieces(texts, sizes, choice), SCHEMA, PLAN, choice))


def described(blocks: list[Block]) -> list[tuple[int, int, list[str | None]]]:
    return [(block.shard, block.first_row, block.texts) for block in blocks]


@given(texts, st.lists(st.integers(1, 25)))
def test_blocks_hold_every_row_once_in_order_within_their_limits(
    texts: list[str | None], sizes: list[int]
) -> None:
    blocks = cut(texts, sizes)
    assert [text for block in blocks for text in block.texts] == texts
    row = 0
    for block in blocks:
        assert block.first_row == row
        assert block.shard == row // 10 == (row + len(block) - 1) // 10
        assert 1 <= len(block) <= 4
        assert sum(len(text or "") for text in block.texts[:-1]) < 30
        row += len(block)


@given(texts, st.lists(st.integers(1, 25)), st.lists(st.integers(1, 25)))
def test_blocks_do_not_depend_on_the_pieces(
    texts: list[str | None], sizes: list[int], others: list[int]
) -> None:
    assert described(cut(texts, sizes)) == described(cut(texts, others))


@given(texts, st.lists(st.integers(1, 25)), st.sets(st.integers(0, 5)))
def test_a_run_that_goes_on_cuts_the_missing_shards_as_the_first_would_have(
    texts: list[str | None], sizes: list[int], finished: set[int]
) -> None:
    resumed = cut(texts, sizes, ShardChoice(10, 0, 1, finished))
    assert described(resumed) == [each for each in described(cut(texts, [])) if each[0] not in finished]


@given(texts, st.lists(st.integers(1, 25)), st.integers(1, 4))
def test_shares_make_up_the_whole(texts: list[str | None], sizes: list[int], count: int) -> None:
    shares = [cut(texts, sizes, ShardChoice(10, index, count, ())) for index in range(count)]
    together = sorted(each for share in shares for each in described(share))
    assert together == described(cut(texts, []))


@given(st.integers(0, 30), st.integers(1, 30), st.sets(st.integers(0, 6)), st.integers(1, 3))
def test_rows_are_wanted_where_one_of_their_shards_is(
    start: int, count: int, finished: set[int], shares: int
) -> None:
    choice = ShardChoice(10, 0, shares, finished)
    expected = any(choice.has(row // 10) for row in range(start, start + count))
    assert choice.wants(start, start + count) is expected


@pytest.mark.parametrize(
    ("token_size", "max_tokens", "rows"), [(None, 512, 8192), (384, 256, 170), (4096, 8192, 1)]
)
def test_blocks_with_token_embeddings_are_small_enough_for_memory(
    token_size: int | None, max_tokens: int, rows: int
) -> None:
    model = Model("m", "r", "fp32", max_tokens, {})
    assert plan_shards(100, model, VectorShape(DataType.FLOAT32, 384, token_size)).block_rows == rows
