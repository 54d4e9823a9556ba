"""Finds the input's files in order, locally or through fsspec, and opens them; reads no rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from service.job_settings import InputFormat
from service.jobs.errors import JobError, reading
from service.jobs.own_files import OwnFiles, leave_out_jobs

_FORMATS: dict[str, InputFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".text": "text",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_HASH_CHUNK = 1 << 20
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Source:
    """One input file. `modified` is a time or an ETag; `partitions` come from folders such as year=2024."""

    path: str
    format: InputFormat
    compression: str | None
    size: int
    modified: str
    partitions: dict[str, str | None] = field(hash=False)
    filesystem: Any = field(repr=False, compare=False)
    location: str = field(repr=False)

    def open_file(self) -> pa.NativeFile:
        return self.filesystem.open_input_file(self.location)

    def hash_content(self) -> str:
        digest = hashlib.sha256()
        with reading(self.path), self.open_file() as file:
            while chunk := file.read(_HASH_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()


def find_sources(inputs: Iterable[str], input_format: InputFormat | None, own: OwnFiles) -> list[Source]:
    """The files in the order of the inputs, those of a folder by path, without the job's own."""
    sources = [source for each in inputs for source in _find(each, input_format, own)]
    seen: set[str] = set()
    for source in sources:
        if source.path in seen:
            raise JobError(f"{source.path} is given twice; name each file once")
        seen.add(source.path)
    return sources


def _find(each: str, input_format: InputFormat | None, own: OwnFiles) -> Iterator[Source]:
    filesystem, root, prefix = _open_filesystem(each)
    with reading(each):
        info = filesystem.get_file_info(root)
    if info.type is fs.FileType.NotFound:
        raise JobError(f"{each} does not exist; give a file, a folder or a URL")
    files = [info]
    if info.type is fs.FileType.Directory:
        with reading(each):
            files = _list(filesystem, root)
    others = [info for info in files if not own.contain(filesystem, info.path)]
    if files and not others:
        raise JobError(
            f"every file of {each} is in --out, or is the --metrics-textfile; choose another path for what "
            "the job writes"
        )
    if info.type is fs.FileType.Directory:
        others = [info for info in leave_out_jobs(root, others) if not _is_hidden(info.path, root)]
    if not others:
        raise JobError(f"{each} has no files to read (names that begin with . or _ are passed over)")
    for found in sorted(others, key=lambda info: info.path):
        partitions = {} if found is info else _partitions(found.path, root)
        yield _source(filesystem, prefix, found, partitions, input_format)


def _list(filesystem: Any, root: str) -> list[fs.FileInfo]:
    if not isinstance(filesystem, fs.LocalFileSystem):
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        return [info for info in found if info.type is not fs.FileType.Directory]
    # pyarrow leaves out links to nowhere, and with them a part of the input.
    walk = os.walk(root, onerror=_raise, followlinks=True)
    return list(
        filesystem.get_file_info([os.path.join(folder, name) for folder, _, names in walk for name in names])
    )


def _raise(error: OSError) -> None:
    raise error


def _open_filesystem(each: str) -> tuple[Any, str, str]:
    """The file system, the path in it, and what makes such a path the user's again."""
    if "://" not in each:
        return fs.LocalFileSystem(), str(Path(each).absolute()), ""
    import fsspec

    scheme = each.partition("://")[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(each)
    except (ImportError, ValueError) as error:
        raise JobError(f"{each} cannot be opened: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path, f"{scheme}://"


def _source(
    filesystem: Any,
    prefix: str,
    info: fs.FileInfo,
    partitions: dict[str, str | None],
    input_format: InputFormat | None,
) -> Source:
    path = prefix + info.path.removeprefix("/" if prefix else "")
    if info.type is not fs.FileType.File:
        raise JobError(f"{path} is no file that can be read (a broken link, or a device); remove it")
    suffixes = PurePosixPath(info.path.lower()).suffixes
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    name = suffixes[-2:-1] if compression else suffixes[-1:]
    known = input_format or (_FORMATS.get(name[0]) if name else None)
    if known is None:
        raise JobError(
            f"{path} has no known ending ({', '.join(_FORMATS)}; {', '.join(_COMPRESSIONS)} after it); "
            "rename or remove it, or say --input-format"
        )
    if known == "parquet" and compression:
        raise JobError(f"{path}: Parquet is compressed inside; unpack the file")
    return Source(
        path=path,
        format=known,
        compression=compression,
        size=info.size or 0,
        modified=_modified(filesystem, info),
        partitions=partitions,
        filesystem=filesystem,
        location=info.path,
    )


def _modified(filesystem: Any, info: fs.FileInfo) -> str:
    if info.mtime_ns is not None:
        return str(info.mtime_ns)
    details = filesystem.handler.fs.info(info.path)
    names = ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime")
    return str(next((details[name] for name in names if details.get(name)), ""))


def _is_hidden(path: str, root: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in _relative(path, root).parts)


def _partitions(path: str, root: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in _relative(path, root).parts[:-1] if "=" in part)
    return {name: None if value == _HIVE_NULL else unquote(value) for name, value in pairs}


def _relative(path: str, root: str) -> PurePosixPath:
    return PurePosixPath(path.removeprefix(root).lstrip("/"))
