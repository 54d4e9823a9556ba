"""Tokens against the tokenizers library with its own truncation switched on."""

from __future__ import annotations

import copy
import json
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from failing_tokenizers import PANICS, WITHOUT_TOKEN, spoil
from service.core.tokenizer import PROMPT_SEGMENT, Tokenizer, TokenizeRule
from service.errors import StartError, Violation
from service.types import Text, TextPair, Token, TokenizedSequence, Truncation
from tiny_models import build_tokenizer

CLS, SEP, UNKNOWN = 2, 3, 1
UNKNOWN_TOKEN: Any = {"unk_token": "<unk>"}
ERROR, RIGHT, LEFT = Truncation.ERROR, Truncation.RIGHT, Truncation.LEFT
SIDES = st.sampled_from([RIGHT, LEFT])
WORDS = [
    "the",
    "cat",
    "unhappiness",
    "Ünïcödé",
    "e\u0301",
    "x" * 101,
    "アリ",
    "💩",
    "\n",
    "don't",
    "[SEP]",
    ".",
]
PIECES = st.lists(st.sampled_from(WORDS), max_size=20)
TEXTS = st.text(max_size=40) | PIECES.map(" ".join) | PIECES.map("".join)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    build_tokenizer().save(str(path))
    return path


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(path)


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    reference = build_tokenizer()
    reference.encode_special_tokens = True
    return reference


def encode(
    reference: tokenizers.Tokenizer, text: str, pair: str | None, limit: int, side: Truncation
) -> tokenizers.Encoding:
    reference.enable_truncation(limit, strategy="longest_first", direction=str(side))
    return reference.encode(text, pair)


def load(library: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json")


def tokenize(tokenizer: Tokenizer, sequence: Text | TextPair, rule: TokenizeRule) -> TokenizedSequence:
    if isinstance(sequence, Text):
        (result,) = tokenizer.tokenize_texts([sequence], rule)
    else:
        (result,) = tokenizer.tokenize_pairs([sequence], rule)
    assert isinstance(result, TokenizedSequence)
    return result


def described(sequence: TokenizedSequence) -> list[Token]:
    assert sequence.tokens is not None
    return sequence.tokens


def assert_offsets_are_right(tokens: list[Token], segments: dict[int, str]) -> None:
    """Non-decreasing, inside their text, and around what the piece is made of."""
    ends = dict.fromkeys(segments, 0)
    for token in tokens:
        if token.special:
            assert (token.start, token.end) == (0, 0)
            continue
        text = segments[token.segment]
        assert 0 <= token.start <= token.end <= len(text)
        assert token.end >= ends[token.segment]
        ends[token.segment] = token.end
        if token.id != UNKNOWN and token.segment != PROMPT_SEGMENT and token.start > 0:
            assert token.text.removeprefix("##") == normalised(text[token.start : token.end])


def normalised(text: str) -> str:
    letters = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in letters if unicodedata.category(letter) not in ("Mn", "Cf"))


