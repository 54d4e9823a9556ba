"""Client of seqenc, which serves Transformer encoders: contextual embeddings and attention maps over gRPC."""

from seqenc.aio import AsyncClient
from seqenc.client import Client
from seqenc.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidInputError,
    NoAttentionMapsError,
    OverloadedError,
    ReplyTooLargeError,
    RevisionMismatchError,
    SeqencError,
    UnauthenticatedError,
    UnavailableError,
    UnknownModelError,
    Violation,
)
from seqenc.retry import RetryPolicy
from seqenc.types import (
    Attention,
    EncodeResult,
    Encoding,
    ModelInfo,
    Timing,
    Tls,
    Token,
    TokenIds,
    Tokenization,
)

__all__ = [
    "AsyncClient",
    "Attention",
    "CallCancelledError",
    "Client",
    "DeadlineExceededError",
    "EncodeResult",
    "Encoding",
    "InternalError",
    "InvalidInputError",
    "ModelInfo",
    "NoAttentionMapsError",
    "OverloadedError",
    "ReplyTooLargeError",
    "RetryPolicy",
    "RevisionMismatchError",
    "SeqencError",
    "Timing",
    "Tls",
    "Token",
    "TokenIds",
    "Tokenization",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownModelError",
    "Violation",
]
