"""The files that users give `seqenc job`: each row becomes a row of the output, or an error names it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow.parquet as pq
import pytest
import zstandard

from service import cli


class Outcome(NamedTuple):
    status: int
    rows: list[dict[str, Any]]
    error: str

    @property
    def texts(self) -> list[tuple[str | None, str | None]]:
        """The text of each row, and the first word of its error."""
        return [(row["text"], row["error"] and row["error"].partition(":")[0]) for row in self.rows]


Job = Callable[..., Outcome]


@pytest.fixture
def job(tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    """Runs `seqenc job`; `rows` is empty unless the job is done."""

    def run(*arguments: str | Path, out: str = "out") -> Outcome:
        flags = ["--artifact", tiny_artifact, "--out", tmp_path / out, "--keep-columns", "text"]
        status = cli.main(["job", *map(str, [*arguments, *flags]), "--log-level", "error"])
        parts = sorted((tmp_path / out).glob("*.parquet"))
        rows = pq.read_table(parts).to_pylist() if status in (0, 3) else []
        return Outcome(status, rows, capsys.readouterr().err)

    return run


def written(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def some(*texts: str) -> list[tuple[str | None, str | None]]:
    return [(text, None) for text in texts]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('id,text\n1,good one\n2,"unclosed\n3,third\n4,fourth\n5,fifth\n', 3),
        ('id,text\n1,a\n2,"open\n3,"third"\n4,d\n', 3),
        ('id,text,n\n1,a,0\n2,"open,0\n3,c,0\n', 3),
        ('id,text\n1,"a\nb"\n2,"c\nd\n', 4),
        ('id,text\n1,a\n2,"open', 3),
        ('"id","text"\n"1","a"\n"2","b\n"3","c"\n', 3),
        ('id,text\n1,"a"b,"c\n2,d\n', 2),
    ],
    ids=["never", "in the middle", "short", "second", "last line", "all quoted", "two on a line"],
)
def test_a_quote_that_takes_rows_for_text_ends_the_job_with_its_line(
    job: Job, tmp_path: Path, content: str, line: int
) -> None:
    file = written(tmp_path, "a.csv", content)
    outcome = job(file, "--id-column", "id")
    assert outcome.status == 1
    assert f"{file}, line {line}: " in outcome.error
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_an_open_quote_at_the_end_of_a_compressed_file_is_named_too(job: Job, tmp_path: Path) -> None:
    file = written(tmp_path, "a.csv.gz", gzip.compress(b'id,text\n1,a\n2,"b\n'))
    outcome = job(file)
    assert (outcome.status, f"{file}, line 3: " in outcome.error) == (1, True)


def test_malformed_rows_are_marked_and_the_rest_is_read(job: Job, tmp_path: Path) -> None:
    content = (
        'id,text\r\n1,"a ""quoted"" text"\r\n2,"b"c\r\n3,"d\r\ne"\r\n4\r\n\r\n5,6" wide\r\n6,f\rg\r\n7,""\r\n'
        '"8\r\nno text"\r\n9,\u2028\x85\x0b\x0c\x1c\r\n'
    )
    outcome = job(written(tmp_path, "a.csv", content), "--id-column", "id")
    assert outcome.status == 3
    assert [row["id"] for row in outcome.rows] == ["1", "2", "3", "4", "5", "6", "7", "8\r\nno text", "9"]
    assert [row["text"] if row["error"] is None else None for row in outcome.rows] == [
        'a "quoted" text',
        None,
        "d\r\ne",
        None,
        '6" wide',
        "f\rg",
        "",
        None,
        "\u2028\x85\x0b\x0c\x1c",
    ]
    assert outcome.rows[1]["error"].startswith("invalid_record: line 3 has text after the closing quote")
    assert outcome.rows[7]["error"].startswith("invalid_record: the row on lines 11 to 12 has 1 field")


def test_every_line_of_tsv_is_a_row_with_its_quotes(job: Job, tmp_path: Path) -> None:
    lines = ['"hello', "b", '"x" y', 'end"', '"', '"a ""b"""', "c\rd"]
    content = "id\ttext\n" + "".join(f"{number}\t{text}\n" for number, text in enumerate(lines))
    outcome = job(written(tmp_path, "a.tsv", content), "--id-column", "id")
    assert (outcome.status, outcome.texts) == (0, some(*lines))


def test_quoting_is_chosen_by_a_flag_and_belongs_to_the_job(job: Job, tmp_path: Path) -> None:
    table = written(tmp_path, "a.tsv", '"id"\t"text"\n1\t"a\tb\n""c"""\n')
    assert "--quoting on" in job(table).error
    assert job(table, "--quoting", "on").texts == some('a\tb\n"c"')
    other = written(tmp_path, "b.csv", 'text\n"a"\n')
    assert job(other, "--quoting", "off", out="b").texts == some('"a"')
    again = job(other, out="b")
    assert (again.status, "quoting" in again.error) == (1, True)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_blank_line_of_one_column_is_a_null_row(job: Job, tmp_path: Path, name: str, end: str) -> None:
    empty = '""' if name == "a.csv" else " "
    outcome = job(written(tmp_path, name, end.join(["text", "", "a", "", empty, "b", "", ""])))
    assert outcome.status == 3
    null = (None, "null")
    expected = [null, *some("a"), null, *some(empty.strip('"'), "b"), null]
    assert outcome.texts == expected
    assert [row["id"] for row in outcome.rows] == list(range(6))


