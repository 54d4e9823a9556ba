"""Reading JSON and hashing files, with errors that name the file."""

import hashlib
import json
from pathlib import Path
from typing import Any


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


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
