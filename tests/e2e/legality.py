"""Which requests are legal by encoder.proto's comments; knows nothing of how the server checks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from seqenc.v1 import encoder_pb2 as pb

MAX_PROMPT_CHARACTERS = 8192


@dataclass(frozen=True)
class Rules:
    model: pb.Model
    tokenizer: Tokenizer

    def problems(self, request: pb.EncodeRequest) -> set[str]:
        """Names of the statuses that the call may be refused with; none: it is answered."""
        found = set(self.target_problems(request))
        refused = any(self.option_problems(request.options)) or not self._counts(request.inputs)
        per_input = request.options.on_error == pb.ON_ERROR_PER_INPUT
        if refused or (not per_input and self.bad_inputs(request)):
            found.add("INVALID_ARGUMENT")
        return found

    def target_problems(self, request: pb.EncodeRequest) -> Iterator[str]:
        if request.model not in ("", self.model.name):
            yield "NOT_FOUND"
        if request.expected_revision not in ("", self.model.revision):
            yield "FAILED_PRECONDITION"

    def bad_inputs(self, request: Any) -> list[int]:
        """Of an EncodeRequest or a TokenizeRequest with legal options."""
        return [
            index
            for index, sequence in enumerate(request.inputs)
            if self.token_count(sequence, request.options) is None
        ]

    def token_count(self, sequence: pb.Sequence, options: pb.EncodeOptions) -> int | None:
        """Real tokens that are encoded; None where the sequence is refused."""
        content = sequence.WhichOneof("content")
        if content is None:
            return None
        if content == "token_ids":
            return self._count_of_ids(sequence.token_ids)
        limit = options.max_tokens if options.HasField("max_tokens") else self.model.max_tokens
        if content == "text":
            encoding, specials = self.tokenizer.encode(options.prompt + sequence.text), 2
        else:
            pair = sequence.text_pair
            encoding, specials = self.tokenizer.encode(options.prompt + pair.first, pair.second), 3
        may_be_cut = options.truncation in (pb.TRUNCATION_RIGHT, pb.TRUNCATION_LEFT)
        if limit <= specials or (len(encoding) > limit and not may_be_cut):
            return None
        return min(len(encoding), limit)

    def _count_of_ids(self, row: pb.TokenIds) -> int | None:
        count = len(row.ids)
        legal = (
            1 <= count <= self.model.max_positions
            and all(0 <= id < self.model.vocabulary_size for id in row.ids)
            and len(row.attention_mask) in (0, count)
            and set(row.attention_mask) <= {0, 1}
            and (not row.attention_mask or any(row.attention_mask))
            and len(row.type_ids) in (0, count)
            and set(row.type_ids) <= {0, 1}
        )
        return (sum(row.attention_mask) or count) if legal else None

    def _counts(self, inputs: Sequence[pb.Sequence]) -> bool:
        return 1 <= len(inputs) <= self.model.max_input_count

    def option_problems(self, options: pb.EncodeOptions) -> Iterator[bool]:
        """True for each thing that is wrong."""
        size = self.model.hidden_size
        dimensions = options.dimensions if options.HasField("dimensions") else size
        yield not 0 <= options.pooling <= 5
        yield not 0 <= options.embedding_type <= 5
        yield not 1 <= dimensions <= size
        yield options.embedding_type == pb.DATA_TYPE_UBINARY and dimensions % 8 != 0
        yield not -3 <= options.priority <= 3
        yield from self.reading_problems(options)
        if options.pooling == pb.POOLING_NONE:
            yield options.HasField("dimensions") or options.HasField("normalize")
            yield options.embedding_type > pb.DATA_TYPE_FLOAT32
            yield not (options.token_embeddings or options.tokens or options.HasField("attention"))
        if options.HasField("attention"):
            yield from self._attention_problems(options.attention)

    def reading_problems(self, options: pb.EncodeOptions) -> Iterator[bool]:
        """Of the options that Tokenize reads too."""
        yield not 0 <= options.truncation <= 3
        yield not 0 <= options.on_error <= 2
        yield options.HasField("max_tokens") and not 1 <= options.max_tokens <= self.model.max_positions
        yield bool(options.prompt and options.prompt_name)
        yield bool(options.prompt_name) and options.prompt_name not in self.model.prompts
        yield len(options.prompt) > MAX_PROMPT_CHARACTERS

    def _attention_problems(self, attention: pb.AttentionOptions) -> Iterator[bool]:
        yield not 0 <= attention.reduction <= 3
        yield not 0 <= attention.type <= pb.DATA_TYPE_FLOAT16
        for indices, count in (
            (attention.layers, self.model.layer_count),
            (attention.heads, self.model.head_count),
        ):
            yield any(not -count <= index < count for index in indices)
            yield len({index % count for index in indices}) < len(indices)
