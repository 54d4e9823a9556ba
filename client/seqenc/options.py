"""Turns keyword options into EncodeOptions messages; limits and combinations are the server's to judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqenc.types import (
    Attention,
    EmbeddingTypeName,
    OnErrorName,
    PoolingName,
    TruncationName,
)
from seqenc.v1 import encoder_pb2 as pb


def build_options(
    *,
    pooling: PoolingName | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    embedding_type: EmbeddingTypeName | None = None,
    truncation: TruncationName | None = None,
    max_tokens: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    token_embeddings: bool = False,
    tokens: bool = False,
    attention: bool | Attention | None = None,
    on_error: OnErrorName | None = None,
    priority: int = 0,
) -> pb.EncodeOptions:
    return pb.EncodeOptions(
        pooling=_value(pb.Pooling, "POOLING", "pooling", pooling),
        normalize=normalize,
        dimensions=dimensions,
        embedding_type=_value(pb.DataType, "DATA_TYPE", "embedding_type", embedding_type),
        truncation=_value(pb.Truncation, "TRUNCATION", "truncation", truncation),
        max_tokens=max_tokens,
        prompt_name=prompt_name,
        prompt=prompt,
        token_embeddings=token_embeddings,
        tokens=tokens,
        attention=_attention(attention),
        on_error=_value(pb.OnError, "ON_ERROR", "on_error", on_error),
        priority=priority,
    )


def pooling_name(value: int) -> str:
    return pb.Pooling.Name(value).removeprefix("POOLING_").lower()


def _attention(attention: bool | Attention | None) -> pb.AttentionOptions | None:
    if attention is None or attention is False:
        return None
    return _build_attention() if attention is True else _build_attention(**attention)


def _build_attention(
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    reduction: str | None = None,
    type: str | None = None,
) -> pb.AttentionOptions:
    return pb.AttentionOptions(
        layers=layers,
        heads=heads,
        reduction=_value(pb.AttentionReduction, "ATTENTION_REDUCTION", "attention reduction", reduction),
        type=_value(pb.DataType, "DATA_TYPE", "attention type", type),
    )


def _value(enum: Any, prefix: str, option: str, name: str | None) -> Any:
    """The enum's number for a name such as "mean"; its unspecified value for None."""
    if name is None:
        return 0
    names = [full.removeprefix(f"{prefix}_").lower() for full in enum.keys()[1:]]
    if name not in names:
        raise ValueError(f"{option}={name!r}: expected one of {', '.join(names)}")
    return enum.Value(f"{prefix}_{name.upper()}")
