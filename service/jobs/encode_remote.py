"""Encodes texts on servers: several streams, sorted by length so that the servers' batches are full."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from seqenc import (
    DeadlineExceededError,
    Encoding,
    InternalError,
    InvalidInputError,
    ModelInfo,
    SeqencError,
    UnavailableError,
)
from seqenc.retry import RetryPolicy
from seqenc.types import EncodeOptions
from service.connection import open_client
from service.job_settings import JobSettings
from service.jobs.encoded import Encoded, Model, VectorShape, zero_vectors
from service.jobs.errors import FAILED, JobError, refusal
from service.logs import log_event
from service.silence import SilenceWatch
from service.types import DataType

logger = logging.getLogger(__name__)

_MESSAGE_TEXTS = 64
# For each block in work. Enough for a few servers behind one address too.
_MIN_STREAMS = 4
# Long enough for a server to be started again: half a minute at most.
_RETRY = RetryPolicy(max_attempts=11)
_ONCE = RetryPolicy(max_attempts=1)
_MODEL_DEADLINE_S = 30.0
_CHECK_DEADLINE_S = 5.0
_MESSAGE_RESERVE = 4096  # bytes of a message that are neither texts nor tensors


class RemoteEncoder:
    """Raises JobError when a server is gone for good or is not like the others."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._addresses = _split(settings.address)
        self._trouble = ""
        with SilenceWatch(self._say) as watch, watch.calling():
            info = self._choose_model()
            self._client = open_client(settings, expected_revision=info.revision, retry=self._retry)
            self._options = _encode_options(settings)
            self._try_options()
        self._watch = SilenceWatch(self._say, limit_s=settings.answer_timeout_s, stop=self._client.close)
        prompt = settings.prompt or ""
        self._max_text_bytes = info.max_message_bytes - _MESSAGE_RESERVE - len(prompt.encode())
        pooled = settings.pooling != "none"
        self.shape = VectorShape(
            DataType(settings.type),
            (settings.dimensions or info.embedding_size) if pooled else None,
            info.hidden_size if settings.token_embeddings else None,
        )
        self.model = Model(
            name=info.name,
            revision=info.revision,
            precision=info.precision,
            max_tokens=settings.max_tokens or info.max_tokens,
            engine={"encoded by": "servers"},
        )
        self._batch_size = self._count_for_reply(info)
        self._streams = max(_MIN_STREAMS, len(self._addresses))

    def encode(self, texts: Sequence[str]) -> Encoded:
        encoded = self._empty(len(texts))
        order = []
        for index in sorted(range(len(texts)), key=lambda index: -len(texts[index])):
            size = len(texts[index].encode())
            if size > self._max_text_bytes:
                limit = self._max_text_bytes
                encoded.errors[index] = refusal(f"has {size} bytes, a message of the server {limit}")
            else:
                order.append(index)
        queue = _Queue(order, self._batch_size)
        with (
            self._watch.calling(),
            ThreadPoolExecutor(self._streams, thread_name_prefix="stream") as pool,
        ):
            futures = [pool.submit(self._stream, texts, queue, encoded) for _ in range(self._streams)]
            try:
                for future in futures:
                    future.result()
            except (SeqencError, ValueError) as error:
                if self._watch.expired:
                    raise self._silent() from error
                if isinstance(error, SeqencError):
                    raise _job_error(self._settings.address, error) from error
                raise
            finally:
                queue.stop()
        self._check_servers()
        return encoded

    def close(self) -> None:
        self._watch.close()
        self._client.close()

    @property
    def _retry(self) -> RetryPolicy:
        return _NotedRetry(**vars(_RETRY), note=self._note)

    def _note(self, error: SeqencError) -> None:
        self._trouble = str(error)

    def _say(self, silent_s: float) -> None:
        fields = {"reason": self._trouble} if self._trouble else {}
        log_event(
            logger,
            logging.WARNING,
            "no answer yet",
            address=self._settings.address,
            waited_s=round(silent_s, 1),
            **fields,
        )

    def _silent(self) -> JobError:
        return JobError(
            f"{self._settings.address}: no answer for {self._settings.answer_timeout_s:g} s, which is "
            "--answer-timeout-s; finished shards are kept, run the same command again to go on"
        )

    def _stream(self, texts: Sequence[str], queue: _Queue, encoded: Encoded) -> None:
        taken: list[int] = []

        def source() -> Iterator[str]:
            for index in queue:
                taken.append(index)
                yield texts[index]

        encodings = self._client.encode_stream(source(), batch_size=self._batch_size, **self._options)
        for place, encoding in enumerate(encodings):
            self._watch.heard()
            self._trouble = ""
            self._check_precision(encoding.precision)
            _store(encoded, taken[place], encoding)

    def _check_precision(self, precision: str) -> None:
        """One address may be that of several servers."""
        if precision not in ("", self.model.precision):
            raise JobError(
                f"a server of {self._settings.address} computes in {precision}, expected was "
                f"{self.model.precision}; their vectors do not belong in one output: serve one precision"
            )

    def _empty(self, count: int) -> Encoded:
        return Encoded(
            vectors=zero_vectors(count, self.shape),
            token_embeddings=[None] * count,
            token_counts=np.zeros(count, np.int32),
            truncated=np.zeros(count, np.bool_),
            errors=[None] * count,
        )

    def _choose_model(self) -> ModelInfo:
        """What all servers serve."""
        infos = [(address, self._ask(address)) for address in self._addresses]
        first = infos[0][1]
        revision = self._settings.expected_revision or first.revision
        for address, info in infos:
            _check_server(address, info, first.name, revision, first.precision)
        return first

    def _check_servers(self) -> None:
        """Servers may have been replaced since; those that are away were not asked for vectors either."""
        model = self.model
        for address in self._addresses:
            try:
                with open_client(self._settings, address=address, retry=_ONCE) as client:
                    info = client.model(deadline_s=_CHECK_DEADLINE_S)
            except (UnavailableError, DeadlineExceededError):
                continue
            except SeqencError as error:
                raise _job_error(address, error) from error
            _check_server(address, info, model.name, model.revision, model.precision)

    def _ask(self, address: str) -> ModelInfo:
        try:
            with open_client(self._settings, address=address, retry=self._retry) as client:
                return client.model(deadline_s=_MODEL_DEADLINE_S)
        except SeqencError as error:
            raise _job_error(address, error) from error
        except (OSError, ValueError) as error:
            raise JobError(f"{address} cannot be called: {error}") from error

    def _try_options(self) -> None:
        """A wrong option is an error at the start, not on every row."""
        try:
            self._client.encode(["text"], deadline_s=_MODEL_DEADLINE_S, **self._options)
        except SeqencError as error:
            raise _job_error(self._settings.address, error) from error

    def _count_for_reply(self, info: ModelInfo) -> int:
        if self.shape.token_size is None:
            return min(_MESSAGE_TEXTS, info.max_input_count)
        row_bytes = self.model.max_tokens * self.shape.token_size * 4
        fitting = (info.max_message_bytes - _MESSAGE_RESERVE) // (row_bytes + row_bytes // 8)
        return max(1, min(_MESSAGE_TEXTS, info.max_input_count, fitting))


