"""Real English from the documentation that comes with Python: the same everywhere, nothing to download."""

from __future__ import annotations

import re
from functools import cache
from pydoc_data import topics

_BLANK_LINES = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_RULE = re.compile(r"[*=~^+-]{3}")
_MIN_CHARACTERS = 20
_MIN_WORDS = 4


def paragraphs(count: int) -> list[str]:
    """Paragraphs in reading order, each on one line; mean 184 characters. A few occur twice."""
    return _first(_all_paragraphs(), count)


def sentences(count: int) -> list[str]:
    """Distinct sentences."""
    return _first(_all_sentences(), count)


def _first(texts: tuple[str, ...], count: int) -> list[str]:
    if count > len(texts):
        raise ValueError(f"{count} texts asked for; there are {len(texts)}")
    return list(texts[:count])


@cache
def _all_paragraphs() -> tuple[str, ...]:
    blocks = (block for _, topic in sorted(topics.topics.items()) for block in _BLANK_LINES.split(topic))
    return tuple(" ".join(block.split()) for block in blocks if _is_paragraph(block))


@cache
def _all_sentences() -> tuple[str, ...]:
    parts = (part for paragraph in _all_paragraphs() for part in _SENTENCE_END.split(paragraph))
    return tuple(dict.fromkeys(part for part in parts if _is_sentence(part)))


def _is_paragraph(block: str) -> bool:
    """Not a heading or a table, which have rules, and not a scrap."""
    return len(block) >= _MIN_CHARACTERS and not _RULE.search(block)


def _is_sentence(text: str) -> bool:
    return len(text.split()) >= _MIN_WORDS and text[0].isupper() and text[-1] in ".!?"
