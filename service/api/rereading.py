"""What files say, read again once they change; a change that cannot be used leaves the last good state."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from service.errors import StartError
from service.logs import log_event

logger = logging.getLogger(__name__)
T = TypeVar("T")
_Fingerprint = list[tuple[int, int, int] | None]


class Rereading(Generic[T]):
    """Calls `load` at once and after every change; it raises StartError for files that cannot be used."""

    def __init__(self, what: str, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._load = load
        self._lock = threading.Lock()
        self._seen = self._fingerprint()
        self._value = load()

    def current(self) -> T:
        """For any thread; costs one stat a file while nothing changes."""
        with self._lock:
            seen = self._fingerprint()
            if seen != self._seen:
                self._seen = seen
                self._reread()
            return self._value

    def _reread(self) -> None:
        try:
            self._value = self._load()
        except StartError as error:
            log_event(logger, logging.ERROR, f"{self._what} kept as they were", refused=str(error))
        else:
            log_event(logger, logging.INFO, f"{self._what} read again")

    def _fingerprint(self) -> _Fingerprint:
        return [_stat(path) for path in self._paths]


def read_file(flag: str, path: Path) -> bytes:
    """Raises StartError."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise StartError(f"{flag} {path} is a pipe or a device, which cannot be read twice; name a file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"{flag} {path} cannot be read: {error.strerror}; name a readable file") from error


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
