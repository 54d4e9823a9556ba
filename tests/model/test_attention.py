"""Attention against plain NumPy, torch's own kernel and nn.MultiheadAttention."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from model.attention import MultiHeadAttention, causal_mask, scaled_dot_product_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 5, 7, 8
HIDDEN = HEADS * WIDTH

MASKS = {
    "none": None,
    "padding": torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()[:, None, None, :],
    "left padding": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]]).bool()[:, None, None, :],
    "holes": torch.tensor([[1, 0, 1, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0, 1]]).bool()[:, None, None, :],
    "causal": causal_mask(QUERIES, KEYS),
    "per head": torch.rand(1, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) > 0.3,
    "one row has nothing": torch.tensor([[0] * 7, [1] * 7]).bool()[:, None, None, :],
    "one query has nothing": torch.arange(QUERIES)[:, None].ne(2).expand(QUERIES, KEYS),
}


def numpy_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Loops over every batch, head and query: slow, and hard to get wrong."""
    shape = (*query.shape[:3], key.shape[2])
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask.numpy(), shape)
    q, k, v = (tensor.numpy().astype(np.float64) for tensor in (query, key, value))
    output, weights = np.zeros(query.shape), np.zeros(shape)
    for b, h, i in np.ndindex(*query.shape[:3]):
        chosen = np.flatnonzero(allowed[b, h, i])
        if len(chosen):
            scores = k[b, h, chosen] @ q[b, h, i] / np.sqrt(q.shape[-1])
            exponentials = np.exp(scores - scores.max())
            weights[b, h, i, chosen] = exponentials / exponentials.sum()
            output[b, h, i] = weights[b, h, i, chosen] @ v[b, h, chosen]
    return output, weights


def random_heads() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(BATCH, HEADS, QUERIES, WIDTH),
        torch.randn(BATCH, HEADS, KEYS, WIDTH),
        torch.randn(BATCH, HEADS, KEYS, WIDTH),
    )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_equals_numpy(mask: Tensor | None) -> None:
    query, key, value = random_heads()
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    expected_output, expected_weights = numpy_attention(query, key, value, mask)
    np.testing.assert_allclose(output.numpy(), expected_output, atol=1e-6)
    np.testing.assert_allclose(weights.numpy(), expected_weights, atol=1e-6)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_equals_torch(mask: Tensor | None) -> None:
    query, key, value = random_heads()
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(output, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))


def test_row_without_keys_is_exactly_zero() -> None:
    query, key, value = random_heads()
    output, weights = scaled_dot_product_attention(query, key, value, MASKS["one query has nothing"])
    assert torch.equal(output[:, :, 2], torch.zeros(BATCH, HEADS, WIDTH))
    assert torch.equal(weights[:, :, 2], torch.zeros(BATCH, HEADS, KEYS))
    assert torch.allclose(weights[:, :, [0, 1, 3, 4]].sum(-1), torch.ones(()))


def test_masked_keys_have_no_influence_whatever_they_hold() -> None:
    query, key, value = random_heads()
    mask = MASKS["holes"]
    expected, _ = scaled_dot_product_attention(query, key, value, mask)
    hidden = ~mask.transpose(-1, -2)  # (B, 1, Sk, 1)
    output, weights = scaled_dot_product_attention(
        query, key.masked_fill(hidden, 1e6), value.masked_fill(hidden, -1e6), mask
    )
    assert torch.equal(output, expected)
    assert not weights.masked_select(~mask.expand_as(weights)).any()


