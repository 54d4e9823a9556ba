"""The token ids of a checkpoint's tokenizer files are transformers', or the export is refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

import tiny_models
from e2e.server_process import start_server
from model.cli import main
from seqenc import Client

TEXTS = (
    "take [DRUG] for covid19 now",
    "Hello World Café, e\u0301tude",
    "[drug]COVID19s covid 19",
    "東京 日本語 Привет नमस्ते 👍🏽",
    "",
)


@pytest.mark.parametrize("second", [None, *TEXTS[:2]])
def test_files_are_read_together_as_transformers_does(
    second: str | None, tiny_bert: Path, tiny_artifact: Path
) -> None:
    exported = Tokenizer.from_file(str(tiny_artifact / "tokenizer.json"))
    exported.encode_special_tokens = True
    reference = AutoTokenizer.from_pretrained(tiny_bert)
    for text in TEXTS:
        expected = reference([text], None if second is None else [second])
        found = exported.encode(text, second)
        assert (found.ids, found.type_ids) == (expected["input_ids"][0], expected["token_type_ids"][0])
    assert exported.token_to_id("[DRUG]") in exported.encode(TEXTS[0]).ids


JAPANESE = {"tokenizer_class": "BertJapaneseTokenizer", "subword_tokenizer_type": "character"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer_config.json": JAPANESE}, ["tokenizer_config.json", "BertJapaneseTokenizer"]),
        (
            {"tokenizer_config.json": JAPANESE, "tokenizer.json": {}},
            ["tokenizer_config.json", "BertJapaneseTokenizer"],
        ),
        ({"config.json": {"tokenizer_class": "BertJapaneseTokenizer"}}, ["config.json", "BertJapanese"]),
        ({"tokenizer_config.json": {"tokenizer_class": "KoBertTokenizer"}}, ["KoBertTokenizer", "supported"]),
        ({"tokenizer_config.json": {"word_tokenizer_type": "mecab"}}, ["word_tokenizer_type", "'mecab'"]),
        ({"tokenizer_config.json": {"subword_tokenizer_type": "character"}}, ["subword_tokenizer_type"]),
        ({"tokenizer_config.json": {"never_split": ["Zoo"]}}, ["never_split", "['Zoo']"]),
        ({"tokenizer_config.json": {"do_basic_tokenize": False}}, ["do_basic_tokenize"]),
        ({"tokenizer_config.json": {"do_lower_case": "yes"}}, ["do_lower_case", "true or false"]),
        ({"tokenizer_config.json": {"cls_token": "<s>"}}, ["vocab.txt has no <s>", "cls_token"]),
        ({"tokenizer_config.json": {"sep_token": None}}, ["sep_token is null"]),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": "[E]"}}}, ["added_tokens_decoder", "'x'"]),
        ({"added_tokens.json": {"[DRUG]": 1001}}, ["added_tokens.json: '[DRUG]' has id 1001", "1000"]),
        ({"added_tokens.json": {"[DRUG]": 500}}, ["added_tokens.json: '[DRUG]' has id 500", "1000"]),
        ({"added_tokens.json": {"the": 1000}}, ["added_tokens.json: 'the' has id 1000"]),
        (
            {"added_tokens.json": {f"[{number}]": 1000 + number for number in range(9)}},
            ["ids up to 1008", "1004 token vectors", "resize_token_embeddings"],
        ),
        ({"tokenizer.model": "", "vocab.txt": None}, ["tokenizer.model is not supported"]),
        (
            {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}},
            ["no tokenizer.json", "XLMRobertaTokenizer"],
        ),
        ({"tokenizer.json": {"pre_tokenizer": {"type": "Whitespace"}}}, ["pre_tokenizer", "BertTokenizer"]),
        ({"tokenizer.json": {"post_processor": None}}, ["tokenizer.json: its post_processor"]),
        (
            {
                "tokenizer.json": {
                    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}]},
                },
                "tokenizer_config.json": {"do_lower_case": True},
            },
            ["tokenizer.json: its normalizer", "PreTrainedTokenizerFast"],
        ),
        ({"vocab.txt": b"\xff\xfe\n"}, ["vocab.txt cannot be read", "UTF-8"]),
    ],
)
def test_what_would_change_ids_and_is_not_followed_is_refused(
    files: dict[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = {"model_type": "bert", "vocab_size": 1004, "max_position_embeddings": 64, **sizes}
    defaults: dict[str, Any] = {
        "config.json": config,
        "vocab.txt": "\n".join(tiny_models.build_vocabulary()),
        "tokenizer.json": json.loads(tiny_models.build_tokenizer().to_str()),
    }
    for name, content in {"config.json": {}, "vocab.txt": defaults["vocab.txt"], **files}.items():
        if isinstance(content, dict):
            content = json.dumps(defaults.get(name, {}) | content)
        if content is not None:
            (checkpoint / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "artifact")]) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if "seqenc-model export: " in line]
    assert len(error) == 1
    assert all(word in error[0] for word in words), error[0]
    assert not (tmp_path / "artifact").exists()


@pytest.fixture(scope="module")
def unigram_client(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the tiny artifact's encoder with a tokenizer like XLM-RoBERTa's."""
    artifact = tmp_path_factory.mktemp("unigram") / "artifact"
    shutil.copytree(tiny_artifact, artifact)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "▁b", "a", "b"]
    tokenizer = Tokenizer(
        models.Unigram([(piece, -float(len(pieces) - n)) for n, piece in enumerate(pieces)], 3)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(artifact / "tokenizer.json"))
    manifest = json.loads((artifact / "manifest.json").read_text("utf-8"))
    for entry in manifest["files"]:
        if entry["file"] == "tokenizer.json":
            entry["sha256"] = hashlib.sha256((artifact / "tokenizer.json").read_bytes()).hexdigest()
    (artifact / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with start_server(artifact) as server, Client(server.grpc_address, deadline_s=60) as client:
        yield client


@pytest.mark.parametrize("tokens", [True, False])
def test_unknown_tokens_of_a_unigram_are_counted(unigram_client: Client, *, tokens: bool) -> None:
    inputs = ["a – b", ("a", "–b"), {"ids": [0, 3, 3, 2]}, "a b"]
    results = unigram_client.encode(inputs, tokens=tokens).results
    streamed = list(unigram_client.encode_stream(inputs, tokens=tokens))
    for found in (results, streamed):
        assert [encoding.unknown_token_count for encoding in found] == [1, 1, 2, 0]
    if tokens:
        expected = ["<s>", "▁a", "▁", "<unk>", "▁b", "</s>"]
        for found in (results, streamed, unigram_client.tokenize(inputs)):
            assert [token.text for token in found[0].tokens] == expected
            unknown = found[0].tokens[3]
            assert (unknown.id, unknown.start, unknown.end) == (3, 2, 3)
