"""Tokenizers with and without a way to take characters that they do not know."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from model.unknown_token import UnknownTokenError, check_unknown_token

UNK = "<unk>"
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
BYTE_PIECES = [(piece, -1.0) for piece in BYTES]
LETTERS = {letter: place for place, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}


def check(
    model: models.Model,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.normalizer = normalizer
    check_unknown_token(tokenizer, "tokenizer.json")
    return tokenizer


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (models.WordLevel({"a": 0}, unk_token=UNK), "unk_token is '<unk>'"),
        (models.WordPiece({"a": 0}, unk_token=UNK), "unk_token is '<unk>'"),
        (models.Unigram([("a", 0.0)]), "unk_id is not set"),
        (models.Unigram(BYTE_PIECES, byte_fallback=True), "unk_id is not set"),
        (models.BPE({"a": 0}, [], unk_token=UNK), "unk_token is '<unk>'"),
        (models.BPE({"<0x00>": 0}, [], unk_token=UNK, byte_fallback=True), "unk_token is '<unk>'"),
        (models.BPE(LETTERS, [], unk_token=UNK), "unk_token is '<unk>'"),
    ],
)
def test_those_that_would_fail_are_refused_by_key(model: models.Model, key: str) -> None:
    with pytest.raises(UnknownTokenError) as raised:
        check(model)
    assert str(raised.value).startswith(f"tokenizer.json: {key}")
    assert str(raised.value).endswith("name the token of the vocabulary that stands for unknown ones")


def test_a_token_that_was_only_added_is_not_the_models() -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token=UNK))
    tokenizer.add_special_tokens([UNK])
    with pytest.raises(UnknownTokenError, match=r"unk_token is '<unk>', which is not in the vocabulary"):
        check_unknown_token(tokenizer, "tokenizer.json")


@pytest.mark.parametrize(
    ("model", "pre_tokenizer", "normalizer"),
    [
        (models.WordLevel({"a": 0, UNK: 1}, unk_token=UNK), None, None),
        (models.Unigram([("a", 0.0)], unk_id=0), None, None),
        pytest.param(models.BPE({"a": 0}, []), None, None, id="leaves unknown characters out"),
        (models.BPE(BYTES, [], unk_token=UNK, byte_fallback=True), None, None),
        (models.BPE(LETTERS, [], unk_token=UNK), pre_tokenizers.ByteLevel(), None),
        (
            models.BPE(LETTERS, [], unk_token=UNK),
            pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel()]),
            None,
        ),
        (
            models.BPE(LETTERS, [], unk_token=UNK),
            None,
            normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()]),
        ),
    ],
)
def test_those_that_take_every_text_pass(
    model: models.Model,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    normalizer: normalizers.Normalizer | None,
) -> None:
    check(model, pre_tokenizer, normalizer).encode("猫 – \U0010ffff \x00")


def test_one_that_fails_for_another_reason_is_refused_too() -> None:
    table = normalizers.Precompiled(b"\x04\x00\x00\x00" + bytes(4))
    with pytest.raises(UnknownTokenError, match="fails on a character that it does not know"):
        check(models.WordLevel({UNK: 0}, unk_token=UNK), normalizer=table)
