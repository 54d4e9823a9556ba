"""The values that callers pass in and get back. n inputs, S tokens, D dimensions, L layers, H heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from seqenc.errors import SeqencError

Array: TypeAlias = NDArray[Any]
Integers: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]

PoolingName: TypeAlias = Literal["none", "cls", "mean", "max", "last"]
TruncationName: TypeAlias = Literal["error", "right", "left"]
EmbeddingTypeName: TypeAlias = Literal["float32", "float16", "bfloat16", "int8", "ubinary"]
ReductionName: TypeAlias = Literal["none", "mean_heads", "rollout"]
OnErrorName: TypeAlias = Literal["fail_call", "per_input"]


@dataclass(frozen=True)
class TokenIds:
    """Tokens made by the caller, special tokens included. Mask: 1 is real, 0 is padding; None is all real."""

    ids: Integers
    attention_mask: Integers | None = None
    type_ids: Integers | None = None


Input: TypeAlias = str | tuple[str, str] | Integers | TokenIds | Mapping[str, Integers]
"""One sequence: a text, a pair of texts, token ids, or token ids with a mask."""

Inputs: TypeAlias = Input | Iterable[Input] | NDArray[Any]
"""One sequence or any number of them."""


class Attention(TypedDict, total=False):
    """Which attention maps to return. Absent layers or heads: all; negative counts from the last."""

    layers: Sequence[int]
    heads: Sequence[int]
    reduction: ReductionName
    type: Literal["float32", "float16"]


class EncodeOptions(TypedDict, total=False):
    """Options of an encode call. What is absent or None is the model's own or the server's default.

    dimensions keeps the first n of a pooled vector; max_tokens counts special tokens; prompt is a literal
    prefix and prompt_name one of ModelInfo.prompts; priority is -3 to 3.
    """

    pooling: PoolingName | None
    normalize: bool | None
    dimensions: int | None
    embedding_type: EmbeddingTypeName | None
    truncation: TruncationName | None
    max_tokens: int | None
    prompt_name: str | None
    prompt: str | None
    token_embeddings: bool
    tokens: bool
    attention: bool | Attention | None
    on_error: OnErrorName | None
    priority: int


class TokenizeOptions(TypedDict, total=False):
    """Options that change what Encode would see."""

    truncation: TruncationName | None
    max_tokens: int | None
    prompt_name: str | None
    prompt: str | None
    on_error: OnErrorName | None


@dataclass(frozen=True)
class Tls:
    """PEM files. ca: the roots to trust, None for gRPC's own; certificate and key: the client's own, for
    mutual TLS. server_name: the name to expect in the server's certificate where it is not the address.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None


@dataclass(frozen=True)
class Token:
    """start and end count code points of the segment's text, end exclusive; both 0 for special tokens.

    segment: 0 or 1 of a pair, -1 for a prompt's tokens.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool
    segment: int


@dataclass(frozen=True)
class Timing:
    """Seconds that the input which finished last spent in the server."""

    tokenize_s: float
    queue_s: float
    inference_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of one input. status is None where it succeeded, else its error; then embedding is None.

    embedding (D), token_embeddings (S, D), attention (L, H, S, S): None where not asked for. precision is
    what the server computed in, empty for an input that has no result.
    """

    embedding: Array | None
    embedding_scale: float | None
    token_embeddings: Array | None
    attention: Array | None
    tokens: tuple[Token, ...]
    token_count: int
    unknown_token_count: int
    truncated: bool
    precision: str
    status: SeqencError | None


@dataclass(frozen=True, eq=False)
class EncodeResult:
    """embeddings (n, D): float32 or float16; bfloat16 arrives as float32; int8 is to be multiplied by
    embedding_scales (n); ubinary is uint8 (n, D / 8). None with pooling "none". A failed input's row is zero.
    """

    embeddings: Array | None
    embedding_scales: Array | None
    results: list[Encoding]
    model: str
    revision: str
    precision: str
    timing: Timing
    request_id: str


@dataclass(frozen=True)
class Tokenization:
    tokens: tuple[Token, ...]
    truncated: bool
    status: SeqencError | None


@dataclass(frozen=True)
class ModelInfo:
    """What a server serves. max_tokens is a sequence's default limit, max_positions its hard one;
    fidelity is the worst cosine against fp32, measured at export.
    """

    name: str
    revision: str
    family: str
    hidden_size: int
    embedding_size: int
    layer_count: int
    head_count: int
    vocabulary_size: int
    max_tokens: int
    max_positions: int
    pooling: str
    normalize: bool
    prompts: Mapping[str, str]
    precision: str
    provider: str
    attention_maps: bool
    max_input_count: int
    max_message_bytes: int
    fidelity: float
