"""What every reader turns its input into: record batches of texts with why some cannot be encoded.

The columns are TEXT and PROBLEM (strings, one of the two null), ID where an id column was chosen, and the
columns carried along under their own names.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from service.jobs.errors import INVALID_UTF8, NULL, JobError
from service.jobs.surrogates import is_encodable

# "#" keeps them apart from the columns carried along.
ID, TEXT, PROBLEM = "#id", "#text", "#problem"
# Rows that a reader turns into one batch at most.
READ_ROWS = 1024
_ESCAPES = {"\\n": "\n", "\\t": "\t"}

# Whether any of the rows [start, stop) of the whole input is to be encoded.
Wanted: TypeAlias = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """The next `count` rows of an input; `rows` is None where none of them was wanted.

    `position`: bytes of the file read so far.
    """

    count: int
    rows: pa.RecordBatch | None
    position: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which columns are read, and how they become a text."""

    text_columns: tuple[str, ...]
    template: str | None
    id_column: str | None
    keep_columns: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        named = (*self.text_columns, *((self.id_column,) if self.id_column else ()), *self.keep_columns)
        return list(dict.fromkeys(named))

    @property
    def carried(self) -> list[str]:
        """Columns whose values go to the output."""
        return list(dict.fromkeys((*((self.id_column,) if self.id_column else ()), *self.keep_columns)))

    def join(self, values: Mapping[str, str | None]) -> str | None:
        """The text of a row; a null field of a template is empty, and only all of them make a null text."""
        if self.template is None:
            return values[self.text_columns[0]]
        if all(value is None for value in values.values()):
            return None
        return _fill(self.template, values)


def build_selection(
    text_column: str, template: str | None, id_column: str | None, keep_columns: str
) -> Selection:
    keep = tuple(name.strip() for name in keep_columns.split(",") if name.strip())
    if repeated := {name for name in keep if keep.count(name) > 1}:
        raise JobError(f"--keep-columns names {', '.join(sorted(repeated))} twice")
    if template is None:
        return Selection((text_column,), None, id_column, keep)
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    return Selection(_fields(template), template, id_column, keep)


def row_schema(selection: Selection, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """`types` has the type of every column carried along."""
    fields = [pa.field(TEXT, pa.large_string()), pa.field(PROBLEM, pa.string())]
    if selection.id_column:
        fields.append(pa.field(ID, types[selection.id_column]))
    return pa.schema(fields + [pa.field(name, types[name]) for name in selection.keep_columns])


def problem_of(text: str | None) -> str | None:
    if text is None:
        return NULL
    # Lone surrogates: JSON's escapes can spell them, and bytes that are not UTF-8 were decoded to them.
    return None if is_encodable(text) else INVALID_UTF8


def text_columns(texts: Sequence[str | None], problems: Sequence[str | None]) -> dict[str, pa.Array]:
    """A text with a problem is left out."""
    kept = [text if problem is None else None for text, problem in zip(texts, problems, strict=True)]
    return {TEXT: pa.array(kept, pa.large_string()), PROBLEM: pa.array(problems, pa.string())}


def _fields(template: str) -> tuple[str, ...]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise JobError(f"--text-template cannot be read ({error}); write {{{{ for a brace") from error
    names = [name for _, name, _, _ in parsed if name is not None]
    if not names or any(
        not name or form or conversion for _, name, form, conversion in parsed if name is not None
    ):
        raise JobError("--text-template must name columns in braces, as in '{title}\\n{body}'")
    return tuple(dict.fromkeys(names))


def _fill(template: str, values: Mapping[str, Any]) -> str:
    parts = []
    for literal, name, _, _ in string.Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            parts.append(values[name] or "")
    return "".join(parts)
