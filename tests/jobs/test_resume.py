"""A job that was stopped goes on where it was, and only if it is still the same job."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from corpus import sentences
from jobs.job_files import Jobs, content, parts, write_jsonl, write_parquet
from jobs.job_process import count_shards, start_job, wait_for_shards
from service.jobs.state import JobFolder

KILLS = 10
# Ten such runs, and one more, do not finish 200.
HELD_SHARDS = 15


@pytest.fixture
def file(tmp_path: Path) -> Path:
    records = [{"id": row, "text": text} for row, text in enumerate(sentences(100))]
    records[7]["text"] = None
    return write_jsonl(tmp_path / "in.jsonl", records)


def start(file: Path, out: Path, artifact: Path, *, hold_after: int | None = None) -> subprocess.Popen[str]:
    flags: list[str | Path] = ["--artifact", artifact, "--id-column", "id", "--rows-per-shard", "100"]
    return start_job(file, out, *flags, hold_after=hold_after)


def end(process: subprocess.Popen[str]) -> int:
    process.communicate()
    return process.returncode


def kill_at_a_random_moment(process: subprocess.Popen[str], out: Path, draw: random.Random) -> None:
    """After some more shards and a little while."""
    wait_for_shards(process, out, count_shards(out) + draw.randint(0, 4))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0, 0.05))
    process.kill()
    end(process)


def test_output_after_ten_kills_is_that_of_an_undisturbed_run(tmp_path: Path, tiny_artifact: Path) -> None:
    texts = (sentences(600) * 34)[:20_000]
    file = write_parquet(tmp_path / "in.parquet", {"id": list(range(len(texts))), "text": texts}, 300)
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert end(start(file, undisturbed, tiny_artifact)) == 0
    draw = random.Random(7)
    for _ in range(KILLS):
        kill_at_a_random_moment(start(file, out, tiny_artifact, hold_after=HELD_SHARDS), out, draw)
        for part in parts(out, ".parquet") if out.exists() else []:
            assert pq.read_table(part).num_rows == 100
    assert 0 < count_shards(out) < 200
    assert end(start(file, out, tiny_artifact)) == 0
    assert content(out) == content(undisturbed)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_told_to_stop_does_so_at_once_and_goes_on_later(
    tmp_path: Path, tiny_artifact: Path, number: int, status: int
) -> None:
    texts = (sentences(600) * 34)[:20_000]
    file = write_parquet(tmp_path / "in.parquet", {"id": list(range(len(texts))), "text": texts})
    out = tmp_path / "out"
    process = start(file, out, tiny_artifact, hold_after=HELD_SHARDS)
    wait_for_shards(process, out, 2)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "seqenc: interrupted; run the same command again to go on"
    assert count_shards(out) < 200
    assert end(start(file, out, tiny_artifact)) == 0
    assert pq.read_table(out).column("id").to_pylist() == list(range(len(texts)))


def test_finished_shards_are_not_done_again(jobs: Jobs, file: Path) -> None:
    jobs.run(file, rows_per_shard=30)
    before = {path: path.stat().st_mtime_ns for path in parts(jobs.out, ".parquet")}
    (jobs.out / "part-00002.parquet").unlink()
    assert jobs.run(file, rows_per_shard=30).status == 3
    after = {path: path.stat().st_mtime_ns for path in parts(jobs.out, ".parquet")}
    assert [path.name for path in after if after[path] != before[path]] == ["part-00002.parquet"]
    assert jobs.read().column("id").to_pylist() == list(range(100))
    assert (jobs.summary()["rows"], jobs.summary()["rows_of_this_run"]) == (100, 30)


def test_a_shard_that_was_cut_is_done_again(jobs: Jobs, file: Path) -> None:
    jobs.run(file, rows_per_shard=30)
    whole = content(jobs.out)
    torn = jobs.out / "part-00001.parquet"
    torn.write_bytes(torn.read_bytes()[:-10])
    jobs.run(file, rows_per_shard=30)
    assert content(jobs.out) == whole


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_output_of_several_files_and_lines_is_finished_too(jobs: Jobs, file: Path, form: str) -> None:
    jobs.run(file, rows_per_shard=30, output_format=form)
    whole = content(jobs.out)
    for path in parts(jobs.out, ".jsonl")[1:2]:
        path.write_bytes(path.read_bytes()[:-7])
    jobs.run(file, rows_per_shard=30, output_format=form)
    assert content(jobs.out) == whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "cls"}, '--pooling was null and is "cls"'),
        ({"rows_per_shard": 31}, "--rows-per-shard was 30 and is 31"),
        (
            {"type": "int8", "dimensions": 8},
            '--dimensions was null and is 8; --type was "float32" and is "int8"',
        ),
        ({"max_batch_tokens": 100}, "max_batch_tokens was 512 and is 100"),
        ({"output_format": "npy"}, '--output-format was "parquet" and is "npy"'),
    ],
)
def test_another_setting_is_refused_by_name(
    jobs: Jobs, file: Path, settings: dict[str, Any], message: str
) -> None:
    jobs.run(file, rows_per_shard=30)
    outcome = jobs.run(file, **{"rows_per_shard": 30, **settings})
    assert outcome.status == 1
    assert message in outcome.err


def test_another_model_is_refused(jobs: Jobs, file: Path, tmp_path: Path) -> None:
    jobs.run(file)
    other = tmp_path / "other"
    shutil.copytree(jobs.artifact, other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "revision": "0" * 64}))
    outcome = jobs.run(file, artifact=other)
    assert outcome.status == 1
    assert "revision was" in outcome.err


@pytest.mark.parametrize("fingerprint", ["stat", "content"])
def test_a_changed_input_is_refused_by_name(jobs: Jobs, tmp_path: Path, fingerprint: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        write_jsonl(folder / f"{name}.jsonl", [{"text": name}])
    settings = {"fingerprint": fingerprint}
    assert jobs.run(folder, **settings).status == 0
    write_jsonl(folder / "b.jsonl", [{"text": "changed"}])
    (folder / "c.jsonl").unlink()
    write_jsonl(folder / "d.jsonl", [{"text": "d"}])
    err = jobs.run(folder, **settings).err
    assert "b.jsonl has another " + ("size" if fingerprint == "stat" else "sha256") in err
    assert "c.jsonl is gone" in err
    assert "d.jsonl is new" in err
    assert "a.jsonl" not in err


def test_a_touched_file_is_another_by_its_time_but_not_by_its_content(jobs: Jobs, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"text": "a"}])
    by_content = tmp_path / "by-content"
    jobs.run(file)
    jobs.run(file, fingerprint="content", out=by_content)
    os.utime(file, ns=(0, 0))
    assert "in.jsonl has another modified" in jobs.run(file).err
    assert jobs.run(file, fingerprint="content", out=by_content).status == 0


def test_files_in_another_order_are_refused(jobs: Jobs, tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [{"text": name}]) for name in "ab"]
    jobs.run(*files)
    assert "the files come in another order" in jobs.run(*reversed(files)).err


def test_a_second_run_on_the_folder_is_refused(jobs: Jobs, file: Path) -> None:
    with JobFolder(jobs.out, "0-of-1").locked():
        outcome = jobs.run(file)
    assert outcome.status == 1
    assert "another process works on" in outcome.err
    assert jobs.run(file).status == 3


def test_a_folder_of_something_else_is_left_alone(jobs: Jobs, file: Path) -> None:
    jobs.out.mkdir()
    (jobs.out / "precious.txt").write_text("precious")
    outcome = jobs.run(file)
    assert outcome.status == 1
    assert "is not empty and no job's folder" in outcome.err
    assert [path.name for path in jobs.out.iterdir()] == ["precious.txt"]


def test_shares_of_a_job_make_up_the_whole(jobs: Jobs, file: Path, tmp_path: Path) -> None:
    jobs.run(file, rows_per_shard=15)
    shares = tmp_path / "shares"
    for index in (2, 0, 1):
        jobs.run(file, rows_per_shard=15, shard_index=index, shard_count=3, out=shares)
    assert content(shares) == content(jobs.out)
    rows = [json.loads((shares / "_job" / f"summary-{i}-of-3.json").read_text())["rows"] for i in range(3)]
    assert rows == [40, 30, 30]
    outcome = jobs.run(file, rows_per_shard=15, shard_index=0, shard_count=2, out=shares)
    assert "--shard-count was 3 and is 2" in outcome.err


def test_a_share_of_an_empty_input_that_is_not_the_first_writes_nothing(jobs: Jobs, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [])
    assert jobs.run(file, shard_index=1, shard_count=2).status == 0
    assert parts(jobs.out, ".parquet") == []
