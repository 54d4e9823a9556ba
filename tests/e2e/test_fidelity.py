"""The served numbers are those of the model: transformers for BERT, PyTorch for encoders of our own."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpus
import tiny_models
from e2e.oracle import BertOracle, assert_same, cosines, normalize
from e2e.server_process import start_server
from model.checkpoint import load_checkpoint
from seqenc import Client

RIVER = ["The bank of the river was muddy.", "They sat on the bank and watched the river flow."]
MONEY = ["The bank raised its interest rates.", "He opened an account at the bank."]
TIRED = "The animal didn't cross the street because it was too tired"
SENTENCES = 400
POOLINGS = ("cls", "mean", "max", "last")


def test_400_sentences_equal_transformers(client: Any, oracle: BertOracle) -> None:
    sentences = corpus.sentences(SENTENCES)
    result = client.encode(sentences, token_embeddings=True)
    assert result.precision == "fp32"
    expected = oracle.all(sentences)
    pooled = np.stack([reference.pooled("mean") for reference in expected])
    assert cosines(result.embeddings, pooled).min() >= 0.99999
    np.testing.assert_allclose(result.embeddings, normalize(pooled), atol=1e-5)
    for encoding, reference in zip(result.results, expected, strict=True):
        np.testing.assert_allclose(encoding.token_embeddings, reference.token_embeddings, atol=1e-4)


def test_attention_maps_equal_transformers(client: Any, oracle: BertOracle) -> None:
    sentences = corpus.sentences(SENTENCES)[::10]
    result = client.encode(sentences, attention=True)
    for encoding, reference in zip(result.results, oracle.all(sentences), strict=True):
        np.testing.assert_allclose(encoding.attention, reference.attention, atol=1e-5)
        np.testing.assert_allclose(encoding.attention.sum(axis=-1), 1, atol=1e-5)


def test_bank_of_a_river_is_not_bank_of_money(client: Any) -> None:
    result = client.encode(RIVER + MONEY, token_embeddings=True, tokens=True)
    words = [[token.text for token in encoding.tokens].index("bank") for encoding in result.results]
    banks = [e.token_embeddings[word] for e, word in zip(result.results, words, strict=True)]
    river, money = banks[:2], banks[2:]
    assert cosines(*river) == pytest.approx(0.93, abs=0.01)
    assert cosines(*money) == pytest.approx(0.88, abs=0.01)
    assert max(cosines(a, b) for a, b in product(river, money)) <= 0.86


def test_it_attends_to_the_animal(client: Any) -> None:
    (encoding,) = client.encode(TIRED, tokens=True, attention={"layers": [-1], "heads": [-1]}).results
    pieces = [token.text for token in encoding.tokens]
    assert encoding.attention.shape == (1, 1, len(pieces), len(pieces))
    weights = encoding.attention[0, 0, pieces.index("it")]
    assert pieces[weights.argmax()] == "animal"
    assert weights.max() == pytest.approx(0.65, abs=0.01)


def test_a_tiny_bert_equals_transformers(tiny_client: Any, tiny_bert: Path) -> None:
    oracle = BertOracle(tiny_bert)
    contents = [{"ids": ids} for ids in random_ids(tiny_models.VOCABULARY_SIZE)]
    result = tiny_client.encode(contents, token_embeddings=True, attention=True, normalize=False)
    for encoding, reference in zip(result.results, oracle.all(contents), strict=True):
        np.testing.assert_allclose(encoding.token_embeddings, reference.token_embeddings, atol=1e-5)
        np.testing.assert_allclose(encoding.attention, reference.attention, atol=1e-5)


def test_a_tiny_encoder_of_our_own_equals_pytorch(native_artifact: Path, tiny_native: Path) -> None:
    encoder = load_checkpoint(tiny_native).encoder
    rows = random_ids(tiny_models.VOCABULARY_SIZE)
    with start_server(native_artifact) as server, Client(server.grpc_address) as connected:
        client: Any = connected
        results = {pooling: client.encode(rows, pooling=pooling, normalize=False) for pooling in POOLINGS}
        full = client.encode(rows, token_embeddings=True, attention=True).results
    for index, row in enumerate(rows):
        ids = torch.tensor([row])
        with torch.inference_mode():
            hidden, maps = encoder(ids, with_attentions=True)
        states = hidden[0].numpy()
        np.testing.assert_allclose(full[index].token_embeddings, states, atol=1e-5)
        np.testing.assert_allclose(full[index].attention, torch.cat(maps).numpy(), atol=1e-5)
        expected = {"cls": states[0], "mean": states.mean(0), "max": states.max(0), "last": states[-1]}
        for pooling, result in results.items():
            assert_same(result.embeddings[index], expected[pooling])


def random_ids(vocabulary_size: int) -> list[list[int]]:
    """Rows of many lengths, one token and the most a tiny model takes among them."""
    random = np.random.default_rng(0)
    lengths = [1, 2, 64, *random.integers(1, 64, size=17)]
    return [random.integers(0, vocabulary_size, size=length).tolist() for length in lengths]
