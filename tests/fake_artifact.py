"""A model's description without files, for tests that run no graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from service.core.artifact import Artifact
from service.types import Pooling


def build_artifact(**changes: Any) -> Artifact:
    artifact = Artifact(
        directory=Path("artifacts/mini"),
        name="mini",
        revision="53aa",
        family="bert",
        hidden_size=16,
        layer_count=4,
        head_count=2,
        vocabulary_size=1000,
        type_vocabulary_size=2,
        max_tokens=16,
        max_positions=64,
        pooling=Pooling.MEAN,
        normalize=True,
        prompts={"query": "query: ", "passage": "passage: "},
        default_prompt_name="",
        special_ids={"pad": 0, "unknown": 1, "cls": 2, "sep": 3},
        graphs=(),
        checksums={},
    )
    return replace(artifact, **changes)
