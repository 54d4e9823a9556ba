"""A text that the tokenizer fails on is refused alone, by every way in; the texts beside it are encoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from e2e.server_process import ServerProcess, start_server
from failing_tokenizers import PANICS, WITHOUT_TOKEN, copy_with_tokenizer, spoil
from seqenc import Client, InvalidInputError, SeqencError
from service.cli import main

BAD = (WITHOUT_TOKEN, PANICS)
GOOD = "the cat and the dog"
REASON = "cannot be tokenized: the model's tokenizer fails on it"


@pytest.fixture(scope="module")
def artifact(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    definition = spoil(json.loads((tiny_artifact / "tokenizer.json").read_text()))
    return copy_with_tokenizer(tiny_artifact, tmp_path_factory.mktemp("failing") / "tiny-bert", definition)


@pytest.fixture(scope="module")
def server(artifact: Path) -> Iterator[ServerProcess]:
    with start_server(artifact) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc_address, deadline_s=60) as client:
        yield client


def fields(status: SeqencError | None) -> list[str]:
    """What a refusal names; it must not repeat the text."""
    assert isinstance(status, InvalidInputError)
    assert status.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be tokenized" in status.message
    assert "www" not in status.message
    assert "x-ray" not in status.message
    return [violation.field for violation in status.violations]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("repeats", [1, 800], ids=["short call", "long call"])
@pytest.mark.parametrize("truncation", ["error", "right", "left"])
def test_texts_beside_it_are_encoded(client: Client, bad: str, repeats: int, truncation: Any) -> None:
    texts = [GOOD, bad, *[GOOD] * repeats]
    results = client.encode(texts, on_error="per_input", truncation=truncation).results
    assert fields(results[1].status) == ["inputs[1].text"]
    expected = client.encode(GOOD).embeddings[0]
    for index, result in enumerate(results):
        if index != 1:
            np.testing.assert_allclose(result.embedding, expected, atol=1e-5)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_text_is_refused_for_what_is_kept_of_it(client: Client, bad: str, side: Any) -> None:
    long = "the cat " * 1000
    text = f"{bad} {long}" if side == "right" else f"{long} {bad}"
    results = client.encode([GOOD, text, long], on_error="per_input", truncation=side).results
    assert [result.status is None for result in results] == [True, False, True]
    assert fields(results[1].status) == ["inputs[1].text"]


@pytest.mark.parametrize("bad", BAD)
def test_the_text_of_a_pair_is_named(client: Client, bad: str) -> None:
    pairs = [(GOOD, GOOD), (bad, GOOD), (GOOD, bad), (bad, bad)]
    results = client.encode(pairs, on_error="per_input").results
    assert results[0].status is None
    assert [fields(result.status) for result in results[1:]] == [
        ["inputs[1].text_pair.first"],
        ["inputs[2].text_pair.second"],
        ["inputs[3].text_pair.first"],
    ]


def test_a_prompt_that_it_fails_on_is_blamed(client: Client) -> None:
    (result,) = client.encode([GOOD], prompt=PANICS, on_error="per_input").results
    assert fields(result.status) == ["inputs[0].text"]
    assert "with its prompt" in result.status.message  # type: ignore[union-attr]


@pytest.mark.parametrize("call", [Client.encode, Client.tokenize], ids=["Encode", "Tokenize"])
def test_a_call_that_is_to_fail_names_every_such_text(client: Client, call: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError) as raised:
        call(client, [GOOD, *BAD, GOOD])
    assert fields(raised.value) == ["inputs[1].text", "inputs[2].text"]


def test_tokenize_answers_the_others(client: Client) -> None:
    results = client.tokenize([GOOD, *BAD, GOOD], on_error="per_input")
    assert [[token.text for token in result.tokens] for result in (results[0], results[3])] == [
        ["[CLS]", "the", "cat", "and", "the", "dog", "[SEP]"]
    ] * 2
    assert [fields(result.status) for result in results[1:3]] == [["inputs[1].text"], ["inputs[2].text"]]


def test_a_stream_goes_on(client: Client) -> None:
    texts = [GOOD, *BAD] * 3
    results = list(client.encode_stream(texts, on_error="per_input", batch_size=4))
    assert [result.status is None for result in results] == [True, False, False] * 3
    assert {len(fields(result.status)) for result in results if result.status} == {1}


def test_the_open_inference_protocol_names_the_row(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        name = "inference.ModelInfer"
        request_type, response_type = (
            GetMessageClass(pool.FindMessageTypeByName(name + kind)) for kind in ("Request", "Response")
        )
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        request = request_type(model_name="tiny-bert")
        text = request.inputs.add(name="text", datatype="BYTES", shape=[2])
        text.contents.bytes_contents.extend([GOOD.encode(), PANICS.encode()])
        with pytest.raises(grpc.RpcError) as raised:
            infer(request, timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details().startswith(f"text[1]: {REASON}")


def rows_of(out: Path) -> pa.Table:
    return pq.read_table(sorted(out.glob("part-*.parquet")))


def test_a_job_marks_the_row_in_process_and_on_a_server(
    artifact: Path, server: ServerProcess, tmp_path: Path
) -> None:
    texts = [*[GOOD] * 40, WITHOUT_TOKEN, *[GOOD] * 40, PANICS]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    tables = []
    for place, source in (("here", f"--artifact={artifact}"), ("there", f"--address={server.grpc_address}")):
        arguments = ["job", str(tmp_path / "in.parquet"), "--out", str(tmp_path / place), source]
        assert main([*arguments, "--log-level", "error"]) == 3
        tables.append(rows_of(tmp_path / place))
    for table in tables:
        errors = table.column("error").to_pylist()
        assert {index: error for index, error in enumerate(errors) if error} == {
            40: f"refused: the text {REASON}",
            81: f"refused: the text {REASON}",
        }
        assert table.column("embedding").null_count == 2


@pytest.mark.parametrize("command", ["encode", "tokenize"])
def test_commands_print_the_others(
    command: str, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--address", server.grpc_address, "--format", "jsonl", "--on-error", "per_input"]
    assert main([command, GOOD, PANICS, GOOD, *flags]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    errors = ["error" in line for line in lines]
    assert errors == [False, True, False]
    assert main([command, GOOD, PANICS, *flags[:2]]) == 1
    assert f"INVALID_ARGUMENT: inputs[1].text: {REASON}" in " ".join(capsys.readouterr().err.split())


def test_no_call_was_the_servers_fault(server: ServerProcess, client: Client) -> None:
    client.encode([GOOD, *BAD], on_error="per_input")
    outcomes = {key[1]: value for key, value in server.metrics().items() if key[0] == "inputs_total"}
    assert outcomes["invalid"] >= 2
    assert not outcomes.get("failed")
