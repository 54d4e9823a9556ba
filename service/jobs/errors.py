"""What stops a job, and the words that mark a row which cannot be encoded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class JobError(Exception):
    """The job cannot go on; the message is for its user."""


# A row's error begins with one of these words and a colon.
NULL = "null: the text is null"
NOT_TEXT = "not_text: the text is {kind}, not a string"
INVALID_UTF8 = "invalid_utf8: the text is not valid UTF-8"
MISSING_FIELD = "missing_field: the record has no field {name}"
INVALID_RECORD = "invalid_record: {reason}"
FAILED = "failed: the engine failed on this text alone; the log has the reason"


def refusal(description: str) -> str:
    """From a violation's description; the advice after its semicolon is for callers of the API."""
    return f"refused: the text {description.partition(';')[0]}"


def kind_of(error: str) -> str:
    return error.partition(":")[0]


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what goes wrong while a file is read into a JobError that names it."""
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise JobError(f"{path} cannot be read: {reason}; fix or remove it and start again") from error


@contextmanager
def printing(left: str) -> Iterator[None]:
    """Turns a standard output that is full or closed into a JobError; `left` is what the user has anyway."""
    try:
        yield
        print(end="", flush=True)
    except OSError as error:
        # Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise JobError(f"standard output cannot be written: {error.strerror}; {left}") from error
