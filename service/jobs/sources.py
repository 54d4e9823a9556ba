"""Finds the input's files in order, locally or through fsspec, and opens them; reads no rows."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from service.job_settings import InputFormat, Quoting
from service.jobs.errors import JobError, reading
from service.jobs.own_files import OwnFiles, leave_out_jobs
from service.jobs.surrogates import is_encodable, replace_surrogates

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
    """One input file. `modified` is a time or an ETag; `partitions` come from folders such as year=2024.

    `quoted`: whether "..." encloses a field, in CSV and TSV.
    """

    path: str
    format: InputFormat
    quoted: bool
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


def find_sources(
    inputs: Iterable[str], input_format: InputFormat | None, own: OwnFiles, quoting: Quoting = "auto"
) -> list[Source]:
    """The files in the order of the inputs, those of a folder or a pattern by path, without the job's own."""
    sources = [source for each in inputs for source in _find(each, input_format, own, quoting)]
    seen: set[str] = set()
    for source in sources:
        if source.path in seen:
            raise JobError(f"{source.path} is given twice; name each file once")
        seen.add(source.path)
    return sources


def _find(each: str, input_format: InputFormat | None, own: OwnFiles, quoting: Quoting) -> Iterator[Source]:
    filesystem, root, prefix = _open_filesystem(each)
    _check_name(root)
    with reading(each):
        info = filesystem.get_file_info(root)
        base, found = root, [info]
        if info.type is fs.FileType.NotFound:
            base, found = _expand(filesystem, root)
    if not found:
        raise _describe_missing(each, filesystem, root)
    files: dict[str, fs.FileInfo] = {}
    has_own = False
    for info in found:
        inside = [info]
        if info.type is fs.FileType.Directory:
            with reading(each):
                inside = _list(filesystem, info.path, own)
        others = [file for file in inside if not own.contain(filesystem, file.path)]
        has_own = has_own or len(others) < len(inside)
        if info.type is fs.FileType.Directory:
            others = [
                file for file in leave_out_jobs(info.path, others) if not _is_hidden(file.path, info.path)
            ]
        files |= {file.path: file for file in others}
    if not files and has_own:
        raise JobError(
            f"every file of {each} is in --out, or is the --metrics-textfile; choose another path for what "
            "the job writes"
        )
    if not files:
        raise JobError(f"{each} has no files to read (names that begin with . or _ are passed over)")
    for path, info in sorted(files.items()):
        partitions = {} if path == root else _partitions(path, base)
        yield _source(filesystem, prefix, info, partitions, input_format, quoting)


def _expand(filesystem: Any, pattern: str) -> tuple[str, list[fs.FileInfo]]:
    """The folder where the wildcards begin, and the files and folders that match.

    Names that begin with . or _ are passed over unless the pattern spells them so.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        folder = next(folder for folder in Path(pattern).parents if folder.is_dir())
        base, wild = str(folder), str(Path(pattern).relative_to(folder))
        matches = [str(path) for path in folder.glob(wild)] if glob.has_magic(wild) else []
    else:
        fixed = itertools.takewhile(lambda part: not glob.has_magic(part), PurePosixPath(pattern).parts)
        base = str(PurePosixPath(*fixed))
        wild = str(_relative(pattern, base))
        matches = filesystem.handler.fs.glob(pattern) if glob.has_magic(wild) else []
    if not _is_hidden(wild, ""):
        matches = [path for path in matches if not _is_hidden(path, base)]
    for path in matches:
        _check_name(path)
    return base, filesystem.get_file_info(sorted(matches))


def _describe_missing(each: str, filesystem: Any, path: str) -> JobError:
    if isinstance(filesystem, fs.LocalFileSystem):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):
                return JobError(f"{each} is a link to {os.readlink(path)}, which does not exist")
        except OSError as error:
            return JobError(f"{each} cannot be read: {error.strerror}")
    what = "matches no file" if glob.has_magic(each) else "does not exist"
    return JobError(f"{each} {what}; give files, folders, patterns or URLs")


def _list(filesystem: Any, root: str, own: OwnFiles) -> list[fs.FileInfo]:
    if not isinstance(filesystem, fs.LocalFileSystem):
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        return [info for info in found if info.type is not fs.FileType.Directory]
    # pyarrow leaves out links to nowhere, and with them a part of the input.
    paths = []
    for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
        for name in folders:
            _check_link(root, Path(folder, name))
        paths += [os.path.join(folder, name) for name in names]
    for path in paths:
        if not (_is_hidden(path, root) or own.contain(filesystem, path)):
            _check_name(path)
    return list(filesystem.get_file_info(list(filter(is_encodable, paths))))


def _check_name(path: str) -> None:
    """pyarrow opens no other names, nor could the output name such a file."""
    if not is_encodable(path):
        raise JobError(f"{replace_surrogates(path)} has a name that is not UTF-8; rename it")


def _check_link(root: str, folder: Path) -> None:
    """Raise JobError if the folder is a link to one of those on the way to it, or to one above them."""
    if not folder.is_symlink():
        return
    target = Path(os.path.realpath(folder))
    way = [parent for parent in folder.parents if parent.is_relative_to(root)]
    if any(Path(os.path.realpath(parent)).is_relative_to(target) for parent in way):
        raise JobError(f"{folder} is a link to {target}, which it is in: a loop; remove the link")


def _raise(error: OSError) -> None:
    raise error


def _open_filesystem(each: str) -> tuple[Any, str, str]:
    """The file system, the path in it, and what makes such a path the user's again."""
    if each.startswith("file:/"):
        each = _path_of_url(each)
    if "://" not in each:
        return fs.LocalFileSystem(), str(Path(each).absolute()), ""
    import fsspec

    scheme = each.partition("://")[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(each)
    except (ImportError, OSError, ValueError) as error:
        raise JobError(f"{each} cannot be opened: {' '.join(str(error).split())}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path, f"{scheme}://"


def _path_of_url(url: str) -> str:
    """The path as it is written if there is such a file, otherwise with its %20 and the like decoded."""
    host, slash, path = url.removeprefix("file:").removeprefix("//").partition("/")
    if host not in ("", "localhost"):
        raise JobError(f"{url} is on the host {host}; give a file of this machine: file:///path")
    if not path:
        raise JobError(f"{url} names no file; give its path: file:///path")
    path = slash + path
    return path if os.path.lexists(path) else unquote(path, errors="surrogateescape")


def _source(
    filesystem: Any,
    prefix: str,
    info: fs.FileInfo,
    partitions: dict[str, str | None],
    input_format: InputFormat | None,
    quoting: Quoting,
) -> Source:
    path = prefix + info.path.removeprefix("/" if prefix else "")
    if info.type is fs.FileType.NotFound:
        raise JobError(f"{path} is a link that leads to no file; remove it")
    if info.type is not fs.FileType.File:
        raise JobError(
            f"{path} is a pipe or a device; a job reads its input more than once, so write it to a file"
        )
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
        quoted=quoting == "on" or (quoting == "auto" and known == "csv"),
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
    return {
        name: None if value == _HIVE_NULL else replace_surrogates(unquote(value, errors="surrogateescape"))
        for name, value in pairs
    }


def _relative(path: str, root: str) -> PurePosixPath:
    return PurePosixPath(path.removeprefix(root).lstrip("/"))
