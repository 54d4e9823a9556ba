"""Parquet files as found in the wild: types, nulls, row groups, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.job_files import read_rows, write_parquet
from service.job_settings import JobSettings
from service.jobs.errors import JobError
from service.jobs.input import open_input
from service.jobs.shards import ShardChoice, ShardPlan, cut_blocks

TEXTS = ["a", None, "", "b", "NaN"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array([None if text is None else text.encode() for text in TEXTS], pa.binary()),
        pa.chunked_array([pa.array(TEXTS[:2]), pa.array(TEXTS[2:])]),
    ],
    ids=["string", "large_string", "string_view", "dictionary", "binary", "chunked"],
)
def test_every_type_of_text_gives_the_same_rows(tmp_path: Path, array: pa.Array) -> None:
    file = write_parquet(tmp_path / "a.parquet", {"text": array, "key": [1, 2, 3, 4, 5]})
    rows = read_rows(file, id_column="key")
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["text"] for row in rows] == TEXTS
    assert [row["problem"] for row in rows] == [None, "null: the text is null", None, None, None]


def test_a_column_without_values_is_all_null(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", {"text": pa.nulls(3)})
    assert [row["problem"] for row in read_rows(file)] == ["null: the text is null"] * 3


def test_a_first_row_group_that_is_all_null(tmp_path: Path) -> None:
    file = write_parquet(
        tmp_path / "a.parquet", {"text": pa.array([None] * 4 + ["a", "b"])}, row_group_size=4
    )
    assert [row["text"] for row in read_rows(file)] == [None] * 4 + ["a", "b"]


def test_a_first_file_that_is_all_null_does_not_decide_the_types(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"text": pa.nulls(1), "key": pa.nulls(1)})
    write_parquet(tmp_path / "2.parquet", {"text": ["a"], "key": pa.array([7], pa.int64())})
    rows = read_rows(tmp_path, id_column="key")
    assert [(row["id"], row["text"]) for row in rows] == [(None, None), (7, "a")]


def test_nested_columns_are_read_by_their_path_and_carried_whole(tmp_path: Path) -> None:
    documents: list[Any] = [{"body": "a", "tags": ["x"]}, None, {"body": None, "tags": []}]
    file = write_parquet(tmp_path / "a.parquet", {"document": documents})
    rows = read_rows(file, text_column="document.body", keep_columns="document")
    assert [row["text"] for row in rows] == ["a", None, None]
    assert [row["document"] for row in rows] == documents


def test_bytes_that_are_not_utf8_mark_their_row_only(tmp_path: Path) -> None:
    broken = pa.array([b"good", b"bad \xf0\x9f\x92", b"good again"]).view(pa.string())
    file = write_parquet(tmp_path / "a.parquet", {"text": broken, "note": broken})
    rows = read_rows(file, keep_columns="note")
    assert [row["text"] for row in rows] == ["good", None, "good again"]
    assert rows[1]["problem"].startswith("invalid_utf8:")
    assert [row["note"] for row in rows] == ["good", r"bad \udcf0\udc9f\udc92", "good again"]


def test_a_template_joins_columns_of_any_type(tmp_path: Path) -> None:
    columns = {"title": ["T", None, None], "year": [2024, 2025, None]}
    file = write_parquet(tmp_path / "a.parquet", columns)
    rows = read_rows(file, text_template="{title}\\n({year})")
    assert [row["text"] for row in rows] == ["T\n(2024)", "\n(2025)", None]
    assert rows[2]["problem"].startswith("null:")


def test_files_of_a_folder_may_differ_in_type(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"text": ["a"], "n": pa.array([1], pa.int32())})
    write_parquet(
        tmp_path / "2.parquet", {"n": pa.array([1 << 40]), "text": pa.array(["b"]).dictionary_encode()}
    )
    rows = read_rows(tmp_path, keep_columns="n")
    assert [(row["text"], row["n"]) for row in rows] == [("a", 1), ("b", 1 << 40)]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"body": ["a"]}, {}, "has no column text; it has body"),
        ({"text": [1, 2]}, {}, "column text is int64, not text; choose another with --text-column"),
        ({"text": [["a"]]}, {}, "column text is list"),
        ({"text": ["a"]}, {"id_column": "key"}, "has no column key"),
        ({"text": ["a"]}, {"keep_columns": "n, m"}, "has no column n"),
        ({"text": ["a"]}, {"text_template": "{titel}"}, "has no column titel"),
        ({"text": ["a"]}, {"text_template": "{}"}, "must name columns"),
        ({"text": ["a"]}, {"text_template": "{text"}, "cannot be read"),
        ({"text": ["a"]}, {"keep_columns": "text,text"}, "names text twice"),
    ],
)
def test_a_wrong_choice_of_columns_is_refused(
    tmp_path: Path, columns: dict[str, object], settings: dict[str, str], message: str
) -> None:
    file = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(JobError, match=message):
        read_rows(file, **settings)


def test_types_that_do_not_go_together_become_strings(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"text": ["a"], "n": [1]})
    write_parquet(tmp_path / "2.parquet", {"text": ["b"], "n": ["one"]})
    assert [row["n"] for row in read_rows(tmp_path, keep_columns="n")] == ["1", "one"]


def test_a_file_cut_short_is_named_before_any_work(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", {"text": ["a"]})
    cut = write_parquet(tmp_path / "2.parquet", {"text": ["b"] * 1000})
    cut.write_bytes(cut.read_bytes()[:-100])
    write_parquet(tmp_path / "3.parquet", {"text": ["c"]})
    with pytest.raises(JobError, match=r"2\.parquet cannot be read"):
        open_input(JobSettings(inputs=(str(tmp_path),), out=tmp_path / "out", artifact=tmp_path))


def test_a_damaged_page_is_named_when_it_is_reached(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", {"text": [f"text {number}" for number in range(5000)]})
    damaged = bytearray(file.read_bytes())
    damaged[100:3000] = bytes(2900)
    file.write_bytes(damaged)
    with pytest.raises(JobError, match=r"a\.parquet cannot be read"):
        read_rows(file)


def test_row_groups_of_finished_shards_are_not_read(tmp_path: Path) -> None:
    file = write_parquet(
        tmp_path / "a.parquet", {"text": [str(row) for row in range(100)]}, row_group_size=10
    )
    source = open_input(JobSettings(inputs=(str(file),), out=tmp_path / "out", artifact=tmp_path))
    pieces = list(source.read(lambda start, stop: start < 50 <= stop + 4))
    assert [piece.count for piece in pieces] == [10] * 10
    assert [piece.rows is not None for piece in pieces] == [False] * 4 + [True] + [False] * 5


def test_one_row_group_of_300_000_rows_is_read_in_bounded_memory(tmp_path: Path) -> None:
    file, rows = tmp_path / "a.parquet", 300_000
    texts = pa.array([f"{row:06}" + "x" * 1018 for row in range(1000)] * (rows // 1000))
    pq.write_table(pa.table({"text": texts}), file, row_group_size=rows, use_dictionary=False)
    size = texts.nbytes
    del texts
    assert pq.ParquetFile(file).num_row_groups == 1
    source = open_input(JobSettings(inputs=(str(file),), out=tmp_path / "out", artifact=tmp_path))
    plan, choice = ShardPlan(16_384), ShardChoice(16_384, 0, 1, ())
    before = pa.total_allocated_bytes()
    count = peak = 0
    for block in cut_blocks(source.read(choice.wants), source.schema, plan, choice):
        count += len(block)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert count == rows
    assert size > 300_000_000
    assert peak < 64 << 20
