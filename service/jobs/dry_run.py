"""`--dry-run`: reads the head, encodes a little of it, and says what the job would be; writes nothing."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from service.job_settings import JobSettings
from service.jobs.encode_block import encode_block
from service.jobs.encoded import Encoder, Tally
from service.jobs.errors import printing
from service.jobs.input import Input
from service.jobs.shards import Block
from service.jobs.table import build_layout

# Rows of the head, and how many of them are encoded to see how fast that is.
_HEAD_ROWS = 1000
_ENCODED_ROWS = 256
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Head:
    """The first rows; `share` of the input's bytes that they are."""

    rows: pa.Table
    share: float

    @property
    def is_all(self) -> bool:
        return self.share >= 1


def print_plan(settings: JobSettings, source: Input, encoder: Encoder) -> None:
    layout = build_layout(source.schema, source.selection, encoder.shape, encoder.model)
    head = _read_head(source)
    sample = Block(0, 0, head.rows.slice(0, _ENCODED_ROWS), 0)
    started = time.perf_counter()
    result = encode_block(encoder, layout, sample)
    seconds = time.perf_counter() - started
    row_bytes = result.table.nbytes / max(1, len(sample))
    row_count = _count_rows(source, head)
    formats = Counter[str](each.format for each in source.sources)
    model = encoder.model
    about = "" if source.row_count is not None or head.is_all else "about "
    shards = max(1, -(-row_count // settings.rows_per_shard))
    with printing("nothing was to be written"):
        print(f"input     {_describe_formats(formats)}, {_size(source.size)}, {about}{row_count:,} rows")
        print(f"model     {model.name}, revision {model.revision[:12]}, {model.precision}")
        print(f"output    {settings.out}: {about}{shards:,} {settings.output_format} shards, columns:")
        for field in layout.schema:
            print(f"            {field.name}: {field.type}")
        print(f"head      {_describe_head(result.tally)}")
        print(f"estimate  {_estimate(row_count, len(sample), result.tally, seconds, row_bytes)}")


def _read_head(source: Input) -> Head:
    batches, count, position = [], 0, 0
    for piece in source.read(lambda _start, _stop: True):
        batches.append(piece.rows)
        count += piece.count
        position = piece.position
        if count >= _HEAD_ROWS:
            break
    else:
        position = source.size
    return Head(pa.Table.from_batches(batches, source.schema), position / max(1, source.size))


def _count_rows(source: Input, head: Head) -> int:
    if source.row_count is not None:
        return source.row_count
    return round(int(head.rows.num_rows) / max(head.share, 1e-9))


def _describe_formats(formats: Counter[str]) -> str:
    return ", ".join(f"{count} {name} file{'s' if count > 1 else ''}" for name, count in formats.items())


def _describe_head(came_to: Tally) -> str:
    marked = ", ".join(f"{kind} {count}" for kind, count in came_to.errors.items()) or "none"
    each = came_to.tokens / max(1, came_to.rows - came_to.error_count)
    return (
        f"{came_to.rows} rows encoded: {each:.1f} tokens each, marked: {marked}, "
        f"truncated: {came_to.truncated}"
    )


def _estimate(row_count: int, rows: int, came_to: Tally, seconds: float, row_bytes: float) -> str:
    if not rows:
        return "nothing to do"
    tokens = came_to.tokens / rows * row_count
    total_s = int(seconds / rows * row_count)
    clock = f"{total_s // 3600}:{total_s // 60 % 60:02}:{total_s % 60:02}"
    return (
        f"{tokens:,.0f} tokens, {clock} at {rows / seconds:,.0f} rows/s, {_size(row_bytes * row_count)} "
        "before compression"
    )


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
