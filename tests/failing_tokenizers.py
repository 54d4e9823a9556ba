"""A tokenizer that fails on some texts, and an artifact that has one, as older exports may."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

# WordPiece takes a word of more than 100 characters as unknown, and this tokenizer has no token for it.
WITHOUT_TOKEN = "a word of length " + "w" * 101
# Its normalizer's table ends before the letter x: the library's Rust code panics.
PANICS = "an x-ray"


def spoil(definition: dict[str, Any]) -> dict[str, Any]:
    """A WordPiece tokenizer's definition, changed to fail on WITHOUT_TOKEN, PANICS and all beyond ASCII."""
    table = bytes(4 * ord("x"))
    charsmap = base64.b64encode(struct.pack("<I", len(table)) + table).decode()
    broken = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    return {
        **definition,
        "model": {**definition["model"], "unk_token": "[NONE]"},
        "normalizer": {"type": "Sequence", "normalizers": [broken, definition["normalizer"]]},
    }


def copy_with_tokenizer(artifact: Path, folder: Path, definition: dict[str, Any]) -> Path:
    """A copy whose manifest vouches for the other tokenizer."""
    shutil.copytree(artifact, folder)
    content = json.dumps(definition).encode()
    (folder / "tokenizer.json").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["file"] == "tokenizer.json":
            entry["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
