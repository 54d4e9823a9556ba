"""Re-checks an artifact without PyTorch: checksums, stored vectors, and its graphs against each other."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model.artifact import SELFCHECK, ArtifactError, check_files, read_manifest
from model.files import read_json
from model.runtime import load_run
from model.selfcheck import NumericalError, Run, Sizes, compare_all, cosine, shape_cases

Report = Callable[[str], None]

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def verify_artifact(folder: Path, report: Report) -> None:
    """Raises ArtifactError or NumericalError at the first thing that is off."""
    manifest = read_manifest(folder)
    report("checksums")
    check_files(folder, manifest)
    graphs = {entry["file"]: load_run(folder / entry["file"]) for entry in manifest["graphs"]}
    report("stored vectors")
    selfcheck = read_json(folder / SELFCHECK)
    for entry in manifest["graphs"]:
        _check_stored(entry, graphs[entry["file"]], selfcheck)
    report("graphs against each other")
    _check_exact(
        {e["file"]: graphs[e["file"]] for e in manifest["graphs"] if e["precision"] == "fp32"}, manifest
    )


def _check_stored(entry: Mapping[str, Any], run: Run, selfcheck: Mapping[str, Any]) -> None:
    limit = selfcheck["min_cosine"][entry["precision"]]
    for number, case in enumerate(selfcheck["cases"]):
        outputs = run({name: np.array([case[name]], np.int64) for name in _INPUTS})
        for name in ("pooled_mean", "pooled_cls"):
            found = float(cosine(outputs[name][0], np.array(case[name])))
            if not found >= limit:
                raise NumericalError(
                    f"{entry['file']} is off: {name} of stored case {number} has cosine {found:.6f}, "
                    f"at least {limit} is needed"
                )


def _check_exact(graphs: Mapping[str, Run], manifest: Mapping[str, Any]) -> None:
    """The fp32 graphs over every shape and mask, against the one with the attention weights."""
    references = [entry["file"] for entry in manifest["graphs"] if entry["kind"] == "attention"]
    if not references:
        raise ArtifactError("no graph of kind attention to compare the others with; export again")
    sizes = Sizes(manifest["vocabulary_size"], manifest["type_vocabulary_size"], manifest["max_positions"])
    for case in shape_cases(sizes):
        compare_all(case, graphs, graphs[references[0]])