RECORDS = [{"text": "a\u2028", "n": 1}, {"text": "b"}, {"text": None}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pretty.json", json.dumps(RECORDS, indent=2)),
        ("minified.json", json.dumps(RECORDS, separators=(",", ":"))),
        ("marked.json", "\ufeff" + json.dumps(RECORDS) + "\r\n"),
        ("packed.json.gz", gzip.compress(json.dumps(RECORDS, indent=1).encode())),
        ("lines.jsonl", json.dumps(RECORDS)),
    ],
    ids=["pretty", "minified", "byte order mark", "gzip", "jsonl"],
)
def test_a_json_array_is_read(job: Job, tmp_path: Path, name: str, content: str | bytes) -> None:
    outcome = job(written(tmp_path, name, content))
    assert (outcome.status, outcome.texts) == (3, [*some("a\u2028", "b"), (None, "null")])


def test_an_array_longer_than_what_is_held_keeps_every_element(job: Job, tmp_path: Path) -> None:
    """Texts are cut by chunks of the file at every place, within characters too."""
    texts = [f"{number} " + "é—💩" * (number % 7) * 1200 for number in range(60)]
    file = written(tmp_path, "a.json", json.dumps([{"text": text} for text in texts], ensure_ascii=False))
    outcome = job(file, "--truncation", "right")
    assert (outcome.status, outcome.texts) == (0, some(*texts))


def test_elements_that_are_not_records_and_numbers_of_any_length_spoil_no_row(
    job: Job, tmp_path: Path
) -> None:
    long = "9" * 5000
    records = f'{{"text": "a", "key": {long}}}', "7", f'{{"text": {long}, "key": NaN}}', '["text"]'
    for name, content in (
        ("a.json", f"[{{}}, {', '.join(records)}]"),
        ("a.jsonl", "{}\n" + "\n".join(records)),
    ):
        outcome = job(written(tmp_path, name, content), "--id-column", "key", out=name + ".out")
        assert [row["error"] and row["error"].partition(":")[0] for row in outcome.rows] == [
            "missing_field",
            None,
            "invalid_record",
            "not_text",
            "invalid_record",
        ]
        assert [row["key"] for row in outcome.rows] == [None, long, None, "NaN", None]


