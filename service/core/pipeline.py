"""A call from its sequences to its vectors: validate, tokenise, batch, finish. Knows nothing of gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.artifact import Artifact
from service.core.batcher import BatchedResult, Batcher
from service.core.deadline import is_over
from service.core.tokenization import Tokenization, TokenizedCall
from service.core.tokenizer import Tokenizer
from service.core.validation import Plan, plan_call
from service.core.vectors import finish_vectors, vector_bytes
from service.errors import (
    Code,
    DrainingError,
    InvalidInputError,
    ReplyTooLargeError,
    RevisionMismatchError,
    ServiceError,
    UnknownModelError,
)
from service.metrics import Metrics
from service.types import (
    DataType,
    EncodeCall,
    EncodeOptions,
    EncodeResult,
    Encoding,
    OnError,
    Pooling,
    Timeline,
    Timing,
    TokenizedSequence,
    Vectors,
)

# Upper bounds on the wire: an Encoding without its tensors, a Token without its piece, the whole rest.
_ENCODING_BYTES, _TOKEN_BYTES, _REPLY_BYTES = 96, 64, 1_024
_STATUS_BYTES = 2_048
# Of one token in the mask that goes with a padded reply.
_MASK_BYTES = 8
_OUTCOMES = {
    Code.RESOURCE_EXHAUSTED: "rejected",
    Code.UNAVAILABLE: "rejected",
    Code.INTERNAL: "failed",
    Code.DEADLINE_EXCEEDED: "expired",
}


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Limits, and what computes the vectors; `fidelity` is the graph's worst cosine to the fp32 reference."""

    max_inputs: int
    max_text_characters: int
    max_message_bytes: int
    precision: str
    provider: str
    fidelity: float
    attention_maps: bool


