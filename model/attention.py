"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2).

Letters: B batch, S sequence (Sq of queries, Sk of keys), D hidden, H heads, K head width = D / H.
Masks are boolean: True at (b, h, i, j) means that query i may attend to key j. They broadcast to
(B, H, Sq, Sk). A query that may attend to nothing gets zeros, not NaN.
"""

import math

import torch
from torch import Tensor, nn

# Far below any score, yet finite in float32 and bfloat16: a row filled with it has a softmax, not NaN.
MASKED_SCORE = -1e30


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(query keyᵀ / √K) value and the weights.

    query (B, H, Sq, K), key and value (B, H, Sk, K) -> output (B, H, Sq, K), weights (B, H, Sq, Sk).
    Weights of masked keys are exactly 0. A row without any key to attend to is 0 in output and weights.
    """
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)  # (B, H, Sq, Sk)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        lowest = max(MASKED_SCORE, torch.finfo(scores.dtype).min)
        weights = scores.masked_fill(~mask, lowest).softmax(dim=-1) * mask
    return weights @ value, weights


def causal_mask(query_length: int, key_length: int, device: torch.device | None = None) -> Tensor:
    """(Sq, Sk): query i may attend to keys 0 … i. Combine with a padding mask by `&`."""
    return torch.ones(query_length, key_length, dtype=torch.bool, device=device).tril()


class MultiHeadAttention(nn.Module):
    """Attention in H subspaces at once, each K = D / H wide.

    Self-attention takes one tensor three times; cross-attention takes keys and values of another length.
    """

    def __init__(self, *, hidden_size: int, head_count: int) -> None:
        super().__init__()
        if hidden_size % head_count:
            raise ValueError(f"hidden_size {hidden_size} is not divisible by head_count {head_count}")
        self.head_count = head_count
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        with_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """query (B, Sq, D), key and value (B, Sk, D) -> output (B, Sq, D), weights (B, H, Sq, Sk) if wanted.

        A query that may attend to nothing contributes zeros before the output projection.
        """
        attended, weights = self.attend(self.query(query), self.key(key), self.value(value), mask)
        return self.output(attended), weights if with_weights else None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The same shapes as forward, between the projections. Another kernel overrides this and may return
        no weights."""
        query, key, value = (self._split_heads(tensor) for tensor in (query, key, value))
        attended, weights = scaled_dot_product_attention(query, key, value, mask)
        return attended.transpose(1, 2).flatten(2), weights  # (B, Sq, D)

    def _split_heads(self, tensor: Tensor) -> Tensor:
        """(B, S, D) -> (B, H, S, K)."""
        batch, length, width = tensor.shape
        return tensor.view(batch, length, self.head_count, width // self.head_count).transpose(1, 2)