class TestTexts:
    @settings(max_examples=80)
    @given(text=TEXTS)
    @example(text="Br\u00fcn's caf\u00e9 e\u0301 \U0001f4a9\U0001f4a9x \u30a2\u30ea\u30d0\u30d0\u3067")
    @example(text="note\x00book\nnote book \u200b \x01")
    def test_equal_to_the_library(
        self, tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str
    ) -> None:
        reference.no_truncation()
        expected = reference.encode(text)
        for tokens in (False, True):
            result = tokenize(tokenizer, Text(text), TokenizeRule(1000, tokens=tokens))
            assert result.ids.tolist() == expected.ids
            assert (result.mask, result.type_ids) == (None, None)
            assert result.token_count == len(expected.ids)
            assert result.unknown_token_count == expected.ids.count(UNKNOWN)
            assert not result.truncated
        assert [token.text for token in described(result)] == expected.tokens
        assert_offsets_are_right(described(result), {0: text})

    @settings(max_examples=100)
    @given(text=TEXTS, repeat=st.integers(1, 20), limit=st.integers(3, 20), side=SIDES, tokens=st.booleans())
    @example(text="word ", repeat=1000, limit=16, side=RIGHT, tokens=True)
    @example(text="word ", repeat=1000, limit=16, side=LEFT, tokens=True)
    @example(text="a", repeat=5000, limit=3, side=LEFT, tokens=True)
    @example(text=" ", repeat=5000, limit=3, side=RIGHT, tokens=False)
    def test_truncated_equal_to_the_library(
        self,
        tokenizer: Tokenizer,
        reference: tokenizers.Tokenizer,
        text: str,
        repeat: int,
        limit: int,
        side: Truncation,
        tokens: bool,
    ) -> None:
        text *= repeat
        result = tokenize(tokenizer, Text(text), TokenizeRule(limit, side, tokens=tokens))
        expected = encode(reference, text, None, limit, side)
        assert result.ids.tolist() == expected.ids
        assert result.truncated is bool(expected.overflowing)
        assert (result.ids[0], result.ids[-1]) == (CLS, SEP)
        if tokens:
            ours = [(token.start, token.end) for token in described(result)]
            assert ours == [tuple(offsets) for offsets in expected.offsets]

    @pytest.mark.parametrize("text", ["", " ", "\n\t", "\u200b", "\x00\x01"])
    def test_nothing_left_is_the_special_tokens(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenize(tokenizer, Text(text), TokenizeRule(8)).ids.tolist() == [CLS, SEP]

    def test_a_newline_splits_words(self, tokenizer: Tokenizer) -> None:
        lines, words = (tokenize(tokenizer, Text(text), TokenizeRule(8)) for text in ("the\ncat", "the cat"))
        assert lines.ids.tolist() == words.ids.tolist()

    def test_text_that_spells_a_special_token_is_plain_text(self, tokenizer: Tokenizer) -> None:
        result = tokenize(tokenizer, Text("the [SEP] cat [CLS] [MASK]"), TokenizeRule(64, tokens=True))
        special = [token.special for token in described(result)]
        assert special == [True, *[False] * (len(special) - 2), True]
        assert not {2, 3, 4} & set(result.ids[1:-1].tolist())

    @pytest.mark.parametrize(("length", "unknown"), [(100, 0), (101, 1)])
    def test_a_word_over_100_characters_is_unknown_and_counted(
        self, tokenizer: Tokenizer, length: int, unknown: int
    ) -> None:
        result = tokenize(tokenizer, Text("h" * length), TokenizeRule(1000))
        assert result.unknown_token_count == unknown
        assert (UNKNOWN in result.ids) is bool(unknown)

    def test_a_list_is_each_text_alone(self, tokenizer: Tokenizer) -> None:
        texts = [Text(text) for text in ("the cat", "", "word " * 1000, "a dog")]
        rules = [TokenizeRule(8, side, tokens=tokens) for side in Truncation for tokens in (False, True)]
        for rule in rules:
            together = tokenizer.tokenize_texts(texts, rule)
            for text, result in zip(texts, together, strict=True):
                (alone,) = tokenizer.tokenize_texts([text], rule)
                if isinstance(result, Violation):
                    assert alone == result
                else:
                    assert isinstance(alone, TokenizedSequence)
                    assert result.ids.tolist() == alone.ids.tolist()

    def test_no_texts(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.tokenize_texts([], TokenizeRule(8)) == []

    def test_a_text_over_the_limit_is_refused_with_both_numbers(self, tokenizer: Tokenizer) -> None:
        (violation,) = tokenizer.tokenize_texts([Text("the cat the cat")], TokenizeRule(5))
        assert isinstance(violation, Violation)
        assert violation.field == "text"
        assert violation.description.startswith("has 6 tokens, the limit is 5; ")
        assert len(tokenize(tokenizer, Text("the cat the cat"), TokenizeRule(6))) == 6

    @pytest.mark.parametrize("side", [RIGHT, LEFT])
    def test_the_smallest_limit_keeps_one_token(self, tokenizer: Tokenizer, side: Truncation) -> None:
        result = tokenize(tokenizer, Text("the cat"), TokenizeRule(3, side, tokens=True))
        kept = {RIGHT: "the", LEFT: "cat"}[side]
        assert [token.text for token in described(result)] == ["[CLS]", kept, "[SEP]"]
        assert result.truncated


class TestPairs:
    @settings(max_examples=80)
    @given(first=TEXTS, second=TEXTS, limit=st.integers(4, 24), side=SIDES)
    @example(first="word " * 200, second="cat", limit=10, side=LEFT)
    @example(first="cat", second="word " * 200, limit=10, side=RIGHT)
    def test_truncated_equal_to_the_library(
        self,
        tokenizer: Tokenizer,
        reference: tokenizers.Tokenizer,
        first: str,
        second: str,
        limit: int,
        side: Truncation,
    ) -> None:
        result = tokenize(tokenizer, TextPair(first, second), TokenizeRule(limit, side, tokens=True))
        expected = encode(reference, first, second, limit, side)
        assert result.ids.tolist() == expected.ids
        assert result.type_ids is not None
        assert result.type_ids.tolist() == expected.type_ids
        assert result.truncated is bool(expected.overflowing)
        tokens = described(result)
        assert [(token.start, token.end) for token in tokens] == [tuple(o) for o in expected.offsets]
        assert [token.segment for token in tokens] == expected.type_ids

    @pytest.mark.parametrize("side", [RIGHT, LEFT])
    @pytest.mark.parametrize("limit", [10, 11])
    @pytest.mark.parametrize(("first", "second"), [(30, 20), (20, 30), (30, 30), (12, 30), (30, 12)])
    def test_a_hundred_times_as_long_keeps_the_same_and_costs_little(
        self,
        tokenizer: Tokenizer,
        reference: tokenizers.Tokenizer,
        first: int,
        second: int,
        limit: int,
        side: Truncation,
    ) -> None:
        """The library's own truncation would build every combination of the parts cut off."""
        expected = encode(reference, "the " * first, "cat " * second, limit, side)
        pair = TextPair("the " * (100 * first), "cat " * (100 * second))
        started = time.process_time()
        result = tokenize(tokenizer, pair, TokenizeRule(limit, side))
        assert time.process_time() - started < 1
        assert result.ids.tolist() == expected.ids

    def test_a_text_of_known_length_beside_the_end_of_a_longer_one(
        self, tokenizer: Tokenizer, reference: tokenizers.Tokenizer
    ) -> None:
        """Of the second only the end is tokenised at first, fewer tokens than the first one has."""
        first, second = "a." * 40, "the " * 100
        for pair in ((first, second), (second, first)):
            result = tokenize(tokenizer, TextPair(*pair), TokenizeRule(6, RIGHT))
            assert result.ids.tolist() == encode(reference, *pair, 6, RIGHT).ids

    @pytest.mark.parametrize(("first", "second"), [("", ""), ("the cat", ""), ("", "the cat")])
    def test_an_empty_segment_is_still_a_segment(self, tokenizer: Tokenizer, first: str, second: str) -> None:
        ids = tokenize(tokenizer, TextPair(first, second), TokenizeRule(10)).ids.tolist()
        assert ids.count(SEP) == 2

    def test_a_pair_over_the_limit_is_refused_with_both_numbers(self, tokenizer: Tokenizer) -> None:
        (violation,) = tokenizer.tokenize_pairs([TextPair("the cat", "a dog")], TokenizeRule(6))
        assert isinstance(violation, Violation)
        assert violation.field == "text_pair"
        assert violation.description.startswith("has 7 tokens, the limit is 6; ")
        assert len(tokenize(tokenizer, TextPair("the cat", "a dog"), TokenizeRule(7))) == 7


class TestPrompts:
    @settings(max_examples=50)
    @given(text=TEXTS, prompt=st.sampled_from(["query: ", "the ", "x"]))
    def test_a_prompt_is_in_front_of_the_text(
        self, tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str, prompt: str
    ) -> None:
        reference.no_truncation()
        result = tokenize(tokenizer, Text(text), TokenizeRule(1000, prompt=prompt, tokens=True))
        assert result.ids.tolist() == reference.encode(prompt + text).ids
        assert_offsets_are_right(described(result), {0: text, PROMPT_SEGMENT: prompt})

    def test_its_tokens_have_a_segment_of_their_own(self, tokenizer: Tokenizer) -> None:
        rule = TokenizeRule(64, prompt="the ", tokens=True)
        tokens = described(tokenize(tokenizer, Text("cat"), rule))
        assert [(token.text, token.segment, token.start, token.end) for token in tokens] == [
            ("[CLS]", 0, 0, 0),
            ("the", PROMPT_SEGMENT, 0, 3),
            ("cat", 0, 0, 3),
            ("[SEP]", 0, 0, 0),
        ]

    def test_it_is_in_front_of_a_pairs_first_segment_only(self, tokenizer: Tokenizer) -> None:
        rule = TokenizeRule(64, prompt="the ", tokens=True)
        tokens = described(tokenize(tokenizer, TextPair("cat", "the dog"), rule))
        plain = [(token.text, token.segment, token.start) for token in tokens if not token.special]
        assert plain == [("the", PROMPT_SEGMENT, 0), ("cat", 0, 0), ("the", 1, 0), ("dog", 1, 4)]

    def test_offsets_count_in_the_text_also_when_its_end_was_kept(self, tokenizer: Tokenizer) -> None:
        text = "word " * 1000 + "cat"
        rule = TokenizeRule(4, LEFT, prompt="the ", tokens=True)
        tokens = described(tokenize(tokenizer, Text(text), rule))
        assert [text[token.start : token.end] for token in tokens[1:-1]] == ["word", "cat"]


class TestCallersIds:
    def test_pieces_have_no_offsets(self, tokenizer: Tokenizer) -> None:
        sequence = tokenize(tokenizer, Text("the cat"), TokenizeRule(8, tokens=True))
        tokens = tokenizer.describe_ids(sequence.ids, None)
        assert [token.text for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]
        assert [token.special for token in tokens] == [True, False, False, True]
        assert {(token.start, token.end, token.segment) for token in tokens} == {(0, 0, 0)}

    def test_types_are_segments(self, tokenizer: Tokenizer) -> None:
        pair = tokenize(tokenizer, TextPair("the", "cat"), TokenizeRule(8))
        assert pair.type_ids is not None
        tokens = tokenizer.describe_ids(pair.ids, pair.type_ids)
        assert [token.segment for token in tokens] == pair.type_ids.tolist()

    def test_unknown_ones_are_counted(self, tokenizer: Tokenizer) -> None:
        sequence = tokenize(tokenizer, Text(f"the {'x' * 101} cat {'y' * 101}"), TokenizeRule(8))
        assert tokenizer.count_unknown(sequence.ids) == sequence.unknown_token_count == 2


class TestThreads:
    def test_rules_of_other_threads_do_not_leak(self, tokenizer: Tokenizer) -> None:
        """2,000 calls of 16 threads with three limits, truncation on and off."""
        text = Text("the cat and the dog sat on the mat in the house")
        rules = [TokenizeRule(limit, side) for limit in (8, 16, 64) for side in (RIGHT, LEFT, ERROR)]
        serial = [tokenizer.tokenize_texts([text], rule) for rule in rules]
        start = threading.Barrier(16)

        def work(thread: int) -> None:
            start.wait()
            for call in range(125):
                place = (thread + call) % len(rules)
                (result,) = tokenizer.tokenize_texts([text], rules[place])
                (expected,) = serial[place]
                if isinstance(result, Violation):
                    assert result == expected
                else:
                    assert isinstance(expected, TokenizedSequence)
                    assert result.ids.tolist() == expected.ids.tolist()

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(work, range(16)))


class TestLoading:
    def test_truncation_and_padding_of_the_file_are_switched_off(self, tmp_path: Path) -> None:
        stored = build_tokenizer()
        stored.enable_truncation(4)
        stored.enable_padding(length=16)
        assert len(tokenize(load(stored, tmp_path), Text("the cat and the dog"), TokenizeRule(64))) == 7

    def test_special_tokens_are_counted(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.special_token_count(pair=False) == 2
        assert tokenizer.special_token_count(pair=True) == 3

    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {}}'])
    def test_a_broken_file_is_named(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(StartError, match=r"tokenizer\.json cannot be read as a tokenizer"):
            Tokenizer(path)

    def test_a_tokenizer_without_an_unknown_token_counts_none(self, tmp_path: Path) -> None:
        tokenizer = load(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])), tmp_path)
        result = tokenize(tokenizer, Text("ab"), TokenizeRule(8))
        assert result.ids.tolist() == [0, 1]
        assert (result.unknown_token_count, tokenizer.count_unknown(result.ids)) == (0, 0)

    @pytest.mark.parametrize(
        "model",
        [
            tokenizers.models.Unigram([("<unk>", -9.0), ("a", -1.0), ("b", -1.0)], 0),
            tokenizers.models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], **UNKNOWN_TOKEN, fuse_unk=True),
            tokenizers.models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], **UNKNOWN_TOKEN, byte_fallback=True),
            tokenizers.models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, **UNKNOWN_TOKEN),
            tokenizers.models.WordLevel({"<unk>": 0, "ab": 1}, **UNKNOWN_TOKEN),
        ],
    )
    def test_unknown_tokens_are_counted_and_shown_as_the_vocabulary_does(
        self, model: tokenizers.models.Model, tmp_path: Path
    ) -> None:
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer = load(library, tmp_path)
        result = tokenize(tokenizer, Text("ab ????"), TokenizeRule(16, tokens=True))
        unknown = result.ids.tolist().count(0)
        assert unknown >= 1
        assert (result.unknown_token_count, tokenizer.count_unknown(result.ids)) == (unknown, unknown)
        assert [token.text for token in result.tokens or [] if token.id == 0] == ["<unk>"] * unknown

    @pytest.mark.parametrize("side", [RIGHT, LEFT])
    def test_a_long_text_is_not_cut_within_an_added_token(self, side: Truncation, tmp_path: Path) -> None:
        library = build_tokenizer()
        library.add_tokens(["new york"])
        text = "new york " * 100
        result = tokenize(load(library, tmp_path), Text(text), TokenizeRule(3, side))
        assert result.ids.tolist() == [CLS, library.token_to_id("new york"), SEP]

    def test_letters_of_several_tokens(self, tmp_path: Path) -> None:
        library = tokenizers.Tokenizer(tokenizers.models.BPE({"▁": 0, "a": 1, "b": 2}, []))
        library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        result = tokenize(load(library, tmp_path), TextPair("b a", "ab"), TokenizeRule(16))
        assert result.ids.tolist() == library.encode("b a", "ab").ids

    def test_a_tokenizer_may_know_no_latin_letter(self, tmp_path: Path) -> None:
        library = tokenizers.Tokenizer(tokenizers.models.BPE({"猫": 0}, []))
        assert tokenize(load(library, tmp_path), Text("a猫"), TokenizeRule(8)).ids.tolist() == [0]

    def test_a_tokenizer_that_makes_nothing_of_any_text_is_refused(self, tmp_path: Path) -> None:
        library = tokenizers.Tokenizer(tokenizers.models.BPE({}, []))
        with pytest.raises(StartError, match="makes no token of any text"):
            load(library, tmp_path)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("failing") / "tokenizer.json"
    path.write_text(json.dumps(spoil(json.loads(build_tokenizer().to_str()))))
    return Tokenizer(path)


