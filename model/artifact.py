"""The artifact directory: its manifest, its checksums, and its appearance all at once or not at all."""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.files import is_there, read_json, sha256_of

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SELFCHECK = "selfcheck.json"
WEIGHTS = "weights.fp32.bin"
_NO_FSYNC = {errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR}


class ArtifactError(ValueError):
    """An artifact directory that cannot be written or is not what its manifest says."""


def read_manifest(folder: Path) -> dict[str, Any]:
    if not is_there(folder / MANIFEST):
        raise ArtifactError(
            f"{folder} is not an artifact: it has no {MANIFEST}. `seqenc-model export` writes one"
        )
    manifest = read_json(folder / MANIFEST)
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise ArtifactError(
            f"{folder} has schema_version {manifest.get('schema_version')!r}, supported is {SCHEMA_VERSION}; "
            "export it again"
        )
    return manifest


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Every file that the manifest lists is there and has its sha256."""
    for entry in [*manifest["files"], *manifest["graphs"]]:
        path = folder / entry["file"]
        if path.name != entry["file"]:
            raise ArtifactError(f"{MANIFEST} names {entry['file']!r}, which is not a file of {folder}")
        if not is_there(path):
            raise ArtifactError(f"{entry['file']} is missing from {folder}; export again")
        found = sha256_of(path)
        if found != entry["sha256"]:
            raise ArtifactError(
                f"{entry['file']} is damaged: its sha256 is {found}, the manifest says {entry['sha256']}; "
                "export again"
            )


def file_entry(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": sha256_of(path)}


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", "utf-8")


def check_target(target: Path, *, force: bool) -> None:
    """May the artifact be written here? `force` replaces an artifact, never anything else."""
    if not target.exists() and not target.is_symlink():
        return
    if not force:
        raise ArtifactError(f"{target} exists; choose another --out or replace it with --force")
    if target.is_symlink() or not target.is_dir():
        raise ArtifactError(
            f"{target} is not a directory, so --force does not replace it; choose another --out"
        )
    if any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise ArtifactError(f"{target} holds something else than an artifact; --force does not replace it")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder beside the target. It takes the target's place when the block ends well, or is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.parent / f".{target.name}.partial-{uuid.uuid4().hex[:8]}"
    staging.mkdir()
    try:
        yield staging
        _flush(staging)
        _replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush(folder: Path) -> None:
    """To the disk, where the file system can, so that a name never appears before its content."""
    for path in [*folder.iterdir(), folder]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise


def _replace(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    old = staging.with_name(staging.name.replace(".partial-", ".old-"))
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
