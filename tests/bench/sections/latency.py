"""Latency of lone calls, and of calls that arrive when they like at shares of the server's own capacity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.context import BATCH_TOKENS, Context
from bench.load import build_requests, poisson_arrivals
from bench.measure import interleave, percentile
from bench.report import Cell, Check, Plot, Section, Table
from bench.worker import Worker
from bench.workload import texts_with_tokens

LOADS = (0.3, 0.6, 0.7, 0.8, 0.95)
LONE_TOKENS, LOADED_TOKENS = 16, 32
_LIMITED_LOAD = 0.7
_CAPACITY_CALLERS = 64


def measure(context: Context) -> Section:
    alone, alone_check = _measure_alone(context)
    loaded, loaded_check = _measure_loaded(context)
    return Section("latency", [alone, loaded], [alone_check, loaded_check])


def _requests(context: Context, tokens: int) -> list[bytes]:
    return build_requests(texts_with_tokens(context.artifact.tokenizer_path, tokens, 256), 1)


def _measure_alone(context: Context) -> tuple[Table, Check]:
    requests = _requests(context, LONE_TOKENS)[:50]
    with context.engine() as engine, context.server_and_load() as (_, load):
        found = interleave(
            {
                "engine": lambda: float(
                    engine.ask("run_alone", batch=1, tokens=LONE_TOKENS, repeats=len(requests))
                ),
                "gRPC": lambda: statistics.median(load.alone(requests)),
            },
            2 * context.rounds,
        )
    engine_ms, grpc_ms = (found[name].times(1000) for name in ("engine", "gRPC"))
    overhead = statistics.median(
        mine - own for mine, own in zip(grpc_ms.values, engine_ms.values, strict=True)
    )
    table = Table(
        f"One text of {LONE_TOKENS} tokens on an idle server ({context.setting})",
        ("engine's own time, ms", "through gRPC, ms", "difference, ms"),
        [[engine_ms, grpc_ms, overhead]],
    )
    return table, Check("lone call over the engine's own time", overhead, 2.0, "at most", " ms")


def _measure_loaded(context: Context) -> tuple[Table, Check]:
    requests = _requests(context, LOADED_TOKENS)
    seconds = 3.0 if context.quick else 10.0
    latencies: dict[str, list[float]] = {name: [] for name in ("idle", *map(_title, LOADS))}
    capacities, batches = [], []
    with context.engine() as engine, context.server_and_load() as (_, load):
        load.closed(requests, _CAPACITY_CALLERS)
        for round_number in range(context.rounds):
            capacities.append(len(requests) / load.closed(requests, _CAPACITY_CALLERS))
            batches.append(_full_batch_seconds(engine))
            latencies["idle"] += load.alone(requests[:100])
            for share in LOADS:
                arrivals = poisson_arrivals(share * capacities[-1], seconds, seed=round_number)
                latencies[_title(share)] += load.open(requests, arrivals)
    rows = [_row(name, found) for name, found in latencies.items()]
    table = Table(
        f"Texts of {LOADED_TOKENS} tokens, one a call ({context.setting})",
        ("load", "calls", "p50, ms", "p95, ms", "p99, ms"),
        rows,
        (
            f"Poisson arrivals at shares of {statistics.median(capacities):.0f} calls/s, what "
            f"{_CAPACITY_CALLERS} callers in a closed loop get, measured anew in each round. A latency "
            "counts from the scheduled arrival. Idle: one caller.",
        ),
        Plot("line", "load", ("p50, ms", "p95, ms", "p99, ms")),
    )
    limit = percentile(latencies["idle"], 0.99) + 2 * statistics.median(batches)
    return table, Check(
        f"p99 at {_title(_LIMITED_LOAD)}: idle p99 and two full batches",
        1000 * percentile(latencies[_title(_LIMITED_LOAD)], 0.99),
        1000 * limit,
        "at most",
        " ms",
    )


def _full_batch_seconds(engine: Worker) -> float:
    batch = BATCH_TOKENS // LOADED_TOKENS
    return float(engine.ask("run_alone", batch=batch, tokens=LOADED_TOKENS, repeats=10))


def _title(share: float) -> str:
    return f"{share:.0%}"


def _row(name: str, found: Sequence[float]) -> list[Cell]:
    return [name, len(found), *(1000 * percentile(found, share) for share in (0.5, 0.95, 0.99))]
