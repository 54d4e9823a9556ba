"""The commands print on terminals of any encoding and width, and read bytes that are not text."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import model.cli
import service.cli
from e2e.server_process import BIN, clean_environment, start_server

TEXT = "Grüße 日本 😀 and enough behind them that the table has to cut it off"
ENCODINGS = ["ascii", "latin-1", "cp1252", "utf-16", "utf-8"]


@pytest.fixture(scope="module")
def address(tiny_artifact: Path) -> Iterator[str]:
    with start_server(tiny_artifact) as server:
        yield server.grpc_address


class Terminal(io.TextIOWrapper):
    """Standard output of an encoding, strict as PYTHONIOENCODING leaves it."""

    def __init__(self, encoding: str, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding, write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


def run(main: Callable[[Any], int], terminal: Terminal, *words: Any) -> tuple[int, str]:
    with redirect_stdout(terminal), redirect_stderr(Terminal(terminal.encoding)) as complaints:
        try:
            status = main([str(word) for word in words])
        except SystemExit as exit_:  # --help
            status = int(exit_.code or 0)
    assert complaints.text == ""
    return status, terminal.text


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "words",
    [["encode", "--tokens", "--token-embeddings", TEXT], ["tokenize", TEXT], ["attend", "--top", "2", TEXT]],
)
def test_tables_print_in_any_encoding(address: str, encoding: str, words: list[str]) -> None:
    status, output = run(service.cli.main, Terminal(encoding), *words, "--address", address)
    assert status == 0
    assert "[CLS]" in output
    if words[0] != "attend":
        assert ("Grüße" if encoding != "ascii" else r"Gr\xfc\xdfe") in output
        assert ("日本" if encoding.startswith("utf") else r"\u65e5\u672c") in output
        assert ("…" if encoding.startswith("utf") or encoding == "cp1252" else "...") in output


def test_columns_stay_in_line_where_letters_are_escaped(address: str) -> None:
    _, output = run(service.cli.main, Terminal("ascii"), "encode", "日本", "bank", "--address", address)
    header, *rows = output.splitlines()
    assert len({len(row) for row in (header, *rows)}) == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", ["encode", "tokenize", "attend"])
def test_lines_of_json_are_json_in_any_encoding(address: str, encoding: str, command: str) -> None:
    terminal = Terminal(encoding)
    status, output = run(service.cli.main, terminal, command, "--format", "jsonl", TEXT, "--address", address)
    assert status == 0
    record = json.loads(output)
    if command != "attend":
        assert record["text"] == TEXT
        assert output.isascii() is not encoding.startswith("utf")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_artifacts_are_shown_in_any_encoding(tiny_artifact: Path, tmp_path: Path, encoding: str) -> None:
    manifest = json.loads((tiny_artifact / "manifest.json").read_text())
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    manifest["name"] = "modèle-日本"
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    status, output = run(model.cli.main, Terminal(encoding), "info", artifact)
    assert status == 0
    assert ("日本" if encoding.startswith("utf") else r"\u65e5\u672c") in output
    status, output = run(model.cli.main, Terminal(encoding), "info", "--json", artifact)
    assert (status, json.loads(output)["name"]) == (0, "modèle-日本")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", [*service.cli.COMMANDS])
def test_help_prints_in_any_encoding(encoding: str, command: str) -> None:
    status, output = run(service.cli.main, Terminal(encoding), command, "--help")
    assert status == 0
    assert "usage: seqenc" in output
    assert "\\u" not in output


@pytest.mark.parametrize("columns", ["0", "1", "12"])
def test_a_narrow_terminal_loses_nothing(address: str, monkeypatch: Any, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["encode", "--tokens", "bank"], ["tokenize", "bank"], ["attend", "bank"]):
        _, output = run(service.cli.main, Terminal("utf-8", is_terminal=True), *words, "--address", address)
        assert "[CLS]" in output
    assert run(service.cli.main, Terminal("utf-8", is_terminal=True), "encode", "--help")[0] == 0


def test_a_narrow_terminal_shows_an_artifact(tiny_artifact: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "tiny-bert" in run(model.cli.main, Terminal("utf-8", is_terminal=True), "info", tiny_artifact)[1]


@pytest.mark.parametrize("format_", ["table", "jsonl"])
@pytest.mark.parametrize("command", ["encode", "tokenize"])
def test_bytes_that_are_not_text_are_named_by_their_line(
    address: str, monkeypatch: Any, capsys: Any, command: str, format_: str
) -> None:
    data = io.BytesIO("Grüße\n".encode() + b"bank \xff\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, "utf-8"))
    assert service.cli.main([command, "--format", format_, "-", "--address", address]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("seqenc: line 2 of standard input has bytes that are not UTF-8")
    assert "bank" not in captured.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["encode", "bank", "bank \udcff"], "text 2"),
        (["tokenize", "bank \udcff"], "text 1"),
        (["attend", "bank \udcff"], "the text"),
        (["attend", "bank", "--pair", "\udcff"], "--pair"),
        (["encode", "bank", "--prompt", "\udcff"], "--prompt"),
    ],
)
def test_so_are_those_of_arguments(address: str, capsys: Any, words: list[str], name: str) -> None:
    assert service.cli.main([*words, "--address", address]) == 1
    assert capsys.readouterr().err.startswith(f"seqenc: {name} has bytes that are not UTF-8")


@pytest.mark.parametrize("source", ["argument", "standard input"])
def test_the_c_locale_is_no_obstacle(address: str, source: str) -> None:
    """Python then reads arguments and lines as ASCII."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command: list[Any] = [BIN / "seqenc", "tokenize", "--format", "jsonl", "--address", address]
    command.append(TEXT if source == "argument" else "-")
    done = subprocess.run(
        command,
        env=clean_environment() | locale,
        input=f"{TEXT}\n".encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["text"] == TEXT


def test_closed_streams_are_no_traceback(address: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" encode --address {address} bank <&- >&-', BIN / "seqenc"],
        env=clean_environment() | {"PYTHONIOENCODING": "latin-1"},
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
