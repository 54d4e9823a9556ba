"""Clients of other makes get the vectors that ours gets."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.rpc import status_pb2

from contract import reflection_probe, toolchains
from e2e.server_process import ServerProcess
from seqenc import Client, EncodeResult

ROOT = Path(__file__).parents[2]
# As in tritonclient_probe.py, which cannot be imported here.
TEXTS = ["The bank of the river was muddy.", "", "Grüße aus Köln 😀"]
PAIRS = ["Where is it?", "Over there.", ""]
IDS = np.arange(5, 23).reshape(2, 9)
MASK = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
ROWS = [{"ids": ids, "attention_mask": mask} for ids, mask in zip(IDS, MASK, strict=True)]


@pytest.fixture(scope="module")
def triton(
    server: ServerProcess, triton_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """What tritonclient was told, and the arrays it got."""
    target = tmp_path_factory.mktemp("triton") / "arrays.npz"
    probe = Path(__file__).with_name("tritonclient_probe.py")
    facts = run(triton_python, "-W", "error", probe, server.grpc_address, target)
    return json.loads(facts), np.load(target)


def run(*command: str | Path, text: str = "", environment: Mapping[str, str] | None = None) -> str:
    """What a command prints; fails with what it complains of."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def vectors(result: EncodeResult) -> np.ndarray:
    assert result.embeddings is not None
    return result.embeddings


@pytest.mark.parametrize("kind", ["sync", "aio"])
class TestTritonclient:
    def test_it_finds_server_and_model(self, triton: Any, client: Client, kind: str) -> None:
        facts = triton[0][kind]
        assert (facts["live"], facts["ready"], facts["model ready"]) == (True, True, True)
        assert facts["server"]["name"] == "seqenc"
        model = client.model()
        assert (facts["model"]["name"], facts["model"]["versions"]) == (model.name, [model.revision])
        assert {tensor["name"] for tensor in facts["model"]["inputs"]} >= {"text", "input_ids"}

    def test_texts(self, triton: Any, client: Client, kind: str) -> None:
        expected = vectors(client.encode(TEXTS))
        for call in ("texts", "zipped"):
            np.testing.assert_allclose(triton[1][f"{kind}/{call}/embedding"], expected, atol=1e-6)

    def test_pairs(self, triton: Any, client: Client, kind: str) -> None:
        pairs = list(zip(TEXTS, PAIRS, strict=True))
        result = client.encode(pairs, token_embeddings=True, attention=True)
        mask = np.arange(max(e.token_count for e in result.results)) < [
            [e.token_count] for e in result.results
        ]
        assert_same(triton[1], f"{kind}/pairs", result, mask)

    @pytest.mark.parametrize("call", ["ids", "ids of 32 bits"])
    def test_ids_with_holes(self, triton: Any, client: Client, kind: str, call: str) -> None:
        result = client.encode(ROWS, token_embeddings=True, attention=True)
        assert_same(triton[1], f"{kind}/{call}", result, MASK == 1)

    def test_parameters(self, triton: Any, client: Client, kind: str) -> None:
        expected = vectors(client.encode(TEXTS, pooling="max", normalize=True, dimensions=7))
        np.testing.assert_allclose(triton[1][f"{kind}/parameters/embedding"], expected, atol=1e-6)

    def test_a_refusal_names_the_tensor(self, triton: Any, kind: str) -> None:
        status, message = triton[0][kind]["refused"]
        assert status == "StatusCode.INVALID_ARGUMENT"
        assert message.startswith("input_ids[0, 0]: is -5, must be 0 to 999")


