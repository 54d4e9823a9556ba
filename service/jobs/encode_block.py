"""Encodes blocks: the rows that can be, put beside those that cannot, as a table of the output."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.jobs.encoded import Encoded, Encoder, Tally, VectorShape, tally, zero_vectors
from service.jobs.shards import Block
from service.jobs.table import Layout

# One is tokenised while the batches of another fill the lanes.
_BLOCKS_IN_WORK = 2


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a block. `position`: bytes of the input read up to its end."""

    shard: int
    first_row: int
    position: int
    table: pa.Table
    tally: Tally


def encode_blocks(encoder: Encoder, layout: Layout, blocks: Iterator[Block]) -> Iterator[Result]:
    """Results in the order of the blocks, a few of which are in work."""
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(_BLOCKS_IN_WORK, thread_name_prefix="encode")
    try:
        for block in blocks:
            pending.append(pool.submit(encode_block, encoder, layout, block))
            if len(pending) == _BLOCKS_IN_WORK:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def encode_block(encoder: Encoder, layout: Layout, block: Block) -> Result:
    problems = block.problems
    texts = block.texts
    places = [index for index, problem in enumerate(problems) if problem is None]
    encoded = encoder.encode([text for index in places if (text := texts[index]) is not None])
    whole = _scatter(encoded, places, problems, encoder.shape)
    return Result(block.shard, block.first_row, block.position, layout.build(block, whole), tally(whole))


def _scatter(
    encoded: Encoded, places: Sequence[int], problems: Sequence[str | None], shape: VectorShape
) -> Encoded:
    """The results of all rows of a block, from those of the rows at `places`."""
    count = len(problems)
    vectors = zero_vectors(count, shape)
    if vectors is not None and encoded.vectors is not None and places:
        vectors.data[places] = encoded.vectors.data
        if vectors.scales is not None and encoded.vectors.scales is not None:
            vectors.scales[places] = encoded.vectors.scales
    whole = Encoded(
        vectors=vectors,
        token_embeddings=[None] * count,
        token_counts=np.zeros(count, np.int32),
        truncated=np.zeros(count, np.bool_),
        errors=list(problems),
        padded_tokens=encoded.padded_tokens,
    )
    whole.token_counts[places] = encoded.token_counts
    whole.truncated[places] = encoded.truncated
    for index, place in enumerate(places):
        whole.errors[place] = encoded.errors[index]
        whole.token_embeddings[place] = encoded.token_embeddings[index]
    return whole
