"""Whole jobs: many rows of every kind, what is counted, and what stops them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpus import sentences
from e2e.server_process import BIN, clean_environment
from jobs.job_files import Jobs, parts, vectors, write_jsonl, write_parquet
from service.jobs.encode_local import LocalEncoder

ROWS = 4000
ODD: list[Any] = [None, "", "   ", "word " * 15_000, 17, ["a"], "\x00\x01", "\u200b"]


def records() -> list[dict[str, Any]]:
    """One row in a hundred is odd; sentences come several times."""
    texts: list[Any] = (sentences(900) * 5)[:ROWS]
    for place, row in enumerate(range(37, ROWS, 100)):
        texts[row] = ODD[place % len(ODD)]
    return [{"id": f"row {row}", "text": text} for row, text in enumerate(texts)]


def test_thousands_of_rows_of_every_kind(jobs: Jobs, tmp_path: Path, encoder: LocalEncoder) -> None:
    rows = records()
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    assert jobs.run(file, id_column="id", rows_per_shard=1000).status == 3
    table = jobs.read()
    assert table.column("id").to_pylist() == [row["id"] for row in rows]
    errors = table.column("error").to_pylist()
    marked = [row for row, error in enumerate(errors) if error]
    assert marked == [row for row, each in enumerate(rows) if not isinstance(each["text"], str)]
    found = vectors(table)
    for row in [*range(0, ROWS, 97), *range(37, ROWS, 100)]:
        if row in marked:
            assert not found[row].any()
        else:
            alone = encoder.encode([rows[row]["text"]]).vectors
            assert alone is not None
            np.testing.assert_allclose(found[row], alone.data[0], atol=1e-5)
    summary = jobs.summary()
    assert summary["rows"] == ROWS
    assert summary["errors"] == {"null": 5, "not_text": 10}
    assert summary["truncated"] == sum(table.column("truncated").to_pylist())
    assert summary["tokens"] == sum(table.column("token_count").to_pylist())
    assert 0 < summary["padding"] < 0.1


@pytest.mark.parametrize("truncation", ["error", "right"])
def test_one_huge_row_is_marked_or_cut_and_its_neighbours_are_whole(
    jobs: Jobs, tmp_path: Path, encoder: LocalEncoder, truncation: str
) -> None:
    texts = ["a short text"] * 100
    texts[37] = "word " * 15_000
    outcome = jobs.run(write_parquet(tmp_path / "in.parquet", {"text": texts}), truncation=truncation)
    table = jobs.read()
    errors = table.column("error").to_pylist()
    if truncation == "error":
        assert outcome.status == 3
        assert errors[37] == "refused: the text has 15002 tokens, the limit is 64"
        assert "1 marked (refused 1)" in outcome.out
    else:
        assert outcome.status == 0
        assert errors[37] is None
        assert table.column("truncated").to_pylist()[37]
    assert [error for row, error in enumerate(errors) if row != 37] == [None] * 99
    alone = encoder.encode(["a short text"]).vectors
    assert alone is not None
    np.testing.assert_allclose(vectors(table)[[36, 38]], np.tile(alone.data[0], (2, 1)), atol=1e-5)


def test_a_column_of_nulls_is_a_job_of_marked_rows(jobs: Jobs, tmp_path: Path) -> None:
    outcome = jobs.run(write_parquet(tmp_path / "in.parquet", {"text": [None] * 5}))
    assert outcome.status == 3
    assert jobs.read().column("embedding").null_count == 5


def test_too_many_errors_stop_the_job_and_a_higher_limit_goes_on(jobs: Jobs, tmp_path: Path) -> None:
    texts = [None if row % 10 == 9 else "a text" for row in range(100)]
    file = write_parquet(tmp_path / "in.parquet", {"text": texts})
    outcome = jobs.run(file, rows_per_shard=20, max_errors=4)
    assert outcome.status == 1
    assert "6 rows are marked (null 6), --max-errors is 4" in outcome.err
    assert len(parts(jobs.out, ".parquet")) == 2
    assert jobs.run(file, rows_per_shard=20, max_errors=10).status == 3
    assert jobs.read().num_rows == 100


def test_the_first_marked_rows_are_logged_without_their_text(jobs: Jobs, tmp_path: Path) -> None:
    rows = [{"text": ["secret"]} for _ in range(30)]
    err = jobs.run(write_jsonl(tmp_path / "in.jsonl", rows)).err
    assert err.count("row marked") == 10
    assert "row=9 error=not_text: the text is an array, not a string" in err
    assert "secret" not in err


def test_a_file_that_breaks_in_the_middle_keeps_the_shards_before_it(jobs: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_parquet(folder / "1.parquet", {"text": sentences(60)})
    broken = write_parquet(folder / "2.parquet", {"text": [str(row) * 20 for row in range(5000)]})
    damaged = bytearray(broken.read_bytes())
    damaged[100:3000] = bytes(2900)
    broken.write_bytes(damaged)
    outcome = jobs.run(folder, rows_per_shard=20)
    assert outcome.status == 1
    assert "2.parquet cannot be read" in outcome.err
    assert 1 <= len(parts(jobs.out, ".parquet")) <= 3
    assert not [path for path in jobs.out.iterdir() if path.name.endswith(".tmp")]


def test_a_full_disk_stops_the_job_with_its_reason_and_leaves_no_torn_file(
    tmp_path: Path, tiny_artifact: Path
) -> None:
    """A limit on the size of files fails a write in its middle, as a full disk does."""
    file = write_parquet(tmp_path / "in.parquet", {"text": sentences(900)})
    out = tmp_path / "out"
    command: list[str | Path] = [BIN / "seqenc", "job", file, "--out", out, "--artifact", tiny_artifact]
    command += ["--truncation", "right"]
    # The shell sets the limit, in blocks of 512 bytes: preexec_fn would fork this process and gRPC's threads.
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -f 117 && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert limited.returncode == 1
    assert "cannot be written: File too large; make room" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert [path.name for path in out.iterdir()] == ["_job"]
    assert subprocess.run(command, capture_output=True, env=clean_environment()).returncode == 0


def test_a_plan_without_work(jobs: Jobs, tmp_path: Path) -> None:
    texts = ["a text", None] * 1500
    parquet = write_parquet(tmp_path / "in.parquet", {"text": texts})
    outcome = jobs.run(parquet, dry_run=True, rows_per_shard=1000)
    assert outcome.status == 0
    assert "1 parquet file, " in outcome.out
    assert " 3,000 rows" in outcome.out
    assert ": 3 parquet shards" in outcome.out
    assert "embedding: fixed_size_list" in outcome.out
    assert "marked: null 128" in outcome.out
    assert "6,000 tokens" in outcome.out
    assert not jobs.out.exists()


def test_a_plan_estimates_rows_that_only_reading_would_count(jobs: Jobs, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"text": f"text {row:06}"} for row in range(20_000)])
    line = jobs.run(file, dry_run=True).out.splitlines()[0]
    estimate = int(line.split("about ")[1].split(" rows")[0].replace(",", ""))
    assert estimate == pytest.approx(20_000, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 33}, "options.dimensions: is 33, must be 1 to 32"),
        ({"prompt_name": "query"}, "is not a prompt of this model"),
        ({"expected_revision": "abc"}, "--expected-revision is abc"),
        ({"artifact": Path("/nowhere")}, "artifact /nowhere is not a folder"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(
    jobs: Jobs, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    outcome = jobs.run(write_parquet(tmp_path / "in.parquet", {"text": ["a"]}), **settings)
    assert outcome.status == 1
    assert message in outcome.err
    assert parts(jobs.out, ".parquet") == []


def test_a_folder_that_cannot_be_made_is_named(jobs: Jobs, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "in.parquet", {"text": ["a"]})
    outcome = jobs.run(file, out=file / "out")
    assert outcome.status == 1
    assert "in.parquet/out cannot be written: Not a directory" in outcome.err
