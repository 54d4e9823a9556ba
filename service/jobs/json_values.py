"""JSON text -> values, with whole numbers of any length."""

from __future__ import annotations

import json
from typing import Any


class Digits(str):
    """A whole number with more digits than Python turns into an int."""

    __slots__ = ()


def load_value(text: str) -> Any:
    """Raise JSONDecodeError or RecursionError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _ANY_LENGTH.decode(text)


def decode_value(text: str, begin: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends. Raise JSONDecodeError or RecursionError."""
    try:
        return _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _ANY_LENGTH.raw_decode(text, begin)


def _parse_whole(digits: str) -> int | Digits:
    try:
        return int(digits)
    except ValueError:
        return Digits(digits)


_DECODER = json.JSONDecoder()
_ANY_LENGTH = json.JSONDecoder(parse_int=_parse_whole)
