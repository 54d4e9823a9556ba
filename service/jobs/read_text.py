"""JSON lines, CSV, TSV and plain lines -> row batches. A record that cannot be read is marked, not lost.

pyarrow's own readers of these formats refuse a whole block for one bad record.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from service.jobs.errors import INVALID_RECORD, MISSING_FIELD, NOT_TEXT, JobError
from service.jobs.lines import MAX_LINE_BYTES, Line, open_lines
from service.jobs.rows import (
    ID,
    PROBLEM,
    READ_ROWS,
    TEXT,
    Piece,
    Selection,
    Wanted,
    problem_of,
    replace_surrogates,
)
from service.jobs.sources import Source

PLAIN_COLUMN = "text"
# Characters or bytes of the records that become one batch.
_BATCH_SIZE = 4 << 20
_ABSENT = object()
_TOO_LONG = f"the line is longer than {MAX_LINE_BYTES} bytes"
_JSON_KINDS = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Record:
    """The values of a row by column, or what is wrong with it."""

    values: Mapping[str, Any]
    problem: str | None = None


def read_text(
    source: Source, selection: Selection, schema: pa.Schema, start: int, wanted: Wanted
) -> Iterator[Piece]:
    with open_lines(source) as lines:
        if source.format in ("csv", "tsv"):
            units: Iterator[tuple[Any, int]] = _csv_rows(source, lines)
            header, _ = next(units, ([], 0))
            check_header(source, header, selection)
        else:
            units = _records_lines(source, lines)
            header = []
        for batch in _batches(units):
            first, start = start, start + len(batch)
            rows = None
            if wanted(first, start):
                records = [_parse(source, header, unit) for unit, _ in batch]
                rows = _build_rows(source, records, selection, schema)
            yield Piece(len(batch), rows, batch[-1][1])


def read_header(source: Source) -> list[str]:
    """Of a CSV or TSV file; empty where the file is."""
    with open_lines(source) as lines:
        header, _ = next(_csv_rows(source, lines), ([], 0))
        return list(header)


def check_header(source: Source, header: Sequence[str], selection: Selection) -> None:
    if not header:
        return
    for name in selection.columns:
        if name not in header and name not in source.partitions:
            raise JobError(f"{source.path} has no column {name}; it has {', '.join(header)}")
        if header.count(name) > 1:
            raise JobError(f"{source.path} has {header.count(name)} columns {name}; rename them")


def _records_lines(source: Source, lines: Iterable[Line]) -> Iterator[tuple[bytes | None, int]]:
    """A blank line of JSON lines is no record; of plain text it is a blank text."""
    for line in lines:
        if source.format == "text" or line.content is None or line.content.strip():
            yield line.content, line.position


def _csv_rows(source: Source, lines: Iterable[Line]) -> Iterator[tuple[list[str], int]]:
    """Rows with the fields as they are; bytes that are not UTF-8 become lone surrogates."""
    csv.field_size_limit(MAX_LINE_BYTES)
    position = 0

    def decoded() -> Iterator[str]:
        nonlocal position
        for line in lines:
            if line.content is None:
                raise JobError(f"{source.path}: {_TOO_LONG}; is it the right format?")
            position = line.position
            yield line.content.decode("utf-8", "surrogateescape")

    reader = csv.reader(decoded(), delimiter="\t" if source.format == "tsv" else ",")
    try:
        for row in reader:
            if row:
                yield row, position
    except csv.Error as error:
        raise JobError(f"{source.path}, line {reader.line_num}: {error}; is a quote left open?") from error


def _batches(units: Iterator[tuple[Any, int]]) -> Iterator[list[tuple[Any, int]]]:
    batch: list[tuple[Any, int]] = []
    size = 0
    for unit in units:
        batch.append(unit)
        size += _size(unit[0])
        if len(batch) == READ_ROWS or size >= _BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _size(unit: bytes | list[str] | None) -> int:
    if isinstance(unit, list):
        return sum(map(len, unit))
    return 0 if unit is None else len(unit)


def _parse(source: Source, header: Sequence[str], unit: Any) -> Record:
    if unit is None:
        return Record({}, INVALID_RECORD.format(reason=_TOO_LONG))
    if source.format in ("csv", "tsv"):
        return _parse_csv(header, unit)
    if source.format == "jsonl":
        return _parse_json(unit)
    return Record({PLAIN_COLUMN: _strip_end(unit).decode("utf-8", "surrogateescape")})


def _parse_csv(header: Sequence[str], row: list[str]) -> Record:
    values = dict(zip(header, row, strict=False))
    if len(row) == len(header):
        return Record(values)
    reason = f"the row has {len(row)} fields, the header has {len(header)}"
    return Record(values, INVALID_RECORD.format(reason=reason))


def _parse_json(line: bytes) -> Record:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "it is nested too deeply")
        return Record({}, INVALID_RECORD.format(reason=f"the line is not JSON ({reason})"))
    if not isinstance(record, dict):
        return Record({}, INVALID_RECORD.format(reason="the line is not a JSON object"))
    return Record(record)


def _build_rows(
    source: Source, records: Sequence[Record], selection: Selection, schema: pa.Schema
) -> pa.RecordBatch:
    pairs = [_text(source, record, selection) for record in records]
    columns: dict[str, list[str | None]] = {
        TEXT: [text for text, _ in pairs],
        PROBLEM: [problem for _, problem in pairs],
    }
    carried = {name: name for name in selection.keep_columns}
    if selection.id_column:
        carried[ID] = selection.id_column
    for target, name in carried.items():
        columns[target] = [_carried(_lookup(source, record, name)) for record in records]
    arrays = [_array(source, columns[field.name], field) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _text(source: Source, record: Record, selection: Selection) -> tuple[str | None, str | None]:
    """The text, or what is wrong with it."""
    if record.problem:
        return None, record.problem
    values: dict[str, str | None] = {}
    for name in selection.text_columns:
        value = _lookup(source, record, name)
        if value is _ABSENT:
            if selection.template is None:
                return None, MISSING_FIELD.format(name=name)
            value = None
        if selection.template is not None and type(value) in (int, float, bool):
            value = json.dumps(value)
        if not (value is None or isinstance(value, str)):
            return None, NOT_TEXT.format(kind=_JSON_KINDS[type(value)])
        values[name] = value
    text = selection.join(values)
    problem = problem_of(text)
    return (text, None) if problem is None else (None, problem)


def _lookup(source: Source, record: Record, name: str) -> Any:
    """The value of a column, or of an object's field by its dotted path; _ABSENT where there is none."""
    if name in record.values:
        return record.values[name]
    if name in source.partitions:
        return source.partitions[name]
    found: Any = record.values
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def _carried(value: Any) -> str | None:
    """As a string: JSON text of anything that is not one."""
    if value is None or value is _ABSENT:
        return None
    return replace_surrogates(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _array(source: Source, values: list[str | None], field: pa.Field) -> pa.Array:
    array = pa.array(values, pa.large_string())
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobError(
            f"{source.path}: column {field.name} does not fit the other files' ({error})"
        ) from error


def _strip_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
