"""Cuts inputs into requests within a server's limits; does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import grpc

from seqenc.errors import InvalidInputError, Violation
from seqenc.types import ModelInfo
from seqenc.v1 import encoder_pb2 as pb

# Bytes that a Sequence of up to 2 GiB needs around its own in a request: a tag and its length.
_FRAME_BYTES = 6


@dataclass(frozen=True)
class Chunk:
    """Inputs of one request; offset is the index of the first in the caller's inputs."""

    offset: int
    sequences: list[pb.Sequence]

    def halves(self) -> tuple[Chunk, Chunk]:
        middle = len(self.sequences) // 2
        return Chunk(self.offset, self.sequences[:middle]), Chunk(
            self.offset + middle, self.sequences[middle:]
        )


@dataclass(frozen=True)
class RequestTemplate:
    """What all requests of one call share."""

    model: str
    options: pb.EncodeOptions
    expected_revision: str = ""
    request_id: str = ""

    def encode(self, chunk: Chunk) -> pb.EncodeRequest:
        return pb.EncodeRequest(
            model=self.model,
            inputs=chunk.sequences,
            options=self.options,
            request_id=self.request_id,
            expected_revision=self.expected_revision,
        )

    def tokenize(self, chunk: Chunk) -> pb.TokenizeRequest:
        return pb.TokenizeRequest(model=self.model, inputs=chunk.sequences, options=self.options)

    def chunker(self, info: ModelInfo, batch_size: int | None = None) -> Chunker:
        max_count = min(batch_size or info.max_input_count, info.max_input_count)
        room = info.max_message_bytes - self.encode(Chunk(0, [])).ByteSize()
        return Chunker(max_count, room)


class Chunker:
    """Collects inputs until the next one would not fit into the same request."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._offset = 0
        self._sequences: list[pb.Sequence] = []
        self._bytes = 0

    def add(self, sequence: pb.Sequence) -> Chunk | None:
        """The chunk that this input completes by not fitting into it."""
        size = sequence.ByteSize() + _FRAME_BYTES
        if size > self._max_bytes:
            raise _too_large(self._offset + len(self._sequences), size, self._max_bytes)
        full = len(self._sequences) == self._max_count or self._bytes + size > self._max_bytes
        chunk = self.take() if full else None
        self._sequences.append(sequence)
        self._bytes += size
        return chunk

    def take(self) -> Chunk | None:
        """What has been collected, None where nothing was."""
        if not self._sequences:
            return None
        chunk = Chunk(self._offset, self._sequences)
        self._offset += len(self._sequences)
        self._sequences, self._bytes = [], 0
        return chunk


def split(sequences: Iterable[pb.Sequence], chunker: Chunker) -> Iterator[Chunk]:
    for sequence in sequences:
        if chunk := chunker.add(sequence):
            yield chunk
    if chunk := chunker.take():
        yield chunk


def _too_large(index: int, size: int, limit: int) -> InvalidInputError:
    description = f"takes {size} bytes of a request; the server takes {limit}: shorten it"
    violation = Violation(f"inputs[{index}]", description)
    return InvalidInputError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{violation.field}: {description}",
        "INVALID_INPUT",
        (violation,),
    )
