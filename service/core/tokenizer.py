"""Text -> token ids, with truncation on either side; the only importer of tokenizers.

The wrapped tokenizer is never changed after loading, so that any number of threads may use it at once:
truncation is done on each encoding, not set on the tokenizer. It is done here, because the library's own also
builds every combination of the parts cut off: gigabytes for a pair of a few kilobytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from service.errors import StartError, Violation
from service.types import Ids, Text, TextPair, Token, TokenizedSequence, Truncation

PROMPT_SEGMENT = -1
# A text with more characters than this for each token allowed is tokenised from the end that is kept.
_LONG_TEXT_CHARACTERS_PER_TOKEN = 16
_MIN_SPLITTING_GROWTH = 4


@dataclass(frozen=True, slots=True)
class TokenizeRule:
    """How a call's texts become tokens; `limit` counts special tokens too."""

    limit: int
    truncation: Truncation = Truncation.ERROR
    prompt: str = ""
    tokens: bool = False


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens of a text without special ones, or of only the end of it that truncation keeps."""

    encoding: tokenizers.Encoding
    partial: bool = False
    offset: int = 0  # characters cut off before it


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a segment's tokens go, or, with `segment` None, a special token."""

    segment: int | None
    id: int
    piece: str
    type_id: int


Tokenized = TokenizedSequence | Violation


