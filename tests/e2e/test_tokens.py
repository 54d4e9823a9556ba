"""What the encoder sees of a text: pieces, offsets, truncation, limits; and that nothing makes it slow."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from tokenizers import Tokenizer

import corpus
from e2e.oracle import BertOracle
from e2e.server_process import ServerProcess
from seqenc import InvalidInputError

LIMIT = 256
CLS, SEP, UNKNOWN = 101, 102, 100
ODD_TEXTS = [
    "Br창n's café",
    "e\u0301te\u0301 at the cafe\u0301",
    "💩💩x",
    "アリババで",
    "naïve Ａｓｃｉｉ ﬁne",
    "İstanbul ǅ ß",
    "a\u200bb\u00a0c\u00add",
    "نص عربي مُشَكَّل",
    "ไทย한국어",
    "tab\tand\r\nlines",
    "note\x00book \x01",
    "x" * 105 + " y",
    "I'm 3.14% [SEP] don't-stop_it",
]


@pytest.fixture(scope="module")
def tokenizer(oracle: BertOracle) -> Any:
    """The reference, for which text that spells a special token is plain text too."""
    backend = oracle.tokenizer.backend_tokenizer
    own = Tokenizer.from_str(backend.to_str())
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = True
    return own


def ids_of(tokenization: Any) -> list[int]:
    return [token.id for token in tokenization.tokens]


@pytest.mark.parametrize("text", ODD_TEXTS + corpus.sentences(60)[::3])
def test_tokens_are_those_of_the_reference(client: Any, tokenizer: Any, text: str) -> None:
    (seen,) = client.tokenize(text)
    expected = tokenizer.encode(text)
    assert ids_of(seen) == expected.ids
    assert [token.text for token in seen.tokens] == expected.tokens
    (encoded,) = client.encode(text, tokens=True).results
    assert encoded.tokens == seen.tokens
    assert encoded.unknown_token_count == expected.ids.count(UNKNOWN)


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("form", ["text", "second", "prompted"])
def test_offsets_are_the_place_of_the_piece(client: Any, tokenizer: Any, text: str, form: str) -> None:
    options = {"prompt": "cafe\u0301: "} if form == "prompted" else {}
    segment = 1 if form == "second" else 0
    (seen,) = client.tokenize([("été one", text)] if form == "second" else [text], **options)
    assert all((token.start, token.end) == (0, 0) for token in seen.tokens if token.special)
    own = [token for token in seen.tokens if token.segment == segment and not token.special]
    alone = tokenizer.encode(text, add_special_tokens=False)
    assert [(token.id, (token.start, token.end)) for token in own] == list(
        zip(alone.ids, alone.offsets, strict=True)
    )
    assert all(0 <= token.start <= token.end <= len(text) for token in own)
    starts = [token.start for token in own]
    assert starts == sorted(starts)


def test_pieces_of_plain_english_are_its_own_letters(client: Any) -> None:
    for text, seen in zip(texts := corpus.sentences(40), client.tokenize(texts), strict=True):
        for token in seen.tokens[1:-1]:
            assert text[token.start : token.end].lower() == token.text.removeprefix("##")


def test_text_that_spells_special_tokens_is_plain_text(client: Any) -> None:
    (seen,) = client.tokenize("[CLS] [SEP] [PAD] [MASK] [UNK]")
    assert [token.special for token in seen.tokens] == [True, *[False] * (len(seen.tokens) - 2), True]
    assert {CLS, SEP, 0, 103}.isdisjoint(ids_of(seen)[1:-1])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("text", ["word " * 1000, "a" * 67_000, "ab,cd" * 3000, "é " * 400], ids=len)
def test_long_text_is_cut_as_the_reference_is(client: Any, tokenizer: Any, text: str, side: Any) -> None:
    body = tokenizer.encode(text, add_special_tokens=False).ids
    room = LIMIT - 2
    expected = [CLS, *(body[:room] if side == "right" else body[-room:]), SEP]
    lone = client.encode(text, truncation=side, tokens=True)
    listed = client.encode(["hi", text], truncation=side, tokens=True)
    np.testing.assert_allclose(listed.embeddings[1], lone.embeddings[0], atol=1e-5)
    for encoding in (lone.results[0], listed.results[1]):
        assert [token.id for token in encoding.tokens] == expected
        assert (encoding.truncated, encoding.token_count) == (len(body) > room, len(expected))
        own = [token for token in encoding.tokens if not token.special]
        assert all(0 <= token.start < token.end <= len(text) for token in own)
        if side == "left":
            assert own[-1].end == len(text.rstrip())


@pytest.mark.parametrize("inputs", ["word " * 1000, ["hi", "word " * 1000], [("a", "word " * 1000)]])
def test_long_text_is_refused_unless_it_may_be_cut(client: Any, inputs: Any) -> None:
    for truncation in (None, "error"):
        with pytest.raises(InvalidInputError) as refused:
            client.encode(inputs, truncation=truncation)
        assert str(LIMIT) in refused.value.message
        assert "1002" in refused.value.message or "1004" in refused.value.message


@pytest.mark.parametrize("lengths", [(1, 400), (400, 1), (400, 400), (100, 300), (253, 253), (0, 400)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_lose_from_the_longer_one(client: Any, lengths: tuple[int, int], side: Any) -> None:
    first, second = ("one " * lengths[0], "two " * lengths[1])
    (seen,) = client.tokenize([(first, second)], truncation=side)
    kept = [sum(t.segment == segment and not t.special for t in seen.tokens) for segment in (0, 1)]
    expected = list(lengths)
    while sum(expected) > LIMIT - 3:
        expected[expected.index(max(expected))] -= 1
    assert sum(kept) == LIMIT - 3
    assert max(abs(have - want) for have, want in zip(kept, expected, strict=True)) <= 1
    assert seen.truncated


@pytest.mark.parametrize("max_tokens", [-1, 0, 1, 2, 513, 1 << 30])
@pytest.mark.parametrize("truncation", ["error", "right", "left"])
def test_limits_without_room_are_refused(client: Any, max_tokens: int, truncation: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_tokens"):
        client.encode("one two three", max_tokens=max_tokens, truncation=truncation)


@pytest.mark.parametrize("max_tokens", [3, 4, 8])
def test_the_last_token_is_always_the_separator(client: Any, max_tokens: int) -> None:
    for side, word in (("right", "one"), ("left", "nine")):
        (seen,) = client.tokenize(
            "one two three four five six seven eight nine", truncation=side, max_tokens=max_tokens
        )
        pieces = [token.text for token in seen.tokens]
        assert (pieces[0], pieces[-1], len(pieces)) == ("[CLS]", "[SEP]", max_tokens)
        assert word in pieces


def test_texts_up_to_the_hard_limit_may_be_asked_for(client: Any, oracle: BertOracle) -> None:
    text = "word " * 510
    result = client.encode(text, max_tokens=512, token_embeddings=True)
    assert result.results[0].token_count == 512
    np.testing.assert_allclose(result.results[0].token_embeddings, oracle(text).token_embeddings, atol=1e-4)


def test_words_over_100_characters_are_unknown(client: Any, tokenizer: Any) -> None:
    words = ["Hello" * 20, "Hello" * 21, "Howdy" * 21]
    result = client.encode(words, tokens=True)
    for word, encoding in zip(words, result.results, strict=True):
        assert [token.id for token in encoding.tokens] == tokenizer.encode(word).ids
    assert [encoding.unknown_token_count for encoding in result.results] == [0, 1, 1]
    np.testing.assert_allclose(result.embeddings[1], result.embeddings[2], atol=1e-6)


@pytest.mark.parametrize(
    ("unit", "side"), [("a", "right"), ("ab ", "left"), ("!", "right"), ("アé", "left"), ("中", "left")]
)
def test_time_grows_no_faster_than_the_text(client: Any, server: ServerProcess, unit: str, side: Any) -> None:
    """A hundred texts as one: growth with the square would make it a hundred times the time."""
    short = unit * (10_000 // len(unit))
    in_pieces, in_one = (cpu_s(client, server, texts, side) for texts in ([short] * 100, [short * 100]))
    assert in_one < 10 * in_pieces


def cpu_s(client: Any, server: ServerProcess, texts: list[str], side: str) -> float:
    """What the server takes to tokenise them, in seconds of CPU time."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    assert all(3 <= len(seen.tokens) <= LIMIT for seen in client.tokenize(texts, truncation=side))
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


