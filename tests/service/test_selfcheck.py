"""The check at start against an engine that is right, and against engines that are wrong in one way each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fake_artifact import build_artifact
from service.core.collation import BatchArrays
from service.core.selfcheck import check_engine
from service.errors import StartError
from service.types import Array, Floats

CASES = [
    {"input_ids": [2, 9, 8, 3], "attention_mask": [1, 1, 1, 1], "token_type_ids": [0, 0, 1, 1]},
    {"input_ids": [2, 7, 3], "attention_mask": [1, 0, 1], "token_type_ids": [0, 0, 0]},
    {"input_ids": [5], "attention_mask": [1], "token_type_ids": [0]},
]


def true_vectors(arrays: BatchArrays) -> Floats:
    """(B, 4): functions of the real ids and their types."""
    ids, mask, types = arrays.input_ids, arrays.attention_mask, arrays.token_type_ids
    columns = [(ids * mask).sum(1), (ids**2 * mask).sum(1), mask.sum(1), (types * ids * mask).sum(1)]
    return np.stack(columns, axis=1).astype(np.float32)


class FakeEngine:
    """`damage` changes a batch's vectors."""

    precision = "fp32"

    def __init__(self, damage: Callable[[BatchArrays, Floats], Floats] = lambda _, vectors: vectors) -> None:
        self._damage = damage
        self.batch_sizes: list[int] = []

    def run(self, graph: str, arrays: BatchArrays, output_names: Sequence[str]) -> dict[str, Array]:
        assert (graph, list(output_names)) == ("encoder", ["pooled_mean"])
        self.batch_sizes.append(len(arrays.input_ids))
        return {"pooled_mean": self._damage(arrays, true_vectors(arrays))}


def check(folder: Path, engine: FakeEngine, limits: dict[str, float] | None = None) -> float:
    cases = []
    for case in CASES:
        arrays = BatchArrays(*(np.array([values], np.int64) for values in case.values()))
        cases.append({**case, "pooled_mean": true_vectors(arrays)[0].tolist()})
    content = {"min_cosine": limits or {"fp32": 0.99999}, "cases": cases}
    (folder / "selfcheck.json").write_text(json.dumps(content))
    return check_engine(engine, build_artifact(directory=folder))  # type: ignore[arg-type]


def test_an_engine_that_is_right_passes_alone_and_in_a_batch(tmp_path: Path) -> None:
    engine = FakeEngine()
    assert check(tmp_path, engine) == pytest.approx(1)
    assert engine.batch_sizes == [1, 1, 1, 3]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _, vectors: vectors + np.array([0, 0, 30, 0], np.float32), id="off"),
        pytest.param(lambda _, vectors: -vectors, id="sign"),
        pytest.param(lambda _, vectors: vectors * 0, id="zeros"),
        pytest.param(lambda _, vectors: vectors * np.float32("nan"), id="nan"),
        pytest.param(lambda _, vectors: vectors + np.float32("inf"), id="all infinite"),
        pytest.param(lambda _, vectors: np.roll(vectors, 1, axis=0), id="rows mixed up in the batch"),
        pytest.param(lambda _, vectors: vectors / (len(vectors) == 1), id="infinite in the batch"),
        pytest.param(
            lambda arrays, _: true_vectors(
                BatchArrays(arrays.input_ids, np.ones_like(arrays.attention_mask), arrays.token_type_ids)
            ),
            id="mask ignored",
        ),
        pytest.param(
            lambda arrays, _: true_vectors(
                BatchArrays(arrays.input_ids, arrays.attention_mask, np.zeros_like(arrays.token_type_ids))
            ),
            id="types ignored",
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered")
def test_an_engine_that_is_wrong_in_any_way_is_refused(
    tmp_path: Path, damage: Callable[[BatchArrays, Floats], Floats]
) -> None:
    with pytest.raises(StartError, match=r"self-check failed: .* the limit for fp32 is 0\.99999"):
        check(tmp_path, FakeEngine(damage))


def test_the_limit_is_the_precisions_own(tmp_path: Path) -> None:
    engine = FakeEngine(lambda _, vectors: vectors + np.array([0, 0, 0.5, 0], np.float32))
    limits = {"fp32": 0.99999, "int8": 0.9}
    with pytest.raises(StartError):
        check(tmp_path, engine, limits)
    engine.precision = "int8"
    assert 0.9 < check(tmp_path, engine, limits) < 0.99999


def test_a_precision_without_a_limit_is_named(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.precision = "fp16"
    with pytest.raises(StartError, match=r"selfcheck\.json has no limit for fp16"):
        check(tmp_path, engine)
