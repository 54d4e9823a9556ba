"""Runs a job: takes results in order, writes them shard by shard, and finishes each shard once."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from service.job_settings import JobSettings
from service.jobs.encode_block import Result
from service.jobs.encoded import Model, Tally, empty_tally
from service.jobs.errors import JobError, printing
from service.jobs.input import Input
from service.jobs.output import ShardWriter
from service.jobs.progress import Standing, View, open_views
from service.jobs.shards import ShardChoice
from service.jobs.state import JobFolder, JobIdentity
from service.jobs.table import Layout
from service.logs import log_event

logger = logging.getLogger(__name__)

DONE, DONE_WITH_ERRORS = 0, 3
_LOGGED_ERRORS = 10
# Settings that shape what is written.
_OUTPUT_SETTINGS = (
    "text_column",
    "text_template",
    "id_column",
    "keep_columns",
    "input_format",
    "prompt_name",
    "prompt",
    "truncation",
    "max_tokens",
    "pooling",
    "normalize",
    "dimensions",
    "type",
    "token_embeddings",
    "output_format",
    "rows_per_shard",
    "fingerprint",
    "shard_count",
)

# The results of the chosen shards, in the order of their rows.
Encode = Callable[[ShardChoice], Iterator[Result]]


def run_job(
    settings: JobSettings, source: Input, folder: JobFolder, model: Model, layout: Layout, encode: Encode
) -> int:
    """The exit status. The folder is locked by the caller. Raises JobError."""
    folder.claim(_identity(settings, source, model))
    with open_views(settings.metrics_textfile) as views:
        job = _Job(settings, source, folder, layout, views)
        job.run(encode)
    folder.write_summary(job.summary())
    with printing("the vectors are complete, and the totals are in the job's folder"):
        print(job.describe())
    return DONE_WITH_ERRORS if job.total.error_count else DONE


def open_folder(settings: JobSettings) -> JobFolder:
    return JobFolder(settings.out, f"{settings.shard_index}-of-{settings.shard_count}")


class _Job:
    """`here` is what this run did, `total` what is done in all."""

    def __init__(
        self, settings: JobSettings, source: Input, folder: JobFolder, layout: Layout, views: list[View]
    ) -> None:
        self._settings = settings
        self._source = source
        self._folder = folder
        self._layout = layout
        self._views = views
        self._logged = 0
        self._started = time.monotonic()
        self._here = empty_tally()
        self.total = empty_tally()

    def run(self, encode: Encode) -> None:
        choice = self._choose()
        self._show(0)
        for shard, results in itertools.groupby(encode(choice), key=lambda result: result.shard):
            self._write(shard, results)
        if not self.total.rows and choice.has(0):
            self._write(0, [])
        self._show(self._source.size, finished=True)

    def summary(self) -> dict[str, Any]:
        seconds = time.monotonic() - self._started
        return {
            **asdict(self.total),
            "padding": round(self.total.padding, 4),
            "rows_of_this_run": self._here.rows,
            "seconds": round(seconds, 3),
            "rows_per_second": round(self._here.rows / seconds, 1),
        }

    def describe(self) -> str:
        total, summary = self.total, self.summary()
        marked = f"{total.error_count:,} marked" + (f" ({_by_kind(total)})" if total.errors else "")
        padding = f", {100 * total.padding:.1f} % padding" if total.padded_tokens else ""
        return (
            f"{total.rows:,} rows, {total.tokens:,} tokens, {marked}, {total.truncated:,} truncated; "
            f"{self._here.rows:,} rows in {summary['seconds']:,} s: "
            f"{summary['rows_per_second']:,} rows/s{padding}"
        )

    def _choose(self) -> ShardChoice:
        """What this run has to do."""
        settings, finished = self._settings, self._folder.finished()
        choice = ShardChoice(settings.rows_per_shard, settings.shard_index, settings.shard_count, finished)
        own = [tally for shard, tally in finished.items() if choice.is_dealt(shard)]
        for tally in own:
            self.total.add(tally)
        if own:
            log_event(logger, logging.INFO, "resuming", shards=len(own), rows=self.total.rows)
        return choice

    def _write(self, shard: int, results: Iterable[Result]) -> None:
        """A shard without rows is written for an empty input."""
        came_to = empty_tally()
        form, schema = self._settings.output_format, self._layout.schema
        with ShardWriter(self._folder.out, shard, form, schema) as writer:
            next_row = shard * self._settings.rows_per_shard
            for result in results:
                if result.first_row != next_row:
                    raise RuntimeError(f"rows from {result.first_row} came where {next_row} was due")
                next_row += result.tally.rows
                writer.write(result.table)
                for sum_ in (came_to, self._here, self.total):
                    sum_.add(result.tally)
                self._log_errors(result)
                self._check_errors()
                self._show(result.position)
            files = writer.commit()
        self._folder.finish(shard, came_to, files)

    def _log_errors(self, result: Result) -> None:
        if not result.tally.errors or self._logged >= _LOGGED_ERRORS:
            return
        for row, error in enumerate(result.table.column("error").to_pylist(), result.first_row):
            if error is not None and self._logged < _LOGGED_ERRORS:
                self._logged += 1
                log_event(logger, logging.WARNING, "row marked", row=row, error=error)

    def _check_errors(self) -> None:
        limit = self._settings.max_errors
        if limit is not None and self.total.error_count > limit:
            raise JobError(
                f"{self.total.error_count} rows are marked ({_by_kind(self.total)}), --max-errors is "
                f"{limit}; look at the rows logged above, or raise the limit and run again: finished "
                "shards are kept"
            )

    def _show(self, position: int, *, finished: bool = False) -> None:
        ratio = 1.0 if finished or not self._source.size else position / self._source.size
        standing = Standing(
            self._here, self.total, min(1.0, ratio), time.monotonic() - self._started, finished
        )
        for view in self._views:
            view.show(standing)


def _identity(settings: JobSettings, source: Input, model: Model) -> JobIdentity:
    values = settings.model_dump(mode="json", include=set(_OUTPUT_SETTINGS))
    chosen = {"--" + name.replace("_", "-"): value for name, value in values.items()}
    of_model = {"model": model.name, "revision": model.revision, "precision": model.precision, **model.engine}
    return JobIdentity({**chosen, **of_model}, source.fingerprint)


def _by_kind(total: Tally) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(total.errors.items()))
