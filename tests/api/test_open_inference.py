"""ModelInfer gives what Encode gives, for every kind of input, output and parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from api.api_server import ApiServer
from api.tensors import Array, Values, infer_request, outputs_of
from seqenc.v1 import encoder_pb2 as pb

Inputs = Mapping[str, Values]
OUTPUTS = ("embedding", "token_embeddings", "attention_mask", "attentions")
TEXTS = ["The bank of the river was muddy.", "", "Hello world, what a long day!"]
PAIRS = ["", "Where is it?", "Over there."]
IDS = np.random.default_rng(0).integers(5, 1000, (3, 9))
HOLES = np.array([[1] * 9, [0, 0, 1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 1, 1, 1, 0, 0]])
LEFT = np.tri(3, 9, 6, dtype=np.int64)[:, ::-1].copy()
RIGHT = np.tri(3, 9, 4, dtype=np.int64)
TYPES = np.arange(27).reshape(3, 9) % 2
INPUTS: dict[str, Inputs] = {
    "text": {"text": TEXTS},
    "pairs": {"text": TEXTS, "text_pair": PAIRS},
    "ids": {"input_ids": IDS},
    "right padding": {"input_ids": IDS, "attention_mask": RIGHT},
    "left padding": {"input_ids": IDS, "attention_mask": LEFT},
    "holes": {"input_ids": IDS, "attention_mask": HOLES},
    "types": {"token_type_ids": TYPES, "input_ids": IDS},
    "types and holes": {"input_ids": IDS, "attention_mask": HOLES, "token_type_ids": TYPES},
    "one token": {"input_ids": IDS[:1, :1]},
    "32 bits": {"input_ids": IDS.astype(np.int32), "attention_mask": HOLES.astype(np.int32)},
    "32 and 64 bits": {"input_ids": IDS.astype(np.int32), "attention_mask": HOLES},
}
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
SUBSETS = [chosen for size in range(1, 5) for chosen in combinations(reversed(OUTPUTS), size)]


def sequences_of(inputs: Inputs) -> list[pb.Sequence]:
    """The same inputs for Encode."""
    if "text_pair" in inputs:
        pairs = zip(inputs["text"], inputs["text_pair"], strict=True)
        return [pb.Sequence(text_pair=pb.TextPair(first=first, second=second)) for first, second in pairs]
    if "text" in inputs:
        return [pb.Sequence(text=text) for text in inputs["text"]]
    arrays = {_FIELDS[name]: np.asarray(values) for name, values in inputs.items()}
    rows = (
        {name: values[row].tolist() for name, values in arrays.items()} for row in range(len(arrays["ids"]))
    )
    return [pb.Sequence(token_ids=pb.TokenIds(**row)) for row in rows]


def array_of(tensor: pb.Tensor) -> Array:
    return np.frombuffer(tensor.data, np.float32).reshape(tuple(tensor.shape))


def encode(server: ApiServer, inputs: Inputs, **options: Any) -> pb.EncodeResponse:
    request = pb.EncodeRequest(inputs=sequences_of(inputs), options=pb.EncodeOptions(**options))
    response: pb.EncodeResponse = server.encoder.Encode(request, timeout=30)
    return response


def infer(server: ApiServer, inputs: Inputs, outputs: Iterable[str] = (), **rest: Any) -> dict[str, Array]:
    return outputs_of(server.inference.ModelInfer(infer_request(inputs, outputs, **rest), timeout=30))


def expected_mask(inputs: Inputs, encoded: pb.EncodeResponse) -> Array:
    if "attention_mask" in inputs:
        return np.asarray(inputs["attention_mask"], np.int64)
    counts = np.array([result.token_count for result in encoded.results])
    return (np.arange(counts.max()) < counts[:, None]).astype(np.int64)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_of_input_gives_what_encode_gives(server: ApiServer, kind: str, raw: bool) -> None:
    inputs = INPUTS[kind]
    outputs = infer(server, inputs, OUTPUTS, raw=raw)
    encoded = encode(server, inputs, token_embeddings=True, attention=pb.AttentionOptions())
    mask = expected_mask(inputs, encoded)
    rows, width = mask.shape
    np.testing.assert_array_equal(outputs["attention_mask"], mask)
    np.testing.assert_allclose(outputs["embedding"], array_of(encoded.embeddings), atol=1e-6)
    assert outputs["token_embeddings"].shape == (rows, width, 32)
    assert outputs["attentions"].shape == (rows, 2, 2, width, width)
    for row, result in enumerate(encoded.results):
        real = mask[row] == 1
        tokens, maps = outputs["token_embeddings"][row], outputs["attentions"][row]
        np.testing.assert_allclose(tokens[real], array_of(result.token_embeddings), atol=1e-5)
        np.testing.assert_allclose(maps[:, :, real][..., real], array_of(result.attention), atol=1e-6)
        assert not tokens[~real].any()
        assert not maps[:, :, ~real].any()
        assert not maps[..., ~real].any()


def test_what_is_behind_the_mask_changes_nothing(server: ApiServer) -> None:
    other = np.where(HOLES == 1, IDS, 999)
    outputs = infer(server, {"input_ids": IDS, "attention_mask": HOLES}, OUTPUTS)
    changed = infer(server, {"input_ids": other, "attention_mask": HOLES}, OUTPUTS)
    for name, values in outputs.items():
        np.testing.assert_allclose(changed[name], values, atol=1e-6)


@pytest.mark.parametrize("chosen", SUBSETS, ids=["+".join(chosen) for chosen in SUBSETS])
def test_only_the_outputs_asked_for_come_and_are_computed(server: ApiServer, chosen: tuple[str, ...]) -> None:
    every = infer(server, INPUTS["holes"], OUTPUTS)
    server.engine.runs.clear()
    outputs = infer(server, INPUTS["holes"], chosen)
    implied = ["attention_mask"] if "token_embeddings" in chosen and "attention_mask" not in chosen else []
    assert list(outputs) == [*chosen, *implied]
    for name, values in outputs.items():
        np.testing.assert_allclose(values, every[name], atol=1e-5)
    for graph, names in server.engine.runs:
        assert graph == ("attention" if "attentions" in chosen else "encoder")
        assert ("token_embeddings" in names) == ("token_embeddings" in chosen)
        assert ("pooled_mean" in names) == ("embedding" in chosen)


def test_asking_for_nothing_means_the_embedding(server: ApiServer) -> None:
    outputs = infer(server, {"text": TEXTS})
    assert list(outputs) == ["embedding"]
    np.testing.assert_allclose(
        outputs["embedding"], array_of(encode(server, {"text": TEXTS}).embeddings), atol=1e-6
    )


LONG = {"text": ["one two three " * 40 + "four five six"]}


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"pooling": "cls"}, {"pooling": pb.POOLING_CLS}),
        ({"pooling": "mean"}, {"pooling": pb.POOLING_MEAN}),
        ({"pooling": "max"}, {"pooling": pb.POOLING_MAX}),
        ({"pooling": "last"}, {"pooling": pb.POOLING_LAST}),
        ({"normalize": True}, {"normalize": True}),
        ({"normalize": False}, {"normalize": False}),
        ({"dimensions": 5}, {"dimensions": 5}),
        (
            {"dimensions": 5, "normalize": True, "pooling": "max"},
            {"dimensions": 5, "normalize": True, "pooling": 4},
        ),
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"prompt_name": "passage", "pooling": "cls"}, {"prompt_name": "passage", "pooling": pb.POOLING_CLS}),
        ({"truncation": "error"}, {}),
    ],
    ids=str,
)
def test_a_parameter_is_the_option_of_that_name(
    server: ApiServer, parameters: dict[str, bool | int | str], options: dict[str, Any]
) -> None:
    outputs = infer(server, {"text": TEXTS}, parameters=parameters)
    expected = array_of(encode(server, {"text": TEXTS}, **options).embeddings)
    np.testing.assert_allclose(outputs["embedding"], expected, atol=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_takes_either_side(server: ApiServer, side: str) -> None:
    outputs = infer(server, LONG, OUTPUTS, parameters={"truncation": side})
    options = {"truncation": pb.Truncation.Value(f"TRUNCATION_{side.upper()}")}
    expected = encode(server, LONG, **options, token_embeddings=True)
    np.testing.assert_allclose(outputs["embedding"], array_of(expected.embeddings), atol=1e-6)
    assert outputs["attention_mask"].shape == (1, 64)
    tokens = array_of(expected.results[0].token_embeddings)
    np.testing.assert_allclose(outputs["token_embeddings"][0], tokens, atol=1e-5)


def test_the_two_sides_differ(server: ApiServer) -> None:
    right, left = (
        infer(server, LONG, parameters={"truncation": side})["embedding"] for side in ("right", "left")
    )
    assert np.abs(right - left).max() > 1e-3


def test_the_response_names_model_revision_and_id(server: ApiServer) -> None:
    request = infer_request({"text": TEXTS}, model_name="tiny-bert", id="call 7")
    response = server.inference.ModelInfer(request, timeout=30)
    model = server.pipeline.model
    assert (response.model_name, response.model_version, response.id) == (
        "tiny-bert",
        model.revision,
        "call 7",
    )


def test_the_revision_may_be_given(server: ApiServer) -> None:
    request = infer_request({"text": TEXTS}, model_version=server.pipeline.model.revision)
    assert "embedding" in outputs_of(server.inference.ModelInfer(request, timeout=30))
