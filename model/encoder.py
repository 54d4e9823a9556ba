"""A Transformer encoder that reads from top to bottom: embeddings, layers, encoder.

Letters: B batch, S sequence, D hidden, H heads, F feed-forward width, L layers. Knows nothing of checkpoints
and their names.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from model.attention import MultiHeadAttention
from model.config import EncoderConfig

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class LearnedPositions(nn.Module):
    """One trained vector for each of `max_positions` columns; longer sequences are an IndexError."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(max_positions, hidden_size))

    def forward(self, length: int) -> Tensor:
        return F.embedding(torch.arange(length, device=self.weight.device), self.weight)  # (S, D)


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(the same): Vaswani et al. 2017, section 3.5.

    Computed for the length at hand, so there is no longest one. Angles are in float64: in float32 the one of
    column 5,000 would already be off by 3e-4.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, length: int) -> Tensor:
        even = torch.arange(0, self.hidden_size, 2, dtype=torch.float64)
        frequencies = torch.exp(even * (-math.log(10_000.0) / self.hidden_size))  # (D/2,)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (S, D/2)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(
            1
        )  # (S, D), or one more if D is odd
        return waves[:, : self.hidden_size].float()


class Embeddings(nn.Module):
    """Token + segment + position vectors, normalised when the encoder is post-norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocabulary_size, config.hidden_size)
        self.position = (
            LearnedPositions(config.max_positions, config.hidden_size)
            if config.positions == "learned"
            else SinusoidalPositions(config.hidden_size)
        )
        self.norm = _layer_norm(config) if config.norm == "post" else nn.Identity()
        self.dropout = config.dropout

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        position = self.position(input_ids.size(1)).to(self.token.weight)  # (S, D)
        embedded: Tensor = self.token(input_ids) + self.segment(token_type_ids) + position  # (B, S, D)
        normed: Tensor = self.norm(embedded)
        return F.dropout(normed, self.dropout, self.training)


class FeedForward(nn.Module):
    """The same two-layer perceptron at every position."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.feed_forward_size)
        self.contract = nn.Linear(config.feed_forward_size, config.hidden_size)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        expanded = self.activation(self.expand(hidden))  # (B, S, F)
        contracted: Tensor = self.contract(expanded)  # (B, S, D)
        return contracted


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection and a layer norm."""

    def __init__(self, config: EncoderConfig, attention: type[MultiHeadAttention]) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.attention = attention(hidden_size=config.hidden_size, head_count=config.head_count)
        self.attention_norm = _layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: Tensor, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        """hidden (B, S, D), mask (B, 1, 1, S) -> hidden (B, S, D), weights (B, H, S, S) if wanted."""
        source = self.attention_norm(hidden) if self.norm_first else hidden
        attended, weights = self.attention(source, source, source, mask, with_weights=with_weights)
        hidden = hidden + self.dropout(attended)
        if self.norm_first:
            return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden))), weights
        hidden = self.attention_norm(hidden)
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden))), weights


class EncoderOutput(NamedTuple):
    token_embeddings: Tensor  # (B, S, D)
    attentions: tuple[Tensor, ...]  # L of (B, H, S, S), empty unless asked for


class Encoder(nn.Module):
    """Token ids in, one contextual vector per token out."""

    def __init__(
        self, config: EncoderConfig, *, attention: type[MultiHeadAttention] = MultiHeadAttention
    ) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config, attention) for _ in range(config.layer_count))
        self.final_norm = _layer_norm(config) if config.norm == "pre" else nn.Identity()

    def forward(
        self,
        input_ids: Tensor,
        mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        with_attentions: bool = False,
    ) -> EncoderOutput:
        """input_ids and token_type_ids integer (B, S), mask boolean (B, S), True = may be attended to.

        Without a mask all are; without token types all are 0. Positions count columns, whatever the mask.
        """
        mask = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden = self.embeddings(input_ids, token_type_ids)  # (B, S, D)
        attentions = []
        for layer in self.layers:
            hidden, weights = layer(hidden, mask[:, None, None, :], with_attentions)
            if weights is not None:
                attentions.append(weights)
        return EncoderOutput(self.final_norm(hidden), tuple(attentions))


def _layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
