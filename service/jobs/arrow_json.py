"""Arrow values -> JSON values: no two values become one, and none of them is beyond what can be written.

pyarrow's own way through Python objects ends at the year 9999, loses nanoseconds and asks for the database of
time zones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_values(array: pa.Array) -> list[Any]:
    """Numbers, booleans, strings, lists and objects as they are; what JSON has no type for as text:

    bytes as hexadecimal digits, UUIDs and decimals as usual, NaN and Infinity by name, dates and times as ISO
    8601 with all digits of their unit (time zones as UTC), durations as PT1.5S, maps as lists of pairs.
    """
    kind = array.type
    if isinstance(kind, pa.UuidType):
        return [None if value is None else str(value) for value in array.to_pylist()]
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(array.storage)
    if pa.types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    for is_kind, convert in _CONVERSIONS:
        if is_kind(kind):
            return convert(array)
    return list(array.to_pylist())


def texts_of(array: pa.Array) -> list[str | None]:
    """Strings as they are, everything else as its JSON."""
    return [
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in json_values(array)
    ]


def decode(array: pa.Array) -> list[str | None]:
    """Strings or bytes as text; what is not UTF-8 becomes lone surrogates."""
    values = array.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]


def _hex(array: pa.Array) -> list[str | None]:
    return [None if value is None else value.hex() for value in array.to_pylist()]


def _floats(array: pa.Array) -> list[float | str | None]:
    return [
        value if value is None or math.isfinite(value) else json.dumps(value)
        for value in array.cast(pa.float64()).to_pylist()
    ]


def _decimals(array: pa.Array) -> list[str | None]:
    return [None if value is None else f"{value:f}" for value in array.to_pylist()]


def _moments(array: pa.Array) -> list[str | None]:
    kind = array.type
    unit = kind.unit if pa.types.is_timestamp(kind) else "D" if pa.types.is_date32(kind) else "ms"
    counts = np.array([count or 0 for count in _counts(array)], np.int64)
    texts = np.datetime_as_string(counts.view(f"datetime64[{unit}]")).tolist()
    end = "Z" if pa.types.is_timestamp(kind) and kind.tz else ""
    return [
        _moment(text, is_date=pa.types.is_date(kind)) + end if valid else None
        for text, valid in zip(texts, array.is_valid().to_pylist(), strict=True)
    ]


def _moment(text: str, *, is_date: bool) -> str:
    """The smallest count of all is NumPy's NaT."""
    date, _, clock = text.partition("T") if text != "NaT" else (text, "", "")
    return date if is_date or not clock else f"{date} {clock}"


def _times(array: pa.Array) -> list[str | None]:
    unit = array.type.unit
    return [None if count is None else _clock(count, unit) for count in _counts(array)]


def _clock(count: int, unit: str) -> str:
    """Counts beyond a day are legal in a column, if not on a clock."""
    sign, seconds, fraction = _split(count, unit)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _durations(array: pa.Array) -> list[str | None]:
    unit = array.type.unit
    parts = (None if count is None else _split(count, unit) for count in _counts(array))
    return [None if part is None else "{}PT{}{}S".format(*part) for part in parts]


def _split(count: int, unit: str) -> tuple[str, int, str]:
    """The sign, the seconds, and the digits of the fraction with their point."""
    per_second = _PER_SECOND[unit]
    seconds, fraction = divmod(abs(count), per_second)
    digits = f".{fraction:0{len(str(per_second)) - 1}}" if per_second > 1 else ""
    return "-" if count < 0 else "", seconds, digits


def _counts(array: pa.Array) -> list[int | None]:
    return list(array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist())


def _lists(array: pa.Array) -> list[list[Any] | None]:
    lengths = pa.compute.list_value_length(array).to_pylist()
    values = iter(json_values(array.flatten()))
    return [None if length is None else list(islice(values, length)) for length in lengths]


def _maps(array: pa.Array) -> list[list[Any] | None]:
    kind = array.type
    entries = pa.list_(pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)]))
    rows = _lists(array.cast(entries))
    return [None if row is None else [list(entry.values()) for entry in row] for row in rows]


def _structs(array: pa.Array) -> list[Any]:
    """Objects, or lists of pairs where several fields share a name."""
    names = [field.name for field in array.type]
    build: Callable[[Any], Any] = dict if len(set(names)) == len(names) else lambda pairs: [*map(list, pairs)]
    columns = [json_values(array.field(index)) for index in range(len(names))]
    rows = zip(*columns, strict=True) if columns else ((),) * len(array)
    return [
        build(zip(names, row, strict=True)) if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _is_any(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (_is_any(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view), decode),
    (
        _is_any(
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        ),
        _hex,
    ),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (_is_any(pa.types.is_timestamp, pa.types.is_date), _moments),
    (pa.types.is_time, _times),
    (pa.types.is_duration, _durations),
    (pa.types.is_map, _maps),
    (pa.types.is_struct, _structs),
    (
        _is_any(
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        ),
        _lists,
    ),
)
