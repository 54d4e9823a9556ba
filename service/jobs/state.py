"""The job's folder: what the job is, who works on it, and which shards are finished.

OUT/_job/job.json          the settings that shape the output, and the input's fingerprint
OUT/_job/lock-I-of-N       held by the process that works on this share of the shards
OUT/_job/shard-00000.json  written when a shard's files are in place: their sizes and what it came to
OUT/_job/summary-I-of-N.json
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.jobs.durable import create_once, write_atomically, writing
from service.jobs.encoded import Tally
from service.jobs.errors import JobError
from service.jobs.own_files import JOB_FILE, JOB_FOLDER
from service.logs import log_event

logger = logging.getLogger(__name__)

_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """What must be the same when a job is taken up again."""

    settings: Mapping[str, Any]
    input: Mapping[str, Mapping[str, Any]]

    def differences(self, earlier: Mapping[str, Any]) -> list[str]:
        """One phrase for each setting or file that is not what it was."""
        return [
            *_differences(earlier["settings"], self.settings, "{} was {} and is {}"),
            *_file_differences(earlier["input"], self.input),
        ]


class JobFolder:
    def __init__(self, out: Path, share: str) -> None:
        self.out = out
        self._state = out / JOB_FOLDER
        self._share = share

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises JobError when another process works on this share, or OUT holds something else."""
        with writing(self.out):
            if self.out.exists() and not self._state.is_dir() and any(self.out.iterdir()):
                raise JobError(f"{self.out} is not empty and no job's folder; choose another --out")
            self._state.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._state / f"lock-{self._share}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def claim(self, identity: JobIdentity) -> None:
        """Writes down what the job is; raises JobError when the folder belongs to another job."""
        path = self._state / JOB_FILE
        if not path.exists():
            create_once(path, json.dumps(asdict(identity), indent=1) + "\n", self._share)
        differences = identity.differences(_load(path))
        if differences:
            more = len(differences) - _MAX_NAMED
            named = "; ".join(differences[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
            raise JobError(
                f"{self.out} holds a job that is not the same: {named}. Undo that, or choose another --out"
            )

    def finished(self) -> dict[int, Tally]:
        """The shards whose files are all there as they were written."""
        shards = {}
        for path in sorted(self._state.glob("shard-*.json")):
            record = _load(path)
            if all(_has_size(self.out / name, size) for name, size in record["files"].items()):
                shards[int(path.stem.removeprefix("shard-"))] = Tally(**record["tally"])
        return shards

    def finish(self, shard: int, tally: Tally, files: Mapping[str, int]) -> None:
        record = {"tally": asdict(tally), "files": dict(files)}
        write_atomically(self._state / f"shard-{shard:05d}.json", json.dumps(record) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        path = self._state / f"summary-{self._share}.json"
        write_atomically(path, json.dumps(summary, indent=1) + "\n")

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise JobError(
                    f"another process works on {self.out}; wait for it, or end it first"
                ) from error
            log_event(
                logger,
                logging.WARNING,
                "the file system has no locks: nothing stops a second process on the same --out",
                out=str(self.out),
                reason=error.strerror,
            )


def _load(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise JobError(f"{path} cannot be read ({error}); choose another --out") from error


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _differences(earlier: Mapping[str, Any], current: Mapping[str, Any], phrase: str) -> Iterator[str]:
    for name in sorted({*earlier, *current}):
        was, now = earlier.get(name), current.get(name)
        if was != now:
            yield phrase.format(name, json.dumps(was), json.dumps(now))


def _file_differences(
    earlier: Mapping[str, Mapping[str, Any]], current: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    for path in current:
        if path not in earlier:
            yield f"{path} is new"
        else:
            changed = [name for name, value in current[path].items() if earlier[path].get(name) != value]
            if changed:
                yield f"{path} has another {' and '.join(changed)}"
    yield from (f"{path} is gone" for path in earlier if path not in current)
    if list(earlier) != list(current) and sorted(earlier) == sorted(current):
        yield "the files come in another order"
