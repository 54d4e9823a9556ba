"""Our int8 graph against ONNX Runtime's own recipe for the same model, shape by shape in the same rounds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.context import BATCH_TOKENS, Context
from bench.measure import Contender, Sample, interleave
from bench.report import Cell, Check, Section, Table
from bench.worker import Worker

# As many tokens each as one batch has, and one lone text.
BATCHES = tuple((BATCH_TOKENS // tokens, tokens) for tokens in (16, 32, 64, 128, 256))
LONE = (1, 16)


def measure(context: Context) -> Section:
    seconds = 0.2 if context.quick else 0.5
    ours = context.artifact.graph("fused", "int8").path.name
    with tempfile.TemporaryDirectory() as folder:
        stock = Path(folder) / "stock.onnx"
        subprocess.run([sys.executable, "-m", "bench.stock_int8", stock], check=True, capture_output=True)
        with (
            context.kernel(ours, "cpu", "int8") as our_worker,
            context.kernel(str(stock), "cpu", "int8", "token_embeddings") as stock_worker,
        ):
            contenders: dict[tuple[str, int, int], Contender] = {}
            for shape in (LONE, *BATCHES):
                contenders["ours", *shape] = partial(_rate, our_worker, shape, seconds)
                contenders["stock", *shape] = partial(_rate, stock_worker, shape, seconds)
            found = interleave(contenders, context.rounds)
    rows = [_row(found, shape) for shape in (LONE, *BATCHES)]
    columns = ("batch × tokens", "ours, GFLOP/s", "stock recipe, GFLOP/s", "ours over stock")
    table = Table("int8 on the CPU: ours and ONNX Runtime's own recipe", columns, rows)
    check = Check("a batch of each shape, speed over the stock recipe", _speedup(found), 0.95, "at least")
    return Section("int8", [table], [check])


def _rate(worker: Worker, shape: tuple[int, int], seconds: float) -> float:
    return float(worker.ask("rate", batch=shape[0], tokens=shape[1], seconds=seconds))


def _row(found: dict[tuple[str, int, int], Sample], shape: tuple[int, int]) -> list[Cell]:
    ours, stock = found["ours", *shape], found["stock", *shape]
    return ["{} × {}".format(*shape), ours, stock, ours.over(stock)]


def _speedup(found: dict[tuple[str, int, int], Sample]) -> float:
    """Of equal work in each shape: the harmonic means' ratio, round by round."""
    ours, stock = (
        Sample(tuple(sum(1 / rate for rate in rates) for rates in _by_round(found, name)))
        for name in ("ours", "stock")
    )
    return stock.over(ours).median


def _by_round(found: dict[tuple[str, int, int], Sample], name: str) -> list[tuple[float, ...]]:
    return list(zip(*(found[name, *shape].values for shape in BATCHES), strict=True))
