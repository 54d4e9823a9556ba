"""What the manifest says of an artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from folders import Editable, Exported
from model.artifact import read_manifest
from model.checkpoint import load_checkpoint
from model.files import sha256_of
from model.manifest import revision


def test_sizes_and_defaults(bert_artifact: Exported) -> None:
    manifest = read_manifest(bert_artifact.folder)
    expected = {
        "schema_version": 1,
        "name": "tiny-bert",
        "family": "bert",
        "hidden_size": 32,
        "layer_count": 2,
        "head_count": 2,
        "vocabulary_size": 1000,
        "type_vocabulary_size": 2,
        "max_tokens": 64,
        "max_positions": 64,
        "pooling": "mean",
        "normalize": False,
        "prompts": {},
        "default_prompt_name": None,
        "special_ids": {"pad": 0, "unknown": 1, "cls": 2, "sep": 3},
    }
    assert {name: manifest[name] for name in expected} == expected
    assert {"seqenc", "torch", "onnx"} <= set(manifest["tool_versions"])


def test_it_lists_every_file_with_its_sum(exported: Exported) -> None:
    manifest = read_manifest(exported.folder)
    listed = {entry["file"]: entry["sha256"] for entry in [*manifest["files"], *manifest["graphs"]]}
    there = {path.name: sha256_of(path) for path in exported.folder.iterdir() if path.name != "manifest.json"}
    assert listed == there


def test_exact_graphs_and_their_fidelity(exported: Exported) -> None:
    graphs = [graph for graph in read_manifest(exported.folder)["graphs"] if graph["precision"] == "fp32"]
    assert [(graph["file"], graph["precision"], graph["kind"]) for graph in graphs] == [
        ("encoder.fp32.onnx", "fp32", "plain"),
        ("encoder.fused.onnx", "fp32", "fused"),
        ("attention.fp32.onnx", "fp32", "attention"),
    ]
    for graph in graphs:
        assert graph["external_data"] == ["weights.fp32.bin"]
        assert 0.99999 < graph["fidelity"]["worst_cosine"] <= graph["fidelity"]["mean_cosine"] <= 1.0 + 1e-9
        assert graph["fidelity"]["max_abs_error"] < 1e-4


def test_revision_is_of_the_model_not_of_its_files(tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(copy.path / "model.safetensors").items()}
    (copy.path / "model.safetensors").unlink()
    save_file(weights, copy.path / "model.safetensors")
    assert revision(load_checkpoint(copy.path)) == revision(load_checkpoint(tiny_bert))


@pytest.mark.parametrize(
    "change",
    [
        {"pooling": "cls"},
        {"normalize": True},
        {"max_tokens": 12},
        {"prompts": {"query": "q: "}},
    ],
)
def test_revision_changes_with_each_default(change: dict[str, Any], tiny_native: Path) -> None:
    checkpoint = load_checkpoint(tiny_native)
    other = replace(checkpoint, defaults=replace(checkpoint.defaults, **change))
    assert revision(other) != revision(checkpoint)


def test_revision_changes_with_weights_and_tokenizer(tiny_native: Path) -> None:
    checkpoint, other = load_checkpoint(tiny_native), load_checkpoint(tiny_native)
    original = revision(checkpoint)
    next(iter(checkpoint.encoder.parameters()))[0, 0] += 1e-6
    assert revision(checkpoint) != original
    other.tokenizer.add_tokens(["zeppelin"])
    assert revision(other) != original
