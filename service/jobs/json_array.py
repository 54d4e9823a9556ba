"""A file that is one JSON array -> its elements, in bounded memory however long the array is."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from service.jobs.content import Chunk, Content
from service.jobs.errors import JobError
from service.jobs.json_values import decode_value
from service.jobs.lines import MAX_LINE_BYTES
from service.jobs.sources import Source

# Objects inside, or line breaks: arrays of anything else may be JSON lines, each of them marked.
_ARRAY = re.compile(rb"\s*\[(?:[ \t]*[\r\n]|\s*[{\]]|\s*$)")
_SPACE = re.compile(r"[ \t\r\n]*")
# An error this near to the end of a chunk may come from a literal or an escape that is cut there.
_LONGEST_TOKEN = 16


class Element(NamedTuple):
    """`size`: characters of its text. `position`: bytes of the file read so far."""

    value: Any
    size: int
    position: int


def is_array(content: Content) -> bool:
    return _ARRAY.match(content.head) is not None


def split_array(source: Source, content: Content) -> Iterator[Element]:
    """Raise JobError where the file is not JSON: nothing tells where the next element begins."""
    text = _Text(source, content.chunks)
    text.skip("[")
    if text.next() != "]":
        yield text.take_value()
        while text.next() == ",":
            text.skip(",")
            yield text.take_value()
    text.skip("]")
    if text.next():
        raise text.describe("the file goes on after its array")


class _Text:
    """The part of the file that is held: from the value that is being read up to the end of a chunk."""

    def __init__(self, source: Source, chunks: Iterator[Chunk]) -> None:
        self._source = source
        self._chunks = chunks
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1
        self._position = 0

    def next(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def skip(self, expected: str) -> None:
        if self.next() != expected:
            found = self.next()
            what = f"found {found!r}" if found else "the file ends"
            raise self.describe(f"{what} where the array needs {expected!r}")
        self._at += 1

    def take_value(self) -> Element:
        self.next()
        while True:
            held = len(self._text) - self._at
            try:
                value, end = decode_value(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated")
                if held > MAX_LINE_BYTES:
                    raise self.describe(f"an element is longer than {MAX_LINE_BYTES} bytes") from None
                if not (is_cut and self._read(held)):
                    raise self.describe(error.msg, error.pos) from None
            except RecursionError:
                raise self.describe("it is nested too deeply") from None
            else:
                # A number at the end of what is held may go on.
                if end < len(self._text) or not self._read():
                    element = Element(value, end - self._at, self._position)
                    self._at = end
                    return element

    def describe(self, reason: str, at: int | None = None) -> JobError:
        line = self._line + self._text.count("\n", 0, self._at if at is None else at)
        return JobError(f"{self._source.path}, line {line}: the array cannot be read: {reason}; fix it")

    def _read(self, at_least: int = 1) -> bool:
        """Add that many bytes in whole chunks, drop what was taken; False at the end of the file."""
        self._line += self._text.count("\n", 0, self._at)
        parts, count = [self._text[self._at :]], 0
        while count < at_least and (chunk := next(self._chunks, None)):
            parts.append(self._decoder.decode(chunk.content))
            self._position = chunk.position
            count += max(1, len(chunk.content))
        self._text, self._at = "".join(parts), 0
        return count > 0
