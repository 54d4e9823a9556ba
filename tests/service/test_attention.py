"""Reduction of attention maps against plain Python loops."""

from __future__ import annotations

import numpy as np
import pytest

from service.core.attention import reduce_maps
from service.types import AttentionPlan, AttentionReduction, DataType, Floats

LAYERS, HEADS = 4, 3
Matrix = list[list[float]]


def plan_of(
    layers: tuple[int, ...] = (0, 1, 2, 3),
    heads: tuple[int, ...] = (0, 1, 2),
    reduction: AttentionReduction = AttentionReduction.NONE,
    data_type: DataType = DataType.FLOAT32,
) -> AttentionPlan:
    return AttentionPlan(layers, heads, reduction, data_type)


def random_maps(token_count: int, layer_count: int = LAYERS, seed: int = 0) -> Floats:
    """(layer_count, HEADS, n, n) with rows that sum to 1."""
    scores = np.random.default_rng(seed).random((layer_count, HEADS, token_count, token_count))
    maps: Floats = (scores / scores.sum(-1, keepdims=True)).astype(np.float32)
    return maps


def plain_rollout(maps: Floats, heads: tuple[int, ...], ascending_places: list[int]) -> Matrix:
    """Abnar & Zuidema 2020: A'(last) ... A'(first), where A' is 0.5 A + 0.5 I with rows made to sum to 1."""
    size = maps.shape[-1]
    rollout = [[float(i == j) for j in range(size)] for i in range(size)]
    for place in ascending_places:
        mixed = []
        for i in range(size):
            row = [
                0.5 * sum(float(maps[place, head, i, j]) for head in heads) / len(heads) + 0.5 * (i == j)
                for j in range(size)
            ]
            mixed.append([value / sum(row) for value in row])
        rollout = [
            [sum(mixed[i][k] * rollout[k][j] for k in range(size)) for j in range(size)] for i in range(size)
        ]
    return rollout


def test_all_layers_and_heads_are_returned_as_they_are() -> None:
    maps = random_maps(5)
    np.testing.assert_array_equal(reduce_maps(maps, plan_of()), maps)


@pytest.mark.parametrize("heads", [(0,), (2, 0), (1, 2)])
def test_heads_are_chosen_in_their_order(heads: tuple[int, ...]) -> None:
    maps = random_maps(5)
    reduced = reduce_maps(maps, plan_of(heads=heads))
    for place, head in enumerate(heads):
        np.testing.assert_array_equal(reduced[:, place], maps[:, head])


@pytest.mark.parametrize("heads", [(0,), (2, 0), (0, 1, 2)])
def test_mean_over_the_chosen_heads(heads: tuple[int, ...]) -> None:
    maps = random_maps(4)
    reduced = reduce_maps(maps, plan_of(heads=heads, reduction=AttentionReduction.MEAN_HEADS))
    for layer in range(LAYERS):
        expected = sum(maps[layer, head].astype(np.float64) for head in heads) / len(heads)
        np.testing.assert_allclose(reduced[layer, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "ascending_places"),
    [((0, 1, 2, 3), [0, 1, 2, 3]), ((3, 1, 2), [1, 2, 0]), ((2, 0), [1, 0]), ((3,), [0])],
)
@pytest.mark.parametrize("heads", [(0, 1, 2), (2,)])
@pytest.mark.parametrize("token_count", [1, 2, 7])
def test_rollout(
    layers: tuple[int, ...], ascending_places: list[int], heads: tuple[int, ...], token_count: int
) -> None:
    """The maps come in the order of the plan; the product is over layers in ascending order."""
    maps = random_maps(token_count, len(layers))
    reduced = reduce_maps(maps, plan_of(layers, heads, AttentionReduction.ROLLOUT))
    np.testing.assert_allclose(reduced[0, 0], plain_rollout(maps, heads, ascending_places), atol=1e-6)
    np.testing.assert_allclose(reduced.sum(-1), 1, atol=1e-5)


def test_rollout_renormalises_rows_that_do_not_sum_to_one() -> None:
    maps = random_maps(4) * np.float32(0.8)
    reduced = reduce_maps(maps, plan_of(reduction=AttentionReduction.ROLLOUT))
    np.testing.assert_allclose(reduced.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(reduced[0, 0], plain_rollout(maps, (0, 1, 2), [0, 1, 2, 3]), atol=1e-6)


@pytest.mark.parametrize("reduction", list(AttentionReduction))
@pytest.mark.parametrize("heads", [(0, 1, 2), (1,)])
@pytest.mark.parametrize(("data_type", "dtype"), [(DataType.FLOAT32, "f4"), (DataType.FLOAT16, "f2")])
def test_shape_and_type_are_the_plans(
    reduction: AttentionReduction, heads: tuple[int, ...], data_type: DataType, dtype: str
) -> None:
    plan = plan_of((3, 1), heads, reduction, data_type)
    maps = random_maps(6, 2)
    reduced = reduce_maps(maps, plan)
    assert reduced.shape == plan.shape(6)
    assert reduced.dtype == np.dtype(dtype)
    assert reduced.flags.c_contiguous
    full = reduce_maps(maps, plan_of((3, 1), heads, reduction))
    np.testing.assert_allclose(reduced, full, atol=5e-4 if data_type is DataType.FLOAT16 else 0)


@pytest.mark.parametrize("reduction", list(AttentionReduction))
def test_the_maps_of_the_graph_are_not_changed(reduction: AttentionReduction) -> None:
    maps = random_maps(5)
    before = maps.copy()
    reduce_maps(maps, plan_of(reduction=reduction))
    np.testing.assert_array_equal(maps, before)
