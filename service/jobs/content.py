"""The bytes of a text file, unpacked, chunk by chunk. A file that holds no text is named for what it is."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from service.jobs.errors import JobError
from service.jobs.sources import Source

_CHUNK_BYTES = 1 << 20
# What the files of other formats begin with. UTF-32's mark begins with that of UTF-16.
_OTHER_FORMATS = {
    codecs.BOM_UTF32_LE: "is UTF-32; convert it to UTF-8",
    codecs.BOM_UTF32_BE: "is UTF-32; convert it to UTF-8",
    codecs.BOM_UTF16_LE: "is UTF-16; convert it to UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16; convert it to UTF-8",
    b"\x1f\x8b\x08": "is compressed with gzip; add .gz to its name",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; add .zst to its name",
    b"\xfd7zXZ\x00": "is compressed with xz; unpack it, or compress it with gzip or zstd",
    b"BZh91AY&SY": "is compressed with bzip2; unpack it, or compress it with gzip or zstd",
    b"PK\x03\x04": "is a ZIP archive or an Excel workbook; unpack it, or save it as CSV",
    b"PAR1\x15": "is Parquet; name it .parquet, or say --input-format parquet",
    b"ARROW1\x00\x00": "is an Arrow file; convert it to Parquet",
}


class Chunk(NamedTuple):
    """`position`: bytes of the file, as it is stored, up to the end of this chunk."""

    content: bytes
    position: int


@dataclass(frozen=True, slots=True)
class Content:
    """`head` is the first chunk's content, which `chunks` gives again; empty where the file is."""

    head: bytes
    chunks: Iterator[Chunk]


@contextmanager
def open_content(source: Source) -> Iterator[Content]:
    """Raise JobError if the file cannot be text. A byte order mark of UTF-8 is left out."""
    with source.open_file() as file:
        if source.compression is None:
            yield _check(source, _chunks(file, file))
        elif source.size == 0:
            raise JobError(f"{source.path} is empty, not even {source.compression}; remove it")
        else:
            with pa.CompressedInputStream(file, source.compression) as stream, _unpacking(source):
                yield _check(source, _chunks(file, stream))


def _chunks(file: pa.NativeFile, stream: pa.NativeFile) -> Iterator[Chunk]:
    while content := stream.read(_CHUNK_BYTES):
        yield Chunk(content, file.tell())


def _check(source: Source, chunks: Iterator[Chunk]) -> Content:
    content, position = next(chunks, Chunk(b"", 0))
    for beginning, what in _OTHER_FORMATS.items():
        if content.startswith(beginning):
            raise JobError(f"{source.path} {what}")
    if _is_utf16(content):
        raise JobError(f"{source.path} is UTF-16 without a byte order mark; convert it to UTF-8")
    head = content.removeprefix(codecs.BOM_UTF8)
    return Content(head, itertools.chain([Chunk(head, position)], chunks))


def _is_utf16(content: bytes) -> bool:
    """Whether every other byte at the beginning is zero, as in UTF-16 of Latin letters."""
    first, second = content[:64:2], content[1:64:2]
    if len(second) < 2:
        return False
    return (all(first) and not any(second)) or (all(second) and not any(first))


@contextmanager
def _unpacking(source: Source) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if "requires too much memory" not in str(error):
            raise
        raise JobError(
            f"{source.path} was compressed with a window above 128 MiB, as by zstd --long=31; unpack it with "
            "`zstd -d --long=31` and compress it again without --long"
        ) from error
