"""Attention maps over the wire: chosen, reduced and narrowed as asked, against transformers and NumPy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from api.api_server import ApiServer
from api.conftest import ServeApi
from api.refusals import refusal_of
from api.tensors import infer_request
from e2e.oracle import BertOracle, Content, Reference
from seqenc.v1 import encoder_pb2 as pb
from service.api.inference import open_inference_pb2 as inference
from service.errors import StartError

Array = NDArray[Any]
LAYERS, HEADS = 2, 2
IDS = list(range(40, 52))
CONTENTS: dict[str, Content] = {
    "text": "The bank of the river was muddy.",
    "one token": {"ids": [7]},
    "pair": ("Where is the bank?", "Over there, by the river."),
    "ids": {"ids": IDS},
    "right padding": {"ids": IDS, "attention_mask": [1] * 5 + [0] * 7},
    "left padding": {"ids": IDS, "attention_mask": [0] * 5 + [1] * 7},
    "holes": {"ids": IDS, "attention_mask": [1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0], "type_ids": [0, 1] * 6},
}
NONE, MEAN_HEADS, ROLLOUT = (
    pb.ATTENTION_REDUCTION_NONE,
    pb.ATTENTION_REDUCTION_MEAN_HEADS,
    pb.ATTENTION_REDUCTION_ROLLOUT,
)


@pytest.fixture(scope="module")
def references(tiny_bert: Path) -> list[Reference]:
    """Of CONTENTS."""
    return BertOracle(tiny_bert).all(list(CONTENTS.values()))


def sequence_of(content: Content) -> pb.Sequence:
    if isinstance(content, str):
        return pb.Sequence(text=content)
    if isinstance(content, tuple):
        return pb.Sequence(text_pair=pb.TextPair(first=content[0], second=content[1]))
    return pb.Sequence(token_ids=pb.TokenIds(**content))


def encode(server: ApiServer, attention: pb.AttentionOptions | None, **options: Any) -> pb.EncodeResponse:
    """CONTENTS, in one call."""
    sent = pb.EncodeOptions(attention=attention, **options)
    request = pb.EncodeRequest(inputs=map(sequence_of, CONTENTS.values()), options=sent)
    response: pb.EncodeResponse = server.encoder.Encode(request, timeout=30)
    return response


def maps_of(response: pb.EncodeResponse) -> list[Array]:
    dtypes = {pb.DATA_TYPE_FLOAT32: np.float32, pb.DATA_TYPE_FLOAT16: np.float16}
    tensors = [result.attention for result in response.results]
    return [np.frombuffer(t.data, dtypes[t.type]).reshape(tuple(t.shape)) for t in tensors]


def assert_equal(found: Sequence[Array], expected: Sequence[Array], atol: float = 1e-5) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=atol)
        np.testing.assert_allclose(ours.astype(np.float64).sum(axis=-1), 1, atol=1e-5 + 40 * atol)


def rollout(maps: Array, heads: list[int]) -> Array:
    """Abnar and Zuidema 2020, of all layers of `maps` (L, H, n, n), in double precision."""
    length = maps.shape[-1]
    residual = [(layer[heads].astype(float).mean(0) + np.identity(length)) / 2 for layer in maps]
    rows = [layer / layer.sum(-1)[:, None] for layer in residual]
    return np.asarray(reduce(lambda below, layer: layer @ below, rows, np.identity(length)))[None, None]


@pytest.mark.parametrize("heads", [[], [0], [1], [-1], [-1, 0], [-2, -1], [1, 0]], ids=str)
@pytest.mark.parametrize("layers", [[], [0], [1], [-1], [-1, 0], [0, -1], [1, -2]], ids=str)
def test_layers_and_heads_come_in_the_order_asked(
    server: ApiServer, references: list[Reference], layers: list[int], heads: list[int]
) -> None:
    response = encode(server, pb.AttentionOptions(layers=layers, heads=heads))
    chosen = np.ix_(layers or range(LAYERS), heads or range(HEADS))
    assert_equal(maps_of(response), [reference.attention[chosen] for reference in references])
    assert response.precision == "fp32"


@pytest.mark.parametrize("heads", [[], [1], [-2]], ids=str)
@pytest.mark.parametrize("layers", [[], [1, 0]], ids=str)
def test_mean_over_the_chosen_heads(
    server: ApiServer, references: list[Reference], layers: list[int], heads: list[int]
) -> None:
    options = pb.AttentionOptions(layers=layers, heads=heads, reduction=MEAN_HEADS)
    chosen = np.ix_(layers or range(LAYERS), heads or range(HEADS))
    expected = [reference.attention[chosen].mean(axis=1, keepdims=True) for reference in references]
    assert_equal(maps_of(encode(server, options)), expected)


@pytest.mark.parametrize("heads", [[], [0], [-1, 0]], ids=str)
@pytest.mark.parametrize("layers", [[], [0, 1], [1, 0], [-1, -2], [0], [-1]], ids=str)
def test_rollout_goes_up_the_chosen_layers(
    server: ApiServer, references: list[Reference], layers: list[int], heads: list[int]
) -> None:
    options = pb.AttentionOptions(layers=layers, heads=heads, reduction=ROLLOUT)
    ascending = sorted(layer % LAYERS for layer in layers) or list(range(LAYERS))
    expected = [rollout(r.attention[ascending], heads or list(range(HEADS))) for r in references]
    assert_equal(maps_of(encode(server, options)), expected)


@pytest.mark.parametrize("reduction", [NONE, MEAN_HEADS, ROLLOUT], ids=pb.AttentionReduction.Name)
def test_float16_is_the_float32_map_rounded(server: ApiServer, reduction: int) -> None:
    wide = maps_of(encode(server, pb.AttentionOptions(reduction=reduction)))  # type: ignore[arg-type]
    options = pb.AttentionOptions(reduction=reduction, type=pb.DATA_TYPE_FLOAT16)  # type: ignore[arg-type]
    narrow = maps_of(encode(server, options))
    assert {maps.dtype for maps in narrow} == {np.dtype(np.float16)}
    for ours, rounded in zip(narrow, wide, strict=True):
        np.testing.assert_allclose(ours, rounded, rtol=2**-10, atol=1e-6)


def test_rows_of_maps_are_real_tokens_only(server: ApiServer) -> None:
    response = encode(server, pb.AttentionOptions())
    shapes = [tuple(result.attention.shape) for result in response.results]
    assert shapes == [(LAYERS, HEADS, result.token_count, result.token_count) for result in response.results]
    assert [result.token_count for result in response.results][3:] == [12, 5, 7, 7]


@pytest.mark.parametrize("pooling", [pb.POOLING_CLS, pb.POOLING_MEAN, pb.POOLING_MAX, pb.POOLING_LAST])
def test_vectors_are_the_same_with_maps_and_without(server: ApiServer, pooling: int) -> None:
    options: dict[str, Any] = {"pooling": pooling, "token_embeddings": True}
    with_maps = encode(server, pb.AttentionOptions(), **options)
    without = encode(server, None, **options)
    for first, second in zip(tensors_of(with_maps), tensors_of(without), strict=True):
        assert first.shape == second.shape
        found, expected = np.frombuffer(first.data, np.float32), np.frombuffer(second.data, np.float32)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def tensors_of(response: pb.EncodeResponse) -> list[pb.Tensor]:
    """The pooled vectors and every input's token embeddings."""
    return [response.embeddings, *(result.token_embeddings for result in response.results)]


