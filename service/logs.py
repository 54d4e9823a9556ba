"""One line per event on standard error, as text or JSON: time, level, event, fields. Never user text."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any


def configure_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    logger.log(level, event, extra={"fields": fields})


def _parts(record: logging.LogRecord) -> dict[str, Any]:
    parts = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": record.getMessage(),
        **getattr(record, "fields", {}),
    }
    if record.exc_info:
        parts["traceback"] = "".join(traceback.format_exception(*record.exc_info))
    return parts


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_parts(record), default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = _parts(record)
        trace = parts.pop("traceback", "")
        line = "{time} {level:<7} {event}".format(**parts)
        for name in list(parts)[3:]:
            line += f" {name}={parts[name]}"
        return f"{line}\n{trace}".rstrip()