DAMAGED = [
    ("a.csv", b"id,text\r1,a\r2,b\r", r"ends its lines with \r"),
    ("a.tsv", b"id\ttext\r\r\n1\ta\r\r\n", r"line 1: the header holds \r"),
    ("a.jsonl", b'{"text":"a"}\r{"text":"b"}\r', r"ends its lines with \r"),
    ("a.txt", b"a\rb\rc\r", r"ends its lines with \r"),
    ("a.csv", b'id,"text"x\n1,a\n', "line 1: the header is an invalid_record"),
    ("a.json", b'{\n  "text": "a"\n}\n', "holds objects that go over several lines"),
    ("a.jsonl", b'{"text":\n"a"}\n{"text":\n"b"}', "holds objects that go over several lines"),
    ("a.jsonl", b'{"text":"a"}{"text":"b"}', "holds several objects on one line"),
    ("a.json", b'[{"text":"a"},\n{"text":"b"}\n{"text":"c"}]', "line 3: the array cannot be read"),
    ("a.json", b'[{"text":"a"},\n{"text":"b', "line 2: the array cannot be read"),
    ("a.json", b'[{"text":"a"},\n{"text":' + b"[" * 100_000, "line 2: the array cannot be read"),
    ("a.json", b'[{"text":"a"}]\n[{"text":"b"}]', "line 2: the array cannot be read: the file goes on"),
    ("a.txt", "a\nb\n".encode("utf-16-le"), "is UTF-16"),
    ("a.csv", "text\na\n".encode("utf-16-be"), "is UTF-16"),
    ("a.txt", "a\nb\n".encode("utf-32"), "is UTF-32"),
    ("a.csv", gzip.compress(b"text\na\n"), "is compressed with gzip"),
    ("a.jsonl", zstandard.compress(b'{"text":"a"}\n'), "is compressed with zstd"),
    ("a.csv.gz", gzip.compress(gzip.compress(b"text\na\n")), "is compressed with gzip"),
    ("a.csv", b"PK\x03\x04\x14\x00", "is a ZIP archive or an Excel workbook"),
    ("a.txt.gz", b"", "is empty, not even gzip"),
    ("a.txt.gz", gzip.compress(b"a\n" * 9999)[:-8], "cannot be read: Truncated"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), DAMAGED, ids=[f"{name} {message}" for name, _, message in DAMAGED]
)
def test_a_file_that_cannot_be_read_is_named_for_what_it_is(
    job: Job, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = written(tmp_path, name, content)
    outcome = job(file)
    assert outcome.status == 1
    assert str(file) in outcome.error
    assert message in outcome.error
    assert outcome.error.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_zstd_window_that_needs_an_option_is_named_with_it(job: Job, tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=31)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    file = written(tmp_path, "a.txt.zst", packer.compress(b"a\n") + packer.flush())
    assert "--long=31" in job(file).error


def test_patterns_are_expanded(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "sub/year=1/c.txt", "sub/.hidden/d.txt", ".e.txt", "[f].txt", "f.txt"):
        written(tmp_path, f"in/{name}", name)
    assert job("in/?.txt", out="1").texts == some("a.txt", "b.txt", "f.txt")
    assert job("in/**/*.txt", out="2").texts == some("[f].txt", "a.txt", "b.txt", "f.txt", "sub/year=1/c.txt")
    assert job("in/[f].txt", out="3").texts == some("[f].txt")
    partitioned = job("in/sub/*", "--id-column", "year", out="4")
    assert [(row["text"], row["year"]) for row in partitioned.rows] == [("sub/year=1/c.txt", "1")]
    assert job(f"file://{tmp_path}/in/[ab].txt", out="5").texts == some("a.txt", "b.txt")
    assert "in/*.csv matches no file" in job("in/*.csv").error


def test_patterns_are_expanded_through_fsspec(job: Job) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/field/a.txt": b"a\n", "/field/b.txt": b"b\n", "/field/c.md": b"c\n"})
    try:
        assert job("memory://field/*.txt").texts == some("a", "b")
    finally:
        memory.rm("/field", recursive=True)


def test_file_urls_are_decoded(job: Job, tmp_path: Path) -> None:
    file = written(tmp_path, "a b#c?%20.txt", "odd\n")
    assert job(file, out="1").texts == some("odd")
    assert job(f"file://{tmp_path}/a%20b%23c%3F%2520.txt", out="2").texts == some("odd")
    assert job(f"file://localhost{tmp_path}/a b#c?%20.txt", out="3").texts == some("odd")
    assert "is on the host other" in job("file://other/a.txt").error
    assert "%20.txt does not exist" in job(f"file://{tmp_path}/%20.txt").error


def test_links_in_a_loop_and_what_is_not_a_file_are_short_errors(job: Job, tmp_path: Path) -> None:
    written(tmp_path, "loop/a.txt", "a\n")
    written(tmp_path, "one/a.txt", "a\n")
    written(tmp_path, "two/a.txt", "a\n")
    os.symlink(".", tmp_path / "loop" / "self")
    os.symlink(tmp_path / "two", tmp_path / "one" / "link")
    os.symlink(tmp_path / "one", tmp_path / "two" / "link")
    os.symlink("itself.txt", tmp_path / "itself.txt")
    os.symlink("nowhere", tmp_path / "broken.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for name, message in (
        ("loop", "loop/self is a link to"),
        ("loop/**", "loop/self is a link to"),
        ("one", "one/link/link is a link to"),
        ("itself.txt", "Too many levels of symbolic links"),
        ("broken.txt", "is a link to nowhere, which does not exist"),
        ("pipe.txt", "is a pipe or a device"),
    ):
        outcome = job(tmp_path / name)
        assert (outcome.status, outcome.error.count("\n")) == (1, 1)
        assert message in outcome.error
        assert len(outcome.error) < 500


def test_a_name_that_is_not_utf_8_is_the_one_named(job: Job, tiny_artifact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    written(folder, "a.txt", "a\n")
    written(folder, ".\udcff.txt", "hidden\n")
    assert job(folder, out="1").texts == some("a")
    for _ in range(2):
        own = ["--artifact", str(tiny_artifact), "--out", f"{folder}/o\udcff", "--log-level", "error"]
        assert cli.main(["job", str(folder), *own]) == 0
    file = written(folder, "sub/b\udcff.txt", "b\n")
    for given in (folder, file, f"{folder}/**/*.txt", f"file://{folder}/sub/b%FF.txt"):
        outcome = job(given)
        assert outcome.status == 1
        assert rf"{folder}/sub/b\udcff.txt has a name that is not UTF-8; rename it" in outcome.error


def test_a_damaged_file_among_others_is_the_one_named(job: Job, tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path, f"in/{number}.csv", "text\na\nb\n" if number != 1 else 'text\n"a\nb\n')
    outcome = job(tmp_path / "in")
    assert (outcome.status, "in/1.csv, line 2: " in outcome.error) == (1, True)


def test_an_empty_name_is_not_the_working_folder(job: Job) -> None:
    outcome = job("")
    assert (outcome.status, "an input is empty" in outcome.error) == (2, True)
    outcome = job("file://")
    assert (outcome.status, "file:// names no file" in outcome.error) == (1, True)