def test_only_the_chosen_layers_leave_the_graph(server: ApiServer) -> None:
    encode(server, pb.AttentionOptions(layers=[-1], heads=[0]), pooling=pb.POOLING_MAX)
    encode(server, None)
    with_maps = [run for run in server.engine.runs if run[0] == "attention"]
    assert {names for _, names in with_maps} == {("attentions_1", "pooled_max")}
    assert {names for graph, names in server.engine.runs if graph == "encoder"} == {("pooled_mean",)}


REFUSED: dict[str, tuple[pb.AttentionOptions, str]] = {
    "layer too high": (pb.AttentionOptions(layers=[0, 2]), "options.attention.layers[1]"),
    "layer too low": (pb.AttentionOptions(layers=[-3]), "options.attention.layers[0]"),
    "head too high": (pb.AttentionOptions(heads=[2]), "options.attention.heads[0]"),
    "layer twice": (pb.AttentionOptions(layers=[1, 1]), "options.attention.layers[1]"),
    "layer twice, once negative": (pb.AttentionOptions(layers=[1, -1]), "options.attention.layers[1]"),
    "head twice, once negative": (pb.AttentionOptions(heads=[-2, 0]), "options.attention.heads[1]"),
    "more than there are": (pb.AttentionOptions(heads=[0, 1, 0]), "options.attention.heads"),
    "a million": (pb.AttentionOptions(layers=[0] * 1_000_000), "options.attention.layers"),
    "int8": (pb.AttentionOptions(type=pb.DATA_TYPE_INT8), "options.attention.type"),
    "bfloat16": (pb.AttentionOptions(type=pb.DATA_TYPE_BFLOAT16), "options.attention.type"),
    "no such type": (pb.AttentionOptions(type=77), "options.attention.type"),  # type: ignore[arg-type]
    "no such reduction": (pb.AttentionOptions(reduction=-1), "options.attention.reduction"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("attention", "field"), REFUSED.values(), ids=REFUSED)
def test_bad_options_are_refused(server: ApiServer, attention: pb.AttentionOptions, field: str) -> None:
    options = pb.EncodeOptions(attention=attention)
    request = pb.EncodeRequest(inputs=[pb.Sequence(text="a")], options=options)
    refusal = refusal_of(server.encoder.Encode, request)
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.fields == [field]
    assert server.engine.runs == []


def test_a_server_without_maps_does_not_load_their_graph(
    serve: ServeApi, tiny_artifact: Path, tmp_path: Path
) -> None:
    artifact = tmp_path / "tiny-bert"
    shutil.copytree(tiny_artifact, artifact)
    (artifact / "attention.fp32.onnx").unlink()
    with pytest.raises(StartError, match=r"attention\.fp32\.onnx"), serve(artifact):
        pass
    with serve(artifact, attention_maps=False) as server:
        assert not server.encoder.GetModel(pb.GetModelRequest()).model.attention_maps
        metadata = server.inference.ModelMetadata(inference.ModelMetadataRequest())
        assert "attentions" not in [output.name for output in metadata.outputs]
        assert encode(server, None).precision == "fp32"


def test_a_server_without_maps_says_so(serve: ServeApi) -> None:
    options = pb.EncodeOptions(attention=pb.AttentionOptions())
    request = pb.EncodeRequest(inputs=[pb.Sequence(text="a")], options=options)
    with serve(attention_maps=False) as server:
        refusals = [
            refusal_of(server.encoder.Encode, request),
            refusal_of(server.inference.ModelInfer, infer_request({"text": ["a"]}, ["attentions"])),
        ]
        assert server.engine.runs == []
    for refusal in refusals:
        assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "NO_ATTENTION_MAPS")


def test_a_server_with_maps_says_so(server: ApiServer) -> None:
    assert server.encoder.GetModel(pb.GetModelRequest()).model.attention_maps
