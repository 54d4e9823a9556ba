"""Log lines of both forms."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from service.logs import configure_logging, log_event


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.splitlines()


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    log_event(logging.getLogger("a"), logging.INFO, "ready", model="mini", lanes=2, odd=object)
    logging.getLogger("b").warning("%d left", 3)
    first, second = map(json.loads, lines(capsys))
    assert (first["level"], first["event"], first["model"], first["lanes"]) == ("info", "ready", "mini", 2)
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert (second["level"], second["event"]) == ("warning", "3 left")


def test_text_is_one_line_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "info")
    log_event(logging.getLogger("a"), logging.INFO, "ready", model="mini", lanes=2)
    (line,) = lines(capsys)
    time, _, rest = line.partition(" ")
    assert datetime.fromisoformat(time).utcoffset() is not None
    assert rest == "info    ready model=mini lanes=2"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_kept(capsys: pytest.CaptureFixture[str], form: str) -> None:
    configure_logging(form, "info")
    try:
        raise ValueError("broken graph")
    except ValueError:
        logging.getLogger("a").exception("a batch failed")
    output = "\n".join(lines(capsys))
    text = json.loads(output)["traceback"] if form == "json" else output
    assert "Traceback (most recent call last)" in text
    assert text.rstrip().endswith("ValueError: broken graph")


def test_what_is_below_the_level_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "warning")
    log_event(logging.getLogger("a"), logging.INFO, "ready")
    assert lines(capsys) == []


def test_configured_twice_it_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        configure_logging("text", "info")
    log_event(logging.getLogger("a"), logging.INFO, "ready")
    assert len(lines(capsys)) == 1