class Tokenizer:
    """Text that spells a special token is plain text. Violations name the field below the input."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise StartError(
                f"{path} cannot be read as a tokenizer ({error}); export the model again"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        definition = json.loads(self._tokenizer.to_str())
        model, splitter = definition["model"], definition.get("pre_tokenizer") or {}
        # A Unigram model names its unknown token by id, others by text.
        unknown = model.get("unk_token")
        self._unknown_id = self._tokenizer.token_to_id(unknown) if unknown else model.get("unk_id")
        added = self._tokenizer.get_added_tokens_decoder()
        # Only then do the tokens of a piece that ends at a space equal those of the whole text.
        self._splits_at_spaces = splitter.get("type") == "BertPreTokenizer" and not any(
            " " in token.content for token in added.values()
        )
        self._special_ids = frozenset(id for id, token in added.items() if token.special)
        probe = next(filter(self._has_tokens, self._probes()), None)
        if probe is None:
            raise StartError(f"{path} makes no token of any text; export the model again")
        self._layouts = [_layout_of(self._tokenizer.encode(probe, pair)) for pair in (None, probe)]

    def special_token_count(self, *, pair: bool) -> int:
        return sum(slot.segment is None for slot in self._layouts[pair])

    def tokenize_texts(self, texts: Sequence[Text], rule: TokenizeRule) -> list[Tokenized]:
        return self._tokenize("text", [(rule.prompt + text.text,) for text in texts], rule)

    def tokenize_pairs(self, pairs: Sequence[TextPair], rule: TokenizeRule) -> list[Tokenized]:
        return self._tokenize("text_pair", [(rule.prompt + pair.first, pair.second) for pair in pairs], rule)

    def describe_ids(self, ids: Ids, type_ids: Ids | None) -> list[Token]:
        """Tokens of ids that the caller made: they have no text, so that all offsets are 0."""
        segments = np.zeros_like(ids) if type_ids is None else type_ids
        return [
            Token(id, self._piece(id), 0, 0, id in self._special_ids, segment)
            for id, segment in zip(ids.tolist(), segments.tolist(), strict=True)
        ]

    def count_unknown(self, ids: Ids) -> int:
        return 0 if self._unknown_id is None else int((ids == self._unknown_id).sum())

    def _piece(self, id: int) -> str:
        """The vocabulary's text; an encoding has the user's instead for added and some unknown tokens."""
        return self._tokenizer.id_to_token(id) or ""

    def _tokenize(self, field: str, rows: list[tuple[str, ...]], rule: TokenizeRule) -> list[Tokenized]:
        """Each row is a text or the two of a pair."""
        short = [text for row in rows for text in row if not self._is_long(text, rule)]
        encodings = iter(self._encode(short, tokens=rule.tokens))
        return [
            self._finish(field, row, [self._segment(text, encodings, rule) for text in row], rule)
            for row in rows
        ]

    def _probes(self) -> Iterator[str]:
        """Texts that should have tokens: a letter that most vocabularies know, then what is in this one."""
        yield "a"
        yield from self._tokenizer.get_vocab()

    def _has_tokens(self, text: str) -> bool:
        (encoding,) = self._encode([text], tokens=False)
        return encoding is not None and len(encoding) > 0

    def _encode(self, texts: list[str], *, tokens: bool) -> list[tokenizers.Encoding | None]:
        """None stands for a text that the tokenizer fails on; the others are none the worse for it."""
        encode = self._tokenizer.encode_batch if tokens else self._tokenizer.encode_batch_fast
        try:
            return list(encode(texts, add_special_tokens=False))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the library's Rust code is not an Exception
            if len(texts) == 1:
                return [None]
        return [encoding for text in texts for encoding in self._encode([text], tokens=tokens)]

    def _is_long(self, text: str, rule: TokenizeRule) -> bool:
        return (
            self._splits_at_spaces
            and rule.truncation is not Truncation.ERROR
            and len(text) > _LONG_TEXT_CHARACTERS_PER_TOKEN * rule.limit
        )

    def _segment(
        self, text: str, encodings: Iterator[tokenizers.Encoding | None], rule: TokenizeRule
    ) -> _Segment | None:
        """The text's own encoding; of a long text, of as much of the end that is kept as fills the limit.

        None where the tokenizer fails on the text.
        """
        if not self._is_long(text, rule):
            encoding = next(encodings)
            return None if encoding is None else _Segment(encoding)
        size = _LONG_TEXT_CHARACTERS_PER_TOKEN * rule.limit
        while size < len(text):
            start, end = _cut_at_space(text, size, rule.truncation)
            if start < end:
                (encoding,) = self._encode([text[start:end]], tokens=rule.tokens)
                if encoding is None:
                    return None
                if len(encoding) >= rule.limit:
                    return _Segment(encoding, partial=True, offset=start)
            size *= _MIN_SPLITTING_GROWTH
        return self._whole(text, rule)

    def _whole(self, text: str, rule: TokenizeRule) -> _Segment | None:
        (encoding,) = self._encode([text], tokens=rule.tokens)
        return None if encoding is None else _Segment(encoding)

    def _finish(
        self, field: str, row: tuple[str, ...], found: list[_Segment | None], rule: TokenizeRule
    ) -> Tokenized:
        segments = [segment for segment in found if segment is not None]
        if len(segments) < len(found):
            return _untokenizable(field, found.index(None), rule)
        special_count = self.special_token_count(pair=len(row) == 2)
        room = rule.limit - special_count
        counts = [len(segment.encoding) for segment in segments]
        if len(row) == 2 and min(counts) > room and any(segment.partial for segment in segments):
            # Which of the two is longer decides, so that their ends alone are not enough.
            return self._finish(field, row, [self._whole(text, rule) for text in row], rule)
        truncated = sum(counts) > room
        if truncated and rule.truncation is Truncation.ERROR:
            return _too_long(field, sum(counts) + special_count, rule.limit)
        kept = counts
        if truncated:
            kept = [room] if len(counts) == 1 else [*_longest_first(counts[0], counts[1], room)]
        return self._build(segments, kept, rule, truncated=truncated)

    def _build(
        self, segments: list[_Segment], kept: list[int], rule: TokenizeRule, *, truncated: bool
    ) -> TokenizedSequence:
        ids: list[int] = []
        type_ids: list[int] = []
        tokens: list[Token] = []
        for slot in self._layouts[len(segments) - 1]:
            if slot.segment is None:
                ids.append(slot.id)
                tokens.append(Token(slot.id, slot.piece, 0, 0, True, slot.type_id))
            else:
                segment = segments[slot.segment]
                part = _end_slice(len(segment.encoding), kept[slot.segment], rule.truncation)
                own_ids = segment.encoding.ids[part]
                ids += own_ids
                if rule.tokens:
                    pieces = [self._piece(id) for id in own_ids]
                    tokens += _describe(segment, part, pieces, slot.segment, len(rule.prompt))
            type_ids += [slot.type_id] * (len(ids) - len(type_ids))
        return TokenizedSequence(
            ids=np.array(ids, np.int64),
            mask=None,
            type_ids=np.array(type_ids, np.int64) if any(type_ids) else None,
            token_count=len(ids),
            unknown_token_count=0 if self._unknown_id is None else ids.count(self._unknown_id),
            truncated=truncated,
            tokens=tokens if rule.tokens else None,
        )


def _layout_of(example: tokenizers.Encoding) -> list[_Slot]:
    """Where the special tokens stand around the segments, in the encoding of any text or pair."""
    columns = zip(example.sequence_ids, example.ids, example.tokens, example.type_ids, strict=True)
    slots: list[_Slot] = []
    for slot in itertools.starmap(_Slot, columns):
        if slot.segment is None or not slots or slots[-1].segment != slot.segment:
            slots.append(slot)
    return slots


def _too_long(field: str, count: int, limit: int) -> Violation:
    return Violation(
        field,
        f"has {count} tokens, the limit is {limit}; shorten it, raise options.max_tokens where the model "
        "allows it, or set options.truncation to RIGHT or LEFT",
    )


def _untokenizable(field: str, place: int, rule: TokenizeRule) -> Violation:
    """`place` in the pair, or 0."""
    if field == "text_pair":
        field = ("text_pair.first", "text_pair.second")[place]
    prompt = " with its prompt" if rule.prompt and place == 0 else ""
    return Violation(
        field,
        f"cannot be tokenized{prompt}: the model's tokenizer fails on it; leave out characters that it does "
        "not know, or export the model with a tokenizer that has an unknown token",
    )


def _cut_at_space(text: str, size: int, side: Truncation) -> tuple[int, int]:
    """Start and end of at most `size` characters of the end that is kept, cut at a space; empty if none."""
    if side is Truncation.RIGHT:
        return 0, max(0, text.rfind(" ", 0, size))
    space = text.find(" ", len(text) - size)
    return (len(text), len(text)) if space < 0 else (space + 1, len(text))


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each are kept when tokens are taken from the longer one until both fit."""
    shorter = min(first, second, room // 2)
    if first <= second:
        first = min(first, max(shorter, room - second))
        return first, min(second, room - first)
    second = min(second, max(shorter, room - first))
    return min(first, room - second), second


def _end_slice(count: int, kept: int, side: Truncation) -> slice:
    return slice(count - kept, count) if side is Truncation.LEFT else slice(kept)


def _describe(
    segment: _Segment, part: slice, pieces: list[str], number: int, prompt_length: int
) -> Iterator[Token]:
    """`number` of the segment; the first one starts with the prompt."""
    encoding = segment.encoding
    prompt_end = prompt_length if number == 0 else 0
    columns = encoding.ids[part], pieces, encoding.offsets[part]
    for id, piece, (start, end) in zip(*columns, strict=True):
        start, end = start + segment.offset, end + segment.offset
        if prompt_end and end <= prompt_end:
            yield Token(id, piece, start, end, False, PROMPT_SEGMENT)
        else:
            yield Token(id, piece, max(0, start - prompt_end), end - prompt_end, False, number)
