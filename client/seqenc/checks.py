"""Checks what callers pass. An error names the argument and what is allowed, and repeats no text."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

# What a field of a message holds.
INT32 = range(-(2**31), 2**31)
# Thirty years. A deadline of some centuries is one in the past to gRPC.
MAX_SECONDS = 1e9


def check_integer(name: str, value: object, allowed: str, within: range = INT32) -> int:
    """A server may allow less than `within`, which is what a message holds."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: expected {allowed}, not {kind(value)}")
    number = int(value)
    if number not in within:
        raise ValueError(f"{name}={number}: expected {allowed}")
    return number


def check_bool(name: str, value: object) -> Any:
    """The bool, or None for None, which leaves a field of a message unset."""
    if value is None:
        return None
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, not {kind(value)}")
    return bool(value)


def check_text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, not {kind(value)}")
    try:
        check_utf8(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return value


def check_seconds(name: str, value: object, allowed: str, *, zero: bool = False) -> float:
    """zero: whether 0 is allowed."""
    if not isinstance(value, Real) or isinstance(value, bool):
        hint = ": pass its total_seconds()" if hasattr(value, "total_seconds") else ""
        raise TypeError(f"{name}: expected {allowed}, not {kind(value)}{hint}")
    seconds = float(value)
    if not 0 <= seconds <= MAX_SECONDS or (seconds == 0 and not zero):
        raise ValueError(f"{name}={seconds}: expected {allowed}")
    return seconds


def check_utf8(text: str) -> None:
    """Raise ValueError for half of a surrogate pair, which no message can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} is half of a surrogate pair; surrogates not allowed in UTF-8"
        ) from None


def kind(value: object) -> str:
    """Name the type of a value, and of what is in it."""
    name = type(value).__name__
    if isinstance(value, list | tuple) and value:
        return f"{name} of {' and '.join(dict.fromkeys(type(item).__name__ for item in value))}"
    return name