def test_large_scores_keep_their_order() -> None:
    """Scores below a mask value of the usual -10,000 must not lose to masked keys."""
    query = torch.full((1, 1, 1, 1), -1.0)
    key = torch.tensor([20_000.0, 20_001.0, 0.0]).view(1, 1, 3, 1)
    mask = torch.tensor([True, True, False])
    _, weights = scaled_dot_product_attention(query, key, torch.zeros_like(key), mask)
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.7310586, 0.2689414, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in random_heads())
    output, weights = scaled_dot_product_attention(query, key, value, MASKS["one row has nothing"])
    expected, _ = numpy_attention(query.float(), key.float(), value.float(), MASKS["one row has nothing"])
    np.testing.assert_allclose(output.float().numpy(), expected, atol=0.03)
    assert not weights[0].any()


def test_causal_query_sees_only_the_past() -> None:
    assert causal_mask(3, 4).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]


def copied_weights() -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    reference = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).eval()
    nn.init.normal_(reference.in_proj_bias)
    nn.init.normal_(reference.out_proj.bias)
    ours = MultiHeadAttention(hidden_size=HIDDEN, head_count=HEADS)
    names = ("query", "key", "value")
    weights = zip(names, reference.in_proj_weight.chunk(3), reference.in_proj_bias.chunk(3), strict=True)
    state = {
        f"{name}.{part}": tensor
        for name, *both in weights
        for part, tensor in zip(("weight", "bias"), both, strict=True)
    }
    state |= {"output.weight": reference.out_proj.weight, "output.bias": reference.out_proj.bias}
    ours.load_state_dict(state)
    return ours.eval(), reference


@pytest.mark.parametrize(
    ("key_length", "mask"),
    [
        pytest.param(QUERIES, None, id="self"),
        pytest.param(KEYS, None, id="cross"),
        pytest.param(QUERIES, causal_mask(QUERIES, QUERIES), id="causal"),
        pytest.param(KEYS, MASKS["padding"], id="cross with padding"),
        pytest.param(KEYS, MASKS["holes"], id="cross with holes"),
        pytest.param(KEYS, MASKS["padding"] & causal_mask(QUERIES, KEYS), id="causal with padding"),
    ],
)
@torch.no_grad()
def test_multi_head_equals_torch(key_length: int, mask: Tensor | None) -> None:
    ours, reference = copied_weights()
    query = torch.randn(BATCH, QUERIES, HIDDEN)
    memory = query if key_length == QUERIES else torch.randn(BATCH, key_length, HIDDEN)
    refused = None
    if mask is not None:
        refused = ~mask.expand(BATCH, HEADS, QUERIES, key_length).flatten(0, 1)
    expected, expected_weights = reference(
        query, memory, memory, attn_mask=refused, average_attn_weights=False
    )
    output, weights = ours(query, memory, memory, mask, with_weights=True)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_multi_head_row_without_keys_is_the_output_bias() -> None:
    """Where nn.MultiheadAttention gives NaN: zeros go into the output projection."""
    ours, _ = copied_weights()
    hidden = torch.randn(BATCH, QUERIES, HIDDEN)
    mask = torch.tensor([False, True])[:, None, None, None].expand(BATCH, 1, 1, QUERIES)
    output, weights = ours(hidden, hidden, hidden, mask, with_weights=True)
    torch.testing.assert_close(output[0], ours.output.bias.expand(QUERIES, HIDDEN))
    assert not weights[0].any()
    alone, _ = ours(hidden[1:], hidden[1:], hidden[1:], mask[1:])
    torch.testing.assert_close(output[1:], alone)


@torch.no_grad()
def test_weights_only_on_request() -> None:
    ours, _ = copied_weights()
    hidden = torch.randn(1, 2, HIDDEN)
    assert ours(hidden, hidden, hidden)[1] is None


def test_gradients_are_finite_beside_a_row_without_keys() -> None:
    ours, _ = copied_weights()
    hidden = torch.randn(BATCH, QUERIES, HIDDEN, requires_grad=True)
    mask = torch.tensor([False, True])[:, None, None, None]
    ours(hidden, hidden, hidden, mask)[0].sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="hidden_size 10 is not divisible by head_count 3"):
        MultiHeadAttention(hidden_size=10, head_count=3)
