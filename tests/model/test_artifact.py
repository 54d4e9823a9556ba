"""The directory of an artifact: complete or absent, and never in the place of something else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact import (
    ArtifactError,
    check_files,
    check_target,
    file_entry,
    read_manifest,
    staged,
    write_json,
)


def write_artifact(target: Path, content: str = "a") -> None:
    with staged(target) as staging:
        (staging / "weights").write_text(content)
        write_json(staging / "manifest.json", {"schema_version": 1})


def test_it_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    with staged(target) as staging:
        assert not target.exists()
        assert staging.parent == target.parent
        (staging / "manifest.json").write_text("{}")
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert [path.name for path in target.iterdir()] == ["manifest.json"]


def test_others_may_read_it(tmp_path: Path) -> None:
    """A server runs as another user than the one who exported."""
    before = os.umask(0o022)
    try:
        write_artifact(tmp_path / "model")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "model").iterdir())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_failure(error: type[BaseException], tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path / "model") as staging:
            (staging / "weights").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF], ids=os.strerror)
def test_file_systems_without_fsync_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", _failing(code))
    write_artifact(tmp_path / "model")
    assert (tmp_path / "model" / "manifest.json").exists()


def test_a_disk_that_fails_leaves_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        write_artifact(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def _failing(code: int) -> Callable[[int], None]:
    def fail(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_failed_replacement_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write_artifact(target, "old")
    with pytest.raises(ValueError, match="off"), staged(target):
        raise ValueError("off")
    assert (target / "weights").read_text() == "old"


def test_a_replacement_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write_artifact(target, "old")
    write_artifact(target, "new")
    assert (target / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_old_one_comes_back_when_the_last_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    write_artifact(target, "old")
    rename = Path.rename

    def fail_for_the_new(self: Path, to: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError("disk is gone")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="disk is gone"):
        write_artifact(target, "new")
    assert (target / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_free_target_is_fine(tmp_path: Path) -> None:
    check_target(tmp_path / "model", force=False)


def test_an_artifact_is_replaced_only_by_force(tmp_path: Path) -> None:
    write_artifact(tmp_path / "model")
    with pytest.raises(ArtifactError, match="exists; choose another --out or replace it with --force"):
        check_target(tmp_path / "model", force=False)
    check_target(tmp_path / "model", force=True)


def test_force_replaces_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ArtifactError, match="holds something else than an artifact"):
        check_target(tmp_path, force=True)
    with pytest.raises(ArtifactError, match="is not a directory"):
        check_target(tmp_path / "thesis.tex", force=True)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="is not a directory"):
        check_target(tmp_path / "link", force=True)


def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is not an artifact: it has no manifest.json"):
        read_manifest(tmp_path)


def test_another_schema_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"schema_version": 2})
    with pytest.raises(ArtifactError, match="has schema_version 2, supported is 1; export it again"):
        read_manifest(tmp_path)


def test_files_are_checked_against_their_sums(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    manifest = {"files": [file_entry(tmp_path / "a")], "graphs": []}
    check_files(tmp_path, manifest)
    (tmp_path / "a").write_text("Content")
    with pytest.raises(ArtifactError, match="a is damaged: its sha256 is"):
        check_files(tmp_path, manifest)
    (tmp_path / "a").unlink()
    with pytest.raises(ArtifactError, match="a is missing from"):
        check_files(tmp_path, manifest)
