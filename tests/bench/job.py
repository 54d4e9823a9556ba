"""`python -m bench.job`: `seqenc job` against the engine alone, and its memory and rows at full length.

The long run takes as long as its rows do: give it a small model, or fewer rows, to see only memory and rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.context import Context
from bench.measure import Sample, interleave
from bench.report import Check, Section, Table
from bench.run import add_setting, run_alone
from bench.workload import texts_of
from e2e.server_process import BIN, ServerProcess, clean_environment
from seqenc import Client

_WRITTEN_ROWS = 10_000
_COMPARED_ROWS = 200
_ODD = (None, "", "  \n ", "word " * 15_000)
_MIB = 1 << 10  # of ru_maxrss, which is in KiB
_MAX_MIB = 1_200


@dataclass(frozen=True)
class Run:
    """`seconds` from the first row read to the last file in place; `start_s` before that."""

    seconds: float
    start_s: float
    peak_mib: float
    summary: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.job", description=__doc__)
    add_setting(parser)
    parser.add_argument("--rows", type=int, default=200_000, help="of the long run")
    parser.add_argument("--long-artifact", type=Path, help="model of the long run; none given: --artifact")
    options = parser.parse_args()
    rows = 4_000 if options.quick else options.rows
    with tempfile.TemporaryDirectory() as folder:
        run_alone(
            "job", options, lambda context: _measure(context, options.long_artifact, rows, Path(folder))
        )


def _measure(context: Context, long_artifact: Path | None, rows: int, folder: Path) -> list[Section]:
    artifact = (long_artifact or context.artifact_path).resolve()
    return [measure_speed(context, folder), measure_length(context, artifact, rows, folder)]


def measure_speed(context: Context, folder: Path) -> Section:
    """Texts a second of whole jobs, without the start of their process, over those of the engine alone."""
    texts = texts_of(context.text_count * 8)
    file = write_rows(folder / "speed.parquet", iter(texts), len(texts))
    runs: list[Run] = []

    def job(*where: str | Path) -> float:
        runs.append(run_job(context, file, folder / f"speed-{len(runs)}", *where))
        return runs[-1].seconds

    with context.engine() as engine, context.server() as server:
        engine.ask("load", texts=texts)
        samples = interleave(
            {
                "engine alone, best batches": lambda: float(engine.ask("run")),
                "seqenc job --artifact": lambda: job("--artifact", context.artifact_path),
                "seqenc job --address": lambda: job("--address", server.grpc_address),
            },
            context.rounds,
        )
    alone, local, remote = samples.values()
    rates = {
        name: Sample(tuple(len(texts) / value for value in each.values)) for name, each in samples.items()
    }
    rows = [(name, rates[name], alone.over(sample)) for name, sample in samples.items()]
    start_s = np.median([run.start_s for run in runs])
    return Section(
        "job",
        [
            Table(
                "Embedding a file",
                ("what", "texts/s", "of the engine alone"),
                rows,
                (f"{len(texts)} texts a run; the process starts and loads in {start_s:.1f} s, not counted",),
            )
        ],
        [
            Check("a job in process, of the engine alone", alone.over(local).median, 0.95, "at least"),
            Check("a job over gRPC, of the engine alone", alone.over(remote).median, 0.85, "at least"),
        ],
    )


def measure_length(context: Context, artifact: Path, rows: int, folder: Path) -> Section:
    """Rows, order and vectors of a long job with one odd row in a hundred; memory at a tenth and at all."""
    file = write_rows(folder / "long.parquet", odd_texts(rows), rows)
    short_file = write_rows(folder / "short.parquet", odd_texts(rows // 10), rows // 10)
    short = run_job(context, short_file, folder / "short", "--artifact", artifact)
    long = run_job(context, file, folder / "long", "--artifact", artifact)
    with replace(context, artifact_path=artifact).server() as server:
        worst = compare_rows(file, folder / "long", server)
    lines = [
        (f"{run.summary['rows']:,}", run.summary["rows_per_second"], run.peak_mib, run.summary["padding"])
        for run in (short, long)
    ]
    return Section(
        "job-length",
        [
            Table(
                f"Long jobs, {artifact.name}",
                ("rows", "rows/s", "peak memory, MiB", "padding"),
                lines,
                (
                    "ids and order are the input's",
                    f"{_COMPARED_ROWS} vectors are within {worst:.1e} of single calls",
                ),
            )
        ],
        [
            Check("peak memory", long.peak_mib, _MAX_MIB, "at most", "MiB"),
            Check(
                "peak memory over that of a tenth of the rows",
                long.peak_mib / short.peak_mib,
                1.25,
                "at most",
            ),
            Check("largest difference to a single call", worst, 1e-5, "at most"),
        ],
    )


def odd_texts(rows: int) -> Iterator[str | None]:
    """One in a hundred is null, empty, blank or huge."""
    for row, text in enumerate(texts_of(rows)):
        yield _ODD[row // 100 % len(_ODD)] if row % 100 == 50 else text


def write_rows(path: Path, texts: Iterator[str | None], rows: int) -> Path:
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, _WRITTEN_ROWS):
            numbers = range(start, min(start + _WRITTEN_ROWS, rows))
            columns = [[f"row {number}" for number in numbers], [next(texts) for _ in numbers]]
            writer.write_table(pa.table(columns, schema=schema))
    return path


def run_job(context: Context, file: Path, out: Path, *where: str | Path) -> Run:
    command: list[str | Path] = [BIN / "seqenc", "job", file, "--out", out, "--id-column", "id", *where]
    command += ["--truncation", "right", "--log-level", "error"]
    if "--artifact" in where:
        command += ["--provider", context.provider, "--precision", context.precision]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"seqenc job ended with status {process.returncode}")
    summary = json.loads((out / "_job" / "summary-0-of-1.json").read_text())
    return Run(summary["seconds"], wall_s - summary["seconds"], usage.ru_maxrss / _MIB, summary)


def compare_rows(file: Path, out: Path, server: ServerProcess) -> float:
    """The largest difference of some vectors to single calls; raises where a row is not the input's."""
    texts = pq.read_table(file)
    ids = pq.read_table(sorted(out.glob("*.parquet")), columns=["id"]).column("id")
    if ids.to_pylist() != texts.column("id").to_pylist():
        raise RuntimeError("the output's rows are not the input's")
    worst = 0.0
    chosen = np.linspace(0, len(texts) - 1, _COMPARED_ROWS).astype(int)
    embeddings = pq.read_table(sorted(out.glob("*.parquet")), columns=["embedding"]).column("embedding")
    with Client(server.grpc_address) as client:
        for row in chosen:
            text, found = texts.column("text")[row].as_py(), embeddings[int(row)].as_py()
            if (text is None) != (found is None):
                raise RuntimeError(f"row {row} is null on one side only")
            if text is not None:
                expected = client.encode(text, truncation="right").embeddings
                assert expected is not None
                worst = max(worst, float(np.abs(np.array(found) - expected[0]).max()))
    return worst


if __name__ == "__main__":
    main()
