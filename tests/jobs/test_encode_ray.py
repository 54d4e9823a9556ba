"""Jobs on a Ray cluster of two nodes, which are processes here: complete and right, whatever is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster

from corpus import sentences
from jobs.job_files import Jobs, vectors, write_parquet
from jobs.job_process import start_job, wait_for_shards


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The head and one more node, a core each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def start(file: Path, out: Path, artifact: Path, address: str) -> subprocess.Popen[str]:
    flags: list[str | Path] = ["--artifact", artifact, "--engine", "ray", "--ray-address", address]
    return start_job(file, out, *flags, "--ray-max-actors", "2", "--rows-per-shard", "250")


def test_a_node_lost_in_the_middle_is_made_up_for(jobs: Jobs, tmp_path: Path, cluster: Any) -> None:
    texts: list[str | None] = (sentences(900) * 14)[:12_000]  # type: ignore[assignment]
    texts[1234] = None
    file, out = write_parquet(tmp_path / "in.parquet", {"text": texts}, 1000), tmp_path / "ray"
    second = cluster.add_node(num_cpus=1)
    process = start(file, out, jobs.artifact, cluster.address)
    wait_for_shards(process, out, 3)
    cluster.remove_node(second, allow_graceful=False)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 3, err
    assert jobs.run(file, rows_per_shard=250).status == 3
    here, there = jobs.read(), jobs.read(out)
    assert there.drop_columns(["embedding"]).equals(here.drop_columns(["embedding"]))
    np.testing.assert_allclose(vectors(there), vectors(here), atol=1e-5)


@pytest.mark.parametrize("damaged", ["input", "model"])
def test_what_a_worker_says_is_the_error_of_the_job(
    tmp_path: Path, tiny_artifact: Path, cluster: Any, damaged: str
) -> None:
    texts = [f"text {number}" for number in range(5000)]
    file, out = write_parquet(tmp_path / "in.parquet", {"text": texts}), tmp_path / "ray"
    artifact = tmp_path / "artifact"
    shutil.copytree(tiny_artifact, artifact)
    broken = file if damaged == "input" else artifact / "encoder.fused.onnx"
    content = bytearray(broken.read_bytes())
    content[100:3000] = bytes(2900)
    broken.write_bytes(content)
    process = start(file, out, artifact, cluster.address)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a worker of the Ray cluster failed" in err
    assert broken.name in err.splitlines()[-1]
    assert "Traceback" not in err
