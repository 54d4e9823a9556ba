"""A job's folder: where it may be, and on what file systems and full disks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from e2e.server_process import BIN, clean_environment
from field_jobs import Outcome
from jobs.job_files import content, write_jsonl
from service.cli import main

Run = Callable[..., Outcome]
TEXTS = ["first", "second", "third"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of input: one file, three rows."""
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": text} for text in TEXTS])
    return tmp_path / "in"


def texts_in(out: Path) -> list[Any]:
    return list(pq.read_table(sorted(out.glob("part-*.parquet")))["text"].to_pylist())


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("in", "in/out"),
        ("in", "in/deep/er/out"),
        ("in", "in/lang=en/out"),
        ("in", "link/out"),
        ("link", "in/out"),
        ("in", "in/../in/./out"),
        ("file", "in/out"),
    ],
)
def test_output_inside_of_the_input_is_not_read(
    run_job: Run, folder: Path, tmp_path: Path, given: str, out: str
) -> None:
    (tmp_path / "link").symlink_to("in", target_is_directory=True)
    source = folder.as_uri() if given == "file" else str(tmp_path / given)
    for _ in range(2):
        outcome = run_job(source, "--keep-columns", "text", out=out)
        assert outcome.status == 0, outcome.err
        assert texts_in(tmp_path / out) == TEXTS
    assert "; 0 rows in" in outcome.out


def test_output_that_a_link_in_the_input_leads_to_is_not_read(
    run_job: Run, folder: Path, tmp_path: Path
) -> None:
    (folder / "link").symlink_to("../out", target_is_directory=True)
    for _ in range(2):
        outcome = run_job(folder, "--output-format", "npy")
        assert outcome.status == 0, outcome.err
    assert len((tmp_path / "out/part-00000.ids.jsonl").read_text().splitlines()) == 3


def test_relative_paths_are_the_same_folder(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for _ in range(2):
        assert run_job(".", "--keep-columns", "text", out=Path("vectors").absolute()).status == 0
    assert texts_in(folder / "vectors") == TEXTS


@pytest.mark.parametrize("given", ["in", "link", "in/a.jsonl"])
def test_output_into_the_input_itself_is_refused(
    run_job: Run, folder: Path, tmp_path: Path, given: str
) -> None:
    (tmp_path / "link").symlink_to("in", target_is_directory=True)
    outcome = run_job(tmp_path / given, out="in")
    assert outcome.status == 1
    assert f"every file of {tmp_path / given} is in --out" in outcome.err
    assert run_job(tmp_path / given, "--dry-run", out="in").status == 1
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]


def test_output_around_the_input_is_refused(run_job: Run, folder: Path, tmp_path: Path) -> None:
    outcome = run_job(folder, out=".")
    assert outcome.status == 1
    assert "choose another" in outcome.err
    assert not (tmp_path / "_job").exists()


def test_output_of_another_job_is_not_read_unless_it_is_the_input(
    run_job: Run, folder: Path, tmp_path: Path
) -> None:
    assert run_job(folder, "--keep-columns", "text", out="in/earlier").status == 0
    outcome = run_job(folder, "--keep-columns", "text", "--output-format", "npy", out="in/later")
    assert outcome.status == 0, outcome.err
    assert f"another job's output is left out of the input folder={folder / 'earlier'}" in outcome.err
    assert len((tmp_path / "in/later/part-00000.ids.jsonl").read_text().splitlines()) == 3
    assert run_job(folder / "earlier", "--keep-columns", "text", out="again").status == 0
    assert texts_in(tmp_path / "again") == TEXTS


def test_the_metrics_file_is_not_read(run_job: Run, folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        outcome = run_job(folder, "--keep-columns", "text", "--metrics-textfile", folder / "job.prom")
        assert outcome.status == 0, outcome.err
    assert texts_in(tmp_path / "out") == TEXTS


@pytest.mark.parametrize("given", ["in", "in/a.jsonl"])
def test_metrics_do_not_replace_a_file_of_something_else(
    run_job: Run, folder: Path, tmp_path: Path, given: str
) -> None:
    write_jsonl(folder / "b.jsonl", [{"text": "more"}])
    before = (folder / "a.jsonl").read_bytes()
    outcome = run_job(tmp_path / given, "--metrics-textfile", folder / "a.jsonl")
    assert outcome.status == 1
    assert "choose another" in outcome.err
    assert (folder / "a.jsonl").read_bytes() == before


@pytest.mark.parametrize("out", ["s3://bucket/vectors", "file:///vectors"])
def test_output_to_a_url_is_refused(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["job", str(folder), "--artifact", "unused", "--out", out]) == 2
    assert "--out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def failing(code: int) -> Callable[..., Any]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK], ids=os.strerror)
def test_without_hard_links(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    shares = [["--rows-per-shard", "1", "--shard-count", "2", "--shard-index", index] for index in "10"]
    for share in shares:
        outcome = run_job(folder, "--keep-columns", "text", *share)
        assert outcome.status == 0, outcome.err
    assert texts_in(tmp_path / "out") == TEXTS
    assert json.loads((tmp_path / "out/_job/job.json").read_text())["settings"]["--shard-count"] == 2
    outcome = run_job(folder, "--keep-columns", "text", "--rows-per-shard", "2", "--shard-count", "2")
    assert outcome.status == 1
    assert "--rows-per-shard was 1 and is 2" in outcome.err
    assert not [path for path in (tmp_path / "out/_job").iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=os.strerror)
def test_without_locks(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(code))
    outcome = run_job(folder, "--keep-columns", "text")
    assert outcome.status == 0, outcome.err
    assert "nothing stops a second process on the same --out" in outcome.err
    assert texts_in(tmp_path / "out") == TEXTS


def test_with_locks_a_second_process_is_refused(run_job: Run, folder: Path, tmp_path: Path) -> None:
    assert run_job(folder).status == 0
    with (tmp_path / "out/_job/lock-0-of-1").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = run_job(folder)
    assert outcome.status == 1
    assert "another process works on" in outcome.err


def fail_for_folders(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    fsync = os.fsync

    def fsync_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_files)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF], ids=os.strerror)
