"""Bytes -> lines, in bounded memory however long a line is."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from service.jobs.errors import JobError
from service.jobs.sources import Source

MAX_LINE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Line:
    """`content` ends with the line's own end, if it has one; None: it is longer than MAX_LINE_BYTES.

    `position`: bytes of the file read so far.
    """

    content: bytes | None
    position: int


@contextmanager
def open_lines(source: Source) -> Iterator[Iterator[Line]]:
    with source.open_file() as file:
        if source.compression is None:
            yield _lines(source, file, file)
        else:
            with pa.CompressedInputStream(file, source.compression) as stream:
                yield _lines(source, file, stream)


def _lines(source: Source, file: pa.NativeFile, stream: pa.NativeFile) -> Iterator[Line]:
    pending = _Pending()
    before = 0
    while chunk := stream.read(_CHUNK_BYTES):
        span, consumed = file.tell() - before, 0
        if before == 0:
            chunk = _without_mark(source, chunk)
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            pending.add(part + b"\n")
            consumed += len(part) + 1
            yield Line(pending.take(), before + span * consumed // len(chunk))
        pending.add(rest)
        before += span
    if pending.size:
        yield Line(pending.take(), before)


class _Pending:
    """The parts of a line whose end has not been read."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > MAX_LINE_BYTES:
            self._parts.clear()
        else:
            self._parts.append(part)

    def take(self) -> bytes | None:
        line = None if self.size > MAX_LINE_BYTES else b"".join(self._parts)
        self._parts, self.size = [], 0
        return line


def _without_mark(source: Source, chunk: bytes) -> bytes:
    if chunk.startswith(_UTF16):
        raise JobError(f"{source.path} is UTF-16; convert it to UTF-8")
    return chunk.removeprefix(codecs.BOM_UTF8)
