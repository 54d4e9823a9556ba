"""Every option agrees with NumPy on transformers' outputs, for 100 texts, pairs, and ids with any mask."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpus
from e2e.oracle import BertOracle, Content, Reference, assert_same, cosines, normalize
from e2e.server_process import start_server
from seqenc import AsyncClient, Client, InvalidInputError, ReplyTooLargeError

POOLINGS = ("cls", "mean", "max", "last")
TEXTS = [sentence for sentence in corpus.sentences(600) if len(sentence) < 120][:100]


def ids_with_holes(seed: int) -> dict[str, list[int]]:
    random = np.random.default_rng(seed)
    length = int(random.integers(1, 40))
    mask = random.integers(0, 2, length)
    mask[random.integers(0, length)] = 1
    return {
        "ids": random.integers(0, 30522, length).tolist(),
        "attention_mask": mask.tolist(),
        "type_ids": random.integers(0, 2, length).tolist(),
    }


def mixed_contents() -> list[Content]:
    pairs = zip(TEXTS[40:60] + [""] * 5 + TEXTS[:8], TEXTS[60:85] + [""] * 8, strict=True)
    rows = [ids_with_holes(seed) for seed in range(33)]
    contents: list[Content] = [*TEXTS[:34], *pairs, *rows]
    order = np.random.default_rng(1).permutation(len(contents))
    return [contents[place] for place in order]


CONTENTS = mixed_contents()
IS_TEXT = np.array([not isinstance(content, dict) for content in CONTENTS])


@pytest.fixture(scope="module")
def references(oracle: BertOracle) -> list[Reference]:
    """Of CONTENTS."""
    return oracle.all(CONTENTS)


@pytest.fixture(scope="module")
def pooled(references: list[Reference]) -> Callable[[str], Any]:
    """Not normalised, of CONTENTS."""
    return lambda pooling: np.stack([reference.pooled(pooling) for reference in references])


def test_there_are_100_of_three_kinds() -> None:
    assert len(CONTENTS) == 100
    assert {type(content) for content in CONTENTS} == {str, tuple, dict}


@pytest.mark.parametrize("length", [None, True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_and_length(client: Any, pooled: Any, pooling: Any, length: bool | None) -> None:
    vectors = client.encode(CONTENTS, pooling=pooling, normalize=length).embeddings
    expected = pooled(pooling)
    assert_same(vectors, expected if length is False else normalize(expected))


@pytest.mark.parametrize(
    ("dimensions", "length"), [(1, False), (8, True), (100, True), (100, False), (384, True)]
)
def test_dimensions_are_cut_then_normalised(client: Any, pooled: Any, dimensions: int, length: bool) -> None:
    vectors = client.encode(CONTENTS, dimensions=dimensions, normalize=length).embeddings
    expected = pooled("mean")[:, :dimensions]
    np.testing.assert_allclose(vectors, normalize(expected) if length else expected, atol=1e-5)


@pytest.mark.parametrize(("dimensions", "length"), [(None, True), (64, False)])
class TestTypes:
    def expected(self, pooled: Any, dimensions: int | None, length: bool) -> Any:
        cut = pooled("mean")[:, :dimensions]
        return normalize(cut) if length else cut

    @pytest.mark.parametrize(("name", "unit"), [("float16", 2**-11), ("bfloat16", 2**-8)])
    def test_rounded(
        self, client: Any, pooled: Any, dimensions: int | None, length: bool, name: Any, unit: float
    ) -> None:
        result = client.encode(CONTENTS, embedding_type=name, dimensions=dimensions, normalize=length)
        expected = self.expected(pooled, dimensions, length)
        np.testing.assert_allclose(result.embeddings.astype(np.float32), expected, rtol=unit, atol=1e-5)

    def test_int8(self, client: Any, pooled: Any, dimensions: int | None, length: bool) -> None:
        result = client.encode(CONTENTS, embedding_type="int8", dimensions=dimensions, normalize=length)
        expected = self.expected(pooled, dimensions, length)
        assert result.embeddings.dtype == np.int8
        restored = result.embeddings * result.embedding_scales[:, None]
        assert cosines(restored[IS_TEXT], expected[IS_TEXT]).min() >= 0.9999
        # Random ids can have one dimension 18 times as large as the rest, which then has few steps left.
        assert cosines(restored, expected).min() >= 0.999
        np.testing.assert_allclose(result.embedding_scales, np.abs(expected).max(axis=1) / 127, atol=1e-5)
        assert (np.abs(restored - expected) <= result.embedding_scales[:, None] * 0.5 + 1e-5).all()
        assert [encoding.embedding_scale for encoding in result.results] == result.embedding_scales.tolist()

    def test_ubinary(self, client: Any, pooled: Any, dimensions: int | None, length: bool) -> None:
        result = client.encode(CONTENTS, embedding_type="ubinary", dimensions=dimensions, normalize=length)
        expected = self.expected(pooled, dimensions, length)
        assert result.embeddings.dtype == np.uint8
        assert result.embeddings.shape == (100, expected.shape[1] // 8)
        clear = np.abs(expected) > 1e-5
        signs = np.unpackbits(result.embeddings, axis=1).astype(bool)
        np.testing.assert_array_equal(signs[clear], (expected > 0)[clear])
        assert clear.mean() > 0.99


def test_token_embeddings_are_whole_whatever_else_is_asked(client: Any, references: list[Reference]) -> None:
    options = {"dimensions": 8, "normalize": True, "embedding_type": "int8"}
    for extra in ({}, {"pooling": "none"}, options):
        result = client.encode(CONTENTS, token_embeddings=True, **extra)
        assert (result.embeddings is None) == (extra.get("pooling") == "none")
        for encoding, reference in zip(result.results, references, strict=True):
            assert encoding.token_count == len(reference.ids)
            assert encoding.token_embeddings.dtype == np.float32
            np.testing.assert_allclose(encoding.token_embeddings, reference.token_embeddings, atol=1e-4)


def test_tokens_are_those_encoded(client: Any, oracle: BertOracle, references: list[Reference]) -> None:
    result = client.encode(CONTENTS, tokens=True)
    assert [encoding.tokens for encoding in result.results] == [
        seen.tokens for seen in client.tokenize(CONTENTS)
    ]
    for content, encoding, reference in zip(CONTENTS, result.results, references, strict=True):
        tokens = encoding.tokens
        assert [token.id for token in tokens] == reference.ids
        assert [token.text for token in tokens] == oracle.tokenizer.convert_ids_to_tokens(reference.ids)
        if isinstance(content, dict):
            real = np.array(content["type_ids"])[np.array(content["attention_mask"]) == 1]
            assert [token.segment for token in tokens] == real.tolist()
            assert all((token.start, token.end) == (0, 0) for token in tokens)
        else:
            texts = (content,) if isinstance(content, str) else content
            for token in tokens:
                piece = texts[token.segment][token.start : token.end]
                assert token.special or piece.lower() == token.text.removeprefix("##")


@pytest.mark.parametrize("prompt", ["query: ", "  été, "])
def test_a_literal_prompt_is_put_in_front(client: Any, oracle: BertOracle, prompt: str) -> None:
    def prompted(content: Content) -> Content:
        if isinstance(content, str):
            return prompt + content
        return (prompt + content[0], content[1]) if isinstance(content, tuple) else content

    expected = oracle.all([prompted(content) for content in CONTENTS])
    result = client.encode(CONTENTS, prompt=prompt, tokens=True, normalize=False)
    assert_same(result.embeddings, np.stack([reference.pooled("mean") for reference in expected]))
    for content, encoding in zip(CONTENTS, result.results, strict=True):
        own = [token for token in encoding.tokens if token.segment == 0 and not token.special]
        in_prompt = [token for token in encoding.tokens if token.segment == -1]
        assert all(0 <= token.start <= token.end <= len(prompt) for token in in_prompt)
        assert bool(in_prompt) == (not isinstance(content, dict))
        if isinstance(content, str):
            assert all(content[t.start : t.end].lower() == t.text.removeprefix("##") for t in own)


def test_prompts_have_names_and_one_may_be_the_default(tiny_artifact: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_artifact, tmp_path / "prompted"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"prompts": {"query": "find the ", "passage": ""}, "default_prompt_name": "query"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    texts = ["word", "and the other"]
    with start_server(folder) as server, Client(server.grpc_address) as connected:
        client: Any = connected
        assert client.model().prompts == manifest["prompts"]
        plain = client.encode(texts, prompt_name="passage").embeddings
        queries = client.encode(texts, prompt="find the ").embeddings
        assert_same(client.encode(texts, prompt_name="query").embeddings, queries)
        assert_same(client.encode(texts).embeddings, queries)
        assert_same(
            client.encode([f"find the {text}" for text in texts], prompt_name="passage").embeddings, queries
        )
        assert np.abs(plain - queries).max() > 0.01
        with pytest.raises(InvalidInputError, match="passage, query"):
            client.encode(texts, prompt_name="document")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [4, 17])
def test_max_tokens_and_truncation(client: Any, oracle: BertOracle, side: Any, limit: int) -> None:
    texts = [content for content in CONTENTS if isinstance(content, str)]
    bodies = [oracle.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    room = limit - 2
    kept = [body[:room] if side == "right" else body[-room:] for body in bodies]
    expected = oracle.all([{"ids": [101, *body, 102]} for body in kept])
    result = client.encode(texts, max_tokens=limit, truncation=side, normalize=False)
    assert_same(result.embeddings, np.stack([reference.pooled("mean") for reference in expected]))
    assert [encoding.truncated for encoding in result.results] == [len(body) > room for body in bodies]


def test_max_tokens_does_not_bind_ids_of_the_caller(client: Any, references: list[Reference]) -> None:
    rows = [(c, r) for c, r in zip(CONTENTS, references, strict=True) if isinstance(c, dict)]
    result = client.encode([content for content, _ in rows], max_tokens=3, normalize=False)
    assert_same(result.embeddings, np.stack([reference.pooled("mean") for _, reference in rows]))
    assert not any(encoding.truncated for encoding in result.results)


@pytest.mark.parametrize(
    ("layers", "heads", "reduction"),
    [
        ([], [3], None),
        ([-1], [], None),
        ([2, 0], [-1, 0, 7], None),
        ([4], [], "mean_heads"),
        ([3, -6], [5, -2], "mean_heads"),
    ],
)
def test_attention_of_chosen_layers_and_heads(
    client: Any, references: list[Reference], layers: list[int], heads: list[int], reduction: Any
) -> None:
    chosen = {"layers": layers, "heads": heads, "reduction": reduction}
    result = client.encode(CONTENTS, attention=chosen)
    for encoding, reference in zip(result.results, references, strict=True):
        expected = reference.attention[layers or slice(None)][:, heads or slice(None)]
        if reduction:
            expected = expected.mean(axis=1, keepdims=True)
        assert encoding.attention.shape == expected.shape
        np.testing.assert_allclose(encoding.attention, expected, atol=1e-5)


@pytest.mark.parametrize(("layers", "heads"), [([], []), ([4, 1, 3], [0, 5]), ([-1], [])])
def test_attention_rollout(
    client: Any, references: list[Reference], layers: list[int], heads: list[int]
) -> None:
    result = client.encode(CONTENTS, attention={"layers": layers, "heads": heads, "reduction": "rollout"})
    for encoding, reference in zip(result.results, references, strict=True):
        count = len(reference.ids)
        rollout = np.eye(count)
        for layer in sorted(layer % 6 for layer in layers or range(6)):
            mixed = reference.attention[layer][heads or slice(None)].mean(axis=0) + np.eye(count)
            rollout = mixed / mixed.sum(axis=1, keepdims=True) @ rollout
        assert encoding.attention.shape == (1, 1, count, count)
        np.testing.assert_allclose(encoding.attention[0, 0], rollout, atol=1e-5)
        np.testing.assert_allclose(encoding.attention.sum(axis=-1), 1, atol=1e-5)


def test_attention_in_float16(client: Any, references: list[Reference]) -> None:
    result = client.encode(CONTENTS, attention={"layers": [3], "type": "float16"})
    assert result.precision == "fp32"
    for encoding, reference in zip(result.results, references, strict=True):
        assert encoding.attention.dtype == np.float16
        expected = reference.attention[3:4].astype(np.float32)
        np.testing.assert_allclose(encoding.attention, expected, rtol=2**-11, atol=1e-5)


def test_bad_inputs_leave_the_good_ones_right(client: Any, pooled: Any) -> None:
    bad = [{"ids": [30522]}, "word " * 300, [], {"ids": [5], "attention_mask": [0]}]
    inputs: list[Any] = list(CONTENTS)
    places = (0, 17, 60, 103)
    for place, content in zip(places, bad, strict=True):
        inputs.insert(place, content)
    result = client.encode(inputs, on_error="per_input", tokens=True, embedding_type="int8", normalize=False)
    good = [place for place in range(104) if place not in places]
    restored = result.embeddings * result.embedding_scales[:, None]
    assert cosines(restored[good], pooled("mean")).min() >= 0.999
    assert not result.embeddings[list(places)].any()
    for place, encoding in enumerate(result.results):
        assert (encoding.status is not None) == (place in places)
        assert bool(encoding.tokens) == (place not in places)
        if encoding.status:
            assert encoding.status.violations[0].field.startswith(f"inputs[{place}].")
            assert encoding.embedding is None
    with pytest.raises(InvalidInputError):
        client.encode(inputs)


def test_priority_changes_no_vector(client: Any, pooled: Any) -> None:
    for priority in (-3, 3):
        assert_same(client.encode(CONTENTS, priority=priority).embeddings, normalize(pooled("mean")))


def test_timing_and_request_id(client: Any) -> None:
    result = client.encode(CONTENTS, request_id="a-b-c")
    assert result.request_id == "a-b-c"
    timing = result.timing
    parts = timing.tokenize_s, timing.queue_s, timing.inference_s
    assert min(parts) > 0
    assert sum(parts) <= timing.total_s


def test_the_model_is_true_in_every_field(client: Any, default_artifact: Path) -> None:
    manifest = json.loads((default_artifact / "manifest.json").read_text())
    model = client.model()
    for name in ("name", "revision", "family", "hidden_size", "layer_count", "head_count", "vocabulary_size"):
        assert getattr(model, name) == manifest[name]
    for name in ("max_tokens", "max_positions", "pooling", "normalize", "prompts"):
        assert getattr(model, name) == manifest[name]
    assert (model.embedding_size, model.precision, model.attention_maps) == (384, "fp32", True)
    assert (model.provider, model.max_input_count, model.max_message_bytes) == (
        "CPUExecutionProvider",
        2048,
        64 << 20,
    )
    assert 0.99999 < model.fidelity <= 1.000001
    result = client.encode("a")
    assert (result.model, result.revision, result.precision) == (model.name, model.revision, model.precision)


@pytest.mark.parametrize("pooling", ["none", "last"])
@pytest.mark.parametrize("kind", ["float32", "ubinary"])
def test_options_do_not_meddle_with_each_other(
    client: Any, references: list[Reference], pooling: Any, kind: Any
) -> None:
    one_map = {"layers": [1], "heads": [2]}
    for tokens, states, maps in product((False, True), (False, True), (None, one_map)):
        if pooling == "none" and (kind != "float32" or not (tokens or states or maps)):
            continue
        wanted = {"tokens": tokens, "token_embeddings": states, "attention": maps}
        result = client.encode(CONTENTS[:10], pooling=pooling, embedding_type=kind, **wanted)
        assert (result.embeddings is None) == (pooling == "none")
        for encoding, reference in zip(result.results, references[:10], strict=True):
            assert bool(encoding.tokens) == tokens
            assert (encoding.token_embeddings is not None) == states
            assert (encoding.attention is not None) == bool(maps)
            if maps:
                np.testing.assert_allclose(encoding.attention[0, 0], reference.attention[1, 2], atol=1e-5)


def test_a_list_whose_reply_is_too_large_is_sent_in_parts(tiny_artifact: Path) -> None:
    texts = [f"the bank of the river {number}" for number in range(300)]
    with (
        start_server(tiny_artifact, "--max-message-bytes", "65536") as server,
        Client(server.grpc_address, deadline_s=60) as client,
    ):
        whole = client.encode(texts, token_embeddings=True)
        for place in (0, 150, 299):
            alone = client.encode(texts[place], token_embeddings=True)
            np.testing.assert_allclose(whole.embeddings[place], alone.embeddings[0], atol=1e-5)
        with pytest.raises(ReplyTooLargeError):
            client.encode(
                "bank " * 60, attention=True, max_tokens=64, truncation="right", token_embeddings=True
            )
    assert len(whole.results) == len(texts)
    assert sum(encoding.token_embeddings.nbytes for encoding in whole.results) > 65536


async def test_the_async_client_sends_it_in_parts_too(tiny_artifact: Path) -> None:
    texts = [f"the bank of the river {number}" for number in range(300)]
    with start_server(tiny_artifact, "--max-message-bytes", "65536") as server:
        async with AsyncClient(server.grpc_address, deadline_s=60) as client:
            whole = await client.encode(texts, token_embeddings=True)
            alone = await client.encode(texts[299], token_embeddings=True)
    assert len(whole.results) == len(texts)
    np.testing.assert_allclose(whole.embeddings[299], alone.embeddings[0], atol=1e-5)
