"""What is encoded: real text, texts of an exact number of tokens, and how much arithmetic they are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import corpus
from service.core.tokenizer import Tokenizer, TokenizeRule
from service.types import Text, TokenizedSequence, Truncation


class Sizes(Protocol):
    @property
    def hidden_size(self) -> int: ...
    @property
    def layer_count(self) -> int: ...


def texts_of(count: int, *, seed: int = 0) -> list[str]:
    """Paragraphs in an order in which neighbours have nothing in common; after 2,000 they come again."""
    texts = corpus.paragraphs(2000)
    random.Random(seed).shuffle(texts)
    return list(itertools.islice(itertools.cycle(texts), count))


def describe(texts: Sequence[str], lengths: Sequence[int]) -> str:
    """The note that goes with every figure made with them."""
    tokens = sorted(lengths)
    at = [tokens[len(tokens) * share // 100] for share in (5, 50, 95)]
    return (
        f"{len(texts)} paragraphs of Python's documentation, mean {sum(map(len, texts)) / len(texts):.0f} "
        f"characters; tokens: mean {sum(tokens) / len(tokens):.0f}, 5 % {at[0]}, median {at[1]}, "
        f"95 % {at[2]}, longest {tokens[-1]}"
    )


def tokenize(path: Path, texts: Sequence[str], limit: int) -> list[TokenizedSequence]:
    rule = TokenizeRule(limit, Truncation.RIGHT)
    found = Tokenizer(path).tokenize_texts([Text(text) for text in texts], rule)
    return [sequence for sequence in found if isinstance(sequence, TokenizedSequence)]


def texts_with_tokens(path: Path, tokens: int, count: int, *, seed: int = 0) -> list[str]:
    """Texts of exactly `tokens` tokens, two special ones included, of words that are one token each."""
    words = sorted({word for text in corpus.paragraphs(2000) for word in text.split() if word.isalpha()})
    lengths = map(len, tokenize(path, words, limit=512))
    single = [word for word, length in zip(words, lengths, strict=True) if length == 3]
    draw = random.Random(seed)
    return [" ".join(draw.choices(single, k=tokens - 2)) for _ in range(count)]


def flops(model: Sizes, lengths: Sequence[int]) -> float:
    """Of matrix products, for a feed-forward layer four times as wide as the model (Kaplan et al. 2020)."""
    width, layers = model.hidden_size, model.layer_count
    weights = 2 * 12 * width * width
    return float(layers * sum(length * weights + 4 * length * length * width for length in lengths))


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The best batches known: by length, as many as stay within `budget` padded tokens; longest first."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