def assert_same(arrays: Mapping[str, Any], call: str, result: EncodeResult, mask: np.ndarray) -> None:
    """All outputs of a call of tritonclient; `mask` has the real tokens of each row."""
    np.testing.assert_array_equal(arrays[f"{call}/attention_mask"] == 1, mask)
    np.testing.assert_allclose(arrays[f"{call}/embedding"], vectors(result), atol=1e-6)
    for row, (encoding, real) in enumerate(zip(result.results, mask, strict=True)):
        tokens, maps = arrays[f"{call}/token_embeddings"][row], arrays[f"{call}/attentions"][row]
        assert encoding.token_embeddings is not None
        assert encoding.attention is not None
        np.testing.assert_allclose(tokens[real], encoding.token_embeddings, atol=1e-6)
        np.testing.assert_allclose(maps[:, :, real][..., real], encoding.attention, atol=1e-6)


def test_our_client_runs_beside_tritonclient(
    server: ServerProcess, client: Client, triton_python: Path
) -> None:
    script = (
        "import json, sys, tritonclient.grpc, seqenc\n"
        "with seqenc.Client(sys.argv[1]) as client:\n"
        "    print(json.dumps(client.encode(sys.argv[2:]).embeddings.tolist()))\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "client")}
    printed = run(
        triton_python, "-W", "error", "-c", script, server.grpc_address, *TEXTS, environment=environment
    )
    np.testing.assert_allclose(json.loads(printed), vectors(client.encode(TEXTS)), atol=1e-6)


def test_node_prints_our_vectors(server: ServerProcess, client: Client, node_example: Path) -> None:
    printed = run("node", node_example, server.grpc_address, *TEXTS)
    received = [json.loads(line) for line in printed.splitlines()]
    np.testing.assert_allclose(received, vectors(client.encode(TEXTS)), atol=1e-6)


def test_node_prints_why_a_text_is_refused(server: ServerProcess, node_example: Path) -> None:
    done = subprocess.run(
        ["node", node_example, server.grpc_address, "long " * 100],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "INVALID_ARGUMENT: inputs[0].text: has 102 tokens, the limit is 64" in done.stderr


def test_reflection_is_all_that_a_client_needs(server: ServerProcess, client: Client) -> None:
    requests = {
        "seqenc.v1.EncoderService/Encode": {"inputs": [{"text": text} for text in TEXTS]},
        "seqenc.v1.EncoderService/GetModel": {},
        "grpc.health.v1.Health/Check": {"service": "seqenc.v1.EncoderService"},
        "inference.GRPCInferenceService/ModelInfer": {
            "inputs": [
                {
                    "name": "text",
                    "datatype": "BYTES",
                    "shape": [len(TEXTS)],
                    "contents": {"bytesContents": [base64.b64encode(t.encode()).decode() for t in TEXTS]},
                }
            ]
        },
    }
    probe = Path(reflection_probe.__file__)
    found = json.loads(run(sys.executable, probe, server.grpc_address, text=json.dumps(requests)))
    assert found["imported"] == []
    assert sorted(found["services"]) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "seqenc.v1.EncoderService",
    ]
    encode, model, health, infer = found["replies"].values()
    expected = vectors(client.encode(TEXTS))
    for data in (encode["embeddings"]["data"], infer["rawOutputContents"][0]):
        received = np.frombuffer(base64.b64decode(data), np.float32).reshape(expected.shape)
        np.testing.assert_allclose(received, expected, atol=1e-6)
    assert model["model"]["revision"] == client.model().revision
    assert health["status"] == "SERVING"


def test_the_status_proto_beside_ours_is_the_published_one() -> None:
    """encoder.proto imports it: whoever has protos/ needs nothing else."""
    published = Path(status_pb2.__file__).with_name("status.proto")
    assert (ROOT / "protos/google/rpc/status.proto").read_text() == published.read_text()


def test_what_is_installed_is_installed_once(tmp_path: Path) -> None:
    source, folder, runs = tmp_path / "source", tmp_path / "folder", []
    source.write_text("1")

    def install(target: Path) -> None:
        runs.append([file.name for file in target.iterdir()])
        (target / "installed").touch()

    for text in ("1", "1", "2"):
        source.write_text(text)
        assert toolchains.install_once(folder, [source], install) == folder
    assert runs == [[], []]
