"""Which files an input is, in which order, and where they may be."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from jobs.job_files import read_rows, write_parquet
from service.job_settings import JobSettings
from service.jobs.errors import JobError
from service.jobs.input import open_input
from service.jobs.own_files import OwnFiles
from service.jobs.sources import find_sources


def texts(*inputs: str | Path) -> list[str | None]:
    return [row["text"] for row in read_rows(*inputs)]


def test_a_folder_is_read_by_path_and_hidden_names_are_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", "a/2.txt", "a/10.txt", "_SUCCESS", ".a.txt.crc", "_tmp/0.txt", "a/.x/1.txt"):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name}\n")
    assert texts(tmp_path / "in") == ["a/10.txt", "a/2.txt", "b.txt"]


def test_inputs_keep_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    assert texts(*(tmp_path / f"{name}.txt" for name in "cab")) == ["c", "a", "b"]


def test_formats_may_be_mixed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"text": ["a"]})
    (tmp_path / "2.jsonl").write_text('{"text": "b"}\n')
    (tmp_path / "3.csv").write_text("text\nc\n")
    assert texts(tmp_path) == ["a", "b", "c"]


def test_partitions_are_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "lang=en" / "year=2024" / "a.parquet", {"text": ["a", "b"]})
    write_parquet(tmp_path / "lang=__HIVE_DEFAULT_PARTITION__" / "year=20%3A5" / "a.parquet", {"text": ["c"]})
    rows = read_rows(tmp_path, keep_columns="lang,year")
    assert [(row["text"], row["lang"], row["year"]) for row in rows] == [
        ("c", None, "20:5"),
        ("a", "en", "2024"),
        ("b", "en", "2024"),
    ]


def test_files_are_read_through_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/folder/a.txt": b"a\n", "/folder/sub/b.txt": b"b\n"})
    try:
        assert texts("memory://folder") == ["a", "b"]
        assert texts("memory://folder/a.txt") == ["a"]
        source = open_input(JobSettings(inputs=("memory://folder",), out=Path("o"), artifact=Path("a")))
        assert list(source.fingerprint) == ["memory://folder/a.txt", "memory://folder/sub/b.txt"]
    finally:
        memory.rm("/folder", recursive=True)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (("missing.txt",), "missing.txt does not exist"),
        (("empty",), "empty has no files to read"),
        (("a.txt", "a.txt"), "a.txt is given twice"),
        (("nosuch://bucket/a.txt",), "nosuch://bucket/a.txt cannot be opened"),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(JobError, match=message):
        find_sources(inputs, None, OwnFiles(Path("out")))


def test_an_unreadable_file_in_the_middle_of_a_folder_is_named_before_any_work(tmp_path: Path) -> None:
    """A link to nowhere is unreadable to everybody, root included."""
    for name in ("1.txt", "3.txt"):
        (tmp_path / name).write_text("a\n")
    os.symlink(tmp_path / "2.txt", tmp_path / "2.txt")
    with pytest.raises(JobError, match=r"2\.txt"):
        read_rows(tmp_path)