@dataclass(frozen=True)
class _NotedRetry(RetryPolicy):
    """`note` learns of the errors that are worth another try."""

    note: Callable[[SeqencError], None] = lambda _: None

    def delay_s(self, attempt: int, error: SeqencError) -> float | None:
        self.note(error)
        return super().delay_s(attempt, error)


class _Queue:
    """Hands the indices of whole messages to the streams, in order, until there are none or it is stopped."""

    def __init__(self, indices: Sequence[int], message_size: int) -> None:
        self._indices = iter(indices)
        self._message_size = message_size
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[int]:
        while message := self._take():
            yield from message

    def _take(self) -> list[int]:
        with self._lock:
            return [] if self._stopped else list(itertools.islice(self._indices, self._message_size))


def _check_server(address: str, info: ModelInfo, name: str, revision: str, precision: str) -> None:
    if (info.name, info.revision, info.precision) != (name, revision, precision):
        raise JobError(
            f"{address} serves {info.name} of revision {info.revision} in {info.precision}, expected was "
            f"{name} of revision {revision} in {precision}; their vectors do not belong in one output"
        )


def _store(encoded: Encoded, index: int, encoding: Encoding) -> None:
    if encoding.status is not None:
        encoded.errors[index] = _row_error(encoding.status)
        return
    encoded.token_counts[index] = encoding.token_count
    encoded.truncated[index] = encoding.truncated
    encoded.token_embeddings[index] = encoding.token_embeddings
    if encoded.vectors is not None:
        encoded.vectors.data[index] = encoding.embedding
        if encoded.vectors.scales is not None:
            encoded.vectors.scales[index] = encoding.embedding_scale


def _row_error(status: SeqencError) -> str:
    """Raises what is not the row's fault."""
    if isinstance(status, InvalidInputError):
        return refusal(status.violations[0].description if status.violations else status.message)
    if isinstance(status, InternalError):
        return FAILED
    raise status


def _split(address: str) -> list[str]:
    if address.startswith(("ipv4:", "ipv6:")):
        return [address]
    return [part.strip() for part in address.split(",")]


def _job_error(address: str, error: SeqencError) -> JobError:
    return JobError(f"{address}: {error}; finished shards are kept, run the same command again to go on")


def _encode_options(settings: JobSettings) -> EncodeOptions:
    return {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "dimensions": settings.dimensions,
        "embedding_type": settings.type,
        "truncation": settings.truncation,
        "max_tokens": settings.max_tokens,
        "prompt_name": settings.prompt_name,
        "prompt": settings.prompt,
        "token_embeddings": settings.token_embeddings,
        "on_error": "per_input",
    }
