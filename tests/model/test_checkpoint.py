"""Checkpoints that load, and a table of those that are refused, each naming what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

import tiny_models
from folders import Editable
from model.checkpoint import load_checkpoint, save_checkpoint
from model.config import EncoderConfig
from model.encoder import Encoder
from model.serving_defaults import ServingDefaults

IDS = torch.tensor([[2, 50, 60, 70, 3]])
QUERY = "encoder.layer.1.attention.self.query.weight"


def embed(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        hidden: torch.Tensor = load_checkpoint(folder).encoder(IDS).token_embeddings
    return hidden


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Loads the weights, changes them and saves them."""
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()
    save_file(change(weights), path)


@pytest.mark.parametrize(
    "rename",
    [
        pytest.param(lambda name: f"bert.{name}", id="with the bert prefix"),
        pytest.param(
            lambda name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"),
            id="with TensorFlow's names",
        ),
    ],
)
def test_other_spellings_load_the_same(
    rename: Callable[[str], str], tiny_bert: Path, editable: Editable
) -> None:
    copy = editable(tiny_bert)
    rewrite(copy.path, lambda weights: {rename(name): tensor for name, tensor in weights.items()})
    assert torch.equal(embed(copy.path), embed(tiny_bert))


def test_a_language_model_loads_without_its_head(tmp_path: Path, tiny_bert: Path) -> None:
    model = BertForMaskedLM(BertConfig.from_pretrained(tiny_bert)).eval()
    model.save_pretrained(tmp_path)
    tiny_models.build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with torch.no_grad():
        expected = model.bert(IDS).last_hidden_state
    torch.testing.assert_close(embed(tmp_path), expected, atol=1e-5, rtol=0)


def test_pooler_and_position_buffer_are_left_out(tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    extra = {
        "embeddings.position_ids": torch.arange(64)[None],
        "pooler.dense.weight": torch.ones(32, 32),
        "cls.seq_relationship.bias": torch.ones(2),
    }
    rewrite(copy.path, lambda weights: weights | extra)
    assert torch.equal(embed(copy.path), embed(tiny_bert))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32(dtype: torch.dtype, tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    rewrite(copy.path, lambda weights: {name: tensor.to(dtype) for name, tensor in weights.items()})
    bert = BertModel.from_pretrained(copy.path, add_pooling_layer=False, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = bert(IDS).last_hidden_state
    hidden = embed(copy.path)
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)


def test_shards_load_the_same(tmp_path: Path, tiny_bert: Path) -> None:
    BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).save_pretrained(
        tmp_path, max_shard_size="60KB"
    )
    tiny_models.build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(embed(tmp_path), embed(tiny_bert))


def test_own_format_round_trips(tmp_path: Path) -> None:
    config = EncoderConfig(
        vocabulary_size=1000,
        hidden_size=16,
        layer_count=1,
        head_count=4,
        feed_forward_size=8,
        max_positions=20,
    )
    encoder = Encoder(config)
    defaults = ServingDefaults(
        pooling="cls", normalize=True, max_tokens=12, prompts={"query": "q: "}, default_prompt_name="query"
    )
    save_checkpoint(encoder, tiny_models.build_tokenizer(), tmp_path, defaults=defaults)
    loaded = load_checkpoint(tmp_path)
    assert (loaded.family, loaded.config, loaded.defaults) == ("seqenc", config, defaults)
    assert not loaded.encoder.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.encoder.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda weights: {name: tensor for name, tensor in weights.items() if name != QUERY},
            f"missing weights: {QUERY}",
            id="missing",
        ),
        pytest.param(
            lambda weights: weights | {"classifier.weight": torch.ones(2)},
            "unexpected weights: classifier.weight",
            id="unexpected head",
        ),
        pytest.param(
            lambda weights: weights | {"encoder.layer.2.output.dense.bias": torch.ones(32)},
            "unexpected weights: encoder.layer.2.output.dense.bias",
            id="a layer too many",
        ),
        pytest.param(
            lambda weights: weights | {"layers.0.attention.query.weight": torch.ones(32, 32)},
            "unexpected weights: layers.0.attention.query.weight",
            id="our name in a BERT",
        ),
        pytest.param(
            lambda weights: weights | {QUERY: torch.ones(32, 16)},
            rf"weight {QUERY} is \(32, 16\), by config.json \(32, 32\)",
            id="shape",
        ),
        pytest.param(
            lambda weights: weights | {QUERY: torch.ones(32, 32, dtype=torch.int8)},
            f"weight {QUERY} is torch.int8; supported: float16",
            id="quantised",
        ),
        pytest.param(
            lambda weights: weights | {QUERY: torch.full((32, 32), float("nan"))},
            f"weight {QUERY} holds NaN or infinity",
            id="not finite",
        ),
        pytest.param(
            lambda weights: weights | {f"bert.{QUERY}": torch.ones(32, 32)},
            f"weight .*{QUERY} is there twice",
            id="twice",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    change: Callable[[dict[str, Any]], dict[str, Any]], message: str, tiny_bert: Path, editable: Editable
) -> None:
    copy = editable(tiny_bert)
    rewrite(copy.path, change)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(copy.path)


