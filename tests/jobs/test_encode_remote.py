"""Jobs on servers: the same rows as in process, through restarts and losses, from servers that agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest

from corpus import sentences
from e2e.server_process import ServerProcess, start_server
from jobs.job_files import Jobs, parts, vectors, write_parquet
from jobs.job_process import start_job, wait_for_shards
from seqenc import RetryPolicy, UnavailableError
from service.jobs import encode_remote
from service.jobs.encoded import Encoded

TEXTS: list[str | None] = [*sentences(200), None, "", "word " * 3000]


@pytest.fixture(scope="module")
def server(tiny_artifact: Path) -> Iterator[ServerProcess]:
    with start_server(tiny_artifact) as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "in.parquet", {"text": TEXTS})


def run(jobs: Jobs, file: Path, address: str, **settings: Any) -> Any:
    return jobs.run(file, artifact=None, address=address, out=jobs.out.with_name("remote"), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"type": "float16", "dimensions": 16, "normalize": True},
        {"type": "int8"},
        {"type": "ubinary"},
        {"token_embeddings": True},
        {"truncation": "error"},
    ],
    ids=str,
)
def test_rows_are_those_of_the_engine_in_process(
    jobs: Jobs, file: Path, server: ServerProcess, settings: dict[str, Any]
) -> None:
    settings = {"rows_per_shard": 80, **settings}
    assert jobs.run(file, **settings).status == run(jobs, file, server.grpc_address, **settings).status == 3
    local, remote = jobs.read(), jobs.read(jobs.out.with_name("remote"))
    assert remote.schema.equals(local.schema, check_metadata=True)
    plain = [name for name in local.column_names if "embedding" not in name]
    assert remote.select(plain).equals(local.select(plain))
    if settings.get("type") == "ubinary":
        pairs = zip(local["embedding"].to_pylist(), remote["embedding"].to_pylist(), strict=True)
        assert sum(left == right for left, right in pairs) >= len(TEXTS) - 2
    else:
        tolerance = {"int8": 1, "float16": 1e-3}.get(settings.get("type", ""), 1e-5)
        np.testing.assert_allclose(vectors(remote), vectors(local), atol=tolerance)
    if "token_embeddings" in settings:
        for left, right in zip(
            local["token_embeddings"].to_pylist(), remote["token_embeddings"].to_pylist(), strict=True
        ):
            np.testing.assert_allclose(np.array(left or []), np.array(right or []), atol=1e-5)


def test_servers_that_differ_are_refused_with_both(
    jobs: Jobs, file: Path, server: ServerProcess, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(jobs.artifact, other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "revision": "0" * 64}))
    with start_server(other) as second:
        outcome = run(jobs, file, f"{server.grpc_address},{second.grpc_address}")
    assert outcome.status == 1
    assert f"{second.grpc_address} serves tiny-bert of revision {'0' * 64} in fp32" in outcome.err
    assert "do not belong in one output" in outcome.err


def test_servers_of_one_address_that_compute_differently_are_refused(
    jobs: Jobs, file: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pods behind one name in DNS: the one that was asked for its model is not the one that answers."""
    info = encode_remote.RemoteEncoder._choose_model

    def ask_another_one(self: encode_remote.RemoteEncoder) -> Any:
        return replace(info(self), precision="int8")

    monkeypatch.setattr(encode_remote.RemoteEncoder, "_choose_model", ask_another_one)
    outcome = run(jobs, file, f"ipv4:{server.grpc_address}")
    assert outcome.status == 1
    assert "computes in fp32, expected was int8; their vectors do not belong in one output" in outcome.err


def test_a_server_replaced_by_another_revision_stops_the_job(
    jobs: Jobs, file: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = encode_remote.RemoteEncoder._choose_model

    def choose_an_older_one(self: encode_remote.RemoteEncoder) -> Any:
        return replace(info(self), revision="0" * 64)

    monkeypatch.setattr(encode_remote.RemoteEncoder, "_choose_model", choose_an_older_one)
    outcome = run(jobs, file, server.grpc_address)
    assert outcome.status == 1
    assert "expected_revision is not what is served" in outcome.err


def test_wrong_options_are_an_error_at_the_start(jobs: Jobs, file: Path, server: ServerProcess) -> None:
    outcome = run(jobs, file, server.grpc_address, dimensions=33)
    assert outcome.status == 1
    assert "must be 1 to 32" in outcome.err
    assert parts(jobs.out.with_name("remote"), ".parquet") == []


def test_a_text_larger_than_a_message_is_marked(jobs: Jobs, tmp_path: Path, tiny_artifact: Path) -> None:
    file = write_parquet(tmp_path / "in.parquet", {"text": ["a", "é" * 40_000, "b"]})
    with start_server(tiny_artifact, "--max-message-bytes", str(1 << 16)) as small:
        outcome = run(jobs, file, small.grpc_address)
    assert outcome.status == 3
    errors = jobs.read(jobs.out.with_name("remote")).column("error").to_pylist()
    assert errors == [None, "refused: the text has 80000 bytes, a message of the server 61440", None]


def test_no_server_is_an_error_that_names_it(jobs: Jobs, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_remote, "_RETRY", encode_remote._ONCE)
    outcome = run(jobs, file, "127.0.0.1:1")
    assert outcome.status == 1
    assert "127.0.0.1:1: UNAVAILABLE" in outcome.err


def test_a_lost_server_is_made_up_for_by_the_other(
    tmp_path: Path, tiny_artifact: Path, server: ServerProcess
) -> None:
    texts = (sentences(900) * 6)[:5000]
    file, out = write_parquet(tmp_path / "in.parquet", {"text": texts}), tmp_path / "out"
    with start_server(tiny_artifact) as lost:
        process = start_job(
            file, out, "--address", f"{lost.grpc_address},{server.grpc_address}", "--rows-per-shard", "200"
        )
        wait_for_shards(process, out, 1)
        lost.process.kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    table = pq.read_table(out)
    assert table.column("id").to_pylist() == list(range(5000))
    assert table.column("error").null_count == 5000


def test_a_job_whose_servers_are_gone_ends_and_goes_on_later(
    jobs: Jobs, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = encode_remote.RemoteEncoder.encode
    with start_server(jobs.artifact) as lost:

        def encode_and_lose(self: encode_remote.RemoteEncoder, texts: Sequence[str]) -> Encoded:
            encoded = encode(self, texts)
            lost.process.kill()
            lost.process.wait()
            return encoded

        monkeypatch.setattr(encode_remote, "_RETRY", RetryPolicy(max_attempts=3))
        monkeypatch.setattr(encode_remote.RemoteEncoder, "encode", encode_and_lose)
        outcome = run(jobs, file, lost.grpc_address, rows_per_shard=20)
    assert outcome.status == 1
    assert "UNAVAILABLE" in outcome.err
    assert "run the same command again to go on" in outcome.err
    monkeypatch.undo()
    with start_server(jobs.artifact) as again:
        assert run(jobs, file, again.grpc_address, rows_per_shard=20).status == 3
    assert jobs.read(jobs.out.with_name("remote")).column("id").to_pylist() == list(range(len(TEXTS)))


def test_a_lost_server_is_waited_for_for_half_a_minute_at_most() -> None:
    policy = encode_remote._RETRY
    gone = UnavailableError(grpc.StatusCode.UNAVAILABLE, "gone")
    slowest = replace(policy, jitter=lambda: 1.0)
    waits = [slowest.delay_s(attempt, gone) or 0.0 for attempt in range(1, policy.max_attempts + 1)]
    assert 15 < sum(waits) < 30
