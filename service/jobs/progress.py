"""Shows how far a job is: a bar on a terminal, a log line a minute elsewhere, a file for node_exporter."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from service.jobs.durable import write_atomically
from service.jobs.encoded import Tally
from service.jobs.errors import JobError, reading
from service.logs import log_event

logger = logging.getLogger(__name__)

_LOG_PERIOD_S = 60.0
_FILE_PERIOD_S = 10.0
_HEAD = b"# HELP seqenc_job_"
_METRICS = {
    "rows": ("gauge", "Rows done, those of earlier runs included"),
    "errors": ("gauge", "Marked rows among them"),
    "tokens": ("gauge", "Tokens of the rows done"),
    "padding_ratio": ("gauge", "Share of the computed tokens that were padding"),
    "progress_ratio": ("gauge", "Share of the input that is read and done"),
    "rows_per_second": ("gauge", "Rows a second of this run"),
    "last_update_timestamp_seconds": ("gauge", "When this file was written"),
    "finished": ("gauge", "1 when the job has ended, well or with marked rows"),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job is. `here` is what this run did, `total` what is done in all, `ratio` of the input."""

    here: Tally
    total: Tally
    ratio: float
    seconds: float
    finished: bool = False

    @property
    def rows_per_second(self) -> float:
        return self.here.rows / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.here.tokens / self.seconds if self.seconds else 0.0


class View(Protocol):
    def show(self, standing: Standing) -> None: ...


@contextmanager
def open_views(metrics_textfile: Path | None) -> Iterator[list[View]]:
    views: list[View] = [TextFile(metrics_textfile)] if metrics_textfile else []
    if not (sys.stderr and sys.stderr.isatty()):
        yield [*views, LogLines()]
        return
    with build_bar(Console(stderr=True)) as progress:
        yield [*views, Bar(progress)]


class Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=1.0, rates="")
        self._started_at: float | None = None

    def show(self, standing: Standing) -> None:
        if self._started_at is None:
            self._started_at = standing.ratio
        left = _time_left(standing, self._started_at)
        rates = (
            f"{standing.total.rows:,} rows, {standing.rows_per_second:,.0f} rows/s, "
            f"{standing.tokens_per_second:,.0f} tokens/s, {standing.total.error_count:,} marked, {left} left"
        )
        self._progress.update(self._task, completed=standing.ratio, rates=rates)


class LogLines:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def show(self, standing: Standing) -> None:
        if self._clock() - self._last >= _LOG_PERIOD_S:
            self._last = self._clock()
            log_event(
                logger,
                logging.INFO,
                "progress",
                percent=round(100 * standing.ratio, 1),
                rows=standing.total.rows,
                rows_per_s=round(standing.rows_per_second, 1),
                tokens_per_s=round(standing.tokens_per_second),
                errors=standing.total.error_count,
            )


class TextFile:
    """Written whole under another name first, as node_exporter asks for.

    A job that cannot write it once is wrong about its path; later it goes on without.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        with reading(str(path)):
            found = path.read_bytes() if path.exists() else b""
        if found and not found.startswith(_HEAD):
            raise JobError(
                f"{path} is something else than a job's metrics; choose another --metrics-textfile"
            )
        self._path = path
        self._clock = clock
        self._last: float | None = None
        self._written = False

    def show(self, standing: Standing) -> None:
        now = self._clock()
        if self._last is None or standing.finished or now - self._last >= _FILE_PERIOD_S:
            self._last = now
            try:
                write_atomically(self._path, "".join(_samples(standing)))
                self._written = True
            except JobError as error:
                if not self._written:
                    raise
                log_event(logger, logging.WARNING, "metrics are not written", reason=error.__cause__)


def _samples(standing: Standing) -> Iterator[str]:
    values = {
        "rows": standing.total.rows,
        "errors": standing.total.error_count,
        "tokens": standing.total.tokens,
        "padding_ratio": round(standing.total.padding, 6),
        "progress_ratio": round(standing.ratio, 6),
        "rows_per_second": round(standing.rows_per_second, 3),
        "last_update_timestamp_seconds": round(time.time(), 3),
        "finished": int(standing.finished),
    }
    for name, (kind, text) in _METRICS.items():
        yield f"# HELP seqenc_job_{name} {text}.\n# TYPE seqenc_job_{name} {kind}\n"
        yield f"seqenc_job_{name} {values[name]}\n"


def _time_left(standing: Standing, started_at: float) -> str:
    done = standing.ratio - started_at
    if done <= 0:
        return "?"
    seconds = int(standing.seconds * (1 - standing.ratio) / done)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def build_bar(console: Console) -> Progress:
    return Progress(BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rates]}"), console=console)
