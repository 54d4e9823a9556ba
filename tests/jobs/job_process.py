"""`seqenc job` as a process of its own, watched from outside."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from e2e.server_process import BIN, clean_environment

TESTS = Path(__file__).parents[1]


def start_job(
    file: Path, out: Path, *flags: str | Path, hold_after: int | None = None
) -> subprocess.Popen[str]:
    """Its output and log are piped: read them with `communicate`. With `hold_after` it finishes that many
    shards and does not end by itself.
    """
    held: list[str | Path] = [sys.executable, "-m", "jobs.held_job", str(hold_after)]
    command = held if hold_after else [BIN / "seqenc"]
    command += ["job", file, "--out", out, "--truncation", "right", "--log-level", "error", *flags]
    environment = clean_environment() | ({"PYTHONPATH": str(TESTS)} if hold_after else {})
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def count_shards(out: Path) -> int:
    return len(list((out / "_job").glob("shard-*.json")))


def wait_for_shards(process: subprocess.Popen[str], out: Path, count: int) -> None:
    while count_shards(out) < count:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            assert count_shards(out) >= count, process.communicate()
