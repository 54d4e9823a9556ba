"""The machine's practical ceiling: rates of PyTorch's Linear. `python -m bench.ceiling_worker THREADS`.

In fp32 by the BLAS that PyTorch was built with or by oneDNN, whichever is faster here: MKL reaches half of
what oneDNN does on some of AMD's processors.

Each thread has products of its own, as the engine's lanes have: threads that share one lose more to each
other, the more so on a busy machine. Needs OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.mkldnn import to_mkldnn

from bench.worker import answer_questions

# Rows, inputs and outputs.
SHAPES = ((1024, 384, 1536), (4096, 384, 1536), (1024, 1024, 4096))
Product = Callable[[], Any]
# Of rows, inputs and outputs.
Builder = Callable[[int, int, int], Product]


class Ceiling:
    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._count = threads

    def rate(self, precision: str, seconds: float) -> float:
        """GFLOP/s of all threads at the best, each library and shape timed for an equal part of `seconds`."""
        timed = [(build, shape) for build in _BUILDERS[precision] for shape in SHAPES]
        return max(self._rate_of(build, shape, seconds / len(timed)) for build, shape in timed)

    def _rate_of(self, build: Builder, shape: tuple[int, int, int], seconds: float) -> float:
        rates = self._threads.map(lambda _: _rate_of(build, shape, seconds), range(self._count))
        return sum(rates)


@torch.no_grad()
def _rate_of(build: Builder, shape: tuple[int, int, int], seconds: float) -> float:
    rows, inputs, outputs = shape
    product = build(rows, inputs, outputs)
    product()
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        product()
        count += 1
    return 2 * rows * inputs * outputs * count / passed / 1e9


def _in_fp32(rows: int, inputs: int, outputs: int) -> Product:
    linear, values = torch.nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    return lambda: linear(values)


def _in_fp32_by_onednn(rows: int, inputs: int, outputs: int) -> Product:
    linear = to_mkldnn(torch.nn.Linear(inputs, outputs).eval())  # type: ignore[no-untyped-call]
    values = torch.randn(rows, inputs).to_mkldnn()
    return lambda: linear(values)


def _in_bf16(rows: int, inputs: int, outputs: int) -> Product:
    linear = torch.nn.Linear(inputs, outputs, dtype=torch.bfloat16)
    values = torch.randn(rows, inputs).bfloat16()
    return lambda: linear(values)


def _in_int8(rows: int, inputs: int, outputs: int) -> Product:
    """PyTorch's dynamically quantised Linear: float32 in and out, its products in int8."""
    linear = torch.ao.nn.quantized.dynamic.Linear(inputs, outputs)  # type: ignore[no-untyped-call]
    values = torch.randn(rows, inputs)
    return lambda: linear(values)


_BUILDERS: dict[str, tuple[Builder, ...]] = {
    "fp32": (_in_fp32, _in_fp32_by_onednn),
    "bf16": (_in_bf16,),
    "int8": (_in_int8,),
}


if __name__ == "__main__":
    answer_questions({"rate": Ceiling(int(sys.argv[1])).rate})
