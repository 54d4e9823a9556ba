"""Pooling against NumPy over every mask of five columns."""

from itertools import product

import numpy as np
import pytest
import torch

from model.pooling import POOLINGS

MASKS = np.array(list(product((False, True), repeat=5)))

NUMPY = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens.max(axis=0),
    "last": lambda tokens: tokens[-1],
}


@pytest.mark.parametrize("mode", POOLINGS)
def test_equals_numpy_on_the_real_tokens(mode: str) -> None:
    hidden = torch.randn(len(MASKS), 5, 3) - 2.0
    pooled = POOLINGS[mode](hidden, torch.from_numpy(MASKS)).numpy()
    expected = [
        NUMPY[mode](tokens[mask]) if mask.any() else np.zeros(3)
        for tokens, mask in zip(hidden.numpy(), MASKS, strict=True)
    ]
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


@pytest.mark.parametrize("mode", POOLINGS)
def test_without_a_real_token_it_is_exactly_zero(mode: str) -> None:
    pooled = POOLINGS[mode](torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool))
    assert torch.equal(pooled, torch.zeros(2, 3))
