"""The check at start: this machine must compute the vectors that PyTorch gave at export."""

from __future__ import annotations

import numpy as np

from service.core.artifact import Artifact, SelfCheckCase
from service.core.collation import BatchArrays
from service.core.engine import Engine
from service.errors import StartError
from service.types import Floats


def check_engine(engine: Engine, artifact: Artifact) -> float:
    """The worst cosine over every case alone and all in one batch; StartError when it is under the limit."""
    lowest_allowed, cases = artifact.load_selfcheck()
    limit = lowest_allowed.get(engine.precision)
    if limit is None:
        raise StartError(
            f"{artifact.directory / 'selfcheck.json'} has no limit for {engine.precision}; "
            "choose another --precision or export the model again"
        )
    batches = [[case] for case in cases] + [cases]
    worst = float(np.min([_worst_cosine(engine, artifact, batch) for batch in batches]))  # NaN stays NaN
    if not worst >= limit:
        raise StartError(
            f"self-check failed: a vector has cosine {worst:.6f} to its reference, the limit for "
            f"{engine.precision} is {limit}; this machine does not compute this graph right: "
            "choose another --precision or --provider, or export the model again"
        )
    return worst


def _worst_cosine(engine: Engine, artifact: Artifact, cases: list[SelfCheckCase]) -> float:
    arrays = _pad(cases, artifact.special_ids.get("pad", 0))
    vectors = engine.run("encoder", arrays, ["pooled_mean"])["pooled_mean"]
    expected = np.stack([case.pooled_mean for case in cases])
    return float(_cosines(vectors.astype(np.float32), expected).min())


def _cosines(a: Floats, b: Floats) -> Floats:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: Floats = np.divide(
        (a * b).sum(axis=1), norms, out=np.full(len(a), -1, np.float32), where=norms > 0
    )
    return cosines


def _pad(cases: list[SelfCheckCase], pad_id: int) -> BatchArrays:
    width = max(len(case.input_ids) for case in cases)

    def stack(name: str, filler: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        rows = [getattr(case, name) for case in cases]
        return np.stack([np.pad(row, (0, width - len(row)), constant_values=filler) for row in rows])

    return BatchArrays(stack("input_ids", pad_id), stack("attention_mask", 0), stack("token_type_ids", 0))
