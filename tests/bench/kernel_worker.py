"""One graph on one provider, shapes at will: `python -m bench.kernel_worker '{"artifact": …}'`."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np

from bench.worker import answer_questions
from bench.workload import flops
from service.core.artifact import Graph, load_artifact
from service.core.lanes import StopSignal
from service.core.sessions import Precision, Provider, Session, SessionConfig
from service.types import Array


class KernelBench:
    """`file`: an ONNX file, below the artifact or by its full path; `output`: the one that is fetched."""

    def __init__(
        self, artifact: str, file: str, provider: Provider, precision: Precision, output: str, lanes: int
    ) -> None:
        self._artifact = load_artifact(Path(artifact))
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(lanes)
        self._outputs = [output]
        graph = Graph(Path(artifact) / file, precision, "fused", fidelity=1.0, external_data=())
        self._session = Session(graph, SessionConfig(provider, precision, lanes, threads=1))

    def rate(self, batch: int, tokens: int, seconds: float) -> float:
        """GFLOP/s of all lanes, each busy with batches of the shape."""
        rng = np.random.default_rng(0)
        ids = rng.integers(0, self._artifact.vocabulary_size, (batch, tokens))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        self._session.run(self._outputs, inputs, StopSignal())
        ends = time.perf_counter() + seconds
        times = list(chain(*self._threads.map(lambda _: self._repeat(inputs, ends), range(self._lanes))))
        return self._lanes * flops(self._artifact, [tokens] * batch) / float(np.median(times)) / 1e9

    def _repeat(self, inputs: dict[str, Array], ends: float) -> list[float]:
        """Seconds of each run until the time is up, at least of one."""
        times = [self._time(inputs)]
        while time.perf_counter() < ends:
            times.append(self._time(inputs))
        return times

    def _time(self, inputs: dict[str, Array]) -> float:
        started = time.perf_counter()
        self._session.run(self._outputs, inputs, StopSignal())
        return time.perf_counter() - started


if __name__ == "__main__":
    answer_questions({"rate": KernelBench(**json.loads(sys.argv[1])).rate})
