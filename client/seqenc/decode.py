"""Turns response messages into the client's own values, and the answers of a split call into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from seqenc.errors import RevisionMismatchError, SeqencError, error_from_status
from seqenc.options import pooling_name
from seqenc.types import (
    Array,
    EncodeResult,
    Encoding,
    ModelInfo,
    Timing,
    Token,
    Tokenization,
)
from seqenc.v1 import encoder_pb2 as pb

_DTYPES: dict[int, np.dtype[Any]] = {
    pb.DATA_TYPE_UNSPECIFIED: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT16: np.dtype("<f2"),
    pb.DATA_TYPE_BFLOAT16: np.dtype("<u2"),
    pb.DATA_TYPE_INT8: np.dtype("i1"),
    pb.DATA_TYPE_UBINARY: np.dtype("u1"),
}


def decode_tensor(tensor: pb.Tensor) -> Array:
    """A writable array; bfloat16 is widened to float32."""
    array: Array = np.frombuffer(tensor.data, _DTYPES[tensor.type]).reshape(tensor.shape)
    if tensor.type == pb.DATA_TYPE_BFLOAT16:
        return np.left_shift(array, 16, dtype=np.uint32).view(np.float32)
    return array.copy()


def decode_model(model: pb.Model) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        revision=model.revision,
        family=model.family,
        hidden_size=model.hidden_size,
        embedding_size=model.embedding_size,
        layer_count=model.layer_count,
        head_count=model.head_count,
        vocabulary_size=model.vocabulary_size,
        max_tokens=model.max_tokens,
        max_positions=model.max_positions,
        pooling=pooling_name(model.pooling),
        normalize=model.normalize,
        prompts=dict(model.prompts),
        precision=model.precision,
        provider=model.provider,
        attention_maps=model.attention_maps,
        max_input_count=model.max_input_count,
        max_message_bytes=model.max_message_bytes,
        fidelity=model.fidelity,
    )


def merge_encoded(parts: Sequence[tuple[int, pb.EncodeResponse]]) -> EncodeResult:
    """Answers in the order of their offsets as one. Raises RevisionMismatchError where they do not belong
    together: vectors of two models must not get into one result.
    """
    first = parts[0][1]
    for _, response in parts[1:]:
        check_same_source(first, response)
    embeddings = _concatenate([decode_tensor(r.embeddings) for _, r in parts if r.HasField("embeddings")])
    scales = np.concatenate([np.array(r.embedding_scales, np.float32) for _, r in parts])
    encodings = [(offset, encoding) for offset, response in parts for encoding in response.results]
    return EncodeResult(
        embeddings=embeddings,
        embedding_scales=scales if scales.size else None,
        results=[
            _decode_encoding(encoding, offset, _row(embeddings, row), _row(scales, row), first.precision)
            for row, (offset, encoding) in enumerate(encodings)
        ],
        model=first.model,
        revision=first.revision,
        precision=first.precision,
        timing=_decode_timing(max((r.timing for _, r in parts), key=lambda timing: timing.total_seconds)),
        request_id=first.request_id,
    )


def check_same_source(first: pb.EncodeResponse, other: pb.EncodeResponse) -> None:
    expected, found = (f"{r.revision} in {r.precision}" for r in (first, other))
    if expected != found:
        raise RevisionMismatchError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"servers answered one call from revision {expected} and from {found}: "
            "set expected_revision, or retry when all serve the same",
            "REVISION_MISMATCH",
        )


def empty_result(info: ModelInfo, options: pb.EncodeOptions, request_id: str) -> EncodeResult:
    """What a call without inputs gives: no rows, of the width that rows would have."""
    return EncodeResult(
        embeddings=None if options.pooling == pb.POOLING_NONE else _no_rows(info, options),
        embedding_scales=np.zeros(0, np.float32) if options.embedding_type == pb.DATA_TYPE_INT8 else None,
        results=[],
        model=info.name,
        revision=info.revision,
        precision=info.precision,
        timing=Timing(0.0, 0.0, 0.0, 0.0),
        request_id=request_id,
    )


def merge_tokenized(parts: Sequence[tuple[int, pb.TokenizeResponse]]) -> list[Tokenization]:
    return [
        Tokenization(
            tokens=_decode_tokens(result.tokens),
            truncated=result.truncated,
            status=error_from_status(result.status, offset) if result.HasField("status") else None,
        )
        for offset, response in parts
        for result in response.results
    ]


def failed_encoding(error: SeqencError) -> Encoding:
    return Encoding(
        embedding=None,
        embedding_scale=None,
        token_embeddings=None,
        attention=None,
        tokens=(),
        token_count=0,
        unknown_token_count=0,
        truncated=False,
        precision="",
        status=error,
    )


def _decode_encoding(
    encoding: pb.Encoding, offset: int, embedding: Array | None, scale: Array | None, precision: str
) -> Encoding:
    failed = encoding.HasField("status")
    return Encoding(
        embedding=None if failed else embedding,
        embedding_scale=None if failed or scale is None else float(scale),
        token_embeddings=_optional(encoding, "token_embeddings"),
        attention=_optional(encoding, "attention"),
        tokens=_decode_tokens(encoding.tokens),
        token_count=encoding.token_count,
        unknown_token_count=encoding.unknown_token_count,
        truncated=encoding.truncated,
        precision="" if failed else precision,
        status=error_from_status(encoding.status, offset) if failed else None,
    )


def _decode_tokens(tokens: Sequence[pb.Token]) -> tuple[Token, ...]:
    return tuple(Token(t.id, t.text, t.start, t.end, t.special, t.segment) for t in tokens)


def _decode_timing(timing: pb.Timing) -> Timing:
    return Timing(
        tokenize_s=timing.tokenize_seconds,
        queue_s=timing.queue_seconds,
        inference_s=timing.inference_seconds,
        total_s=timing.total_seconds,
    )


def _optional(encoding: pb.Encoding, field: str) -> Array | None:
    return decode_tensor(getattr(encoding, field)) if encoding.HasField(field) else None


def _concatenate(arrays: list[Array]) -> Array | None:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else None


def _row(array: Array | None, row: int) -> Array | None:
    return None if array is None or not array.size else array[row]


def _no_rows(info: ModelInfo, options: pb.EncodeOptions) -> Array:
    width = options.dimensions if options.HasField("dimensions") else info.embedding_size
    if options.embedding_type == pb.DATA_TYPE_UBINARY:
        return np.zeros((0, width // 8), np.uint8)
    if options.embedding_type == pb.DATA_TYPE_BFLOAT16:
        return np.zeros((0, width), np.float32)
    return np.zeros((0, width), _DTYPES[options.embedding_type])
