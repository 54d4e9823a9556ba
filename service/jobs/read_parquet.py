"""Parquet -> row batches, a bounded part of a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.jobs.arrow_json import decode, texts_of
from service.jobs.carried import fit, fit_all, is_valid, repair_text
from service.jobs.errors import NULL
from service.jobs.rows import (
    ID,
    PROBLEM,
    READ_ROWS,
    TEXT,
    Piece,
    Selection,
    Wanted,
    problem_of,
    text_columns,
)
from service.jobs.sources import Source

# Decoded bytes that one batch may take, by the mean of its row group.
_BATCH_BYTES = 16 << 20
_READ_BUFFER = 1 << 20
# Spark's INT96 timestamps: in nanoseconds, pyarrow's default, the year 9999 wraps around to 1816.
_INT96_UNIT = "us"


@dataclass(frozen=True, slots=True)
class ParquetHead:
    """What a file's footer says."""

    schema: pa.Schema
    row_count: int


def read_head(source: Source) -> ParquetHead:
    with source.open_file() as file:
        parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit=_INT96_UNIT)
        return ParquetHead(parquet.schema_arrow.remove_metadata(), parquet.metadata.num_rows)


def find_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Of a column, or of a struct's field by its dotted path; None where there is none."""
    if name in schema.names:
        return _plain_type(schema.field(name).type)
    first, *path = name.split(".")
    if first not in schema.names:
        return None
    found = schema.field(first).type
    for part in path:
        index = found.get_field_index(part) if pa.types.is_struct(found) else -1
        if index < 0:
            return None
        found = found.field(index).type
    return _plain_type(found)


def is_textual(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_null(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def read_parquet(
    source: Source, selection: Selection, schema: pa.Schema, start: int, wanted: Wanted
) -> Iterator[Piece]:
    """Row groups of which nothing is wanted are not read."""
    with source.open_file() as file:
        parquet = pq.ParquetFile(
            file,
            buffer_size=_READ_BUFFER,
            pre_buffer=False,
            coerce_int96_timestamp_unit=_INT96_UNIT,
        )
        total = parquet.metadata.num_rows
        done = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            if not wanted(start + done, start + done + count):
                done += count
                yield Piece(count, None, _position(source, done, total))
                continue
            for batch in _batches(parquet, group, selection):
                first, done = start + done, done + batch.num_rows
                rows = None
                if wanted(first, start + done):
                    rows = _build_rows(source, batch, selection, schema)
                yield Piece(batch.num_rows, rows, _position(source, done, total))


def _batches(parquet: pq.ParquetFile, group: int, selection: Selection) -> Iterator[pa.RecordBatch]:
    metadata = parquet.metadata.row_group(group)
    row_bytes = metadata.total_byte_size / max(1, metadata.num_rows)
    size = max(1, min(READ_ROWS, int(_BATCH_BYTES / max(1.0, row_bytes))))
    columns = [name for name in selection.columns if find_type(parquet.schema_arrow, name) is not None]
    yield from parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)


def _position(source: Source, done: int, total: int) -> int:
    return source.size * done // max(1, total)


def _build_rows(
    source: Source, batch: pa.RecordBatch, selection: Selection, schema: pa.Schema
) -> pa.RecordBatch:
    def column(name: str) -> pa.Array:
        return _column(source, batch, name)

    if selection.template is None:
        columns = _texts(column(selection.text_columns[0]))
    else:
        columns = _joined([column(name) for name in selection.text_columns], selection)
    if selection.id_column:
        array = fit_all(column(selection.id_column), schema.field(ID).type, source.path, selection.id_column)
        columns[ID] = repair_text(array)
    for name in selection.keep_columns:
        columns[name] = repair_text(fit(column(name), schema.field(name).type, source.path, name))
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _column(source: Source, batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return _plain(batch.column(name))
    if name in source.partitions:
        return pa.array([source.partitions[name]] * batch.num_rows, pa.string())
    first, *path = name.split(".")
    return _plain(pc.struct_field(batch.column(first), path))


def _texts(array: pa.Array) -> dict[str, pa.Array]:
    texts = array.cast(pa.large_binary()).cast(pa.large_string(), safe=False)
    if not is_valid(texts):
        return _checked(decode(texts))
    problems = pc.if_else(texts.is_null(), pa.scalar(NULL), pa.scalar(None, pa.string()))
    return {TEXT: texts, PROBLEM: problems}


def _joined(arrays: list[pa.Array], selection: Selection) -> dict[str, pa.Array]:
    columns = [_as_strings(array) for array in arrays]
    rows = (dict(zip(selection.text_columns, values, strict=True)) for values in zip(*columns, strict=True))
    return _checked([selection.join(row) for row in rows])


def _checked(texts: list[str | None]) -> dict[str, pa.Array]:
    return text_columns(texts, [problem_of(text) for text in texts])


def _as_strings(array: pa.Array) -> list[str | None]:
    """Bytes are taken for text; numbers, booleans and decimals are Arrow's, and the rest is its JSON."""
    kind = array.type
    if is_textual(kind) or pa.types.is_fixed_size_binary(kind):
        return decode(array)
    if pa.types.is_temporal(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        return texts_of(array)
    return list(array.cast(pa.large_string()).to_pylist())


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
