"""What of a stream has been sent and not been answered; does no I/O, so sync and async share it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import grpc

from seqenc.checks import check_integer, kind
from seqenc.decode import check_same_source, failed_encoding, merge_encoded
from seqenc.errors import SeqencError, UnavailableError, error_from_status
from seqenc.requests import Chunk, Chunker, RequestTemplate
from seqenc.types import Encoding, ModelInfo
from seqenc.v1 import encoder_pb2 as pb

# Messages. Enough to hide the round trip and to keep the server's lanes fed while replies are read.
WINDOW = 8

Progress = Callable[[int], None]


class StreamWindow:
    """Holds the messages in flight, which are also what a new stream starts with after the old one broke."""

    def __init__(self, template: RequestTemplate, batch_size: int, progress: Progress | None) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress: expected a function of one int, or None, not {kind(progress)}")
        self._template = template
        self._batch_size = check_integer("batch_size", batch_size, "an int of at least 1", range(1, 2**31))
        self._progress = progress
        self._per_input = template.options.on_error == pb.ON_ERROR_PER_INPUT
        self._unanswered: deque[tuple[Chunk, pb.EncodeRequest]] = deque()
        self._first: pb.EncodeResponse | None = None
        self._done = 0
        self.exhausted = False  # no more inputs will come

    def chunker(self, info: ModelInfo) -> Chunker:
        return self._template.chunker(info, self._batch_size)

    @property
    def wants_more(self) -> bool:
        return not self.exhausted and len(self._unanswered) < WINDOW

    @property
    def finished(self) -> bool:
        return self.exhausted and not self._unanswered

    @property
    def requests(self) -> list[pb.EncodeRequest | None]:
        """What is to be sent on a new stream; None is the end of it."""
        sent: list[pb.EncodeRequest | None] = [request for _, request in self._unanswered]
        return [*sent, None] if self.exhausted else sent

    def push(self, chunk: Chunk | None) -> pb.EncodeRequest | None:
        """The next message to send; None, for None, is the end of the stream."""
        if chunk is None:
            self.exhausted = True
            return None
        request = self._template.encode(chunk)
        self._unanswered.append((chunk, request))
        return request

    def answer(self, response: pb.EncodeStreamResponse) -> list[Encoding]:
        """The encodings of the oldest message. Where the answer is an error it is raised and the message
        stays, to be sent again; with on_error per_input one that no retry can mend becomes the status of
        the message's inputs.
        """
        chunk, _ = self._unanswered[0]
        encodings = self._decode(chunk, response)
        self._unanswered.popleft()
        self._done += len(chunk.sequences)
        if self._progress:
            self._progress(self._done)
        return encodings

    def _decode(self, chunk: Chunk, response: pb.EncodeStreamResponse) -> list[Encoding]:
        if response.HasField("error"):
            error = error_from_status(response.error, chunk.offset)
            if not self._per_input or error.retryable:
                raise error
            return [failed_encoding(error)] * len(chunk.sequences)
        self._first = self._first or _source(response.response)
        check_same_source(self._first, response.response)
        return merge_encoded([(chunk.offset, response.response)]).results


def ended_early() -> SeqencError:
    return UnavailableError(grpc.StatusCode.UNAVAILABLE, "the server ended the stream before it answered")


def _source(response: pb.EncodeResponse) -> pb.EncodeResponse:
    return pb.EncodeResponse(revision=response.revision, precision=response.precision)
