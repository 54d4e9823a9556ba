"""Attention maps of one input after the graph: heads chosen, reduced and narrowed."""

from __future__ import annotations

import numpy as np

from service.types import Array, AttentionPlan, AttentionReduction, DataType, Floats


def reduce_maps(maps: Floats, plan: AttentionPlan) -> Array:
    """`maps` (layers of the plan in its order, H, n, n) -> the shape that `plan.shape(n)` gives."""
    chosen = maps[:, list(plan.heads)]
    if plan.reduction is AttentionReduction.MEAN_HEADS:
        chosen = chosen.mean(axis=1, keepdims=True)
    elif plan.reduction is AttentionReduction.ROLLOUT:
        chosen = _rollout(chosen[np.argsort(plan.layers)])
    return np.ascontiguousarray(chosen, np.float16 if plan.data_type is DataType.FLOAT16 else np.float32)


def _rollout(maps: Floats) -> Floats:
    """(layers, heads, n, n) -> (1, 1, n, n): attention rollout of Abnar & Zuidema 2020.

    Each layer's mean over heads A becomes 0.5 A + 0.5 I, rows made to sum to 1 again; the result is the
    product of the layers, the last one leftmost.
    """
    identity = np.eye(maps.shape[-1], dtype=np.float32)
    rollout = identity
    for layer in maps.mean(axis=1):
        mixed = 0.5 * layer + 0.5 * identity
        rollout = (mixed / mixed.sum(axis=-1, keepdims=True)) @ rollout
    return rollout[None, None]
