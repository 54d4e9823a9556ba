"""Turns what a caller passes into Sequence messages; knows nothing of limits or of the wire."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any

import numpy as np

from seqenc.checks import check_utf8, kind
from seqenc.types import TokenIds
from seqenc.v1 import encoder_pb2 as pb

_EXPECTED = "expected a str, a tuple of two str, integers, or token ids with a mask"
_TOKEN_ID_KEYS = ("ids", "attention_mask", "type_ids")
_BYTES = (bytes, bytearray, memoryview)
# What one row of token ids, or the inputs of a call, may be without being drawn from.
_ROWS = (list, tuple, range, array, deque)


def build_sequences(inputs: object) -> list[pb.Sequence]:
    """Raises TypeError or ValueError that names the index of what is no input."""
    return [build_sequence(value, index) for index, value in enumerate(each_input(inputs))]


def each_input(inputs: object) -> Iterable[object]:
    """The inputs of a call, one by one: a bare text, pair or row of token ids counts as one.

    Nothing is drawn from an iterator yet. Raises TypeError for what has no inputs, or none in order.
    """
    if hasattr(inputs, "columns"):  # a table of any library: each iterates over something else
        raise TypeError(f"inputs: {_EXPECTED}, or an iterable of them, not {kind(inputs)}: pass one column")
    inputs = _plain(inputs)
    if isinstance(inputs, (str, Mapping, TokenIds, *_BYTES)) or _is_pair(inputs) or _is_ids(inputs):
        return [inputs]
    if isinstance(inputs, AsyncIterable) and not isinstance(inputs, Iterable):
        raise TypeError(
            f"inputs: {kind(inputs)} is asynchronous: only encode_stream of AsyncClient takes it; "
            "collect it into a list for other calls"
        )
    if isinstance(inputs, set | frozenset):
        raise TypeError(
            f"inputs: {kind(inputs)} has no order, by which results are found: pass a list or a tuple"
        )
    if not (isinstance(inputs, Iterable) or hasattr(inputs, "__getitem__")):
        raise TypeError(f"inputs: {_EXPECTED}, or an iterable of them, not {kind(inputs)}")
    return inputs  # type: ignore[return-value]  # __getitem__ is enough to iterate


def build_sequence(value: object, index: int) -> pb.Sequence:
    try:
        return _build(_plain(value))
    except TypeError as error:
        raise TypeError(f"inputs[{index}]: {error}") from None
    except ValueError as error:
        raise ValueError(f"inputs[{index}]: {error}") from None


def _plain(value: object) -> Any:
    """Arrays of any library as lists, the rows of a matrix still arrays; everything else unchanged."""
    if isinstance(value, (str, *_BYTES)) or not hasattr(value, "__array__"):
        return value
    array = np.asanyarray(value)
    return array.tolist() if array.ndim < 2 else list(array)


def _build(value: Any) -> pb.Sequence:
    if isinstance(value, str):
        check_utf8(value)
        return pb.Sequence(text=value)
    if _is_pair(value):
        for text in value:
            check_utf8(text)
        return pb.Sequence(text_pair=pb.TextPair(first=value[0], second=value[1]))
    if isinstance(value, Mapping):
        value = _token_ids(value)
    if isinstance(value, TokenIds):
        return _build_token_ids(value)
    if isinstance(value, _ROWS) and (not value or _is_ids(value)):
        return pb.Sequence(token_ids=pb.TokenIds(ids=value))
    if isinstance(value, _BYTES):
        raise TypeError(f"{_EXPECTED}, not {kind(value)}: decode it")
    raise TypeError(f"{_EXPECTED}, not {kind(value)}")


def _build_token_ids(value: TokenIds) -> pb.Sequence:
    if value.ids is None:
        raise TypeError("ids: expected a row of integers, not NoneType")
    message = pb.TokenIds(
        ids=_integers(value.ids, "ids", "iu"),
        attention_mask=_integers(value.attention_mask, "attention_mask", "iub"),
        type_ids=_integers(value.type_ids, "type_ids", "iu"),
    )
    return pb.Sequence(token_ids=message)


def _token_ids(value: Mapping[str, Any]) -> TokenIds:
    unknown = [key for key in value if key not in _TOKEN_ID_KEYS]
    if unknown or "ids" not in value:
        # Other keys may be texts of the caller's.
        names = ", ".join(key for key in unknown if key in ("input_ids", "token_type_ids"))
        found = names or ("other keys" if unknown else "no ids")
        raise ValueError(f"token ids have the keys {', '.join(_TOKEN_ID_KEYS)}; found {found}")
    return TokenIds(**value)


def _integers(values: object, name: str, kinds: str) -> list[int]:
    if values is None:
        return []
    array = np.asanyarray(values)
    row = array.tolist()
    if array.ndim != 1 or (row and (array.dtype.kind not in kinds or None in row)):
        raise TypeError(f"{name}: expected a row of integers, not {kind(values)}")
    return [int(value) for value in row]


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)


def _is_ids(value: object) -> bool:
    return isinstance(value, _ROWS) and bool(value) and all(map(_is_integer, value))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
