"""A batcher over the gated fake engine, and the calls that a test sends to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import Gauge

from fake_runner import (
    HEAD_COUNT,
    HIDDEN_SIZE,
    TIMEOUT_S,
    FakeRunner,
    sequence_of,
    vector_of,
)
from service.core.batcher import BatchedResult, Batcher, BatcherConfig
from service.core.planner import Planner
from service.metrics import Metrics
from service.types import (
    Outputs,
    Pooling,
    TokenizedSequence,
)

MEAN = Outputs(Pooling.MEAN)


@dataclass
class Bench:
    """A batcher, its fake engine, and the calls that a test has sent."""

    batcher: Batcher
    runner: FakeRunner
    metrics: Metrics

    def send(
        self,
        sequences: Iterable[TokenizedSequence],
        outputs: Outputs = MEAN,
        *,
        priority: int = 0,
        deadline: float | None = None,
        wait_for_room: bool = False,
    ) -> asyncio.Task[BatchedResult]:
        call = self.batcher.run(
            list(sequences), outputs, priority=priority, deadline=deadline, wait_for_room=wait_for_room
        )
        return asyncio.create_task(call)

    async def occupy(self) -> list[asyncio.Task[BatchedResult]]:
        """Keeps every lane busy with a batch of one sequence that waits at the gate."""
        calls = []
        for _ in range(self.runner.lanes):
            calls.append(self.send([sequence_of(1)]))
            await self.runner.begun()
        return calls

    def metric(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(f"seqenc_{name}", labels)
        assert value is not None
        return value

    @property
    def queued(self) -> tuple[float, float]:
        return _value(self.metrics.queued_inputs), _value(self.metrics.queued_tokens)


def _value(gauge: Gauge) -> float:
    (family,) = gauge.collect()
    return family.samples[0].value


@asynccontextmanager
async def open_bench(
    *,
    lanes: int = 1,
    gated: bool = False,
    max_batch_tokens: int = 1000,
    max_inputs: int = 1000,
    max_tokens: int = 100_000,
    length_multiple: int = 1,
    run_timeout_s: float = 60,
) -> AsyncIterator[Bench]:
    runner, metrics = FakeRunner(lanes, gated), Metrics()
    planner: Planner[Any] = Planner(max_batch_tokens=max_batch_tokens, max_batch_cells=1 << 30)
    config = BatcherConfig(max_inputs, max_tokens, HIDDEN_SIZE, HEAD_COUNT, 0, length_multiple, run_timeout_s)
    batcher = Batcher(runner, planner, config, metrics)
    try:
        yield Bench(batcher, runner, metrics)
    finally:
        runner.open()
        batcher.close()


async def turn_of_the_loop() -> None:
    """Lets the tasks that are ready start, and what they scheduled run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def done(call: Coroutine[Any, Any, BatchedResult] | asyncio.Task[BatchedResult]) -> BatchedResult:
    async with asyncio.timeout(TIMEOUT_S):
        return await call


def assert_right(result: BatchedResult, sequences: Iterable[TokenizedSequence]) -> None:
    assert result.errors == {}
    assert result.collector.vectors is not None
    assert result.collector.vectors.tolist() == [vector_of(sequence) for sequence in sequences]


def leave(call: asyncio.Task[BatchedResult]) -> Coroutine[Any, Any, None]:
    async def cancel() -> None:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    return cancel()
