"""Encodes texts with an engine in this process: tokenised, sorted by length, full batches on all lanes.

The batches of some texts depend on these texts alone, so that the same texts give the same bytes again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from service.core.artifact import Artifact
from service.core.collation import Collector, Row, collate, distribute, output_names
from service.core.engine import Engine
from service.core.tokenizer import Tokenizer
from service.core.validation import Plan
from service.core.vectors import finish_vectors
from service.errors import Violation
from service.jobs.encoded import Encoded, Model, VectorShape
from service.jobs.errors import FAILED, refusal
from service.types import Pooling, Text, TokenizedSequence

logger = logging.getLogger(__name__)

MAX_TEXT_CHARACTERS = 2_000_000
# What the tokenizer keeps of a text is a hundred times its tokens: few texts at once.
_TOKENIZE_TEXTS = 256
_TOKENIZE_CHARACTERS = 1 << 20


def describe_model(artifact: Artifact, plan: Plan, precision: str, details: dict[str, str | int]) -> Model:
    return Model(artifact.name, artifact.revision, precision, plan.rule.limit, details)


def describe_vectors(artifact: Artifact, plan: Plan) -> VectorShape:
    return VectorShape(
        plan.embedding_type,
        None if plan.outputs.pooling is Pooling.NONE else plan.dimensions,
        artifact.hidden_size if plan.outputs.token_embeddings else None,
    )


@dataclass(frozen=True, slots=True)
class Packing:
    """Shapes of batches. Engines that compile each shape want few: lengths padded to a multiple, and sizes
    that are powers of two.
    """

    max_batch_tokens: int
    length_multiple: int = 1
    powers_of_two: bool = False

    def batch_size(self, length: int) -> int:
        width = -(-length // self.length_multiple) * self.length_multiple
        size = max(1, self.max_batch_tokens // width)
        return 1 << (size.bit_length() - 1) if self.powers_of_two else size


class LocalEncoder:
    """`details`: see Model."""

    def __init__(
        self,
        artifact: Artifact,
        tokenizer: Tokenizer,
        engine: Engine,
        plan: Plan,
        *,
        packing: Packing,
        details: dict[str, str | int],
    ) -> None:
        self._artifact = artifact
        self._tokenizer = tokenizer
        self._engine = engine
        self._plan = plan
        self._packing = packing
        self._lanes = ThreadPoolExecutor(engine.lanes, thread_name_prefix="lane")
        self.model = describe_model(artifact, plan, engine.precision, details)
        self.shape = describe_vectors(artifact, plan)

    def encode(self, texts: Sequence[str]) -> Encoded:
        sequences: list[TokenizedSequence] = []
        places: list[int] = []
        errors: list[str | None] = [None] * len(texts)
        for place, outcome in enumerate(self._tokenize(texts)):
            if isinstance(outcome, Violation):
                errors[place] = refusal(outcome.description)
            else:
                sequences.append(outcome)
                places.append(place)
        collector = Collector(sequences, self._plan.outputs, self._artifact.hidden_size)
        padded_tokens, failed = self._compute(collector)
        for index in failed:
            errors[places[index]] = FAILED
        return self._gather(collector, places, errors, padded_tokens)

    def close(self) -> None:
        self._lanes.shutdown(wait=True, cancel_futures=True)

    def _tokenize(self, texts: Sequence[str]) -> Iterator[TokenizedSequence | Violation]:
        for part in _parts(texts):
            taken = [Text(text) for text in part if len(text) <= MAX_TEXT_CHARACTERS]
            outcomes = iter(self._tokenizer.tokenize_texts(taken, self._plan.rule))
            for text in part:
                yield next(outcomes) if len(text) <= MAX_TEXT_CHARACTERS else _too_long(text)

    def _compute(self, collector: Collector) -> tuple[int, list[int]]:
        """The tokens computed, padding included, and the sequences that failed."""
        lengths = [len(sequence) for sequence in collector.sequences]
        batches = plan_batches(lengths, self._packing)
        outcomes = self._lanes.map(lambda batch: self._run(collector, batch), batches)
        padded_tokens, failed = 0, []
        for tokens, indices in outcomes:
            padded_tokens += tokens
            failed += indices
        return padded_tokens, failed

    def _run(self, collector: Collector, indices: Sequence[int]) -> tuple[int, list[int]]:
        """A batch that fails is run again, text by text."""
        try:
            return self._run_batch(collector, indices), []
        except Exception:
            logger.warning("a batch of %d texts failed", len(indices), exc_info=True)
        if len(indices) == 1:
            return 0, list(indices)
        outcomes = [self._run(collector, [index]) for index in indices]
        return sum(tokens for tokens, _ in outcomes), [index for _, failed in outcomes for index in failed]

    def _run_batch(self, collector: Collector, indices: Sequence[int]) -> int:
        rows = [Row(collector, index) for index in indices]
        pad_id = self._artifact.special_ids.get("pad", 0)
        arrays = collate(rows, pad_id=pad_id, length_multiple=self._packing.length_multiple)
        distribute(rows, self._engine.run("encoder", arrays, output_names(rows, ())))
        return arrays.padded_tokens

    def _gather(
        self, collector: Collector, places: list[int], errors: list[str | None], padded_tokens: int
    ) -> Encoded:
        count = len(errors)
        vectors = None
        if collector.vectors is not None:
            pooled = np.zeros((count, self._artifact.hidden_size), np.float32)
            pooled[places] = collector.vectors
            vectors = finish_vectors(
                pooled,
                dimensions=self._plan.dimensions,
                normalize=self._plan.normalize,
                data_type=self._plan.embedding_type,
            )
        encoded = Encoded(
            vectors=vectors,
            token_embeddings=[None] * count,
            token_counts=np.zeros(count, np.int32),
            truncated=np.zeros(count, np.bool_),
            errors=errors,
            padded_tokens=padded_tokens,
        )
        for index, place in enumerate(places):
            if errors[place] is None:
                encoded.token_counts[place] = collector.sequences[index].token_count
                encoded.truncated[place] = collector.sequences[index].truncated
                encoded.token_embeddings[place] = collector.token_embeddings[index]
        return encoded


def plan_batches(lengths: Sequence[int], packing: Packing) -> list[list[int]]:
    """Indices of each batch, longest first: neighbours in length, as many as the tokens allow with padding.
    What is longer than that is alone.
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if room == 0:
            room = packing.batch_size(lengths[index])
            batches.append([])
        batches[-1].append(index)
        room -= 1
    return batches


def _too_long(text: str) -> Violation:
    return Violation("text", f"has {len(text)} characters, the limit is {MAX_TEXT_CHARACTERS}")


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    start = characters = 0
    for stop, text in enumerate(texts, 1):
        characters += len(text)
        if stop - start == _TOKENIZE_TEXTS or characters >= _TOKENIZE_CHARACTERS or stop == len(texts):
            yield texts[start:stop]
            start, characters = stop, 0
