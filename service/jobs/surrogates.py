"""Lone surrogates: what stands in a string for bytes that are not UTF-8."""

from __future__ import annotations


def replace_surrogates(text: str) -> str:
    """Spelled out, as \\udcff for the byte 0xff, so that texts that differ stay different."""
    return text if is_encodable(text) else text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
