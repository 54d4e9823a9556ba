"""The whole input as one sequence of rows, read once, in order and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from service.job_settings import JobSettings
from service.jobs.errors import JobError, reading
from service.jobs.own_files import OwnFiles
from service.jobs.read_parquet import ParquetHead, find_type, is_textual, read_head, read_parquet
from service.jobs.read_text import PLAIN_COLUMN, check_text, read_text
from service.jobs.rows import Piece, Selection, Wanted, build_selection, row_schema
from service.jobs.sources import Source, find_sources


@dataclass(frozen=True, slots=True)
class Input:
    """`schema` is that of the row batches; `row_count` is None where only reading would tell."""

    sources: Sequence[Source]
    selection: Selection
    schema: pa.Schema
    fingerprint: dict[str, dict[str, Any]]
    row_count: int | None

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def read(self, wanted: Wanted) -> Iterator[Piece]:
        """`position` counts through all files. Raises JobError with the name of a file that is broken."""
        row = position = 0
        for source in self.sources:
            read = read_parquet if source.format == "parquet" else read_text
            with reading(source.path):
                for piece in read(source, self.selection, self.schema, row, wanted):
                    row += piece.count
                    yield Piece(piece.count, piece.rows, position + piece.position)
            position += source.size


def open_input(settings: JobSettings) -> Input:
    """Finds the files and looks at the head of each, so that what cannot be read is known before the work."""
    selection = build_selection(
        settings.text_column, settings.text_template, settings.id_column, settings.keep_columns
    )
    own = OwnFiles(settings.out, settings.metrics_textfile)
    sources = find_sources(settings.inputs, settings.input_format, own, settings.quoting)
    types: dict[str, pa.DataType] = {}
    fingerprint: dict[str, dict[str, Any]] = {}
    row_count: int | None = 0
    for source in sources:
        with reading(source.path):
            head = read_head(source) if source.format == "parquet" else None
            schema = _check_parquet(source, head, selection) if head else _check_text(source, selection)
        for name in selection.carried:
            types[name] = _unify(types.get(name), _type_of(head, name))
        row_count = None if row_count is None or head is None else row_count + head.row_count
        content = (
            {"sha256": source.hash_content()}
            if settings.fingerprint == "content"
            else {"size": source.size, "modified": source.modified}
        )
        quoting = {"quoting": source.quoted} if source.format in ("csv", "tsv") else {}
        fingerprint[source.path] = {**content, "schema": schema, **quoting}
    return Input(sources, selection, row_schema(selection, types), fingerprint, row_count)


def _check_parquet(source: Source, head: ParquetHead, selection: Selection) -> str:
    for name in selection.columns:
        own = name if name in head.schema.names else name.partition(".")[0]
        if (count := head.schema.names.count(own)) > 1:
            raise JobError(f"{source.path} has {count} columns {own}; rename them")
        if find_type(head.schema, name) is None and name not in source.partitions:
            raise JobError(f"{source.path} has no column {name}; it has {', '.join(head.schema.names)}")
    if selection.template is None:
        kind = find_type(head.schema, selection.text_columns[0])
        if kind is not None and not is_textual(kind):
            raise JobError(
                f"{source.path}: column {selection.text_columns[0]} is {kind}, not text; choose another with "
                "--text-column, or make a text of it with --text-template"
            )
    return str(head.schema)


def _check_text(source: Source, selection: Selection) -> str:
    """Opens the file; the names of its columns where it has a header."""
    names = check_text(source, selection)
    if source.format == "text":
        for name in selection.columns:
            if name != PLAIN_COLUMN and name not in source.partitions:
                raise JobError(
                    f"{source.path} has lines, whose one column is {PLAIN_COLUMN}; there is no {name}"
                )
    return ", ".join(names)


def _type_of(head: ParquetHead | None, name: str) -> pa.DataType:
    return (find_type(head.schema, name) if head else None) or pa.string()


def _unify(known: pa.DataType | None, found: pa.DataType) -> pa.DataType:
    """The type that holds both; strings where Arrow has none."""
    if known is None or known == found:
        return found
    schemas = [pa.schema([pa.field("", kind)]) for kind in (known, found)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()
