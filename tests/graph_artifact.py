"""An artifact made by hand in milliseconds: graphs that add token types to a table's rows and average."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

VOCABULARY_SIZE, HIDDEN_SIZE, LAYERS, HEADS = 50, 4, 2, 2
TABLE = np.random.default_rng(0).standard_normal((VOCABULARY_SIZE, HIDDEN_SIZE)).astype(np.float32)
WEIGHTS = "weights.fp32.bin"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def pooled_mean(ids: Any, mask: Any, types: Any) -> Any:
    """(B, S) each -> (B, D): what the graphs compute."""
    ids, mask, types = (np.asarray(values) for values in (ids, mask, types))
    embeddings = TABLE[ids] + types[..., None]
    return (embeddings * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def write_artifact(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(TABLE.tobytes())
    (folder / "tokenizer.json").write_text("{}")
    (folder / "selfcheck.json").write_text(json.dumps(_selfcheck()))
    graphs = [
        _write_graph(folder, "encoder.fused.onnx", "fused", maps=False),
        _write_graph(folder, "attention.fp32.onnx", "attention", maps=True),
    ]
    files = [_file(folder, name) for name in ("tokenizer.json", "selfcheck.json", WEIGHTS)]
    manifest = {
        "schema_version": 1,
        "name": "table",
        "revision": "0",
        "family": "bert",
        "hidden_size": HIDDEN_SIZE,
        "layer_count": LAYERS,
        "head_count": HEADS,
        "vocabulary_size": VOCABULARY_SIZE,
        "type_vocabulary_size": 2,
        "max_tokens": 16,
        "max_positions": 16,
        "pooling": "mean",
        "normalize": True,
        "prompts": {},
        "special_ids": {"pad": 0},
        "files": files,
        "graphs": graphs,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _selfcheck() -> dict[str, Any]:
    cases = []
    for ids, mask in (([7, 8, 9], [1, 1, 1]), ([5, 6], [0, 1]), ([4], [1])):
        types = [0] * len(ids)
        vector = pooled_mean([ids], [mask], [types])[0].tolist()
        cases.append(dict(zip((*INPUTS, "pooled_mean"), (ids, mask, types, vector), strict=True)))
    return {"min_cosine": {"fp32": 0.99999}, "cases": cases}


def _file(folder: Path, name: str) -> dict[str, str]:
    return {"file": name, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()}


def _write_graph(folder: Path, name: str, kind: str, *, maps: bool) -> dict[str, Any]:
    (folder / name).write_bytes(_build_model(maps=maps).SerializeToString())
    fidelity = {"worst_cosine": 1.0}
    description = {"precision": "fp32", "kind": kind, "external_data": [WEIGHTS], "fidelity": fidelity}
    return {**_file(folder, name), **description}


def _build_model(*, maps: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["types", "two"], ["type_column"]),
        helper.make_node("Add", ["rows", "type_column"], ["token_embeddings"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "two"], ["mask_column"]),
        helper.make_node("Mul", ["token_embeddings", "mask_column"], ["real_rows"]),
        helper.make_node("ReduceSum", ["real_rows", "one"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["pooled_mean"]),
    ]
    outputs = [_value("token_embeddings", ["B", "S", HIDDEN_SIZE]), _value("pooled_mean", ["B", HIDDEN_SIZE])]
    if maps:
        nodes += _map_nodes()
        outputs += [_value(f"attentions_{layer}", ["B", HEADS, "S", "S"]) for layer in range(LAYERS)]
    constants = {"one": [1], "two": [2], "one_and_two": [1, 2], "heads": [1, HEADS, 1, 1]}
    initializers = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "S"]) for name in INPUTS]
    graph = helper.make_graph(nodes, "table", inputs, outputs, [_table(), *initializers])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _map_nodes() -> list[onnx.NodeProto]:
    """The same attention from each token to every real one, in every layer and head."""
    nodes = [
        helper.make_node("Div", ["mask", "counts"], ["weights"]),
        helper.make_node("Unsqueeze", ["weights", "one_and_two"], ["weight_rows"]),
        helper.make_node("Unsqueeze", ["mask", "one"], ["mask_rows"]),
        helper.make_node("Unsqueeze", ["mask_rows", "two"], ["mask_maps"]),
        helper.make_node("Transpose", ["mask_maps"], ["queries"], perm=[0, 1, 3, 2]),
        helper.make_node("Mul", ["queries", "weight_rows"], ["map"]),
    ]
    tiles = [helper.make_node("Tile", ["map", "heads"], [f"attentions_{layer}"]) for layer in range(LAYERS)]
    return nodes + tiles


def _table() -> TensorProto:
    table = numpy_helper.from_array(TABLE, "table")
    external_data_helper.set_external_data(table, WEIGHTS, offset=0, length=TABLE.nbytes)
    table.ClearField("raw_data")
    return table


def _value(name: str, shape: list[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
