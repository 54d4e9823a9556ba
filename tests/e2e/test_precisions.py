"""int8 and fp16 on the default model: near fp32, independent of company, and said to be what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import corpus
from e2e.oracle import cosines
from e2e.server_process import start_server
from model.runtime import load_run
from seqenc import Client

SENTENCES = 400


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return corpus.sentences(SENTENCES)


@pytest.fixture(scope="module")
def reference(client: Client, sentences: list[str]) -> np.ndarray:
    return client.encode(sentences).embeddings


def test_int8_serves_near_fp32_and_alone_as_in_a_batch(
    default_artifact: Path, sentences: list[str], reference: np.ndarray
) -> None:
    with (
        start_server(default_artifact, "--precision", "int8") as server,
        Client(server.grpc_address) as client,
    ):
        result = client.encode(sentences)
        alone = np.concatenate([client.encode(text).embeddings for text in sentences[::40]])
        maps = client.encode(sentences[0], attention=True)
        model = client.model()
    found = cosines(result.embeddings, reference)
    assert found.mean() >= 0.998
    assert found.min() >= 0.995
    assert cosines(alone, result.embeddings[::40]).min() >= 0.999999
    assert (result.precision, model.precision) == ("int8", "int8")
    assert 0.99 <= model.fidelity < 1
    # A call with maps runs as a whole in the fp32 graph.
    assert maps.precision == "fp32"
    np.testing.assert_allclose(maps.embeddings[0], reference[0], atol=1e-5)


def test_fp16_graph_on_the_cpu_provider(
    default_artifact: Path, sentences: list[str], reference: np.ndarray
) -> None:
    run = load_run(default_artifact / "encoder.fp16.onnx")
    tokenizer = Tokenizer.from_file(str(default_artifact / "tokenizer.json"))
    rows = []
    for text in sentences[::20]:
        ids = np.array([tokenizer.encode(text).ids[:256]])
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        rows.append(run(inputs)["pooled_mean"][0])
    assert cosines(np.array(rows), reference[::20]).min() >= 0.9999


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--provider", "cuda"), "--provider cuda with --precision fp32 cannot run here"),
        (("--precision", "fp16"), "no provider computes in fp16 here"),
        (("--provider", "cpu", "--precision", "bf16"), "it computes in fp32 or int8"),
    ],
)
def test_what_cannot_run_is_an_error_at_start(
    default_artifact: Path, flags: tuple[str, ...], said: str
) -> None:
    with start_server(default_artifact, *flags, wait=False) as server:
        assert server.wait() == 1
    lines = [event["line"] for event in server.events if not event["event"]]
    assert len(lines) == 1
    assert said in lines[0]
