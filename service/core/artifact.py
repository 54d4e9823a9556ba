"""Reads an artifact directory and checks that it is whole; knows nothing of what runs the graphs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from service.errors import StartError
from service.types import Floats, Ids, Pooling

SCHEMA_VERSION = 1
_FIX = "export the model again with `seqenc-model export`"
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Graph:
    """One ONNX file. `fidelity` is its worst cosine against the fp32 reference, measured at export."""

    path: Path
    precision: str
    kind: Literal["plain", "fused", "attention"]
    fidelity: float
    external_data: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelfCheckCase:
    """A token-id input and the pooled vectors that PyTorch gave for it."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids
    pooled_mean: Floats


@dataclass(frozen=True, slots=True)
class Artifact:
    directory: Path
    name: str
    revision: str
    family: str
    hidden_size: int
    layer_count: int
    head_count: int
    vocabulary_size: int
    type_vocabulary_size: int
    max_tokens: int
    max_positions: int
    pooling: Pooling
    normalize: bool
    prompts: Mapping[str, str]
    default_prompt_name: str
    special_ids: Mapping[str, int]
    graphs: tuple[Graph, ...]
    checksums: Mapping[str, str] = field(repr=False)

    @property
    def tokenizer_path(self) -> Path:
        return self.directory / "tokenizer.json"

    def graph(self, kind: str, precision: str) -> Graph:
        for graph in self.graphs:
            if (graph.kind, graph.precision) == (kind, precision):
                return graph
        have = ", ".join(f"{graph.kind} {graph.precision}" for graph in self.graphs)
        raise StartError(
            f"artifact {self.directory} has no {kind} {precision} graph (it has {have}); "
            f"choose one of these or {_FIX}"
        )

    def check_files(self, graphs: Iterable[Graph]) -> None:
        """Raises StartError when the tokenizer, selfcheck.json or a graph's file is missing or altered."""
        names = {"tokenizer.json", "selfcheck.json"}
        for graph in graphs:
            names.update((graph.path.name, *graph.external_data))
        for name in sorted(names):
            _check_file(self.directory / name, self.checksums.get(name))

    def load_selfcheck(self) -> tuple[dict[str, float], list[SelfCheckCase]]:
        """The lowest cosine allowed for each precision, and the cases."""
        path = self.directory / "selfcheck.json"
        content = _load_json(path)
        try:
            limits = {precision: float(limit) for precision, limit in content["min_cosine"].items()}
            return limits, _build_cases(content)
        except _MALFORMED as error:
            raise StartError(f"{path} is not a valid self-check ({error!r}); {_FIX}") from error


def load_artifact(directory: Path) -> Artifact:
    """Reads manifest.json; raises StartError when it is missing, unreadable or of another schema."""
    if not os.path.isdir(directory):
        reason = _dangling(directory) or "is not a folder; write one with `seqenc-model export`"
        raise StartError(f"artifact {directory} {reason}")
    manifest = _load_json(directory / "manifest.json")
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise StartError(
            f"artifact {directory} has schema_version {version}, this server reads {SCHEMA_VERSION}; "
            "use the release of seqenc that exported it, or export it again with this one"
        )
    try:
        return _build_artifact(directory, manifest)
    except _MALFORMED as error:
        raise StartError(
            f"{directory / 'manifest.json'} is not a valid manifest ({error!r}); {_FIX}"
        ) from error


def _build_artifact(directory: Path, manifest: dict[str, Any]) -> Artifact:
    graphs = tuple(
        Graph(
            path=directory / _plain_name(graph["file"]),
            precision=graph["precision"],
            kind=graph["kind"],
            fidelity=float(graph["fidelity"]["worst_cosine"]),
            external_data=tuple(_plain_name(name) for name in graph.get("external_data", ())),
        )
        for graph in manifest["graphs"]
    )
    prompts = dict(manifest["prompts"])
    default_prompt_name = manifest.get("default_prompt_name") or ""
    if default_prompt_name and default_prompt_name not in prompts:
        raise ValueError(f"default_prompt_name {default_prompt_name!r} is not one of its prompts")
    return Artifact(
        directory=directory,
        name=manifest["name"],
        revision=manifest["revision"],
        family=manifest["family"],
        hidden_size=int(manifest["hidden_size"]),
        layer_count=int(manifest["layer_count"]),
        head_count=int(manifest["head_count"]),
        vocabulary_size=int(manifest["vocabulary_size"]),
        type_vocabulary_size=int(manifest["type_vocabulary_size"]),
        max_tokens=int(manifest["max_tokens"]),
        max_positions=int(manifest["max_positions"]),
        pooling=Pooling(manifest["pooling"]),
        normalize=bool(manifest["normalize"]),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        special_ids=dict(manifest["special_ids"]),
        graphs=graphs,
        checksums={entry["file"]: entry["sha256"] for entry in (*manifest["files"], *manifest["graphs"])},
    )


def _build_cases(content: dict[str, Any]) -> list[SelfCheckCase]:
    cases = [
        SelfCheckCase(
            input_ids=np.array(case["input_ids"], np.int64),
            attention_mask=np.array(case["attention_mask"], np.int64),
            token_type_ids=np.array(case["token_type_ids"], np.int64),
            pooled_mean=np.array(case["pooled_mean"], np.float32),
        )
        for case in content["cases"]
    ]
    if not cases:
        raise ValueError("it has no cases")
    return cases


def _plain_name(name: str) -> str:
    if Path(name).name != name:
        raise ValueError(f"file name {name!r} leaves the artifact's folder")
    return name


def _load_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not valid JSON ({error}); {_FIX}") from error
    if not isinstance(content, dict):
        raise StartError(f"{path} is not a JSON object; {_FIX}")
    return content


def _check_file(path: Path, expected: str | None) -> None:
    if expected is None:
        raise StartError(f"{path} is not in the manifest; {_FIX}")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error
    if found != expected:
        raise StartError(f"{path} has sha256 {found}, the manifest says {expected}; copy it again or {_FIX}")


def _unreadable(path: Path, error: OSError) -> StartError:
    return StartError(f"{path} {_dangling(path) or f'cannot be read ({error.strerror}); {_FIX}'}")


def _dangling(path: Path) -> str | None:
    """What is wrong with a link that leads nowhere; None where it is none."""
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which is not there; restore it, or {_FIX}"
    return None