@pytest.mark.parametrize("unit", ["!", "中"])
def test_a_long_text_keeps_no_other_call_waiting(client: Any, server: ServerProcess, unit: str) -> None:
    """How long it takes is not ours to say: it is sent until a call has come and gone in that time."""
    assert any(is_answered_meanwhile(client, server, unit * 1_000_000) for _ in range(20))


def is_answered_meanwhile(client: Any, server: ServerProcess, text: str) -> bool:
    """Whether another call is answered while this text is tokenised."""
    before = tokenised_calls(server)
    with ThreadPoolExecutor(1) as callers:
        long_call = callers.submit(client.encode, text, truncation="right")
        while not long_call.done():
            if server.metrics()["inflight_requests",]:
                client.encode("hi")
                return tokenised_calls(server) == before + 1
    return False


def tokenised_calls(server: ServerProcess) -> float:
    return server.metrics()["tokenize_duration_seconds_count",]


def test_text_over_the_cap_is_refused(client: Any) -> None:
    with pytest.raises(InvalidInputError, match="max-text-characters"):
        client.encode("a" * 2_000_001, truncation="right")


def test_calls_do_not_see_the_limits_of_others(tiny_client: Any, tiny_artifact: Path) -> None:
    reference = Tokenizer.from_file(str(tiny_artifact / "tokenizer.json"))
    chooser = random.Random(0)
    words = ["the", "of", "and", "to", "in", "is", "was", "for"]
    texts = [" ".join(chooser.choices(words, k=size)) for size in (1, 5, 20, 60)]
    calls = [
        (chooser.choice(texts), chooser.choice((8, 16, 64)), chooser.choice(("error", "right", "left")))
        for _ in range(2000)
    ]

    def call(text: str, limit: int, truncation: Any) -> list[int] | str:
        try:
            return ids_of(tiny_client.tokenize(text, max_tokens=limit, truncation=truncation)[0])
        except InvalidInputError as error:
            return error.violations[0].field

    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(call, *zip(*calls, strict=True)))
    for (text, limit, truncation), answer in zip(calls, answers, strict=True):
        body = reference.encode(text, add_special_tokens=False).ids
        room = limit - 2
        if len(body) > room and truncation == "error":
            assert answer == "inputs[0].text"
        else:
            kept = body[:room] if truncation == "right" else body[-room:]
            assert answer == [2, *kept, 3]
