"""Files that change under a server."""

from __future__ import annotations

from pathlib import Path


def replace(path: Path, content: bytes | None) -> None:
    """Through another file, so that a reader sees the old content or the new; None removes the file."""
    if content is None:
        path.unlink()
        return
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