class TestTextsThatItFailsOn:
    """With an error of the library, or with a panic of its Rust code."""

    @pytest.mark.parametrize("bad", [WITHOUT_TOKEN, PANICS])
    @pytest.mark.parametrize("tokens", [True, False])
    def test_the_others_have_the_tokens_that_they_have_alone(
        self, failing: Tokenizer, tokenizer: Tokenizer, bad: str, tokens: bool
    ) -> None:
        rule = TokenizeRule(16, RIGHT, tokens=tokens)
        texts = [Text("the cat"), Text(bad), Text("the dog " * 100), Text(f"{bad} dog" * 100), Text("")]
        found = failing.tokenize_texts(texts, rule)
        assert [isinstance(result, Violation) for result in found] == [False, True, False, True, False]
        for text, result in list(zip(texts, found, strict=True))[::2]:
            assert isinstance(result, TokenizedSequence)
            assert result.ids.tolist() == tokenize(tokenizer, text, rule).ids.tolist()

    @pytest.mark.parametrize("bad", [WITHOUT_TOKEN, PANICS])
    def test_the_text_of_a_pair_is_named(self, failing: Tokenizer, bad: str) -> None:
        pairs = [TextPair("the", "cat"), TextPair(bad, "cat"), TextPair("the", bad)]
        good, first, second = failing.tokenize_pairs(pairs, TokenizeRule(16, prompt="dog "))
        assert isinstance(good, TokenizedSequence)
        assert isinstance(first, Violation)
        assert isinstance(second, Violation)
        assert (first.field, second.field) == ("text_pair.first", "text_pair.second")
        assert first.description.startswith("cannot be tokenized with its prompt: ")
        assert second.description.startswith("cannot be tokenized: ")

    def test_a_text_may_fail_only_once_the_whole_of_it_is_read(self, failing: Tokenizer) -> None:
        """Both texts of the pair are longer than the limit, so that their kept ends do not tell."""
        pair = TextPair("the cat " * 100 + PANICS, "the dog " * 100)
        (result,) = failing.tokenize_pairs([pair], TokenizeRule(8, RIGHT))
        assert isinstance(result, Violation)
        assert result.field == "text_pair.first"


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_of_a_long_text_only_the_end_that_is_kept_is_tokenised(
    tokenizer: Tokenizer, side: Truncation
) -> None:
    counters = [_CharacterCounter(tokenizer) for _ in range(2)]
    for counter, words in zip(counters, (10_000, 40_000), strict=True):
        assert len(tokenize(counter.tokenizer, Text("ab " * words), TokenizeRule(16, side))) == 16
    assert 0 < counters[0].characters == counters[1].characters <= 1000


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_a_long_text_without_spaces_is_read_once(tokenizer: Tokenizer, side: Truncation) -> None:
    counter = _CharacterCounter(tokenizer)
    assert len(tokenize(counter.tokenizer, Text("a" * 50_000), TokenizeRule(16, side))) == 3
    assert counter.characters == 50_000


class _CharacterCounter:
    """Counts the characters that the wrapped library is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.characters = 0
        self._library = tokenizer._tokenizer
        self.tokenizer = copy.copy(tokenizer)
        vars(self.tokenizer).update(_tokenizer=self)

    def encode_batch_fast(self, texts: list[str], **options: bool) -> list[tokenizers.Encoding]:
        self.characters += sum(map(len, texts))
        return list(self._library.encode_batch_fast(texts, **options))