def test_without_fsync_of_folders(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fail_for_folders(monkeypatch, code)
    outcome = run_job(folder, "--keep-columns", "text", "--metrics-textfile", tmp_path / "job.prom")
    assert outcome.status == 0, outcome.err
    assert texts_in(tmp_path / "out") == TEXTS


def test_folders_that_cannot_be_opened_for_fsync(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os_open = os.open

    def open_files(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).name in ("out", "_job") and Path(path).is_dir():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_files)
    outcome = run_job(folder, "--keep-columns", "text")
    assert outcome.status == 0, outcome.err
    assert texts_in(tmp_path / "out") == TEXTS


def test_a_disk_that_fails_while_a_folder_is_synced_stops_the_job(
    run_job: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for_folders(monkeypatch, errno.EIO)
    outcome = run_job(folder)
    assert outcome.status == 1
    assert "Input/output error" in outcome.err


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str, *, after: int = 0) -> None:
    """What is written to files of that name finds no space, from the n-th time that one is opened."""
    path_open, opened = Path.open, 0

    def open_full(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        nonlocal opened
        if name in self.name and "w" in mode:
            opened += 1
            if opened > after:
                self = Path("/dev/full")
        return path_open(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_full)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("parquet", "part-00001.parquet"),
        ("jsonl", "part-00001.jsonl"),
        ("npy", "part-00001.ids.jsonl"),
        ("npy", "part-00001.npy"),
        ("parquet", "shard-00001.json"),
        ("parquet", "summary-0-of-1.json"),
        ("parquet", "job.json"),
    ],
)
def test_a_full_disk_stops_the_job_which_goes_on_when_there_is_room(
    run_job: Run, folder: Path, tmp_path: Path, form: str, name: str
) -> None:
    flags = ["--rows-per-shard", "1", "--output-format", form]
    with pytest.MonkeyPatch.context() as disk:
        fill_disk(disk, name)
        outcome = run_job(folder, *flags)
    assert outcome.status == 1
    assert (
        "cannot be written: No space left on device; make room, and run the same command again" in outcome.err
    )
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert run_job(folder, *flags).status == 0
    assert run_job(folder, *flags, out="undisturbed").status == 0
    assert content(tmp_path / "out") == content(tmp_path / "undisturbed")


def test_a_full_disk_of_the_metrics_file_is_only_warned_of(
    run_job: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "job.prom"
    fill_disk(monkeypatch, "job.prom", after=1)
    outcome = run_job(folder, "--keep-columns", "text", "--metrics-textfile", page)
    assert outcome.status == 0, outcome.err
    assert "metrics are not written" in outcome.err
    assert "No space left on device" in outcome.err
    assert texts_in(tmp_path / "out") == TEXTS
    assert "seqenc_job_finished 0" in page.read_text()


def test_a_metrics_file_that_can_never_be_written_is_refused(
    run_job: Run, folder: Path, tmp_path: Path
) -> None:
    outcome = run_job(folder, "--metrics-textfile", tmp_path / "nowhere" / "job.prom")
    assert outcome.status == 1
    assert f"{tmp_path / 'nowhere'} cannot be written: No such file or directory" in outcome.err


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EDQUOT], ids=os.strerror)
def test_a_folder_that_may_not_be_written_is_one_line(
    run_job: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(code))
    outcome = run_job(folder)
    assert outcome.status == 1
    assert f"out cannot be written: {os.strerror(code)}; " in outcome.err


def test_a_full_standard_output_is_one_line_after_a_complete_job(
    folder: Path, tmp_path: Path, tiny_artifact: Path
) -> None:
    command = [BIN / "seqenc", "job", folder, "--out", tmp_path / "out", "--artifact", tiny_artifact]
    command += ["--keep-columns", "text", "--log-level", "error"]
    with Path("/dev/full").open("w") as full:
        job = subprocess.run(
            command, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert job.returncode == 1
    assert job.stderr.startswith("seqenc: standard output cannot be written: No space left on device; ")
    assert len(job.stderr.splitlines()) == 1
    assert texts_in(tmp_path / "out") == TEXTS
