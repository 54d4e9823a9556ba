"""From a call's inputs to token ids: each is checked and tokenised, or refused with its reason.

Short calls are done on the event loop: a hop to a thread costs more. Longer ones go to a thread, and those
longer than a slice to another one, which gives way to everything else and takes a slice of each in turn.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from service.core.artifact import Artifact
from service.core.deadline import until
from service.core.tokenizer import Tokenized, Tokenizer, TokenizeRule
from service.core.validation import check_content, check_text, check_token_ids, strip_padding
from service.errors import InvalidInputError, Violation
from service.metrics import Metrics
from service.types import InputSequence, OnError, Text, TextPair, TokenIds, TokenizedSequence

# In characters and ids. A slice takes about two milliseconds.
_INLINE_LENGTH = 2_000
_SLICE_LENGTH = 10_000
_NICENESS, _LARGEST_NICENESS = 10, 19


@dataclass(slots=True)
class TokenizedCall:
    """Each input's sequence, or why it was refused; exactly one of the two has index i."""

    sequences: dict[int, TokenizedSequence] = field(default_factory=dict)
    errors: dict[int, InvalidInputError] = field(default_factory=dict)


class Tokenization:
    def __init__(
        self, artifact: Artifact, tokenizer: Tokenizer, metrics: Metrics, *, max_text_characters: int
    ) -> None:
        self._artifact = artifact
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._max_text_characters = max_text_characters
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._bulk_thread = ThreadPoolExecutor(1, thread_name_prefix="bulk-tokenizer", initializer=_give_way)

    def close(self) -> None:
        for thread in (self._thread, self._bulk_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    async def run(
        self,
        inputs: Sequence[InputSequence],
        rule: TokenizeRule,
        on_error: OnError,
        deadline: float | None = None,
    ) -> TokenizedCall:
        """`deadline` in the event loop's time.

        Raises InvalidInputError with every violation, unless a refused input is to fail alone, and
        DeadlineExceededError.
        """
        started = time.perf_counter()
        numbered = dict(enumerate(inputs))
        length = sum(_length(sequence, rule) for sequence in inputs)
        if length <= _INLINE_LENGTH:
            found = self._tokenize(numbered, rule)
        else:
            thread = self._thread if length <= _SLICE_LENGTH else self._bulk_thread
            async with until(deadline):
                found = await self._tokenize_in(thread, _slices(numbered, rule), rule)
        self._metrics.tokenize_duration_seconds.observe(time.perf_counter() - started)
        call = _sort_out(found)
        if call.errors and on_error is OnError.FAIL_CALL:
            raise InvalidInputError(
                violation for error in call.errors.values() for violation in error.violations
            )
        return call

    async def _tokenize_in(
        self, thread: ThreadPoolExecutor, slices: Iterable[Mapping[int, InputSequence]], rule: TokenizeRule
    ) -> dict[int, Tokenized]:
        loop = asyncio.get_running_loop()
        found: dict[int, Tokenized] = {}
        for part in slices:
            found.update(await loop.run_in_executor(thread, self._tokenize, part, rule))
        return found

    def _tokenize(self, inputs: Mapping[int, InputSequence], rule: TokenizeRule) -> dict[int, Tokenized]:
        found: dict[int, Tokenized] = {}
        texts: dict[int, Text] = {}
        pairs: dict[int, TextPair] = {}
        for index, sequence in inputs.items():
            if violation := self._check(sequence, rule):
                found[index] = violation
            elif isinstance(sequence, Text):
                texts[index] = sequence
            elif isinstance(sequence, TextPair):
                pairs[index] = sequence
            elif isinstance(sequence, TokenIds):
                found[index] = self._from_ids(sequence, rule)
        found.update(zip(texts, self._tokenizer.tokenize_texts(list(texts.values()), rule), strict=True))
        found.update(zip(pairs, self._tokenizer.tokenize_pairs(list(pairs.values()), rule), strict=True))
        return found

    def _check(self, sequence: InputSequence, rule: TokenizeRule) -> Violation | None:
        if isinstance(sequence, TokenIds):
            return check_token_ids(sequence, self._artifact)
        if not isinstance(sequence, Text | TextPair):
            return check_content(sequence)
        least = self._tokenizer.special_token_count(pair=isinstance(sequence, TextPair)) + 1
        if rule.limit < least:
            return Violation(
                "", f"needs options.max_tokens of at least {least}, special tokens included, not {rule.limit}"
            )
        return next(check_text(sequence, self._artifact, self._max_text_characters), None)

    def _from_ids(self, sequence: TokenIds, rule: TokenizeRule) -> TokenizedSequence:
        stripped = strip_padding(sequence)
        real = stripped.ids if stripped.mask is None else stripped.ids[stripped.mask == 1]
        types = stripped.type_ids
        if types is not None and stripped.mask is not None:
            types = types[stripped.mask == 1]
        return replace(
            stripped,
            unknown_token_count=self._tokenizer.count_unknown(real),
            tokens=self._tokenizer.describe_ids(real, types) if rule.tokens else None,
        )


def _slices(inputs: Mapping[int, InputSequence], rule: TokenizeRule) -> Iterator[dict[int, InputSequence]]:
    part: dict[int, InputSequence] = {}
    length = 0
    for index, sequence in inputs.items():
        part[index] = sequence
        length += _length(sequence, rule)
        if length >= _SLICE_LENGTH:
            yield part
            part, length = {}, 0
    if part:
        yield part


def _length(sequence: InputSequence, rule: TokenizeRule) -> int:
    """Characters, or ids."""
    if isinstance(sequence, Text):
        return len(rule.prompt) + len(sequence.text)
    if isinstance(sequence, TextPair):
        return len(rule.prompt) + len(sequence.first) + len(sequence.second)
    return len(sequence.ids) if isinstance(sequence, TokenIds) else 0


def _sort_out(found: Mapping[int, Tokenized]) -> TokenizedCall:
    call = TokenizedCall()
    for index, outcome in sorted(found.items()):
        if isinstance(outcome, Violation):
            path = f"inputs[{index}]" + (f".{outcome.field}" if outcome.field else "")
            call.errors[index] = InvalidInputError.of(path, outcome.description)
        else:
            call.sequences[index] = outcome
    return call


def _give_way() -> None:
    """Linux counts niceness by thread: on busy cores, lanes and event loop go before this one."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
        with suppress(OSError):  # where a sandbox forbids it
            os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _LARGEST_NICENESS))
