"""Chunks of bytes -> lines, in bounded memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from service.jobs.content import Content
from service.jobs.errors import JobError
from service.jobs.sources import Source

MAX_LINE_BYTES = 64 << 20
TOO_LONG = f"the line is longer than {MAX_LINE_BYTES} bytes"


class Line(NamedTuple):
    """`content` ends with the line's own end, if it has one; None: it is longer than MAX_LINE_BYTES.

    `size`: its length. `position`: bytes of the file read so far.
    """

    content: bytes | None
    size: int
    position: int


def split_lines(source: Source, content: Content) -> Iterator[Line]:
    r"""Split at \n alone. Raise JobError, before the first line, if the file ends its lines with \r."""
    # The last byte may be the first of a \r\n.
    if b"\n" not in content.head and b"\r" in content.head[:-1]:
        raise JobError(rf"{source.path} ends its lines with \r, as old Macs did; convert them: tr '\r' '\n'")
    return _split(content)


def _split(content: Content) -> Iterator[Line]:
    pending = _Pending()
    before = 0
    for chunk, position in content.chunks:
        span, consumed = position - before, 0
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line: bytes | None = part + b"\n"
            consumed += len(part) + 1
            size = pending.size + len(part) + 1
            if pending.size:
                pending.add(part + b"\n")
                line = pending.take()
            yield Line(line, size, before + span * consumed // len(chunk))
        pending.add(rest)
        before = position
    if size := pending.size:
        yield Line(pending.take(), size, before)


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
