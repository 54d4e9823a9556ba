"""An artifact whose files are links, as DVC, Nix, Bazel, Kubernetes and the Hub's cache lay files out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from e2e.server_process import start_server
from model.cli import main as run_model
from seqenc import Client
from service.cli import main

Layout = Callable[[Path, Path], Path]


def scattered(files: Path, folder: Path) -> Path:
    """DVC: the cache names files by their hash, each in one of many folders."""
    return _link_each(files, folder, lambda index, _: f"cache/{index:02x}/{index:030x}")


def scattered_by_relative_links(files: Path, folder: Path) -> Path:
    artifact = scattered(files, folder)
    for link in artifact.iterdir():
        target = os.path.relpath(link.readlink(), artifact)
        link.unlink()
        link.symlink_to(target)
    return artifact


def same_names_elsewhere(files: Path, folder: Path) -> Path:
    """Bazel's runfiles: the name stays, the folder does not."""
    return _link_each(files, folder, lambda index, name: f"bazel-out/{index}/{name}")


def one_store(files: Path, folder: Path) -> Path:
    """Nix, the Hub's cache: one folder of other names."""
    return _link_each(files, folder, lambda index, name: f"store/{index:032x}-{name}")


def only_the_weights(files: Path, folder: Path) -> Path:
    artifact = scattered(files, folder)
    for link in artifact.iterdir():
        if link.suffix != ".bin":
            content = link.read_bytes()
            link.unlink()
            link.write_bytes(content)
    return artifact


def mounted_volume(files: Path, folder: Path) -> Path:
    """Kubernetes: ..data is a link to the folder of the current version."""
    artifact = folder / "volume"
    shutil.copytree(files, artifact / "..2026")
    (artifact / "..data").symlink_to("..2026")
    for file in files.iterdir():
        (artifact / file.name).symlink_to(Path("..data") / file.name)
    return artifact


def hard_links(files: Path, folder: Path) -> Path:
    artifact = folder / "artifact"
    shutil.copytree(files, artifact, copy_function=os.link)
    return artifact


def link_to_the_folder(files: Path, folder: Path) -> Path:
    (folder / "current").symlink_to(scattered(files, folder))
    return folder / "current"


def read_only(files: Path, folder: Path) -> Path:
    artifact = scattered(files, folder)
    for path in [*(folder / "cache").rglob("*"), artifact]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return artifact


def _link_each(files: Path, folder: Path, place: Callable[[int, str], str]) -> Path:
    artifact = folder / "artifact"
    artifact.mkdir()
    for index, file in enumerate(sorted(files.iterdir())):
        target = folder / place(index, file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
        (artifact / file.name).symlink_to(target)
    return artifact


LAYOUTS = [
    scattered,
    scattered_by_relative_links,
    same_names_elsewhere,
    one_store,
    only_the_weights,
    mounted_volume,
    hard_links,
    link_to_the_folder,
    read_only,
]


def embed(artifact: Path, folder: Path, *flags: str) -> np.ndarray:
    """The vectors that `seqenc job` writes."""
    (folder / "in.txt").write_text("the cat\nthe dog and the cat\n")
    out = folder / "out"
    arguments = ["job", str(folder / "in.txt"), "--out", str(out), "--artifact", str(artifact), *flags]
    assert main([*arguments, "--log-level", "error"]) == 0
    (part,) = out.glob("part-*.parquet")
    return np.array(pq.read_table(part).column("embedding").to_pylist(), np.float32)


@pytest.fixture(scope="module")
def expected(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return embed(tiny_artifact, tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_job_gives_the_same_vectors(
    layout: Layout, tiny_artifact: Path, tmp_path: Path, expected: np.ndarray
) -> None:
    np.testing.assert_array_equal(embed(layout(tiny_artifact, tmp_path), tmp_path), expected)


def test_lanes_of_their_own_sessions_share_the_weights_file(
    tiny_artifact: Path, tmp_path: Path, expected: np.ndarray
) -> None:
    flags = ("--lanes", "2", "--threads-per-lane", "2", "--precision", "fp32")
    vectors = embed(scattered(tiny_artifact, tmp_path), tmp_path, *flags)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_int8_runs(tiny_artifact: Path, tmp_path: Path, expected: np.ndarray) -> None:
    vectors = embed(scattered(tiny_artifact, tmp_path), tmp_path, "--precision", "int8")
    assert (vectors * expected).sum(axis=1).min() > 0.9 * (expected * expected).sum(axis=1).min()


def test_a_server_starts_and_answers_with_maps(
    tiny_artifact: Path, tmp_path: Path, expected: np.ndarray
) -> None:
    artifact = scattered(tiny_artifact, tmp_path)
    with start_server(artifact) as server, Client(server.grpc_address, deadline_s=60) as client:
        result = client.encode(["the cat", "the dog and the cat"], attention=True)
    np.testing.assert_allclose(result.embeddings, expected, atol=1e-5)
    assert result.results[0].attention.shape == (2, 2, 4, 4)


def test_it_can_be_verified_shown_and_tuned(
    tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = scattered(tiny_artifact, tmp_path)
    assert run_model(["verify", str(artifact)]) == 0
    assert run_model(["info", str(artifact)]) == 0
    assert "tiny-bert" in capsys.readouterr().out
    tuning = tmp_path / "tuning.json"
    assert main(["tune", "--artifact", str(artifact), "--out", str(tuning), "--seconds", "0.1"]) == 0
    assert json.loads(tuning.read_text())


@pytest.mark.parametrize(
    "file", ["weights.fp32.bin", "encoder.fused.onnx", "tokenizer.json", "manifest.json"]
)
def test_a_link_that_leads_nowhere_is_named(
    file: str, tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = scattered(tiny_artifact, tmp_path)
    target = (artifact / file).readlink()
    target.unlink()
    (tmp_path / "in.txt").write_text("the cat\n")
    arguments = ["job", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out"), "--artifact", str(artifact)]
    assert main([*arguments, "--log-level", "error"]) == 1
    assert f"{artifact / file} is a link to {target}, which is not there" in capsys.readouterr().err
    assert run_model(["verify", str(artifact)]) == 1
    assert f"{artifact / file} is a link to {target}, which is not there" in capsys.readouterr().err


def test_a_link_to_a_folder_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = tmp_path / "current"
    artifact.symlink_to(tmp_path / "release-7")
    (tmp_path / "in.txt").write_text("the cat\n")
    arguments = ["job", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out"), "--artifact", str(artifact)]
    assert main(arguments) == 1
    assert f"{artifact} is a link to {tmp_path / 'release-7'}, which is not there" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ["file", "external_data"])
def test_a_manifest_may_not_name_files_of_other_folders(
    entry: str, tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "artifact"
    shutil.copytree(tiny_artifact, artifact)
    (artifact / "weights.fp32.bin").rename(tmp_path / "weights.fp32.bin")
    manifest = json.loads((artifact / "manifest.json").read_text())
    for part in manifest["graphs"]:
        part[entry] = "../encoder.fused.onnx" if entry == "file" else ["../weights.fp32.bin"]
    for part in manifest["files"]:
        part["file"] = part["file"].replace("weights", "../weights")
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "in.txt").write_text("the cat\n")
    arguments = ["job", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out"), "--artifact", str(artifact)]
    assert main([*arguments, "--log-level", "error"]) == 1
    assert "leaves the artifact's folder" in capsys.readouterr().err
    assert run_model(["verify", str(artifact)]) == 1
    assert "manifest.json names '../weights.fp32.bin'" in capsys.readouterr().err
