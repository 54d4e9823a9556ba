"""Checkpoint -> artifact directory: every graph written, run in ONNX Runtime and compared with PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.artifact import MANIFEST, SELFCHECK, TOKENIZER, WEIGHTS, check_target, staged, write_json
from model.checkpoint import Checkpoint, load_checkpoint
from model.encoder import Encoder
from model.graphs import (
    ATTENTION,
    FP16,
    FUSED,
    INPUTS,
    INT8,
    PLAIN,
    GraphKind,
    GraphModule,
    build_graphs,
    output_names,
)
from model.manifest import build_manifest
from model.runtime import load_run
from model.selfcheck import (
    MIN_COSINE,
    MIN_RANDOM_COSINE,
    Arrays,
    Case,
    Fidelity,
    Run,
    Sizes,
    check_fidelity,
    compare,
    compare_directions,
    fidelity_cases,
    measure_fidelity,
    shape_cases,
    stored_cases,
)
from model.weights_file import SharedWeights

KINDS = (PLAIN, FUSED, ATTENTION, INT8, FP16)

Report = Callable[[str], None]


def export_artifact(source: Path, target: Path, *, name: str, force: bool, report: Report) -> dict[str, Any]:
    """Writes the artifact of the checkpoint in `source` and returns its manifest, reporting each stage.

    Nothing is left at or beside `target` when anything is off.
    """
    check_target(target, force=force)
    report(f"reading {source}")
    checkpoint = load_checkpoint(source)
    with staged(target) as staging:
        checkpoint.tokenizer.save(str(staging / TOKENIZER))
        _write_graphs(checkpoint.encoder, staging, report)
        _write_selfcheck(checkpoint, staging / SELFCHECK)
        fidelities = _verify_graphs(checkpoint, staging, report)
        manifest = build_manifest(checkpoint, name, staging, fidelities)
        write_json(staging / MANIFEST, manifest, indent=2)
    return manifest


def torch_run(encoder: Encoder, kind: GraphKind) -> Run:
    """The reference: what a graph of this kind must give."""
    module = GraphModule(encoder, kind.with_attentions)
    names = output_names(kind, encoder.config.layer_count)

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(inputs[name]) for name in INPUTS))
        return {name: tensor.numpy() for name, tensor in zip(names, outputs, strict=True)}

    return run


def _write_graphs(encoder: Encoder, folder: Path, report: Report) -> None:
    report("tracing the encoder")
    with SharedWeights(folder / WEIGHTS) as weights:
        for kind, graph in build_graphs(encoder):
            weights.write_graph(graph, folder / kind.file, add=kind.precision == "fp32")
            report(f"wrote {kind.file}")


def _write_selfcheck(checkpoint: Checkpoint, path: Path) -> None:
    run = torch_run(checkpoint.encoder, PLAIN)
    cases = stored_cases(checkpoint.tokenizer, _sizes(checkpoint))
    stored = [_stored(case, run(case.inputs)) for case in cases]
    write_json(path, {"min_cosine": MIN_COSINE, "cases": stored})


def _stored(case: Case, outputs: Arrays) -> dict[str, Any]:
    inputs = {name: array[0].tolist() for name, array in case.inputs.items()}
    vectors = {name: _short(outputs[name][0]) for name in ("pooled_mean", "pooled_cls")}
    return {**inputs, **vectors}


def _short(vector: NDArray[np.float32]) -> list[float]:
    """Nine digits hold every float32 exactly."""
    return [float(f"{value:.9g}") for value in vector]


def _verify_graphs(checkpoint: Checkpoint, folder: Path, report: Report) -> dict[GraphKind, Fidelity]:
    """Each graph against PyTorch over shapes and masks, and its fidelity over a few hundred sequences.

    One graph at a time, since each holds the weights once more.
    """
    texts = _fidelity_texts(checkpoint)
    cases = list(shape_cases(_sizes(checkpoint)))
    plain, mapped = (torch_run(checkpoint.encoder, kind) for kind in (PLAIN, ATTENTION))
    # Computed once for all graphs but the one with maps, which are too large to be kept.
    vectors = [plain(case.inputs) for case in cases]
    fidelities: dict[GraphKind, Fidelity] = {}
    for kind in KINDS:
        report(f"comparing {kind.file} with PyTorch")
        run = load_run(folder / kind.file)
        for case, expected in zip(cases, vectors, strict=True):
            reference = mapped(case.inputs) if kind.with_attentions else expected
            _compare(kind, case, run(case.inputs), reference)
        fidelities[kind] = _measure(checkpoint, kind, run, texts)
    return fidelities


def _compare(kind: GraphKind, case: Case, outputs: Arrays, reference: Arrays) -> None:
    if kind.precision == "fp32":
        compare(kind.file, case, outputs, reference)
    else:
        compare_directions(kind.file, case, outputs, reference, MIN_RANDOM_COSINE[kind.precision])


def _fidelity_texts(checkpoint: Checkpoint) -> list[tuple[Case, Arrays]]:
    """Sequences and what PyTorch gives for them."""
    reference = torch_run(checkpoint.encoder, PLAIN)
    cases = fidelity_cases(checkpoint.tokenizer, _sizes(checkpoint))
    return [(case, reference(case.inputs)) for case in cases]


def _measure(checkpoint: Checkpoint, kind: GraphKind, run: Run, texts: list[tuple[Case, Arrays]]) -> Fidelity:
    """Raises NumericalError for a graph that a server would refuse at its start."""
    pooling = checkpoint.defaults.pooling
    cases, references = zip(*texts, strict=True)
    fidelity = measure_fidelity(run, cases, references, f"pooled_{'mean' if pooling == 'none' else pooling}")
    check_fidelity(kind.file, kind.precision, fidelity)
    return fidelity


def _sizes(checkpoint: Checkpoint) -> Sizes:
    config = checkpoint.config
    return Sizes(config.vocabulary_size, config.type_vocabulary_size, config.max_positions)
