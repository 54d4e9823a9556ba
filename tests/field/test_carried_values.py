"""Ids and carried columns of a job: exact, whatever their type and value, and never the end of the job."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from field_jobs import Outcome, read_lines
from jobs.job_files import vectors, write_parquet

MAX, MIN = 2**63 - 1, -(2**63)
UUIDS = [uuid.UUID(int=1), uuid.UUID(int=2**127 + 1), uuid.UUID(int=2**128 - 1)]
BYTES = [b"\xff\x01", b"\xfe\x01", b"text"]
HEX = ["ff01", "fe01", "74657874"]
Run = Callable[..., Outcome]


def counts(values: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def refuse(text: str) -> NoReturn:
    raise AssertionError(f"{text} is not JSON")


MICROSECONDS = [MAX, 253402300800 * 10**6, -62167219200 * 10**6]
MICROSECOND_TEXTS = [
    "294247-01-10 04:00:54.775807",
    "10000-01-01 00:00:00.000000",
    "0000-01-01 00:00:00.000000",
]
NOT_UTF8 = pa.array(BYTES).view(pa.string())
NOT_UTF8_TEXTS = [r"\udcff" + "\x01", r"\udcfe" + "\x01", "text"]
# The values of a column, and what JSON lines have of them.
COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "binary": (pa.array(BYTES), HEX),
    "large_binary": (pa.array(BYTES, pa.large_binary()), HEX),
    "binary_view": (pa.array(BYTES, pa.binary_view()), HEX),
    "fixed": (pa.array([b"\xff\xff", b"\xff\xfe", None], pa.binary(2)), ["ffff", "fffe", None]),
    "bytes_of_uuid": (pa.array([each.bytes for each in UUIDS], pa.binary(16)), [each.hex for each in UUIDS]),
    "uuid": (pa.array([each.bytes for each in UUIDS], pa.uuid()), [str(each) for each in UUIDS]),
    "int64": (pa.array([MAX, MIN, 2**53 + 1]), [MAX, MIN, 2**53 + 1]),
    "uint64": (pa.array([2**64 - 1, 0, None], pa.uint64()), [2**64 - 1, 0, None]),
    "double": (pa.array([float("nan"), float("-inf"), -0.0]), ["NaN", "-Infinity", -0.0]),
    "float": (
        pa.array([float("inf"), 0.1, None], pa.float32()),
        ["Infinity", float(np.float32(0.1)), None],
    ),
    "half": (pa.array(np.array([np.nan, np.inf, 0.5], np.float16)), ["NaN", "Infinity", 0.5]),
    "decimal": (
        pa.array([Decimal("1.10"), Decimal("1E-12"), None], pa.decimal128(38, 12)),
        ["1.100000000000", "0.000000000001", None],
    ),
    "decimal256": (
        pa.array([Decimal(10) ** 70, None, Decimal(-1)], pa.decimal256(76, 2)),
        [
            f"1{'0' * 70}.00",
            None,
            "-1.00",
        ],
    ),
    "timestamp": (counts(MICROSECONDS, pa.timestamp("us")), MICROSECOND_TEXTS),
    "utc": (counts(MICROSECONDS, pa.timestamp("us", "UTC")), [f"{text}Z" for text in MICROSECOND_TEXTS]),
    "zone": (
        counts([0, 1, -1], pa.timestamp("ns", "America/New_York")),
        [
            "1970-01-01 00:00:00.000000000Z",
            "1970-01-01 00:00:00.000000001Z",
            "1969-12-31 23:59:59.999999999Z",
        ],
    ),
    "no_such_zone": (
        counts([0, MAX, 1000], pa.timestamp("ms", "Mars/Phobos")),
        ["1970-01-01 00:00:00.000Z", "292278994-08-17 07:12:55.807Z", "1970-01-01 00:00:01.000Z"],
    ),
    "date": (
        counts([2**31 - 1, -(2**31), 2932897], pa.date32()),
        ["5881580-07-11", "-5877641-06-23", "10000-01-01"],
    ),
    "time": (
        counts([1, 86399999999999, 43200 * 10**9], pa.time64("ns")),
        ["00:00:00.000000001", "23:59:59.999999999", "12:00:00.000000000"],
    ),
    "no_time": (
        counts([-1, 10**15, 0], pa.time64("ns")),
        [
            "-00:00:00.000000001",
            "277:46:40.000000000",
            "00:00:00.000000000",
        ],
    ),
    "duration": (
        counts([MAX, -1, 0], pa.duration("ms")),
        ["PT9223372036854775.807S", "-PT0.001S", "PT0.000S"],
    ),
    "bool": (pa.array([True, False, None]), [True, False, None]),
    "null": (pa.nulls(3), [None, None, None]),
    "view": (pa.array(["a", "é", None], pa.string_view()), ["a", "é", None]),
    "dictionary": (pa.array(BYTES).dictionary_encode(), HEX),
    "not_utf8": (NOT_UTF8, NOT_UTF8_TEXTS),
    "lists": (
        pa.ListArray.from_arrays([0, 2, 2, 3], counts(MICROSECONDS, pa.timestamp("us"))),
        [MICROSECOND_TEXTS[:2], [], MICROSECOND_TEXTS[2:]],
    ),
    "lists_not_utf8": (
        pa.LargeListArray.from_arrays([0, 1, 2, 3], NOT_UTF8),
        [[text] for text in NOT_UTF8_TEXTS],
    ),
    "fixed_lists": (
        pa.array([[1.0, float("nan")], None, [0.0, 1.0]], pa.list_(pa.float32(), 2)),
        [[1.0, "NaN"], None, [0.0, 1.0]],
    ),
    "struct": (
        pa.StructArray.from_arrays([counts(MICROSECONDS, pa.timestamp("us")), NOT_UTF8], ["t", "s"]),
        [{"t": t, "s": s} for t, s in zip(MICROSECOND_TEXTS, NOT_UTF8_TEXTS, strict=True)],
    ),
    "same_names": (
        pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([4, 5, 6])], ["x", "x"]),
        [[["x", 1], ["x", 4]], [["x", 2], ["x", 5]], [["x", 3], ["x", 6]]],
    ),
    "map": (
        pa.MapArray.from_arrays([0, 1, 1, 3], pa.array(BYTES), counts(MICROSECONDS, pa.timestamp("us"))),
        [
            [[HEX[0], MICROSECOND_TEXTS[0]]],
            [],
            [[HEX[1], MICROSECOND_TEXTS[1]], [HEX[2], MICROSECOND_TEXTS[2]]],
        ],
    ),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_parquet(
        tmp_path / "in.parquet",
        {"text": ["a", "b", "c"]} | {name: array for name, (array, _) in COLUMNS.items()},
    )


@pytest.mark.parametrize("form", ["jsonl", "npy"])
def test_every_value_is_exact_in_json(run_job: Run, file: Path, tmp_path: Path, form: str) -> None:
    outcome = run_job(file, "--keep-columns", ",".join(COLUMNS), "--output-format", form)
    assert outcome.status == 0, outcome.err
    records = read_lines(tmp_path / "out", parse_constant=refuse)
    assert {name: [record[name] for record in records] for name in COLUMNS} == {
        name: expected for name, (_, expected) in COLUMNS.items()
    }


def test_every_value_is_kept_in_parquet(run_job: Run, file: Path, tmp_path: Path) -> None:
    outcome = run_job(file, "--keep-columns", ",".join(COLUMNS))
    assert outcome.status == 0, outcome.err
    table, given = pq.read_table(tmp_path / "out"), pq.read_table(file)
    changed = {"not_utf8", "lists_not_utf8", "struct", "double", "half", "fixed_lists", "dictionary"}
    for name in COLUMNS.keys() - changed:
        assert table[name].equals(given[name]), name
    assert table["not_utf8"].to_pylist() == NOT_UTF8_TEXTS
    assert table["struct"].combine_chunks().field("s").to_pylist() == NOT_UTF8_TEXTS


@pytest.mark.parametrize("form", ["jsonl", "npy"])
@pytest.mark.parametrize(
    "name", ["binary", "bytes_of_uuid", "uuid", "not_utf8", "double", "timestamp", "struct"]
)
def test_ids_of_rows_that_differ_differ(
    run_job: Run, file: Path, tmp_path: Path, form: str, name: str
) -> None:
    assert run_job(file, "--id-column", name, "--output-format", form).status == 0
    records = read_lines(tmp_path / "out")
    assert [record[name] for record in records] == COLUMNS[name][1]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_ids_of_text_files_that_are_not_text_differ(run_job: Run, tmp_path: Path, form: str) -> None:
    content = {
        "csv": b"id,text\n\xe9,a\n\xe8,b\n",
        "jsonl": rb'{"id": "\ud800", "text": "a"}' + b"\n" + rb'{"id": "\ud801", "text": "b"}',
    }
    file = tmp_path / f"in.{form}"
    file.write_bytes(content[form])
    assert run_job(file, "--id-column", "id").status == 0
    ids = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert ids == ([r"\udce9", r"\udce8"] if form == "csv" else [r"\ud800", r"\ud801"])


@pytest.mark.parametrize("form", ["parquet", "jsonl", "npy"])
def test_rows_with_the_same_id_are_rows_of_their_own(run_job: Run, tmp_path: Path, form: str) -> None:
    file = write_parquet(tmp_path / "in.parquet", {"id": ["x", "x", None], "text": ["a", "b", "a"]})
    assert run_job(file, "--id-column", "id", "--output-format", form).status == 0
    if form == "parquet":
        table = pq.read_table(tmp_path / "out")
        ids, found = table["id"].to_pylist(), vectors(table)
    else:
        records = read_lines(tmp_path / "out")
        ids = [record["id"] for record in records]
        npy = tmp_path / "out" / "part-00000.npy"
        found = np.load(npy) if form == "npy" else np.array([record["embedding"] for record in records])
    assert ids == ["x", "x", None]
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("name", ["timestamp", "no_such_zone", "duration", "uuid", "lists", "map"])
def test_a_template_has_the_same_texts(run_job: Run, file: Path, tmp_path: Path, name: str) -> None:
    assert run_job(file, "--text-template", f"{{{name}}}", "--truncation", "right").status == 0
    texts = [each if isinstance(each, str) else json.dumps(each) for each in COLUMNS[name][1]]
    plain = write_parquet(tmp_path / "plain.parquet", {"text": texts})
    assert run_job(plain, "--truncation", "right", out="plain").status == 0
    found, expected = (vectors(pq.read_table(tmp_path / out)) for out in ("out", "plain"))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_bytes_in_a_template_are_text_or_mark_their_row(run_job: Run, file: Path, tmp_path: Path) -> None:
    assert run_job(file, "--text-template", "{fixed} {binary}").status == 3
    errors = pq.read_table(tmp_path / "out")["error"].to_pylist()
    assert [bool(error) for error in errors] == [True, True, False]
    assert errors[0].startswith("invalid_utf8")


@pytest.fixture
def files_of_two_units(tmp_path: Path) -> Path:
    """Nanoseconds, the second file's unit, end in the year 2262."""
    folder = tmp_path / "in"
    far = counts([253402214400 * 10**6, 10**6], pa.timestamp("us"))
    write_parquet(folder / "1.parquet", {"text": ["a", "b"], "when": far})
    write_parquet(folder / "2.parquet", {"text": ["c"], "when": counts([1], pa.timestamp("ns"))})
    return folder


