"""Writes shards as Parquet, .npy with a file of ids, or JSON lines; a file appears whole or not at all."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.job_settings import OutputFormat
from service.jobs.arrow_json import json_values
from service.jobs.durable import sync_file, sync_folder, temporary_path, writing
from service.jobs.table import EMBEDDING, TOKEN_EMBEDDINGS

_VERSION = (1, 0)  # of the .npy format
_SUFFIXES: dict[OutputFormat, tuple[str, ...]] = {
    "parquet": (".parquet",),
    "npy": (".ids.jsonl", ".npy"),
    "jsonl": (".jsonl",),
}


class TableWriter(Protocol):
    """One of `close` and `abandon` ends it."""

    def write(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class ShardWriter:
    """The files of one shard under temporary names, until `commit` gives them theirs."""

    def __init__(self, folder: Path, shard: int, form: OutputFormat, schema: pa.Schema) -> None:
        self._folder = folder
        self._paths = [folder / f"part-{shard:05d}{suffix}" for suffix in _SUFFIXES[form]]
        self._open: list[IO[bytes]] = []
        self._writer: TableWriter | None = None
        with writing(folder), ExitStack() as stack:
            stack.callback(self._discard)
            for path in self._paths:
                self._open.append(temporary_path(path).open("wb"))
            self._writer = _build_writer(form, schema, self._open)
            stack.pop_all()

    def write(self, table: pa.Table) -> None:
        with writing(self._folder):
            self._started.write(table)

    def commit(self) -> dict[str, int]:
        """The size of each file."""
        with writing(self._folder):
            self._started.close()
            self._writer = None
            for file in self._open:
                file.flush()
                sync_file(file.fileno())
                file.close()
            for path in self._paths:
                temporary_path(path).replace(path)
            sync_folder(self._folder)
            return {path.name: path.stat().st_size for path in self._paths}

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()

    @property
    def _started(self) -> TableWriter:
        if self._writer is None:
            raise ValueError("this shard is committed")
        return self._writer

    def _discard(self) -> None:
        """Removes what was not committed, as far as the disk still allows."""
        if self._writer:
            self._writer.abandon()
        for file in self._open:
            with suppress(OSError):
                file.close()
        for path in self._paths:
            with suppress(OSError):
                temporary_path(path).unlink(missing_ok=True)


def _build_writer(form: OutputFormat, schema: pa.Schema, files: list[IO[bytes]]) -> TableWriter:
    if form == "parquet":
        return _ParquetWriter(files[0], schema)
    if form == "jsonl":
        return _JsonWriter(files[0])
    return _NpyWriter(files[0], files[1], schema)


class _ParquetWriter:
    """One row group for each table. Vectors do not compress and repeat too seldom for a dictionary."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        vectors = {EMBEDDING, TOKEN_EMBEDDINGS}
        others = [name for name in schema.names if name not in vectors]
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=others)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """pyarrow would write the file's end when it lets go of the writer."""
        self._writer.is_open = False


class _JsonWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        names = [name for name in table.schema.names if name not in (EMBEDDING, TOKEN_EMBEDDINGS)]
        columns = [[v for chunk in table.column(name).chunks for v in json_values(chunk)] for name in names]
        vectors = _json_vectors(table, EMBEDDING)
        tokens = _json_vectors(table, TOKEN_EMBEDDINGS)
        for index, row in enumerate(zip(*columns, strict=True)):
            record = dict(zip(names, row, strict=True))
            parts = [json.dumps(record, ensure_ascii=False, allow_nan=False)[1:-1]]
            parts += [f'"{EMBEDDING}": {vectors[index]}'] if vectors else []
            parts += [f'"{TOKEN_EMBEDDINGS}": {tokens[index]}'] if tokens else []
            self._file.write(("{" + ", ".join(parts) + "}\n").encode())

    def close(self) -> None:
        """Everything is written."""

    def abandon(self) -> None:
        """Holds nothing."""


class _NpyWriter:
    """The shape in the header is known at the end: a .npy header has room to be written again."""

    def __init__(self, ids: IO[bytes], vectors: IO[bytes], schema: pa.Schema) -> None:
        self._ids = _JsonWriter(ids)
        self._file = vectors
        self._rows = 0
        kind = schema.field(EMBEDDING).type
        if pa.types.is_fixed_size_binary(kind):
            self._dtype, self._width = np.dtype(np.uint8), kind.byte_width
        else:
            self._dtype, self._width = np.dtype(kind.value_type.to_pandas_dtype()), kind.list_size
        self._write_header()

    def write(self, table: pa.Table) -> None:
        """A failed row is zero."""
        for array in table.column(EMBEDDING).chunks:
            self._file.write(self._values(array).tobytes())
        self._rows += table.num_rows
        self._ids.write(table.drop_columns([EMBEDDING]))

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)

    def abandon(self) -> None:
        """Holds nothing."""

    def _values(self, array: pa.Array) -> np.ndarray[Any, np.dtype[Any]]:
        if pa.types.is_fixed_size_binary(array.type):
            zero = bytes(self._width)
            return np.frombuffer(b"".join(value or zero for value in array.to_pylist()), np.uint8)
        # Not `flatten`, which leaves nulls out.
        start, stop = array.offset * self._width, (array.offset + len(array)) * self._width
        return np.asarray(array.values[start:stop]).astype(self._dtype, copy=False)

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows, self._width),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _json_vectors(table: pa.Table, name: str) -> list[str] | None:
    """Each row's vector or list of vectors as JSON; floats as the shortest text that reads back the same."""
    if name not in table.schema.names:
        return None
    array = table.column(name).combine_chunks()
    return [text or "null" for text in _json_lists(array).to_pylist()]


def _json_lists(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        kind = pa.list_(pa.uint8(), kind.byte_width)
        values = pa.array(
            np.frombuffer(b"".join(v or bytes(kind.list_size) for v in array.to_pylist()), np.uint8)
        )
        array = pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())
    if pa.types.is_fixed_size_list(kind):
        start, stop = array.offset * kind.list_size, (array.offset + len(array)) * kind.list_size
        offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * kind.list_size)
        texts = _numbers(array.values[start:stop])
        mask = array.is_null()
    else:
        offsets, texts, mask = array.offsets, _json_lists(array.values), array.is_null()
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    wrapped = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(mask, pa.scalar(None, wrapped.type), wrapped)


def _numbers(values: pa.Array) -> pa.Array:
    kind = pa.float32() if pa.types.is_float16(values.type) else values.type
    return values.cast(kind).cast(pa.string())
