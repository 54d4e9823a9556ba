"""Exports that must not happen, and what is left of them: nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from folders import Editable, Exported
from model import export
from model.artifact import ArtifactError
from model.encoder import Encoder
from model.export import export_artifact
from model.graphs import ATTENTION, FUSED, PLAIN, GraphKind
from model.selfcheck import NumericalError


def export_quietly(source: Path, target: Path, *, force: bool = False) -> dict[str, Any]:
    return export_artifact(source, target, name="tiny", force=force, report=lambda _: None)


Spoil = Callable[[onnx.ModelProto], None]


@pytest.fixture
def export_spoiled(
    native_artifact: Exported, tiny_native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[GraphKind, Spoil], None]:
    """Exports with one graph changed between its making and its check."""

    def run(spoiled: GraphKind, spoil: Spoil) -> None:
        def build_graphs(_: Encoder) -> Iterator[tuple[GraphKind, ir.Model]]:
            for kind in export.KINDS:
                graph = onnx.load(native_artifact.folder / kind.file)
                if kind is spoiled:
                    spoil(graph)
                yield kind, ir.from_proto(graph)

        monkeypatch.setattr(export, "build_graphs", build_graphs)
        export_quietly(tiny_native, tmp_path / "tiny")

    return run


def keep(_: onnx.ModelProto) -> None:
    pass


def shift_a_bias(model: onnx.ModelProto) -> None:
    bias = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("attention.output.bias"))
    shifted = onnx.numpy_helper.to_array(bias).copy()
    shifted[0] += 0.01  # all of them alike would vanish in the next layer norm
    bias.CopyFrom(onnx.numpy_helper.from_array(shifted, bias.name))


def drop_mask_after(operator: str) -> Spoil:
    """Leaves an operator without the product that keeps a fully masked row from attending to everything."""

    def spoil(model: onnx.ModelProto) -> None:
        outputs = {node.output[0] for node in model.graph.node if node.op_type == operator}
        for node in model.graph.node:
            if node.op_type == "Mul" and node.input[0] in outputs:
                node.op_type = "Identity"
                del node.input[1:]

    return spoil


@pytest.mark.parametrize(
    ("kind", "spoil", "where"),
    [
        (PLAIN, shift_a_bias, r"shape \(1, 1\), mask full: token_embeddings"),
        (FUSED, shift_a_bias, r"shape \(1, 1\), mask full: token_embeddings"),
        (FUSED, drop_mask_after("MultiHeadAttention"), "mask a fully masked row"),
        (PLAIN, drop_mask_after("Softmax"), "mask a fully masked row"),
        (ATTENTION, drop_mask_after("Softmax"), "mask a fully masked row"),
    ],
)
def test_a_graph_that_is_off_is_not_written(
    kind: GraphKind,
    spoil: Spoil,
    where: str,
    export_spoiled: Callable[[GraphKind, Spoil], None],
    tmp_path: Path,
) -> None:
    with pytest.raises(NumericalError, match=f"{kind.file} is off for .*{where}"):
        export_spoiled(kind, spoil)
    assert list(tmp_path.iterdir()) == []


def test_the_same_graphs_unspoiled_are_written(
    export_spoiled: Callable[[GraphKind, Spoil], None], tmp_path: Path
) -> None:
    export_spoiled(PLAIN, keep)
    assert (tmp_path / "tiny" / "manifest.json").is_file()


def test_an_existing_artifact_is_kept(native_artifact: Exported, tiny_native: Path) -> None:
    before = (native_artifact.folder / "manifest.json").read_bytes()
    with pytest.raises(ArtifactError, match="exists"):
        export_quietly(tiny_native, native_artifact.folder)
    assert (native_artifact.folder / "manifest.json").read_bytes() == before


def test_a_bad_checkpoint_leaves_nothing(tiny_bert: Path, editable: Editable, tmp_path: Path) -> None:
    copy = editable(tiny_bert)
    (copy.path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        export_quietly(copy.path, tmp_path / "out" / "tiny")
    assert not (tmp_path / "out").exists()


# Gets no further than to its first graph, so that it cannot end by itself.
HELD = """
import sys
import threading
from model import export
from seqenc_process import run_seqenc_model
export.build_graphs = lambda _: threading.Event().wait()
sys.exit(run_seqenc_model())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_export_leaves_no_artifact(
    number: signal.Signals, tiny_native: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HELD, "export", tiny_native, "--out", tmp_path / "tiny"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr is not None
        while "tracing" not in process.stderr.readline():
            assert process.poll() is None
        assert [path.name.startswith(".tiny.partial-") for path in tmp_path.iterdir()] == [True]
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(timeout=60) != 0
    assert not (tmp_path / "tiny").exists()
    if number == signal.SIGTERM:
        assert list(tmp_path.iterdir()) == []


def test_stored_vectors_are_those_of_pytorch(exported: Exported) -> None:
    selfcheck = json.loads((exported.folder / "selfcheck.json").read_text("utf-8"))
    assert selfcheck["min_cosine"] == {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999, "int8": 0.99}
    for case in selfcheck["cases"]:
        ids, mask, types = (
            torch.tensor([case[name]]) for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        hidden = exported.checkpoint.encoder(ids, mask.bool(), types).token_embeddings[0].numpy()
        real = mask[0].bool().numpy()
        np.testing.assert_allclose(case["pooled_mean"], hidden[real].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(case["pooled_cls"], hidden[real][0], atol=1e-5)
