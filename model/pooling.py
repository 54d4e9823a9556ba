"""From one vector per token to one per sequence, over the real tokens of any mask.

hidden (B, S, D), mask boolean (B, S) -> (B, D). A sequence without a real token gives zeros.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def pool_cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """The first real token."""
    length = hidden.size(1)
    first = torch.where(mask, _columns(hidden), length).amin(dim=1)
    return _take(hidden, first.clamp(max=length - 1), mask)


def pool_last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The last real token."""
    last = torch.where(mask, _columns(hidden), -1).amax(dim=1)
    return _take(hidden, last.clamp(min=0), mask)


def pool_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(hidden.dtype)
    count = weights.sum(dim=1, keepdim=True).clamp(min=1.0)
    return (hidden * weights[..., None]).sum(dim=1) / count


def pool_max(hidden: Tensor, mask: Tensor) -> Tensor:
    lowest = torch.finfo(hidden.dtype).min
    highest = hidden.masked_fill(~mask[..., None], lowest).amax(dim=1)
    return torch.where(_has_token(mask), highest, 0.0)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": pool_cls,
    "mean": pool_mean,
    "max": pool_max,
    "last": pool_last,
}


def _columns(hidden: Tensor) -> Tensor:
    return torch.arange(hidden.size(1), device=hidden.device)


def _take(hidden: Tensor, column: Tensor, mask: Tensor) -> Tensor:
    rows = torch.arange(hidden.size(0), device=hidden.device)
    return torch.where(_has_token(mask), hidden[rows, column], 0.0)


def _has_token(mask: Tensor) -> Tensor:
    return mask.any(dim=1, keepdim=True)
