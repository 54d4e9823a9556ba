"""Files that appear whole or not at all and outlast a power cut, as far as the file system allows.

Mounts of object stores and some network file systems have no hard links, no locks, or no fsync of a folder.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.jobs.errors import JobError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
# What fsync, or opening a folder for it, gives where it is not supported.
_NO_FSYNC = _UNSUPPORTED | {errno.EINVAL, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what goes wrong while a folder is written into a JobError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            advice = "choose an --out on a file system that can do this"
        else:
            remedy = "make room" if error.errno in _FULL else "allow it"
            advice = f"{remedy}, and run the same command again: finished shards are kept"
        raise JobError(f"{folder} cannot be written: {error.strerror or error}; {advice}") from error


def write_atomically(path: Path, content: str) -> None:
    """Raises JobError; a file that was there before stays then."""
    with writing(path.parent), _written_beside(path, content, "") as temporary:
        temporary.replace(path)


def create_once(path: Path, content: str, writer: str) -> None:
    """Several writers may do this at once, each under its own name: the first one's content stays.

    Without hard links the last one's does, if they looked before any of them was done.
    """
    with writing(path.parent), _written_beside(path, content, f".{writer}") as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:
            if not path.exists():
                temporary.replace(path)


def temporary_path(path: Path, writer: str = "") -> Path:
    return path.with_name(f".{path.name}{writer}.tmp")


def sync_file(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
        return
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _written_beside(path: Path, content: str, writer: str) -> Iterator[Path]:
    """A temporary file with the content, for the block to give its name to; the folder is synced after it."""
    temporary = temporary_path(path, writer)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        yield temporary
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
