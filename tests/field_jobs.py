"""`seqenc job` in the test's process, through its command line, and the JSON lines that it wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.cli import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


class JobCommand:
    """Writes into `out` of the test's folder, with the tiny model unless an address is given."""

    def __init__(self, artifact: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._artifact = artifact
        self._folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, out: str | Path = "out") -> Outcome:
        words = ["job", *map(str, arguments), "--out", str(self._folder / out)]
        if "--address" not in words:
            words += ["--artifact", str(self._artifact)]
        status = main(words)
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)


def read_lines(out: Path, **options: Any) -> list[dict[str, Any]]:
    files = sorted(out.glob("part-*.jsonl"))
    return [json.loads(line, **options) for file in files for line in file.read_text("utf-8").splitlines()]
