"""Tokenizers against transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, BertTokenizer

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


VOCABULARY = [*list(tiny_models.build_vocabulary())[:-4], "東", "café", "É", "Hello"]
LINES = "\n".join(VOCABULARY)
ADDED_TEXTS = (
    *TEXTS[:2],
    "take [DRUG] for covid19 now",
    "x [drug]y  covid19s COVID19, [E1] cat",
    "New York new york ,New  York",
    "Привет नमस्ते 👍🏽 東a – b",
)
AS_STORED = {"tokenizer_class": "PreTrainedTokenizerFast"}
FILES = {"[DRUG]": 1000, "covid19": 1001}
ALL_FLAGS = {"single_word": True, "lstrip": True, "rstrip": True}


def stored(**changes: object) -> dict[str, Any]:
    definition = json.loads(tiny_models.build_tokenizer().to_str())
    definition["model"]["vocab"] = {token: id for id, token in enumerate(VOCABULARY)}
    return {**definition, **changes}


def normalizer(**changes: object) -> dict[str, Any]:
    return {**stored()["normalizer"], **changes}


def added(id: int, content: str, **flags: bool) -> dict[str, Any]:
    none = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": content, **none, **flags}


def decoder(*tokens: dict[str, Any]) -> dict[str, Any]:
    return {
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"}
            for token in tokens
        }
    }


def unigram() -> dict[str, Any]:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "a", "b", "▁b", "▁cat"]
    scores = [(piece, -float(len(pieces) - n)) for n, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, 3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:4]])
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    return definition


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"vocab.txt": LINES, "added_tokens.json": FILES}, id="added_tokens.json"),
        pytest.param(
            {
                "vocab.txt": LINES,
                "added_tokens.json": FILES,
                "special_tokens_map.json": {"additional_special_tokens": ["[DRUG]"]},
            },
            id="special_tokens_map.json",
        ),
        pytest.param(
            {
                "vocab.txt": LINES,
                "added_tokens.json": FILES,
                "tokenizer_config.json": {"additional_special_tokens": ["[DRUG]"]},
            },
            id="additional special tokens",
        ),
        pytest.param(
            {
                "vocab.txt": LINES,
                "added_tokens.json": {"[E1]": 1000},
                "special_tokens_map.json": {"cls_token": "nonsense"},
                "tokenizer_config.json": decoder(
                    added(1000, "[DRUG]", special=True), added(1001, "covid19", **ALL_FLAGS)
                ),
            },
            id="added_tokens_decoder rules",
        ),
        pytest.param(
            {
                "vocab.txt": LINES,
                "tokenizer_config.json": decoder(
                    added(1000, "New York", normalized=True), added(1001, "[E1]", lstrip=True, rstrip=True)
                ),
            },
            id="spaces",
        ),
        pytest.param(
            {"vocab.txt": LINES, "tokenizer_config.json": {"extra_special_tokens": {"drug": "[DRUG]"}}},
            id="named extra token",
        ),
        pytest.param(
            {"vocab.txt": LINES, "tokenizer_config.json": {"drug_token": "[DRUG]"}}, id="a role of its own"
        ),
        pytest.param(
            {"vocab.txt": LINES, "tokenizer_config.json": {"cls_token": "the", "sep_token": "cat"}},
            id="renamed roles",
        ),
        pytest.param(
            {
                "vocab.txt": LINES,
                "tokenizer_config.json": {"split_special_tokens": True, "drug_token": "[DRUG]"},
            },
            id="special tokens are split",
        ),
        pytest.param({"vocab.txt": LINES.replace("[MASK]", "[GAP]")}, id="no mask token"),
        pytest.param({"vocab.txt": LINES.replace("\n", "\r\n")}, id="CRLF"),
        pytest.param({"vocab.txt": "\ufeff" + LINES}, id="BOM"),
        pytest.param({"vocab.txt": LINES + "\n\nthe\n\n"}, id="blank and repeated lines"),
        pytest.param({"vocab.txt": LINES.replace("\nthe\n", "\nthe \n")}, id="space after a token"),
        pytest.param({"tokenizer.json": stored(normalizer=normalizer(lowercase=False))}, id="no class"),
        pytest.param(
            {"tokenizer.json": stored(), "tokenizer_config.json": {"do_lower_case": False}}, id="cased"
        ),
        pytest.param(
            {
                "tokenizer.json": stored(),
                "tokenizer_config.json": {"strip_accents": False, "tokenize_chinese_chars": False},
            },
            id="accents and Chinese characters",
        ),
        pytest.param({"tokenizer.json": stored(normalizer=None)}, id="no normalizer"),
        pytest.param(
            {
                "tokenizer.json": stored(
                    post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
                ),
                "vocab.txt": "\n".join(reversed(VOCABULARY)),
                "added_tokens.json": FILES,
            },
            id="tokenizer.json before vocab.txt",
        ),
        pytest.param(
            {
                "tokenizer.json": stored(
                    normalizer={"type": "Lowercase"},
                    pre_tokenizer={"type": "Whitespace"},
                    post_processor=None,
                    added_tokens=[added(1000, "[DRUG]", special=True)],
                ),
                "tokenizer_config.json": {**AS_STORED, "do_lower_case": False, "bos_token": "<s>"},
            },
            id="as stored",
        ),
        pytest.param(
            {
                "tokenizer.json": stored(
                    post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 7]}
                ),
                "tokenizer_config.json": {**AS_STORED, "additional_special_tokens": ["[E1]"]},
            },
            id="as stored, with other ids around texts",
        ),
        pytest.param(
            {
                "tokenizer.json": unigram(),
                "tokenizer_config.json": {
                    "tokenizer_class": "XLMRobertaTokenizerFast",
                    "additional_special_tokens": ["[DRUG]"],
                },
            },
            id="XLM-RoBERTa",
        ),
        pytest.param(
            {"tokenizer.json": unigram(), "tokenizer_config.json": AS_STORED}, id="Unigram as stored"
        ),
    ],
)
def test_files_beside_the_vocabulary_equal_transformers(files: dict[str, Any], tmp_path: Path) -> None:
    for name, content in {"config.json": {"model_type": "bert"}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_bytes(text.encode())
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ours.encode_special_tokens = True
    for first in ADDED_TEXTS:
        for second in (None, "covid19 [E1]"):
            expected = theirs([first], None if second is None else [second])
            found = ours.encode(first, second)
            assert found.ids == expected["input_ids"][0], (first, second)
            if "token_type_ids" in expected:
                assert found.type_ids == expected["token_type_ids"][0]


@pytest.mark.parametrize(
    "settings",
    [{"tokenizer_class": "DistilBertTokenizer"}, {"model_input_names": ["input_ids", "attention_mask"]}],
)
def test_a_tokenizer_without_type_ids_gives_zeros(settings: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(LINES, "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert not any(load_tokenizer(tmp_path).encode("the", "cat").type_ids)


def test_lowercase_is_pythons(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored(normalizer=None)), "utf-8")
    lower = load_tokenizer(tmp_path, lowercase=True).normalizer
    for text in ("ΟΔΟΣ", "ΣΑΣ. Α.Σ. Σ", "ΑΣ\u0301 ΑΣα", "İΣ"):
        assert lower[1].normalize_str(lower[0].normalize_str(text)) == text.lower()


def test_lowercase_and_an_added_token_that_it_would_hide(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(LINES, "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(decoder(added(1000, "[DRUG]"))))
    with pytest.raises(
        TokenizerError, match=r"do_lower_case is not supported with the added token '\[DRUG\]'"
    ):
        load_tokenizer(tmp_path, lowercase=True)


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