def test_a_carried_value_that_the_other_files_have_no_room_for_is_null_and_logged(
    run_job: Run, files_of_two_units: Path, tmp_path: Path
) -> None:
    outcome = run_job(files_of_two_units, "--keep-columns", "when")
    assert outcome.status == 0, outcome.err
    assert "1.parquet column=when" in outcome.err
    when = pq.read_table(tmp_path / "out")["when"]
    assert when.cast(pa.int64()).to_pylist() == [None, 10**9, 1]


def test_an_id_that_the_other_files_have_no_room_for_is_refused(
    run_job: Run, files_of_two_units: Path
) -> None:
    outcome = run_job(files_of_two_units, "--id-column", "when")
    assert outcome.status == 1
    assert "1.parquet: column when does not fit the other files'" in outcome.err


def test_old_timestamps_of_spark_keep_the_year_9999(run_job: Run, tmp_path: Path) -> None:
    last_day = datetime.datetime(9999, 12, 31)
    table = pa.table({"text": ["a"], "until": pa.array([last_day], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "in.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    assert run_job(tmp_path / "in.parquet", "--keep-columns", "until").status == 0
    assert pq.read_table(tmp_path / "out")["until"].to_pylist() == [last_day]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_types_that_files_of_several_formats_do_not_share_become_strings(
    run_job: Run, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "in"
    first = {"text": ["a", "b"], "id": [2**53 + 1, None], "more": pa.array([UUIDS[0].bytes] * 2, pa.uuid())}
    write_parquet(folder / "1.parquet", first)
    broken = pa.array([[b"\xff"]]).view(pa.list_(pa.string()))
    write_parquet(folder / "2.parquet", {"text": ["c"], "id": pa.array([1], pa.date32()), "more": broken})
    (folder / "3.csv").write_text("id,text,more\n007,d,plain\n")
    (folder / "4.jsonl").write_text('{"id": 1.50, "text": "e", "more": {"a": [1]}}\n')
    flags = ("--id-column", "id", "--keep-columns", "more,text", "--output-format", form)
    assert run_job(folder, *flags).status == 0
    out = tmp_path / "out"
    rows = read_lines(out) if form == "jsonl" else pq.read_table(out).to_pylist()
    assert [(row["text"], row["id"], row["more"]) for row in rows] == [
        ("a", "9007199254740993", str(UUIDS[0])),
        ("b", None, str(UUIDS[0])),
        ("c", "1970-01-02", r'["\udcff"]'),
        ("d", "007", "plain"),
        ("e", "1.5", '{"a": [1]}'),
    ]


def test_bytes_in_the_name_of_a_partition_stay_different(run_job: Run, tmp_path: Path) -> None:
    for name in ("k=%FF", "k=%FE"):
        write_parquet(tmp_path / "in" / name / "a.parquet", {"text": ["a"]})
    assert run_job(tmp_path / "in", "--id-column", "k").status == 0
    assert pq.read_table(tmp_path / "out")["k"].to_pylist() == [r"\udcfe", r"\udcff"]


@pytest.mark.parametrize("name", ["text", "k"])
def test_a_column_that_a_file_has_twice_is_refused(run_job: Run, tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "k", name])
    pq.write_table(table, tmp_path / "a.parquet")
    outcome = run_job(tmp_path / "a.parquet", "--keep-columns", "k")
    assert (outcome.status, f"a.parquet has 2 columns {name}; rename them" in outcome.err) == (1, True)
