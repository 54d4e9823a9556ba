"""Tokenizers against transformers' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertTokenizer

import tiny_models
from model.tokenizer import TokenizerError, load_tokenizer, special_ids

TEXTS = (
    "The animal didn't cross the street.",
    "Bränn's CAFÉ, e\u0301tude & 東京 ok",
    "note\nbook\tx\u0000y \u200b [SEP] [MASK] end",
    "Hello" * 21,
    "",
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_vocabulary_file_equals_transformers(settings: dict[str, object], tmp_path: Path) -> None:
    vocabulary = list(tiny_models.build_vocabulary())
    vocabulary[-4:] = ["東", "京", "café", "É"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "BertTokenizer"})
    )
    ours, theirs = load_tokenizer(tmp_path), BertTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    pair, expected = ours.encode(*TEXTS[:2]), theirs(*TEXTS[:2])
    assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_default_vocabulary_file_equals_its_tokenizer_file(default_folder: Path, tmp_path: Path) -> None:
    for file in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((default_folder / file).read_bytes())
    built, stored = load_tokenizer(tmp_path), load_tokenizer(default_folder)
    for text in TEXTS:
        assert built.encode(text).ids == stored.encode(text).ids


def test_truncation_and_padding_are_removed(tmp_path: Path) -> None:
    tokenizer = tiny_models.build_tokenizer()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.truncation, loaded.padding) == (None, None)
    assert len(loaded.encode("the " * 20).ids) == 22
    assert len(loaded.encode("the").ids) == 3


def test_lowercase_goes_in_front_and_keeps_offsets(tmp_path: Path) -> None:
    tokenizer = json.loads(tiny_models.build_tokenizer().to_str())
    tokenizer["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    encoding = load_tokenizer(tmp_path, lowercase=True).encode("The CAT", add_special_tokens=False)
    assert encoding.tokens == ["the", "cat"]
    assert encoding.offsets == [(0, 3), (4, 7)]


def test_special_ids(default_folder: Path) -> None:
    assert special_ids(load_tokenizer(default_folder)) == {"pad": 0, "unknown": 100, "cls": 101, "sep": 102}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has neither tokenizer.json nor vocab.txt; write one with"),
        ({"tokenizer.json": "{}"}, "tokenizer.json cannot be read"),
        ({"vocab.txt": "[UNK]\n[PAD]\n[SEP]\nword\n"}, r"vocab.txt has no \[CLS\]"),
    ],
)
def test_unusable_tokenizers(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)
