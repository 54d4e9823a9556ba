"""Row-wise int8: the arithmetic against NumPy, the graph against PyTorch, a text's independence of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from folders import Exported
from model.export import torch_run
from model.graphs import FP16, INT8, PLAIN
from model.quantize import offset_row_count, offset_rows, quantize_graph, quantize_weights
from model.runtime import load_run
from model.selfcheck import cosine

WIDTH, COLUMNS = 48, 16


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_weights_are_within_half_a_step(seed: int, size: float) -> None:
    weights = np.random.default_rng(seed).normal(0, size, (WIDTH, COLUMNS)).astype(np.float32)
    quantized, scales = quantize_weights(weights)
    assert np.abs(quantized).max() <= 127
    assert (np.abs(quantized * scales - weights) <= scales * 0.5001).all()


def test_a_column_of_zeros_stays_zero() -> None:
    quantized, scales = quantize_weights(np.zeros((WIDTH, 2), np.float32))
    assert not quantized.any()
    np.testing.assert_array_equal(scales, 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_offset_rows_cancel_the_column_sums(seed: int, width: int) -> None:
    quantized = np.random.default_rng(seed).integers(-127, 128, (width, COLUMNS)).astype(np.int8)
    count = offset_row_count(quantized)
    rows = offset_rows(quantized, count)
    np.testing.assert_array_equal(rows.sum(axis=0, dtype=np.int64), -quantized.sum(axis=0, dtype=np.int64))
    assert count == 0 or (offset_rows(quantized, count - 1).sum(0) != -quantized.sum(0, dtype=np.int64)).any()


def build_model(
    nodes: list[onnx.NodeProto], weights: dict[str, NDArray[np.float32]], width: int, columns: int
) -> ir.Model:
    """ids (B, S), x (B, S, width) -> y (B, S, columns)."""
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", width]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "S", columns])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def product_model(weights: NDArray[np.float32], activation: str | None) -> ir.Model:
    """activation(x) weights."""
    nodes = [
        helper.make_node(activation or "Identity", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["p"]),
        helper.make_node("Identity", ["p"], ["y"]),
    ]
    return build_model(nodes, {"w": weights}, *weights.shape)


def run_model(model: ir.Model, x: NDArray[np.float32]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact without VNNI, as served
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    result: NDArray[np.float32] = session.run(["y"], {"ids": np.zeros(x.shape[:2], np.int64), "x": x})[0]
    return result


def by_formula(
    x: NDArray[np.float32], weights: NDArray[np.float32], low: float | None
) -> NDArray[np.float32]:
    """The scheme in plain NumPy, without the trick of the offset rows."""
    lows = np.minimum(x.min(axis=-1, keepdims=True), 0) if low is None else np.full((*x.shape[:2], 1), low)
    highs = np.maximum(x.max(axis=-1, keepdims=True), 0)
    scales = np.maximum((highs - lows) / 255, 1e-9)
    offsets = np.rint(-lows / scales)
    levels = np.clip(np.rint(x / scales) + offsets, 0, 255) - offsets
    quantized, columns = quantize_weights(weights)
    result: NDArray[np.float32] = (levels * scales) @ (quantized * columns)
    return result


@pytest.mark.parametrize(("activation", "low"), [(None, None), ("Gelu", -0.17), ("Relu", 0.0)])
def test_product_follows_the_formula(activation: str | None, low: float | None) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(0.1, 1, (WIDTH, COLUMNS)).astype(np.float32)
    # Rows of very different range, all of one sign, and all zero.
    sizes = np.array([0, 1e-3, 1, 30, 1, 1])[None, :, None]
    x = (rng.normal(0.5, 1, (2, 6, WIDTH)) * sizes).astype(np.float32)
    x[:, 4] = np.abs(x[:, 4]) + 3
    x[:, 5] = -np.abs(x[:, 5]) - 3
    activated = run_model(product_model(np.eye(WIDTH, dtype=np.float32), activation), x)
    model = product_model(weights, activation)
    quantize_graph(model)
    found = run_model(model, x)
    expected = by_formula(activated, weights, low)
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=2e-3)
    usual = slice(2, 5)  # rows that are not tiny beside GELU's minimum
    assert cosine(found[:, usual], (activated @ weights)[:, usual]).min() > 0.999
    if activation is None:
        assert not found[:, 0].any()


@pytest.mark.parametrize(("activation", "low"), [("Gelu", -0.17), ("Relu", 0.0)])
def test_a_feed_forward_layer_follows_the_formula(activation: str, low: float) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(0.1, 1, shape).astype(np.float32) for shape in ((16, WIDTH), (WIDTH, 16)))
    bias = rng.normal(0, 1, WIDTH).astype(np.float32)
    x = rng.normal(0, 1, (2, 3, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["s"]),
        helper.make_node(activation, ["s"], ["a"]),
        helper.make_node("MatMul", ["a", "second"], ["q"]),
        helper.make_node("Identity", ["q"], ["y"]),
    ]
    model = build_model(nodes, {"first": first, "bias": bias, "second": second}, 16, 16)
    quantize_graph(model)
    assert [node.op_type for node in model.graph].count("Reshape") == 2  # to rows, and back at the end
    alone = build_model([helper.make_node(activation, ["x"], ["y"])], {}, WIDTH, WIDTH)
    hidden = run_model(alone, by_formula(x, first, None) + bias)
    np.testing.assert_allclose(run_model(model, x), by_formula(hidden, second, low), atol=0.1, rtol=0.02)


def text_inputs(*rows: list[int]) -> dict[str, NDArray[np.int64]]:
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("kind", [INT8, FP16], ids=["int8", "fp16"])
def test_low_precision_points_the_same_way(exported: Exported, kind: object) -> None:
    rng = np.random.default_rng(0)
    inputs = text_inputs(*(rng.integers(1000, size=length).tolist() for length in (1, 5, 17, 40)))
    found = load_run(exported.folder / kind.file)(inputs)  # type: ignore[attr-defined]
    expected = torch_run(exported.checkpoint.encoder, PLAIN)(inputs)
    limit = 0.995 if kind is INT8 else 0.9999
    for output in ("pooled_mean", "pooled_cls", "pooled_last"):
        assert found[output].dtype == np.float32
        assert cosine(found[output], expected[output]).min() >= limit


def test_an_int8_vector_does_not_depend_on_its_company(exported: Exported) -> None:
    run = load_run(exported.folder / INT8.file)
    rng = np.random.default_rng(1)
    text = rng.integers(1000, size=7).tolist()
    alone = run(text_inputs(text))
    company = [rng.integers(1000, size=length).tolist() for length in (60, 3, 33)]
    for place in (0, 2, 3):
        rows = [*company[:place], text, *company[place:]]
        together = run(text_inputs(*rows))
        for output in ("pooled_mean", "pooled_cls", "pooled_max", "pooled_last"):
            assert cosine(together[output][place], alone[output][0]) >= 0.999999


@pytest.mark.parametrize("kind", [INT8, FP16], ids=["int8", "fp16"])
def test_a_masked_row_gives_zeros_beside_a_good_one(exported: Exported, kind: object) -> None:
    run = load_run(exported.folder / kind.file)  # type: ignore[attr-defined]
    inputs = text_inputs([5, 6, 7], [8, 9, 10])
    inputs["attention_mask"][1] = 0
    outputs = run(inputs)
    for output in ("pooled_mean", "pooled_cls", "pooled_max", "pooled_last"):
        assert np.isfinite(outputs[output]).all()
        assert not outputs[output][1].any()


def test_the_int8_file_shares_the_embeddings(exported: Exported) -> None:
    def sizes(file: str) -> int:
        return (exported.folder / file).stat().st_size

    graph = onnx.load(exported.folder / INT8.file, load_external_data=False).graph
    external = [tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    assert any("embeddings.token" in tensor.name for tensor in external)
    assert sizes(INT8.file) < sizes("weights.fp32.bin")
    weights = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT8]
    assert len(weights) == 6 * exported.checkpoint.config.layer_count


def test_quantizing_leaves_no_product_in_float(exported: Exported, tmp_path: Path) -> None:
    graph = onnx.load(exported.folder / INT8.file, load_external_data=False).graph
    constant = {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in constant]
