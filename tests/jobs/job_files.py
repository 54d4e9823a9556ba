"""Files that jobs read, jobs run in this process, and what they wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.job_settings import JobSettings
from service.jobs.command import run_job
from service.jobs.input import open_input
from service.jobs.rows import ID, PROBLEM, TEXT


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


class Jobs:
    """Runs jobs of the tiny model into `out`, each row group and shard small."""

    def __init__(self, artifact: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.artifact = artifact
        self.out = folder / "out"
        self._capsys = capsys

    def run(self, *inputs: str | Path, **settings: Any) -> Outcome:
        given = {"artifact": self.artifact, "out": self.out, "truncation": "right", **settings}
        status = run_job(JobSettings(inputs=tuple(map(str, inputs)), **given))
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def read(self, out: Path | None = None) -> pa.Table:
        return pq.read_table(parts(out or self.out, ".parquet"))

    def summary(self, share: str = "0-of-1") -> dict[str, Any]:
        return dict(json.loads((self.out / "_job" / f"summary-{share}.json").read_text()))


def parts(out: Path, suffix: str) -> list[Path]:
    return sorted(
        path for path in out.iterdir() if path.name.startswith("part-") and path.name.endswith(suffix)
    )


def content(out: Path) -> dict[str, bytes]:
    """Every output file."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


def vectors(table: pa.Table) -> np.ndarray[Any, np.dtype[Any]]:
    """(N, D), zero where null."""
    column = table.column("embedding").combine_chunks()
    size = column.type.list_size
    rows = [[0.0] * size if row is None else row for row in column.to_pylist()]
    return np.array(rows, np.float32).reshape(-1, size)


def read_rows(*inputs: str | Path, **settings: Any) -> list[dict[str, Any]]:
    """Each row of the input as its reader gives it, without the columns' leading #."""
    given = {"artifact": "unused", "out": "unused", **settings}
    source = open_input(JobSettings(inputs=tuple(map(str, inputs)), **given))
    rows = []
    for piece in source.read(lambda _start, _stop: True):
        assert piece.rows is not None
        assert piece.rows.num_rows == piece.count
        rows += piece.rows.to_pylist()
    names = {ID: "id", TEXT: "text", PROBLEM: "problem"}
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def write_parquet(path: Path, columns: dict[str, Any], row_group_size: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