class Pipeline:
    def __init__(
        self,
        artifact: Artifact,
        tokenizer: Tokenizer,
        batcher: Batcher,
        config: PipelineConfig,
        metrics: Metrics,
    ) -> None:
        self.model = artifact
        self.config = config
        self._tokenization = Tokenization(
            artifact, tokenizer, metrics, max_text_characters=config.max_text_characters
        )
        self._batcher = batcher
        self._metrics = metrics

    @property
    def lost(self) -> asyncio.Event:
        """Set when the engine hangs or dies."""
        return self._batcher.lost

    @property
    def quiet(self) -> asyncio.Event:
        """Set while the engine runs nothing."""
        return self._batcher.quiet

    def abandon(self) -> None:
        """Answers every call in work with DrainingError."""
        self._batcher.abandon(DrainingError())

    def close(self) -> None:
        self._batcher.close()
        self._tokenization.close()

    async def encode(
        self,
        call: EncodeCall,
        *,
        deadline: float | None = None,
        wait_for_room: bool = False,
        timeline: Timeline | None = None,
    ) -> EncodeResult:
        """`deadline` in the event loop's time; `wait_for_room`: wait for the queue rather than be refused.

        `timeline` gets the moments that are reached, however the call ends.
        """
        outcomes = self._metrics.inputs_total
        begun = asyncio.get_running_loop().time()
        try:
            result = await self._encode(call, deadline, wait_for_room, timeline or Timeline())
        except asyncio.CancelledError:
            outcomes.labels(_outcome_of_leaving(begun, deadline)).inc(len(call.inputs))
            raise
        except Exception as error:
            outcomes.labels(_outcome(error)).inc(len(call.inputs))
            raise
        for encoding in result.encodings:
            outcomes.labels(_outcome(encoding.error)).inc()
        return result

    async def _encode(
        self, call: EncodeCall, deadline: float | None, wait_for_room: bool, timeline: Timeline
    ) -> EncodeResult:
        started = time.perf_counter()
        self.check_model(call.model, call.expected_revision)
        self.check_count(len(call.inputs))
        plan = plan_call(call.options, self.model, attention_maps=self.config.attention_maps)
        if not wait_for_room:
            # A server that is full says so before it spends anything on the call.
            self._batcher.check_room(len(call.inputs))
        tokenized = await self._tokenization.run(call.inputs, plan.rule, plan.on_error, deadline)
        tokenize_s = time.perf_counter() - started
        self._check_reply(plan, tokenized, call)
        indices = list(tokenized.sequences)
        sequences = list(tokenized.sequences.values())
        timeline.submitted = time.perf_counter()
        batched = await self._batcher.run(
            sequences,
            plan.outputs,
            priority=plan.priority,
            deadline=deadline,
            wait_for_room=wait_for_room,
            timeline=timeline,
        )
        errors: dict[int, ServiceError] = {**tokenized.errors}
        errors.update({indices[place]: error for place, error in batched.errors.items()})
        if errors and plan.on_error is OnError.FAIL_CALL:
            raise next(iter(errors.values()))
        self._observe_inputs(sequences)
        return EncodeResult(
            vectors=self._vectors(plan, batched, indices, errors, len(call.inputs)),
            encodings=_encodings(batched, indices, errors, len(call.inputs)),
            attention_type=plan.outputs.attention.data_type if plan.outputs.attention else DataType.FLOAT32,
            precision="fp32" if plan.outputs.attention else self.config.precision,
            timing=Timing(tokenize_s, batched.queue_s, batched.inference_s, time.perf_counter() - started),
        )

    async def tokenize(self, call: EncodeCall, *, deadline: float | None = None) -> TokenizedCall:
        """Tokens exactly as `encode` would see them, with their offsets."""
        self.check_model(call.model, call.expected_revision)
        self.check_count(len(call.inputs))
        options = call.options
        read = EncodeOptions(
            pooling=Pooling.NONE,
            truncation=options.truncation,
            max_tokens=options.max_tokens,
            prompt_name=options.prompt_name,
            prompt=options.prompt,
            tokens=True,
        )
        plan = plan_call(read, self.model, attention_maps=self.config.attention_maps)
        tokenized = await self._tokenization.run(call.inputs, plan.rule, options.on_error, deadline)
        self._check_reply(plan, tokenized, call)
        return tokenized

    def check_model(self, name: str, expected_revision: str = "") -> None:
        """Raises UnknownModelError or RevisionMismatchError."""
        if name and name != self.model.name:
            raise UnknownModelError(self.model.name)
        if expected_revision and expected_revision != self.model.revision:
            raise RevisionMismatchError(self.model.revision)

    def check_count(self, count: int) -> None:
        """Of a call's inputs; raises InvalidInputError."""
        limit = self.config.max_inputs
        if not 1 <= count <= limit:
            advice = "split the call" if count else "send at least one"
            raise InvalidInputError.of("inputs", f"has {count} sequences, must be 1 to {limit}; {advice}")

    def _check_reply(self, plan: Plan, tokenized: TokenizedCall, call: EncodeCall) -> None:
        """Raises ReplyTooLargeError when an upper bound of the reply's size is over the limit."""
        count = len(call.inputs)
        sequences = tokenized.sequences.values()
        size = float(_REPLY_BYTES + count * _ENCODING_BYTES + len(tokenized.errors) * _STATUS_BYTES)
        if plan.outputs.pooling is not Pooling.NONE:
            size += count * vector_bytes(plan.dimensions, plan.embedding_type)
        longest = max((sequence.token_count for sequence in sequences), default=0)
        if call.padded_reply:
            size += count * longest * _MASK_BYTES
        for sequence in sequences:
            size += self._tensor_bytes(plan, longest if call.padded_reply else sequence.token_count)
            if sequence.tokens is not None:
                size += sum(_TOKEN_BYTES + 4 * len(token.text) for token in sequence.tokens)
        if size > self.config.max_message_bytes:
            raise ReplyTooLargeError(int(size), self.config.max_message_bytes)

    def _tensor_bytes(self, plan: Plan, token_count: int) -> int:
        """Of one input's token embeddings and attention map."""
        size = 0
        if plan.outputs.token_embeddings:
            size += token_count * self.model.hidden_size * 4
        if attention := plan.outputs.attention:
            width = 2 if attention.data_type is DataType.FLOAT16 else 4
            size += int(np.prod(attention.shape(token_count))) * width
        return size

    def _vectors(
        self,
        plan: Plan,
        batched: BatchedResult,
        indices: list[int],
        errors: dict[int, ServiceError],
        count: int,
    ) -> Vectors | None:
        pooled = batched.collector.vectors
        if pooled is None:
            return None
        if errors:
            scattered = np.zeros((count, pooled.shape[1]), np.float32)
            scattered[indices] = pooled
            scattered[list(errors)] = 0
            pooled = scattered
        return finish_vectors(
            pooled, dimensions=plan.dimensions, normalize=plan.normalize, data_type=plan.embedding_type
        )

    def _observe_inputs(self, sequences: Sequence[TokenizedSequence]) -> None:
        metrics = self._metrics
        for sequence in sequences:
            metrics.input_tokens.observe(sequence.token_count)
        metrics.truncated_inputs_total.inc(sum(sequence.truncated for sequence in sequences))


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "ok"
    return _OUTCOMES.get(error.code, "invalid") if isinstance(error, ServiceError) else "failed"


def _outcome_of_leaving(begun: float, deadline: float | None) -> str:
    now = asyncio.get_running_loop().time()
    over = deadline is not None and is_over(deadline - now, deadline - begun)
    return "expired" if over else "cancelled"


def _encodings(
    batched: BatchedResult, indices: list[int], errors: dict[int, ServiceError], count: int
) -> list[Encoding]:
    encodings = [Encoding(error=errors.get(index)) for index in range(count)]
    collector = batched.collector
    for place, index in enumerate(indices):
        if index in errors:
            continue
        sequence, encoding = collector.sequences[place], encodings[index]
        encoding.token_count = sequence.token_count
        encoding.unknown_token_count = sequence.unknown_token_count
        encoding.truncated = sequence.truncated
        encoding.token_embeddings = collector.token_embeddings[place]
        encoding.attention = collector.attention[place]
        encoding.tokens = sequence.tokens
    return encodings
