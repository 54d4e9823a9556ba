"""An input's vectors depend on that input alone: not on its batch, on padding, or on what a mask hides."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import corpus
from e2e.oracle import BertOracle, assert_same, pool
from seqenc.v1 import encoder_pb2 as pb

POOLINGS = ("cls", "mean", "max", "last")
LONG = " ".join(corpus.sentences(5))
# Company of the same length, longer, shorter and of mixed lengths.
COMPANIES = {
    "longer": [LONG, LONG],
    "shorter": ["a", ""],
    "equal": ["ho", "go"],
    "mixed": ["hi there", LONG, "", "one two three four five six"],
    "ids": [[101, 7592, 102], {"ids": [101, 7592, 2088, 102], "attention_mask": [0, 1, 0, 1]}],
}
ROW = [101, 7592, 2088, 2003, 2307, 102, 2129, 102]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("company", COMPANIES.values(), ids=COMPANIES.keys())
@pytest.mark.parametrize("text", ["hi", LONG, ("hi", "there")], ids=["short", "long", "pair"])
def test_a_text_is_the_same_in_any_company(client: Any, text: Any, company: list[Any], pooling: Any) -> None:
    alone = client.encode([text], pooling=pooling).embeddings[0]
    for place in (0, len(company) // 2, len(company)):
        inputs: list[Any] = list(company)
        inputs.insert(place, text)
        assert_same(client.encode(inputs, pooling=pooling).embeddings[place], alone)


def test_rows_of_equal_length_keep_their_masks(client: Any) -> None:
    rows = [{"ids": ROW, "attention_mask": [1] * real + [0] * (8 - real)} for real in (8, 6, 5)]
    for pooling in POOLINGS:
        together = client.encode(rows, pooling=pooling).embeddings
        for vector, real in zip(together, (8, 6, 5), strict=True):
            assert_same(vector, client.encode([ROW[:real]], pooling=pooling).embeddings[0])


def test_texts_of_equal_length_are_the_same_together(client: Any) -> None:
    texts = ["red apples", "blue skies", "old books", "warm rain"]
    together = client.encode(texts)
    assert len({encoding.token_count for encoding in together.results}) == 1
    for text, vector in zip(texts, together.embeddings, strict=True):
        assert_same(vector, client.encode(text).embeddings[0])


@pytest.mark.parametrize("mask", ["00111111", "11101101", "01010101", "10000000", "00000001", "11111100"])
def test_masks_of_any_pattern_equal_transformers(client: Any, oracle: BertOracle, mask: str) -> None:
    content = {"ids": ROW, "attention_mask": list(map(int, mask))}
    reference = oracle(content)
    for inputs in ([content], [content, LONG]):
        for maps in (None, True):
            options = {"token_embeddings": True, "attention": maps, "normalize": False}
            result = client.encode(inputs, pooling="mean", **options)
            np.testing.assert_allclose(
                result.results[0].token_embeddings, reference.token_embeddings, atol=1e-4
            )
            assert_same(result.embeddings[0], pool(result.results[0].token_embeddings, "mean"))
        np.testing.assert_allclose(result.results[0].attention, reference.attention, atol=1e-5)


def test_nothing_masked_reaches_the_output(client: Any) -> None:
    mask = [1, 1, 0, 1, 0, 1, 0, 0]
    answers = []
    for filler in (0, 777, 30521):
        ids = [id if real else filler for id, real in zip(ROW, mask, strict=True)]
        content = {"ids": ids, "attention_mask": mask}
        answers.append(client.encode([content], token_embeddings=True, attention=True))
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.embeddings, answers[0].embeddings)
        for name in ("token_embeddings", "attention"):
            np.testing.assert_array_equal(
                getattr(answer.results[0], name), getattr(answers[0].results[0], name)
            )
    assert answers[0].results[0].attention.shape == (6, 12, 4, 4)


def test_a_fully_masked_row_is_refused_and_spoils_nothing(client: Any) -> None:
    masked = {"ids": ROW[:6], "attention_mask": [0] * 6}
    alone = client.encode([ROW]).embeddings[0]
    result = client.encode([ROW, masked, ROW], on_error="per_input")
    assert result.results[1].status.violations[0].field == "inputs[1].token_ids.attention_mask"
    assert np.isfinite(result.embeddings).all()
    assert not result.embeddings[1].any()
    assert_same(result.embeddings[0], alone)
    assert_same(result.embeddings[2], alone)


def test_token_embeddings_have_no_rows_of_padding(client: Any) -> None:
    texts = ["dog", "dog and cat"]
    result = client.encode(texts, token_embeddings=True, normalize=False)
    assert [len(encoding.token_embeddings) for encoding in result.results] == [3, 5]
    for text, encoding, pooled in zip(texts, result.results, result.embeddings, strict=True):
        (alone,) = client.encode(text, token_embeddings=True).results
        np.testing.assert_allclose(encoding.token_embeddings, alone.token_embeddings, atol=1e-5)
        assert_same(encoding.token_embeddings.mean(axis=0), pooled)


def test_columns_masked_in_every_row_change_nothing(client: Any) -> None:
    padded = [{"ids": ROW[::step], "attention_mask": [1] * 5 + [0] * 3} for step in (1, -1)]
    real = [row["ids"][:5] for row in padded]
    wanted = {"token_embeddings": True, "attention": True}
    answers = [client.encode(rows, **wanted) for rows in (padded, real)]
    for with_padding, without in zip(*(answer.results for answer in answers), strict=True):
        assert with_padding.token_embeddings.shape == (5, 384)
        assert with_padding.attention.shape == (6, 12, 5, 5)
        np.testing.assert_allclose(with_padding.token_embeddings, without.token_embeddings, atol=1e-5)
        np.testing.assert_allclose(with_padding.attention, without.attention, atol=1e-6)


def test_maps_of_a_padded_batch(client: Any) -> None:
    texts = ["dog", "the dog and the cat and the bird"]
    with_maps, without = client.encode(texts, attention=True), client.encode(texts)
    assert with_maps.precision == "fp32"
    assert_same(with_maps.embeddings, without.embeddings)
    for encoding in with_maps.results:
        assert encoding.attention.shape == (6, 12, encoding.token_count, encoding.token_count)
        np.testing.assert_allclose(encoding.attention.sum(axis=-1), 1, atol=1e-5)


def test_every_caller_gets_the_vectors_of_its_own_texts(client: Any) -> None:
    words = " ".join(corpus.sentences(8)).split()
    chooser = random.Random(0)
    texts = [
        [
            f"c{caller} item {index} {' '.join(words[: chooser.choice((0, 0, 0, 3, 9))])}"
            for index in range(490)
        ]
        for caller in range(4)
    ]
    for own in texts:
        own += own[:10]
        chooser.shuffle(own)
    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda own: client.encode(own).embeddings, texts))
    for own, vectors in zip(texts, answers, strict=True):
        places = range(0, 500, 25)
        alone = np.concatenate([client.encode(own[place]).embeddings for place in places])
        assert_same(vectors[list(places)], alone)
        assert_each_is_its_own(vectors, client.encode(own[::-1]).embeddings[::-1], own)


def assert_each_is_its_own(vectors: Any, expected: Any, texts: list[str]) -> None:
    """Row i equals row i, and no other but those of the same text."""
    assert_same(vectors, expected)
    nearest = (vectors @ expected.T).argmax(axis=1)
    assert [texts[place] for place in nearest] == texts


def test_requests_without_the_client_keep_their_order(stub: Any) -> None:
    texts = ["hi", LONG, "", "hi", "middle of the road"]
    request = pb.EncodeRequest(inputs=[pb.Sequence(text=text) for text in texts])
    response = stub.Encode(request)
    vectors = np.frombuffer(response.embeddings.data, "<f4").reshape(response.embeddings.shape)
    for vector, text in zip(vectors, texts, strict=True):
        alone = stub.Encode(pb.EncodeRequest(inputs=[pb.Sequence(text=text)])).embeddings
        assert_same(vector, np.frombuffer(alone.data, "<f4"))
