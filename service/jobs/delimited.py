r"""Lines of CSV and TSV -> rows of fields.

In a quoted source, a field that begins with " ends with the next " that is not doubled, and may hold
delimiters and line ends. A quote that is never closed, or that closes on a later line in the middle of a
field, shows that rows were taken for text: nothing after it can be trusted, so the file ends there with an
error. A field that is malformed within one line marks its row alone. In a source that is not quoted, every
line is a row and " is a character like any other. A \r that does not end a line stays in its field.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from service.jobs.errors import INVALID_RECORD, JobError
from service.jobs.lines import MAX_LINE_BYTES, TOO_LONG, Line
from service.jobs.sources import Source

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_QUOTED = r'"[^"]*(?:""[^"]*)*"'
# Stands for a \r inside a line, which the csv module would refuse. Decoded text never holds it: bytes that
# are not UTF-8 become surrogates from U+DC80 on.
_RETURN = "\ud800"


class Row(NamedTuple):
    """The fields as they are; bytes that are not UTF-8 became lone surrogates, and None is a null.

    `size`: characters of its lines. `position`: bytes of the file read so far. `line`: the number of its last
    line, from 1.
    """

    fields: Sequence[str | None]
    size: int
    position: int
    line: int
    line_count: int = 1
    problem: str | None = None


def split_rows(source: Source, lines: Iterable[Line]) -> tuple[list[str], Iterator[Row]]:
    """The header, empty where the file is, and the rows after it.

    Both raise JobError where it cannot be known how the file goes on.
    """
    rows = _split_quoted(source, lines) if source.quoted else _split_plain(source, lines)
    header = next((row for row in rows if row.fields or row.problem), None)
    if header is None:
        return [], rows
    names = [name or "" for name in header.fields]
    if header.problem:
        raise JobError(f"{source.path}, line {header.line}: the header is an {header.problem}")
    if header.line_count == 1 and any("\r" in name for name in names):
        raise JobError(
            rf"{source.path}, line {header.line}: the header holds \r; convert the file's line ends to \n"
        )
    return names, _fit_rows(rows, len(names))


def _fit_rows(rows: Iterator[Row], width: int) -> Iterator[Row]:
    for row in rows:
        if len(row.fields) == width or row.problem:
            yield row
        elif row.fields:
            yield row._replace(problem=_describe_misfit(row, width))
        elif width == 1:
            # Polars and DuckDB write a null as a blank line, and an empty text as "".
            yield row._replace(fields=[None])


def _describe_misfit(row: Row, width: int) -> str:
    where = hint = ""
    if row.line_count > 1:
        where, hint = f" on lines {row.line - row.line_count + 1} to {row.line}", "; is a quote left open?"
    elif any("\r" in field for field in row.fields if field):
        hint = r"; it holds \r, which does not end a line"
    count = len(row.fields)
    counted = f"{count} field{'' if count == 1 else 's'}"
    return INVALID_RECORD.format(reason=f"the row{where} has {counted}, the header has {width}{hint}")


def _split_plain(source: Source, lines: Iterable[Line]) -> Iterator[Row]:
    delimiter = _DELIMITERS[source.format]
    for number, (content, size, position) in enumerate(lines, 1):
        if content is None:
            yield Row([], size, position, number, problem=INVALID_RECORD.format(reason=TOO_LONG))
        else:
            yield Row(_split_at(delimiter, _decode(source, number, content)), size, position, number)


def _split_quoted(source: Source, lines: Iterable[Line]) -> Iterator[Row]:
    """Lines up to the first quote do not need the csv module, which is slower."""
    delimiter = _DELIMITERS[source.format]
    numbered = enumerate(lines, 1)
    for number, (content, size, position) in numbered:
        text = _decode(source, number, content)
        if '"' in text:
            yield from _split_with_csv(
                source, itertools.chain([(number, Line(content, size, position))], numbered)
            )
            return
        yield Row(_split_at(delimiter, text), size, position, number)


def _split_with_csv(source: Source, numbered: Iterable[tuple[int, Line]]) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    delimiter = _DELIMITERS[source.format]
    record: list[str] = []  # the lines of the row that is being read
    number = size = position = 0
    has_returns = is_end = False

    def decoded() -> Iterator[str]:
        nonlocal number, size, position, has_returns, is_end
        for number, (content, size, position) in numbered:  # noqa: B007
            text = _decode(source, number, content)
            if "\r" in text and text.count("\r") > text.endswith("\r\n"):
                text, has_returns = _protect_returns(text), True
            record.append(text)
            yield text
        is_end = True

    def take(fields: list[str], problem: str | None = None) -> Row:
        nonlocal has_returns
        if has_returns:
            fields, has_returns = [field.replace(_RETURN, "\r") for field in fields], False
        count = len(record)
        row = Row(fields, size if count == 1 else sum(map(len, record)), position, number, count, problem)
        record.clear()
        return row

    reader = csv.reader(decoded(), delimiter=delimiter, strict=True)
    while not is_end:
        try:
            yield from map(take, reader)
        except csv.Error:
            malformed = _split_one_line(record, delimiter)
            if malformed is None:
                raise _describe_open_quote(source, record, number, is_end) from None
            # The reader begins anew with the next line.
            reason = f'line {number} has text after the closing quote of a field; write "" for a " inside'
            yield take(malformed, INVALID_RECORD.format(reason=reason))


def _decode(source: Source, number: int, content: bytes | None) -> str:
    if content is None:
        raise JobError(f"{source.path}, line {number}: {TOO_LONG}; is the format right?")
    return content.decode("utf-8", "surrogateescape")


def _protect_returns(line: str) -> str:
    text = line.removesuffix("\n").removesuffix("\r")
    return text.replace("\r", _RETURN) + line[len(text) :]


def _split_at(delimiter: str, line: str) -> list[str]:
    text = line.removesuffix("\n").removesuffix("\r")
    return text.split(delimiter) if text else []


def _split_one_line(record: list[str], delimiter: str) -> list[str] | None:
    """The fields as far as they can be told; None if the row goes on after its first line."""
    reader = csv.reader([record[0], ""], delimiter=delimiter)
    fields = next(reader)
    return fields if len(record) == 1 and reader.line_num == 1 else None


def _describe_open_quote(source: Source, lines: Sequence[str], last_line: int, is_end: bool) -> JobError:
    """`lines`: what was read of the row."""
    delimiter, record, first_line = _DELIMITERS[source.format], "".join(lines), last_line - len(lines) + 1
    whole_fields = re.match(rf'(?:(?:{_QUOTED}|[^"{delimiter}][^{delimiter}]*|){delimiter})*', record)
    begin = whole_fields.end() if whole_fields else 0
    opened = first_line + record.count("\n", 0, begin)
    if closed := re.compile(_QUOTED).match(record, begin):
        line = first_line + record.count("\n", 0, closed.end())
        end = f"ends on line {line}, where more text follows it"
    else:
        end = "is never closed" if is_end else f"is not closed within {MAX_LINE_BYTES} bytes"
    return JobError(
        f'{source.path}, line {opened}: the " that opens a field {end}; nothing from there on was read. '
        'Close it, write "" for a " inside a quoted field, or say --quoting off if " is an ordinary character'
    )
