"""Turns what a caller passes into Sequence messages; knows nothing of limits or of the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from seqenc.types import TokenIds
from seqenc.v1 import encoder_pb2 as pb

_EXPECTED = "expected a str, a tuple of two str, integers, or token ids with a mask"
_TOKEN_ID_KEYS = ("ids", "attention_mask", "type_ids")


def build_sequences(inputs: object) -> list[pb.Sequence]:
    """A bare text, pair or row of token ids counts as one input.

    Raises TypeError or ValueError that names the index of what is no input.
    """
    return [build_sequence(value, index) for index, value in enumerate(_as_list(inputs))]


def build_sequence(value: object, index: int) -> pb.Sequence:
    try:
        return _build(_plain(value))
    except TypeError as error:
        raise TypeError(f"inputs[{index}]: {error}") from None
    except ValueError as error:
        raise ValueError(f"inputs[{index}]: {error}") from None


def _as_list(inputs: object) -> list[object]:
    inputs = _plain(inputs)
    if isinstance(inputs, str | bytes | Mapping | TokenIds) or _is_pair(inputs) or _is_ids(inputs):
        return [inputs]
    if not isinstance(inputs, Iterable):
        raise TypeError(f"inputs: {_EXPECTED}, or an iterable of them, not {_kind(inputs)}")
    return list(inputs)


def _plain(value: object) -> Any:
    """Arrays of any library as lists, the rows of a matrix still arrays; everything else unchanged."""
    if isinstance(value, str) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    return array.tolist() if array.ndim < 2 else list(array)


def _build(value: Any) -> pb.Sequence:
    if isinstance(value, str):
        return pb.Sequence(text=value)
    if _is_pair(value):
        return pb.Sequence(text_pair=pb.TextPair(first=value[0], second=value[1]))
    if isinstance(value, Mapping):
        value = _token_ids(value)
    if isinstance(value, TokenIds):
        return _build_token_ids(value)
    if isinstance(value, list | tuple) and (not value or _is_ids(value)):
        return pb.Sequence(token_ids=pb.TokenIds(ids=value))
    raise TypeError(f"{_EXPECTED}, not {_kind(value)}")


def _build_token_ids(value: TokenIds) -> pb.Sequence:
    message = pb.TokenIds(
        ids=_integers(value.ids, "ids"),
        attention_mask=_integers(value.attention_mask, "attention_mask"),
        type_ids=_integers(value.type_ids, "type_ids"),
    )
    return pb.Sequence(token_ids=message)


def _token_ids(value: Mapping[str, Any]) -> TokenIds:
    unknown = [str(key) for key in value if key not in _TOKEN_ID_KEYS]
    if unknown or "ids" not in value:
        found = ", ".join(unknown) or "no ids"
        raise ValueError(f"token ids have the keys {', '.join(_TOKEN_ID_KEYS)}; found {found}")
    return TokenIds(**value)


def _integers(values: object, name: str) -> list[int]:
    if values is None:
        return []
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise TypeError(f"{name}: expected a row of integers, not {_kind(values)}")
    return [int(value) for value in array.tolist()]


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)


def _is_ids(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_integer, value))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _kind(value: object) -> str:
    name = type(value).__name__
    if isinstance(value, list | tuple) and value:
        return f"{name} of {type(value[0]).__name__}"
    return name
