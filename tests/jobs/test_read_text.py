"""JSON lines, CSV, TSV and plain lines as found in the wild."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from jobs.job_files import read_rows, write_jsonl
from service.jobs import lines
from service.jobs.errors import JobError


def texts(*inputs: Path, **settings: str) -> list[str | None]:
    return [row["text"] for row in read_rows(*inputs, **settings)]


def problems(*inputs: Path, **settings: str) -> list[str | None]:
    return [row["problem"] and row["problem"].split(":")[0] for row in read_rows(*inputs, **settings)]


def test_each_bad_record_is_marked_and_the_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    records = [
        (b'{"text": "good"}', None),
        (b'{"text": null}', "null"),
        (b'{"text": 3}', "not_text"),
        (b'{"text": NaN}', "not_text"),
        (b'{"text": ["a"]}', "not_text"),
        (b'{"text": true}', "not_text"),
        (b'{"body": "no text"}', "missing_field"),
        (b'{"text": "bad \\ud83d end"}', "invalid_utf8"),
        (b'{"text": "bad \xf0\x9f\x92 end"}', "invalid_utf8"),
        (b'{"text": "cut', "invalid_record"),
        (b'["text"]', "invalid_record"),
        (b"[" * 100_000, "invalid_record"),
        (b'{"text": ""}', None),
        (b'{"text": "\\ud83d\\udca9"}', None),
    ]
    file.write_bytes(b"\n".join(record for record, _ in records))
    assert problems(file) == [problem for _, problem in records]
    assert texts(file) == ["good", *[None] * 11, "", "💩"]


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\n{"text": "a"}\r\n  \n\n{"text": "b"}')
    assert texts(file) == ["a", "b"]


def test_a_torn_last_line_is_marked(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b", "embe')
    assert problems(file) == [None, "invalid_record"]


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_last_line_cut_inside_a_character_is_marked(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes('{"text": "a"}\n{"text": "💩"}'.encode()[:-cut])
    assert problems(file) == [None, "invalid_record"]


def test_values_carried_along_become_strings(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "a.jsonl",
        [
            {"text": "a", "id": 7, "meta": {"tags": ["é"]}},
            {"text": "b", "id": "x", "meta": None},
            {"text": "c"},
        ],
    )
    rows = read_rows(file, id_column="id", keep_columns="meta,meta.tags")
    assert [row["id"] for row in rows] == ["7", "x", None]
    assert [row["meta"] for row in rows] == ['{"tags": ["é"]}', None, None]
    assert [row["meta.tags"] for row in rows] == ['["é"]', None, None]


def test_nested_fields_are_texts_by_their_path(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"doc": {"body": "a"}}, {"doc": None}, {"doc": "flat"}])
    assert texts(file, text_column="doc.body") == ["a", None, None]
    assert problems(file, text_column="doc.body") == [None, "missing_field", "missing_field"]


def test_a_template_takes_missing_fields_as_empty(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"title": "T", "n": 1}, {"title": "T"}, {}, {"title": []}])
    assert texts(file, text_template="{title} {n}") == ["T 1", "T ", None, None]
    assert problems(file, text_template="{title} {n}") == [None, None, "null", "not_text"]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_compressed_lines(tmp_path: Path, suffix: str, compress: object) -> None:
    assert callable(compress)
    file = tmp_path / f"a.jsonl.{suffix}"
    halves = [compress(b'{"text": "a"}\n{"te'), compress(b'xt": "b"}\n')]
    file.write_bytes(b"".join(halves) if suffix == "gz" else compress(b'{"text": "a"}\n{"text": "b"}\n'))
    assert texts(file) == ["a", "b"]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_a_compressed_file_cut_short_is_an_error(tmp_path: Path, suffix: str, compress: object) -> None:
    assert callable(compress)
    file = tmp_path / f"a.jsonl.{suffix}"
    content = compress("".join(f'{{"text": "{hash(str(n))}"}}\n' for n in range(5000)).encode())
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(JobError, match=rf"a\.jsonl\.{suffix} cannot be read"):
        read_rows(file)


def test_plain_lines_keep_blank_ones_and_lose_their_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbffirst\r\n\n  \nlone\rreturn\nbad \xff\nlast")
    assert texts(file) == ["first", "", "  ", "lone\rreturn", None, "last"]
    assert problems(file)[4] == "invalid_utf8"


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    for name, content in (
        ("a.jsonl", b'{"text": "a"}\n'),
        ("b.csv", b"text\na\n"),
        ("c.tsv", b"text\tn\na\t1\n"),
    ):
        file = tmp_path / name
        file.write_bytes(b"\xef\xbb\xbf" + content)
        assert texts(file) == ["a"]


def test_utf16_is_refused_and_not_marked_row_by_row(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("a\nb\n".encode("utf-16"))
    with pytest.raises(JobError, match="is UTF-16; convert it to UTF-8"):
        read_rows(file)


def test_a_line_longer_than_the_limit_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3 << 20)
    file = tmp_path / "a.txt"
    file.write_bytes(b"a\n" + b"x" * (4 << 20) + b"\nb\n")
    assert texts(file) == ["a", None, "b"]
    assert problems(file) == [None, "invalid_record", None]


def test_quoted_fields_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'id,text\r\n1,"a, ""b""\r\nc"\r\n\r\n2,d\r\n3,\r\n')
    rows = read_rows(file, id_column="id")
    assert [(row["id"], row["text"]) for row in rows] == [("1", 'a, "b"\r\nc'), ("2", "d"), ("3", "")]


def test_rows_with_too_few_or_many_fields_are_marked_and_keep_their_id(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"id,text,n\n1,a,0\n2,b\n3,c,0,0\n4,bad \xff,0\n5,e,0\n")
    rows = read_rows(file, id_column="id")
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row["text"] for row in rows] == ["a", None, None, None, "e"]
    assert rows[1]["problem"] == "invalid_record: the row has 2 fields, the header has 3"
    assert rows[3]["problem"].startswith("invalid_utf8:")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text\na\n"b\nc\n', "line 3: .* is never closed"),
        ('text\na\n"b', "line 3: .* is never closed"),
        ('id,text\n1,"a\nb","c\nd\n', "line 3: .* is never closed"),
        ('id,text\n1,"a\n2,"b"\n', "line 2: .* ends on line 3, where more text follows it"),
        ('text\n"a\n' + "b\n" * 2000, "line 2: .* is not closed within 1000 bytes"),
    ],
)
def test_a_quote_left_open_is_an_error_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr("service.jobs.delimited.MAX_LINE_BYTES", 1000)
    file = tmp_path / "a.csv"
    file.write_text(content)
    with pytest.raises(JobError, match=rf"a\.csv, {message}"):
        read_rows(file)


def test_tabs_separate_tsv(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("id\ttext\n1\ta, b\n")
    assert texts(file) == ["a, b"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.csv", "body,n\na,1\n", {}, "has no column text; it has body, n"),
        ("a.csv", "text,text\na,b\n", {}, "has 2 columns text"),
        ("a.txt", "a\n", {"id_column": "id"}, "there is no id"),
        ("a.dat", "a\n", {}, "has no known ending"),
        ("a.parquet.gz", "a\n", {}, "compressed inside"),
        ("a.parquet", "no parquet\n", {}, "cannot be read"),
    ],
)
def test_a_file_that_cannot_do_is_refused(
    tmp_path: Path, name: str, content: str, settings: dict[str, str], message: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(JobError, match=message):
        read_rows(file, **settings)


def test_a_format_that_is_said_overrules_the_name(tmp_path: Path) -> None:
    file = tmp_path / "a.dat"
    file.write_text("a\nb\n")
    assert texts(file, input_format="text") == ["a", "b"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.touch()
    assert read_rows(file) == []
