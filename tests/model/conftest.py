"""Artifacts of the tiny checkpoints, each exported once a run, and ways to spoil a copy of one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from folders import Editable, EditableFolder, Exported
from model.checkpoint import load_checkpoint
from model.source import default_checkpoint


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def editable(tmp_path: Path) -> Editable:
    def copy(folder: Path) -> EditableFolder:
        return EditableFolder(Path(shutil.copytree(folder, tmp_path / "copy")))

    return copy


@pytest.fixture(scope="session")
def default_folder() -> Path:
    """all-MiniLM-L6-v2, downloaded the first time."""
    return default_checkpoint()


@pytest.fixture(scope="session")
def bert_artifact(tiny_bert: Path, tiny_artifact: Path) -> Exported:
    return Exported(tiny_artifact, load_checkpoint(tiny_bert))


@pytest.fixture(scope="session")
def native_artifact(tiny_native: Path) -> Exported:
    return Exported(tiny_native.with_name("tiny-native"), load_checkpoint(tiny_native))


@pytest.fixture(params=["bert_artifact", "native_artifact"])
def exported(request: pytest.FixtureRequest) -> Exported:
    artifact: Exported = request.getfixturevalue(request.param)
    return artifact
