"""Folders that tests of the model read and spoil: an exported artifact, an editable copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint import Checkpoint


@dataclass(frozen=True)
class Exported:
    """An artifact and the checkpoint that it was made from."""

    folder: Path
    checkpoint: Checkpoint


class EditableFolder:
    """A copy of a checkpoint or artifact that a test may change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def json(self, file: str) -> Any:
        return json.loads((self.path / file).read_text("utf-8"))

    def write_json(self, file: str, value: object) -> None:
        target = self.path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value), "utf-8")

    def edit_json(self, file: str, **changes: object) -> None:
        self.write_json(file, {**self.json(file), **changes})


Editable = Callable[[Path], EditableFolder]
