"""What an encoder makes of texts, whether it computes here or on servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from service.jobs.errors import kind_of
from service.types import Array, DataType, Floats, Vectors


@dataclass(frozen=True, slots=True)
class Model:
    """What computes the vectors. `engine` names all of it that may change their last bits."""

    name: str
    revision: str
    precision: str
    max_tokens: int
    engine: dict[str, str | int]


@dataclass(frozen=True, slots=True)
class VectorShape:
    """Of the vectors written; `dimensions` is None where no pooled vector is asked for.

    `token_size` is the width of token embeddings, None where they are not asked for.
    """

    data_type: DataType
    dimensions: int | None
    token_size: int | None


@dataclass(slots=True)
class Encoded:
    """The results of N texts; a failed one has an error, a zero vector and no token embeddings."""

    vectors: Vectors | None
    token_embeddings: list[Floats | None]
    token_counts: npt.NDArray[np.int32]  # (N,)
    truncated: npt.NDArray[np.bool_]  # (N,)
    errors: list[str | None]
    padded_tokens: int = 0  # computed for them; 0 where that is not known


_DTYPES = {
    DataType.FLOAT32: "float32",
    DataType.FLOAT16: "float16",
    DataType.INT8: "int8",
    DataType.UBINARY: "uint8",
}


class Encoder(Protocol):
    """`encode` may be called on several threads at once."""

    @property
    def model(self) -> Model: ...
    @property
    def shape(self) -> VectorShape: ...
    def encode(self, texts: Sequence[str]) -> Encoded: ...
    def close(self) -> None: ...


def zero_vectors(count: int, shape: VectorShape) -> Vectors | None:
    if shape.dimensions is None:
        return None
    dtype = np.dtype(_DTYPES[shape.data_type])
    width = shape.dimensions // 8 if shape.data_type is DataType.UBINARY else shape.dimensions
    scales = np.zeros(count, np.float32) if shape.data_type is DataType.INT8 else None
    data: Array = np.zeros((count, width), dtype)
    return Vectors(data, shape.data_type, scales)


@dataclass(slots=True)
class Tally:
    """What a block, a shard or a job came to; `errors` counts marked rows by kind."""

    rows: int
    tokens: int
    padded_tokens: int
    truncated: int
    errors: dict[str, int]

    @property
    def error_count(self) -> int:
        return sum(self.errors.values())

    @property
    def padding(self) -> float:
        """Share of the computed tokens that were padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def add(self, other: Tally) -> None:
        self.rows += other.rows
        self.tokens += other.tokens
        self.padded_tokens += other.padded_tokens
        self.truncated += other.truncated
        for kind, count in other.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count


def empty_tally() -> Tally:
    return Tally(0, 0, 0, 0, {})


def tally(encoded: Encoded) -> Tally:
    errors: dict[str, int] = {}
    for error in encoded.errors:
        if error is not None:
            errors[kind_of(error)] = errors.get(kind_of(error), 0) + 1
    return Tally(
        rows=len(encoded.errors),
        tokens=int(encoded.token_counts.sum()),
        padded_tokens=encoded.padded_tokens,
        truncated=int(encoded.truncated.sum()),
        errors=errors,
    )
