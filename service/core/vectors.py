"""Pooled vectors after the graph: cut, normalised and narrowed, whole arrays at a time."""

from __future__ import annotations

import numpy as np

from service.types import Array, DataType, Floats, Vectors

# The smallest norm divided by, as in torch.nn.functional.normalize: a zero vector stays zero.
_MIN_NORM = 1e-12


def finish_vectors(pooled: Floats, *, dimensions: int, normalize: bool, data_type: DataType) -> Vectors:
    """`pooled` (N, D) -> the first `dimensions` of each, normalised to length 1 if asked, as `data_type`."""
    vectors = pooled[:, :dimensions]
    if normalize:
        vectors = vectors / np.maximum(np.sqrt(np.square(vectors).sum(axis=1, keepdims=True)), _MIN_NORM)
    vectors = np.ascontiguousarray(vectors, np.float32)
    if data_type is DataType.INT8:
        values, scales = _to_int8(vectors)
        return Vectors(values, data_type, scales)
    return Vectors(_narrow(vectors, data_type), data_type)


def vector_bytes(dimensions: int, data_type: DataType) -> float:
    """Size of one vector on the wire, its scale included."""
    per_dimension = {DataType.FLOAT32: 4, DataType.INT8: 1, DataType.UBINARY: 1 / 8}.get(data_type, 2)
    return dimensions * per_dimension + (4 if data_type is DataType.INT8 else 0)


def _narrow(vectors: Floats, data_type: DataType) -> Array:
    if data_type is DataType.FLOAT16:
        return _to_float16(vectors)
    if data_type is DataType.BFLOAT16:
        return _to_bfloat16(vectors)
    if data_type is DataType.UBINARY:
        return np.packbits(vectors > 0, axis=1)
    return vectors


def _to_int8(vectors: Floats) -> tuple[Array, Floats]:
    """Symmetric per vector: value = int8 * scale; a zero vector has scale 0."""
    scales = np.abs(vectors).max(axis=1) / np.float32(127)
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)
    values = np.rint(vectors / divisors[:, None]).clip(-127, 127).astype(np.int8)
    return values, scales.astype(np.float32)


def _to_bfloat16(vectors: Floats) -> Array:
    """The upper half of each float's bits, rounded to nearest even; as uint16."""
    bits = vectors.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _to_float16(vectors: Floats) -> Array:
    """Values beyond float16 become its largest, never infinite."""
    limit = np.finfo(np.float16).max
    return vectors.clip(-limit, limit).astype(np.float16)
