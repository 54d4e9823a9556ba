"""The exported graphs in ONNX Runtime against PyTorch: shapes, masks, poolings, attention maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertModel

from folders import Exported
from model.graphs import ATTENTION, FUSED, PLAIN, FusedMultiHeadAttention, GraphKind
from model.pooling import POOLINGS
from model.runtime import load_run
from model.selfcheck import Arrays, Run

KINDS = (PLAIN, FUSED, ATTENTION)
SHAPES = [(1, 1), (1, 3), (3, 7), (2, 8), (5, 64)]
LENGTH = 8
MASKS = {
    "full": "11111111",
    "right padded": "11110000",
    "left padded": "00111111",
    "holes": "11101101",
    "one token": "00010000",
}


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> GraphKind:
    chosen: GraphKind = request.param
    return chosen


@pytest.fixture
def run(exported: Exported, kind: GraphKind) -> Run:
    return load_run(exported.folder / kind.file)


def random_inputs(
    shape: tuple[int, int], mask: NDArray[Any] | None = None, seed: int = 0
) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(1000, size=shape),
        "attention_mask": np.ones(shape, np.int64) if mask is None else mask,
        "token_type_ids": rng.integers(2, size=shape),
    }


def rows(*masks: str) -> NDArray[np.int64]:
    return np.array([[int(bit) for bit in mask] for mask in masks])


@torch.no_grad()
def in_torch(exported: Exported, inputs: Arrays) -> dict[str, NDArray[Any]]:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    mask = tensors["attention_mask"].bool()
    hidden, attentions = exported.checkpoint.encoder(
        tensors["input_ids"], mask, tensors["token_type_ids"], with_attentions=True
    )
    pooled = {f"pooled_{mode}": pool(hidden, mask).numpy() for mode, pool in POOLINGS.items()}
    maps = {f"attentions_{layer}": weights.numpy() for layer, weights in enumerate(attentions)}
    return {"token_embeddings": hidden.numpy(), **pooled, **maps}


def assert_equal(actual: Arrays, expected: Arrays, mask: NDArray[Any]) -> None:
    """Every output that the graph has. `assert_allclose` takes NaN for equal to NaN: finite comes first."""
    real = mask.astype(bool)
    for name, array in actual.items():
        assert np.isfinite(array).all(), name
        a, e = (array[real], expected[name][real]) if name == "token_embeddings" else (array, expected[name])
        tolerance = 1e-5 if name.startswith("attentions_") else 1e-4
        np.testing.assert_allclose(a, e, atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_axes_are_free(shape: tuple[int, int], exported: Exported, run: Run) -> None:
    inputs = random_inputs(shape)
    assert_equal(run(inputs), in_torch(exported, inputs), inputs["attention_mask"])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_any_mask_alone_and_beside_others(mask: str, exported: Exported, run: Run) -> None:
    inputs = random_inputs((3, LENGTH), rows("11111111", mask, "01010101"))
    outputs = run(inputs)
    assert_equal(outputs, in_torch(exported, inputs), inputs["attention_mask"])
    alone = run({name: array[1:2] for name, array in inputs.items()})
    assert_equal(alone, {name: array[1:2] for name, array in outputs.items()}, inputs["attention_mask"][1:2])


def test_right_padding_equals_the_bare_prefix(run: Run) -> None:
    inputs = random_inputs((3, LENGTH), rows("11111111", "11111100", "11100000"))
    outputs = run(inputs)
    for row, length in enumerate((8, 6, 3)):
        bare = run({name: array[row : row + 1, :length] for name, array in inputs.items()})
        np.testing.assert_allclose(
            outputs["token_embeddings"][row, :length], bare["token_embeddings"][0], atol=1e-5
        )
        for mode in POOLINGS:
            np.testing.assert_allclose(outputs[f"pooled_{mode}"][row], bare[f"pooled_{mode}"][0], atol=1e-5)


def test_a_fully_masked_row_is_zero_and_leaves_its_neighbour_alone(exported: Exported, run: Run) -> None:
    inputs = random_inputs((2, 6), rows("111111", "000000"))
    outputs = run(inputs)
    expected = in_torch(exported, inputs)
    assert_equal(outputs, expected, np.ones((2, 6)))
    for name, array in outputs.items():
        if name.startswith(("pooled_", "attentions_")):
            assert not array[1].any(), name
    alone = run({name: array[:1] for name, array in inputs.items()})
    for name, array in alone.items():
        np.testing.assert_allclose(outputs[name][:1], array, atol=1e-5, err_msg=name)


def test_what_masked_positions_hold_does_not_matter(run: Run) -> None:
    mask = rows("11100000", "01110110", "00011111")
    inputs = random_inputs(mask.shape, mask)
    expected = run(inputs)
    for filler in (0, 777, 999):
        filled = {**inputs, "input_ids": np.where(mask == 1, inputs["input_ids"], filler)}
        outputs = run(filled)
        np.testing.assert_allclose(
            outputs["token_embeddings"][mask == 1], expected["token_embeddings"][mask == 1], atol=1e-6
        )
        for name, array in outputs.items():
            if name.startswith("pooled_"):
                np.testing.assert_allclose(array, expected[name], atol=1e-6, err_msg=name)
            if name.startswith("attentions_"):
                assert not array[np.broadcast_to(mask[:, None, None] == 0, array.shape)].any()


def test_token_types_matter(run: Run) -> None:
    inputs = random_inputs((2, 6))
    zeros = run({**inputs, "token_type_ids": np.zeros((2, 6), np.int64)})
    assert np.abs(run(inputs)["pooled_mean"] - zeros["pooled_mean"]).max() > 1e-3


def test_maps_sum_to_one_over_real_tokens(exported: Exported) -> None:
    mask = rows("11110000", "01101101")
    outputs = load_run(exported.folder / ATTENTION.file)(random_inputs(mask.shape, mask))
    maps = [array for name, array in outputs.items() if name.startswith("attentions_")]
    assert [array.shape for array in maps] == [(2, 2, LENGTH, LENGTH)] * 2
    for array in maps:
        np.testing.assert_allclose(array.sum(-1), 1.0, atol=1e-6)


def test_graphs_equal_transformers(tiny_bert: Path, bert_artifact: Exported, kind: GraphKind) -> None:
    bert = BertModel.from_pretrained(tiny_bert, add_pooling_layer=False, attn_implementation="eager").eval()
    mask = rows("11111111", "11111000", "00111101")
    inputs = random_inputs(mask.shape, mask)
    with torch.no_grad():
        expected = bert(
            **{name: torch.from_numpy(array) for name, array in inputs.items()}, output_attentions=True
        )
    outputs = load_run(bert_artifact.folder / kind.file)(inputs)
    real = mask == 1
    np.testing.assert_allclose(
        outputs["token_embeddings"][real], expected.last_hidden_state.numpy()[real], atol=1e-5
    )
    for layer, weights in enumerate(expected.attentions if kind is ATTENTION else ()):
        np.testing.assert_allclose(outputs[f"attentions_{layer}"], weights.numpy(), atol=1e-5)


def operators(exported: Exported, kind: GraphKind) -> list[str]:
    graph = onnx.load(exported.folder / kind.file, load_external_data=False).graph
    return [f"{node.domain}::{node.op_type}" for node in graph.node]


def test_plain_graphs_use_standard_operators_only(exported: Exported) -> None:
    for kind in (PLAIN, ATTENTION):
        assert all(operator.startswith("::") for operator in operators(exported, kind))


def test_every_attention_of_the_fused_graph_is_fused(exported: Exported) -> None:
    used = operators(exported, FUSED)
    assert used.count("com.microsoft::MultiHeadAttention") == exported.checkpoint.config.layer_count
    assert "::Softmax" not in used


def test_graphs_are_small_and_hold_no_paths(exported: Exported, kind: GraphKind) -> None:
    content = (exported.folder / kind.file).read_bytes()
    assert len(content) < 50_000
    assert b".py" not in content
    assert str(Path(__file__).parents[2]).encode() not in content


def test_fused_attention_needs_a_mask() -> None:
    attention = FusedMultiHeadAttention(hidden_size=4, head_count=2)
    hidden = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match="needs a padding mask"):
        attention(hidden, hidden, hidden)
