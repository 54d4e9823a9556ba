"""What every section is measured with: the artifact, the setting, how long, and contenders to start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from bench.load import LoadGenerator
from bench.worker import Worker
from e2e.server_process import ServerProcess, start_server
from service.core.artifact import Artifact, Graph, load_artifact
from service.core.cores import count_usable_cores
from service.core.sessions import Precision, Provider, choose_provider, encoder_graph

# As many as `seqenc serve` takes for a batch on a CPU.
BATCH_TOKENS = 512


@dataclass(frozen=True)
class Context:
    artifact_path: Path
    provider: Provider | Literal["auto"]
    precision: Precision
    quick: bool

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 7

    @property
    def text_count(self) -> int:
        """Of one round of a bulk measurement."""
        return 128 if self.quick else 512

    @property
    def setting(self) -> str:
        return f"{self.provider} {self.precision}"

    @cached_property
    def cores(self) -> int:
        return count_usable_cores()

    @cached_property
    def artifact(self) -> Artifact:
        return load_artifact(self.artifact_path)

    @property
    def encoder_graph(self) -> Graph:
        """What the server loads for the setting."""
        provider = choose_provider(self.provider, self.precision)
        return encoder_graph(self.artifact, provider, self.precision)

    @contextmanager
    def engine(self, *, lanes: int | None = None, threads_per_lane: int = 1) -> Iterator[Worker]:
        """The engine alone in a process of its own."""
        settings = {
            "artifact": str(self.artifact_path),
            "provider": self.provider,
            "precision": self.precision,
            "lanes": lanes or self.cores,
            "threads_per_lane": threads_per_lane,
            "batch_tokens": BATCH_TOKENS,
        }
        with Worker("bench.engine_worker", json.dumps(settings)) as worker:
            yield worker

    def kernel(
        self, file: str, provider: Provider, precision: Precision, output: str = "pooled_mean"
    ) -> Worker:
        """One graph in a process of its own."""
        settings = {
            "artifact": str(self.artifact_path),
            "file": file,
            "provider": provider,
            "precision": precision,
            "output": output,
            "lanes": self.cores,
        }
        return Worker("bench.kernel_worker", json.dumps(settings))

    @contextmanager
    def ceiling(self) -> Iterator[Worker]:
        one_each = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with Worker("bench.ceiling_worker", str(self.cores), environment=one_each) as worker:
            yield worker

    @contextmanager
    def server(self, *flags: str) -> Iterator[ServerProcess]:
        setting = ("--provider", self.provider, "--precision", self.precision)
        with start_server(self.artifact_path, *setting, *flags) as server:
            yield server

    @contextmanager
    def server_and_load(self, *flags: str) -> Iterator[tuple[ServerProcess, LoadGenerator]]:
        with self.server(*flags) as server, LoadGenerator(server.grpc_address) as load:
            yield server, load
