"""Reading JSON and hashing files, with errors that name the file."""

import hashlib
import json
from pathlib import Path
from typing import Any

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class FileFormatError(ValueError):
    """A file that is missing or does not hold what its name promises."""


def read_json(path: Path) -> dict[str, Any]:
    value = _parse(path)
    if not isinstance(value, dict):
        raise FileFormatError(f"{path} holds a JSON {type(value).__name__}; an object is needed")
    return value


def read_json_list(path: Path) -> list[dict[str, Any]]:
    value = _parse(path)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise FileFormatError(f"{path} must hold a JSON list of objects")
    return value


def is_there(path: Path) -> bool:
    """Whether it is a file.

    Raise FileFormatError for what only stands for one: a link that leads nowhere, or a pointer of Git LFS.
    """
    if path.is_symlink() and not path.exists():
        raise FileFormatError(f"{path} is a link to {path.readlink()}, which is not there; restore it")
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise FileFormatError(f"{path} is only a pointer of Git LFS; fetch the file with `git lfs pull`")
    return True


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(path: Path) -> Any:
    if not is_there(path):
        raise FileFormatError(f"{path} does not exist")
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