def test_many_missing_weights_are_counted(tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    rewrite(copy.path, lambda _: {"embeddings.LayerNorm.bias": torch.zeros(32)})
    with pytest.raises(ValueError, match=r"missing weights: embeddings.LayerNorm.weight, .* and 28 more"):
        load_checkpoint(copy.path)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "weights.pt", "model.ckpt", "pytorch_model-00001-of-2.bin"]
)
def test_pickles_are_never_opened(name: str, tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    (copy.path / "model.safetensors").rename(copy.path / name)
    with pytest.raises(
        ValueError, match=rf"only pickled weights \({name}\).*Convert .* writes model.safetensors"
    ):
        load_checkpoint(copy.path)


def test_no_weights_at_all(tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    (copy.path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        load_checkpoint(copy.path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 50, b"PK\x03\x04 a zip"])
def test_damaged_weights(content: bytes, tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    (copy.path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_checkpoint(copy.path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "missing.safetensors"}, "names missing.safetensors, which is missing"),
        ({"a": "../model.safetensors"}, "not a file of its own folder"),
        ({"no.such.weight": "part.safetensors"}, "part.safetensors lacks no.such.weight"),
        ({}, "has no weight_map"),
        (None, "has no weight_map"),
    ],
)
def test_bad_indexes(weight_map: object, message: str, tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    (copy.path / "model.safetensors").rename(copy.path / "part.safetensors")
    copy.write_json("model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(ValueError, match=message):
        load_checkpoint(copy.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta' is not supported; supported: bert, seqenc"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported"),
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type 'relative_key_query'"),
        ({"vocab_size": 900}, "the tokenizer gives ids up to 999, the encoder has 900 token vectors"),
        ({"num_hidden_layers": 3}, "missing weights: encoder.layer.2.attention.output.LayerNorm.bias"),
    ],
)
def test_configurations_that_do_not_fit(
    change: dict[str, object], message: str, tiny_bert: Path, editable: Editable
) -> None:
    copy = editable(tiny_bert)
    copy.edit_json("config.json", **change)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(copy.path)


def test_own_format_refuses_unknown_fields(tiny_native: Path, editable: Editable) -> None:
    copy = editable(tiny_native)
    copy.edit_json("config.json", window=128)
    with pytest.raises(ValueError, match="unknown fields window"):
        load_checkpoint(copy.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no config.json; name the folder"),
        ("{", "config.json is not JSON"),
        ("[1]", "an object is needed"),
    ],
)
def test_bad_config_files(content: str | None, message: str, tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    (copy.path / "config.json").unlink()
    if content is not None:
        (copy.path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(copy.path)
