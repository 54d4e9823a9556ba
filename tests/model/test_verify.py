"""An artifact that changed after its export is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import Editable, Exported
from model.artifact import ArtifactError, file_entry
from model.selfcheck import NumericalError
from model.verify import verify_artifact


def verify(folder: Path) -> None:
    verify_artifact(folder, lambda _: None)


def resign(copy: Any) -> None:
    """Makes the manifest's sums those of the files as they are: only their numbers can give them away."""
    manifest = copy.json("manifest.json")
    for entry in [*manifest["files"], *manifest["graphs"]]:
        entry.update(file_entry(copy.path / entry["file"]))
    copy.write_json("manifest.json", manifest)


def test_an_untouched_artifact_is_fine(exported: Exported) -> None:
    stages: list[str] = []
    verify_artifact(exported.folder, stages.append)
    assert stages == ["checksums", "stored vectors", "graphs against each other"]


@pytest.mark.parametrize(
    "file",
    ["weights.fp32.bin", "encoder.fp32.onnx", "attention.fp32.onnx", "tokenizer.json", "selfcheck.json"],
)
def test_a_flipped_byte_is_noticed(file: str, native_artifact: Exported, editable: Editable) -> None:
    copy = editable(native_artifact.folder)
    content = bytearray((copy.path / file).read_bytes())
    content[len(content) // 2] ^= 1
    (copy.path / file).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{file} is damaged"):
        verify(copy.path)


def test_a_missing_file_is_named(native_artifact: Exported, editable: Editable) -> None:
    copy = editable(native_artifact.folder)
    (copy.path / "weights.fp32.bin").unlink()
    with pytest.raises(ArtifactError, match=r"weights.fp32.bin is missing"):
        verify(copy.path)


def test_other_weights_with_matching_sums_are_noticed(native_artifact: Exported, editable: Editable) -> None:
    copy = editable(native_artifact.folder)
    weights = np.fromfile(copy.path / "weights.fp32.bin", np.float32)
    (weights + np.random.default_rng(0).normal(0, 0.3, weights.size)).astype(np.float32).tofile(
        copy.path / "weights.fp32.bin"
    )
    resign(copy)
    with pytest.raises(NumericalError, match=r"is off: pooled_mean of stored case 0 has cosine"):
        verify(copy.path)


def test_graphs_that_disagree_are_noticed(
    native_artifact: Exported, bert_artifact: Exported, editable: Editable
) -> None:
    """The stored vectors are the swapped graph's own; only the comparison of graphs can tell."""
    copy = editable(native_artifact.folder)
    graph = (copy.path / "encoder.fused.onnx").read_bytes()
    assert graph.count(b"encoder.layers.0") > 0
    (copy.path / "encoder.fused.onnx").write_bytes((copy.path / "encoder.fp32.onnx").read_bytes())
    other = (
        (bert_artifact.folder / "encoder.fused.onnx")
        .read_bytes()
        .replace(b"weights.fp32.bin", b"weights.bert.bin")
    )
    (copy.path / "encoder.fused.onnx").write_bytes(other)
    (copy.path / "weights.bert.bin").write_bytes((bert_artifact.folder / "weights.fp32.bin").read_bytes())
    copy.edit_json("selfcheck.json", cases=[])
    resign(copy)
    with pytest.raises(NumericalError, match=r"encoder.fused.onnx is off for shape \(1, 1\), mask full"):
        verify(copy.path)


def test_without_an_attention_graph_there_is_nothing_to_compare_with(
    native_artifact: Exported, editable: Editable
) -> None:
    copy = editable(native_artifact.folder)
    graphs = [entry for entry in copy.json("manifest.json")["graphs"] if entry["kind"] != "attention"]
    copy.edit_json("manifest.json", graphs=graphs)
    with pytest.raises(ArtifactError, match="no graph of kind attention"):
        verify(copy.path)
