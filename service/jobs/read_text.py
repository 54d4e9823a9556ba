"""JSON, CSV, TSV and plain lines -> row batches. A record that cannot be read is marked, not lost.

pyarrow's own readers of these formats refuse a whole block for one bad record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from service.jobs.content import Content, open_content
from service.jobs.delimited import Row, split_rows
from service.jobs.errors import INVALID_RECORD, MISSING_FIELD, NOT_TEXT, JobError
from service.jobs.json_array import is_array, split_array
from service.jobs.json_values import Digits, decode_value, load_value
from service.jobs.lines import TOO_LONG, Line, split_lines
from service.jobs.rows import (
    ID,
    PROBLEM,
    READ_ROWS,
    TEXT,
    Piece,
    Selection,
    Wanted,
    problem_of,
)
from service.jobs.sources import Source
from service.jobs.surrogates import replace_surrogates

PLAIN_COLUMN = "text"
# Characters or bytes of the records that become one batch.
_BATCH_SIZE = 4 << 20
_ABSENT = object()
_JSON_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    Digits: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class Record(NamedTuple):
    """The values of a row by column, or what is wrong with it."""

    values: Mapping[str, Any]
    problem: str | None = None


_TOO_LONG = Record({}, INVALID_RECORD.format(reason=TOO_LONG))


class _Unit(Protocol):
    """What becomes a record: a row of CSV, a line, or an element of an array. `size` is about its length."""

    @property
    def size(self) -> int: ...
    @property
    def position(self) -> int: ...


def read_text(
    source: Source, selection: Selection, schema: pa.Schema, start: int, wanted: Wanted
) -> Iterator[Piece]:
    with open_content(source) as content:
        units, parse = _open_units(source, content, selection)
        for batch in _batches(units):
            first, start = start, start + len(batch)
            rows = None
            if wanted(first, start):
                rows = _build_rows(source, [parse(unit) for unit in batch], selection, schema)
            yield Piece(len(batch), rows, batch[-1].position)


def check_text(source: Source, selection: Selection) -> list[str]:
    """Return the names of the columns, if there is a header. Raise JobError if the head cannot be read."""
    with open_content(source) as content:
        if source.format in ("csv", "tsv"):
            return _read_header(source, content, selection)[0]
        _open_units(source, content, selection)
    return []


def _read_header(source: Source, content: Content, selection: Selection) -> tuple[list[str], Iterator[Row]]:
    header, rows = split_rows(source, split_lines(source, content))
    for name in selection.columns if header else ():
        if name not in header and name not in source.partitions:
            hint = "; if its fields are quoted, say --quoting on" if f'"{name}"' in header else ""
            raise JobError(f"{source.path} has no column {name}; it has {', '.join(header)}{hint}")
        if header.count(name) > 1:
            raise JobError(f"{source.path} has {header.count(name)} columns {name}; rename them")
    return header, rows


def _open_units(
    source: Source, content: Content, selection: Selection
) -> tuple[Iterator[_Unit], Callable[[Any], Record]]:
    """The units, and what makes a record of one."""
    if source.format in ("csv", "tsv"):
        header, rows = _read_header(source, content, selection)
        return rows, lambda row: Record(dict(zip(header, row.fields, strict=False)), row.problem)
    if source.format == "jsonl" and is_array(content):
        return split_array(source, content), lambda element: _record_of(element.value)
    lines = split_lines(source, content)
    if source.format == "text":
        return lines, _parse_plain
    _check_json_lines(source, content)
    # A blank line is no record.
    return (line for line in lines if line.content is None or line.content.strip()), _parse_json


def _batches(units: Iterator[_Unit]) -> Iterator[list[_Unit]]:
    batch: list[_Unit] = []
    size = 0
    for unit in units:
        batch.append(unit)
        size += unit.size
        if len(batch) == READ_ROWS or size >= _BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_json_lines(source: Source, content: Content) -> None:
    """Raise JobError if the first object goes over several lines, or if all objects are on one line."""
    text = content.head.decode("utf-8", "surrogateescape").lstrip()
    try:
        _, end = decode_value(text, 0)
    except (ValueError, RecursionError):
        is_spread = text.partition("\n")[0].rstrip() == "{"
        is_joined = False
    else:
        is_spread = "\n" in text[:end]
        is_joined = "\n" not in text[end:].rstrip() and text[end:].lstrip().startswith("{")
    if is_spread or is_joined:
        what = (
            "holds objects that go over several lines" if is_spread else "holds several objects on one line"
        )
        raise JobError(
            f"{source.path} {what}; write one object on each line, as `jq -c .` does, or one array of objects"
        )


def _parse_plain(line: Line) -> Record:
    if line.content is None:
        return _TOO_LONG
    text = line.content.removesuffix(b"\n").removesuffix(b"\r")
    return Record({PLAIN_COLUMN: text.decode("utf-8", "surrogateescape")})


def _parse_json(line: Line) -> Record:
    if line.content is None:
        return _TOO_LONG
    try:
        return _record_of(load_value(line.content.decode("utf-8", "surrogateescape")))
    except json.JSONDecodeError as error:
        reason = error.msg
    except RecursionError:
        reason = "it is nested too deeply"
    return Record({}, INVALID_RECORD.format(reason=f"the line is not JSON ({reason})"))


def _record_of(value: Any) -> Record:
    if isinstance(value, dict):
        return Record(value)
    kind = _JSON_KINDS.get(type(value), "null")
    return Record({}, INVALID_RECORD.format(reason=f"the record is not a JSON object but {kind}"))


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
        if selection.template is not None and type(value) in (int, float, bool, Digits):
            value = _as_text(value)
        if value is not None and type(value) is not str:
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
    return None if value is None or value is _ABSENT else replace_surrogates(_as_text(value))


def _as_text(value: Any) -> str:
    """JSON text of anything that is not a string."""
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _array(source: Source, values: list[str | None], field: pa.Field) -> pa.Array:
    array = pa.array(values, pa.large_string())
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobError(
            f"{source.path}: column {field.name} does not fit the other files' ({error})"
        ) from error
