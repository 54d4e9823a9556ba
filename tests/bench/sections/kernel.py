"""Every graph on every provider that runs here, shape by shape, against the ceiling of the same rounds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import get_args

from bench.context import Context
from bench.measure import Contender, Sample, interleave
from bench.report import Cell, Section, Table
from bench.worker import Worker
from service.core.artifact import Graph
from service.core.sessions import Precision, Provider, why_not

SHAPES = ((1, 16), (1, 128), (32, 16), (16, 32), (8, 64), (4, 128), (2, 256), (32, 128))
# A provider may compute a graph in less than it is written in.
_COMPUTED: dict[tuple[Provider, str], tuple[Precision, ...]] = {("openvino", "fp32"): ("fp32", "bf16")}
_FUSED_PROVIDERS: tuple[Provider, ...] = ("cpu",)


@dataclass(frozen=True)
class Kernel:
    graph: Graph
    provider: Provider
    precision: Precision

    @property
    def name(self) -> str:
        return f"{self.graph.path.name}, {self.provider}, {self.precision}"


def measure(context: Context) -> Section:
    seconds = 0.2 if context.quick else 0.5
    kernels = runnable_kernels(context)
    with ExitStack() as stack:
        ceiling = stack.enter_context(context.ceiling())
        workers = {kernel: stack.enter_context(_start(context, kernel)) for kernel in kernels}
        contenders: dict[tuple[str, str], Contender] = {
            ("ceiling", precision): partial(_ceiling, ceiling, precision, 3 * seconds)
            for precision in sorted({kernel.precision for kernel in kernels})
        }
        for kernel, worker in workers.items():
            for shape in SHAPES:
                contenders[kernel.name, _title(shape)] = partial(_rate, worker, shape, seconds)
        found = interleave(contenders, context.rounds)
    return Section("kernel", [_table(kernels, found)])


def runnable_kernels(context: Context) -> list[Kernel]:
    kernels = []
    for graph in context.artifact.graphs:
        for provider in ("cpu", "openvino"):
            computed = _COMPUTED.get((provider, graph.precision), (graph.precision,))
            fits = graph.kind == "plain" or (graph.kind == "fused" and provider in _FUSED_PROVIDERS)
            kernels += [
                Kernel(graph, provider, precision)
                for precision in get_args(Precision)
                if fits and precision in computed and why_not(provider, precision) is None
            ]
    return kernels


def _start(context: Context, kernel: Kernel) -> Worker:
    return context.kernel(kernel.graph.path.name, kernel.provider, kernel.precision)


def _ceiling(worker: Worker, precision: str, seconds: float) -> float:
    return float(worker.ask("rate", precision=precision, seconds=seconds))


def _rate(worker: Worker, shape: tuple[int, int], seconds: float) -> float:
    return float(worker.ask("rate", batch=shape[0], tokens=shape[1], seconds=seconds))


def _title(shape: tuple[int, int]) -> str:
    return "{} × {}".format(*shape)


def _table(kernels: list[Kernel], found: dict[tuple[str, str], Sample]) -> Table:
    rows: list[list[Cell]] = []
    for kernel in kernels:
        limit = found["ceiling", kernel.precision]
        for shape in SHAPES:
            rate = found[kernel.name, _title(shape)]
            rows.append([kernel.name, _title(shape), rate, rate.over(limit).times(100)])
    ceilings = ", ".join(
        f"{precision} {sample.median:.0f}" for (name, precision), sample in found.items() if name == "ceiling"
    )
    return Table(
        "One shape at a time, every lane busy with it",
        ("graph, provider, computed in", "batch × tokens", "GFLOP/s", "% of the ceiling"),
        rows,
        (f"Ceilings, PyTorch's Linear on as many threads as there are lanes, GFLOP/s: {ceilings}.",),
    )
