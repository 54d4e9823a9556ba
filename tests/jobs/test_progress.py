"""How a job shows where it is."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

from jobs.job_files import Jobs, write_parquet
from service.jobs.encoded import Tally
from service.jobs.progress import Bar, LogLines, Standing, TextFile, build_bar


def standing(rows: int, seconds: float, *, earlier: int = 0, finished: bool = False) -> Standing:
    here = Tally(rows, 10 * rows, 11 * rows, 0, {"null": 3})
    total = Tally(earlier + rows, 10 * (earlier + rows), 11 * (earlier + rows), 0, {"null": 3})
    return Standing(here, total, (earlier + rows) / 1000, seconds, finished)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def samples(page: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_the_bar_has_rates_and_the_time_left_of_this_run() -> None:
    screen = io.StringIO()
    with build_bar(Console(file=screen, force_terminal=True, width=120)) as progress:
        bar = Bar(progress)
        bar.show(standing(0, 0.0, earlier=500))
        bar.show(standing(100, 10.0, earlier=500))
    assert isinstance(progress, Progress)
    assert "60%" in screen.getvalue()
    assert "600 rows, 10 rows/s, 100 tokens/s, 3 marked, 0:00:40 left" in screen.getvalue()


def test_a_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    caplog.set_level(logging.INFO)
    lines = LogLines(clock)
    for second in range(130):
        clock.now = 100.0 + second
        lines.show(standing(second, float(second)))
    assert [record.getMessage() for record in caplog.records] == ["progress"] * 2
    fields = caplog.records[0].fields  # type: ignore[attr-defined]
    assert fields == {"percent": 6.0, "rows": 60, "rows_per_s": 1.0, "tokens_per_s": 10, "errors": 3}


def test_the_textfile_is_what_node_exporter_reads(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "job.prom"
    view = TextFile(file, clock)
    view.show(standing(100, 10.0, earlier=500))
    found = samples(file.read_text())
    assert found["seqenc_job_rows"] == 600
    assert found["seqenc_job_errors"] == 3
    assert found["seqenc_job_progress_ratio"] == 0.6
    assert found["seqenc_job_rows_per_second"] == 10
    assert found["seqenc_job_finished"] == 0
    clock.now += 1
    view.show(standing(101, 11.0, earlier=500))
    assert samples(file.read_text())["seqenc_job_rows"] == 600
    view.show(standing(102, 11.0, earlier=500, finished=True))
    assert samples(file.read_text())["seqenc_job_rows"] == 602
    assert list(tmp_path.iterdir()) == [file]


def test_a_job_leaves_its_last_figures(jobs: Jobs, tmp_path: Path) -> None:
    file, page = write_parquet(tmp_path / "in.parquet", {"text": ["a", None]}), tmp_path / "job.prom"
    jobs.run(file, metrics_textfile=page)
    found = samples(page.read_text())
    assert (found["seqenc_job_rows"], found["seqenc_job_errors"], found["seqenc_job_finished"]) == (2, 1, 1)


@pytest.mark.parametrize("package", ["pyarrow", "fsspec", "ray"])
def test_a_missing_package_is_named_with_its_extra(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else object())
    outcome = jobs.run(tmp_path / "in.parquet", engine="ray")
    assert outcome.status == 1
    extra = "ray" if package == "ray" else "job"
    assert f"seqenc job needs {package}; install seqenc with the extra {extra}" in outcome.err
