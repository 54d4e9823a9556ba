"""The engine alone, without queue and gRPC: `python -m bench.engine_worker '{"artifact": …}'`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.worker import answer_questions
from bench.workload import flops, pack, tokenize
from service.core.artifact import load_artifact
from service.core.collation import BatchArrays, Collector, Row, collate, distribute
from service.core.engine import Engine, EngineConfig
from service.core.sessions import Precision, Provider, choose_provider
from service.core.warmup import COMPILED_MULTIPLE
from service.types import Outputs, Pooling, TokenizedSequence


class EngineBench:
    def __init__(
        self,
        artifact: str,
        provider: Provider,
        precision: Precision,
        lanes: int,
        threads_per_lane: int,
        batch_tokens: int,
    ) -> None:
        self._artifact = load_artifact(Path(artifact))
        config = EngineConfig(
            choose_provider(provider, precision), precision, lanes, threads_per_lane, attention_maps=False
        )
        self._engine = Engine(self._artifact, config)
        self._multiple = COMPILED_MULTIPLE if self._engine.compiles_shapes else 1
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(lanes)
        self._batch_tokens = batch_tokens
        self._sequences: list[TokenizedSequence] = []
        self._batches: list[list[int]] = []
        self._output = f"pooled_{self._artifact.pooling}"

    def load(self, texts: Sequence[str]) -> dict[str, Any]:
        """Takes the texts that `run` encodes; the padding is a share of all tokens."""
        self._sequences = tokenize(self._artifact.tokenizer_path, texts, self._artifact.max_tokens)
        lengths = list(map(len, self._sequences))
        self._batches = pack(lengths, self._batch_tokens)
        padded = sum(len(batch) * lengths[batch[0]] for batch in self._batches)
        return {
            "lengths": lengths,
            "flops": flops(self._artifact, lengths),
            "padding": 1 - sum(lengths) / padded,
        }

    def run(self) -> float:
        """Seconds for all texts in the best batches, from tokens to vectors."""
        collector = self._collector()
        started = time.perf_counter()
        list(self._threads.map(lambda batch: self._run_batch(collector, batch), self._batches))
        return time.perf_counter() - started

    def vectors(self) -> list[list[float]]:
        """Of the texts, not normalised."""
        collector = self._collector()
        for batch in self._batches:
            self._run_batch(collector, batch)
        assert collector.vectors is not None
        return [row.tolist() for row in collector.vectors]

    def run_alone(self, batch: int, tokens: int, repeats: int) -> float:
        """Median seconds of a batch on an otherwise idle engine."""
        arrays = _batch_of(batch, tokens)
        return float(np.median([self._time(arrays) for _ in range(repeats)]))

    def run_side_by_side(self, batch: int, tokens: int, repeats: int) -> float:
        """Median seconds of a batch while every other lane runs one like it."""
        arrays = [_batch_of(batch, tokens)] * repeats * self._lanes
        return float(np.median([*self._threads.map(self._time, arrays)]))

    def _collector(self) -> Collector:
        outputs = Outputs(Pooling(self._artifact.pooling))
        return Collector(self._sequences, outputs, self._artifact.hidden_size)

    def _run_batch(self, collector: Collector, batch: Sequence[int]) -> None:
        rows = [Row(collector, index) for index in batch]
        pad_id = self._artifact.special_ids.get("pad", 0)
        arrays = collate(rows, pad_id=pad_id, length_multiple=self._multiple)
        distribute(rows, self._engine.run("encoder", arrays, [self._output]))

    def _time(self, arrays: BatchArrays) -> float:
        started = time.perf_counter()
        self._engine.run("encoder", arrays, [self._output])
        return time.perf_counter() - started


def _batch_of(batch: int, tokens: int) -> BatchArrays:
    ids = np.resize(np.arange(1000, 1000 + tokens), (batch, tokens))
    return BatchArrays(ids, np.ones_like(ids), np.zeros_like(ids))


if __name__ == "__main__":
    bench = EngineBench(**json.loads(sys.argv[1]))
    questions = (bench.load, bench.run, bench.vectors, bench.run_alone, bench.run_side_by_side)
    answer_questions({question.__name__: question for question in questions})
