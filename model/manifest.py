"""Builds manifest.json: what an artifact is, and the revision that tells two apart."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model.artifact import SCHEMA_VERSION, SELFCHECK, TOKENIZER, WEIGHTS, file_entry
from model.checkpoint import Checkpoint
from model.graphs import GraphKind
from model.selfcheck import Fidelity
from model.tokenizer import special_ids

_TOOLS = ("seqenc", "torch", "onnx", "onnxscript", "onnxruntime", "tokenizers", "safetensors")


def build_manifest(
    checkpoint: Checkpoint, name: str, folder: Path, fidelities: Mapping[GraphKind, Fidelity]
) -> dict[str, Any]:
    """Of the files already written to `folder`, one graph for each fidelity."""
    config = checkpoint.config
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "revision": revision(checkpoint),
        "family": checkpoint.family,
        "hidden_size": config.hidden_size,
        "layer_count": config.layer_count,
        "head_count": config.head_count,
        "vocabulary_size": config.vocabulary_size,
        "type_vocabulary_size": config.type_vocabulary_size,
        "max_positions": config.max_positions,
        **_served(checkpoint),
        "special_ids": special_ids(checkpoint.tokenizer),
        "files": [file_entry(folder / file) for file in (TOKENIZER, SELFCHECK, WEIGHTS)],
        "graphs": [_graph_entry(folder, kind, fidelity) for kind, fidelity in fidelities.items()],
        "tool_versions": {tool: version(tool) for tool in _TOOLS},
    }


def revision(checkpoint: Checkpoint) -> str:
    """sha256 over everything that decides a vector: weights, configuration, tokenizer and pooling.

    Equal for the same model however its checkpoint was split or named, and whichever tools exported it.
    """
    encoder = {name: value for name, value in checkpoint.config.to_dict().items() if name != "dropout"}
    settings = {"family": checkpoint.family, "encoder": encoder, **_served(checkpoint)}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(checkpoint.tokenizer.to_str().encode())
    for name, tensor in sorted(checkpoint.encoder.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _served(checkpoint: Checkpoint) -> dict[str, Any]:
    defaults = checkpoint.defaults
    return {
        "max_tokens": defaults.max_tokens,
        "pooling": defaults.pooling,
        "normalize": defaults.normalize,
        "prompts": dict(defaults.prompts),
        "default_prompt_name": defaults.default_prompt_name,
    }


def _graph_entry(folder: Path, kind: GraphKind, fidelity: Fidelity) -> dict[str, Any]:
    return {
        "precision": kind.precision,
        "kind": kind.name,
        **file_entry(folder / kind.file),
        "external_data": [WEIGHTS],
        "fidelity": asdict(fidelity),
    }
