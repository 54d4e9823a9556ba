"""Through gRPC, load generator on the same cores, against the engine alone in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from bench.context import Context
from bench.load import LoadGenerator, build_requests
from bench.measure import Contender, Sample, interleave
from bench.report import Cell, Check, Plot, Section, Table
from bench.worker import Worker
from bench.workload import describe, texts_of
from e2e.server_process import ServerProcess

BULK_TEXTS = 64
CALLERS = (1, 8, 32, 128)
_BULK = "calls of 64 texts, 4 callers"
_MIN_COSINE = {"fp32": 0.99999}


def measure(context: Context) -> Section:
    texts = texts_of(context.text_count)
    with context.engine() as engine, context.server_and_load() as (server, load):
        loaded = engine.ask("load", texts=texts)
        check_same_vectors(load, engine, texts[:BULK_TEXTS])
        contenders = {"engine alone": lambda: float(engine.ask("run"))} | _contenders(load, texts)
        found = interleave(contenders, context.rounds)
        padding = _padding(server, load, texts)
    return Section(
        "grpc",
        [_table(context, found, texts, loaded["lengths"])],
        [
            Check("bulk calls, share of the engine alone", _share(found, _BULK).median, 0.85, "at least"),
            Check(
                "single texts of 32 callers, share of the engine alone",
                _share(found, _single_name(32)).median,
                0.70,
                "at least",
            ),
            Check("padding in bulk calls, share of all tokens", padding, 0.08, "at most"),
        ],
    )


def check_same_vectors(load: LoadGenerator, engine: Worker, texts: Sequence[str]) -> None:
    """Raises RuntimeError unless the server gives the vectors of the engine for the first texts."""
    response = load.call(build_requests(texts, len(texts))[0])
    mine = np.frombuffer(response.embeddings.data, np.float32).reshape(tuple(response.embeddings.shape))
    expected = np.array(engine.ask("vectors"), np.float32)[: len(texts)]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    worst = float((mine * expected).sum(axis=1).min())
    if worst < _MIN_COSINE.get(response.precision, 0.998):
        raise RuntimeError(f"the server's vectors are not the engine's: worst cosine {worst:.6f}")


def _contenders(load: LoadGenerator, texts: Sequence[str]) -> dict[str, Contender]:
    bulk, single = build_requests(texts, BULK_TEXTS), build_requests(texts, 1)
    tokens = build_requests(texts, BULK_TEXTS, token_embeddings=True)
    contenders: dict[str, Contender] = {
        "calls of 64 texts, 1 caller": lambda: load.closed(bulk, 1),
        _BULK: lambda: load.closed(bulk, 4),
        "stream of 64 texts a message": lambda: load.stream(bulk),
        "calls of 64 texts with token embeddings, 4 callers": lambda: load.closed(tokens, 4),
    }
    for callers in CALLERS:
        contenders[_single_name(callers)] = partial(load.closed, single, callers)
    return contenders


def _single_name(callers: int) -> str:
    return f"calls of one text, {callers} caller{'s' if callers > 1 else ''}"


def _share(found: dict[str, Sample], name: str) -> Sample:
    """Of the engine's rate; both did the same work."""
    return found["engine alone"].over(found[name])


def _table(context: Context, found: dict[str, Sample], texts: Sequence[str], lengths: Sequence[int]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            _rate(found[name], len(texts)),
            _rate(found[name], sum(lengths)),
            _share(found, name).times(100),
        ]
        for name in found
    ]
    return Table(
        f"Through gRPC ({context.setting})",
        ("load", "texts/s", "tokens/s", "% of the engine alone"),
        rows,
        (describe(texts, lengths) + ".", "Server and load generator share the cores."),
        Plot("bar", "load", ("texts/s",)),
    )


def _rate(seconds: Sample, count: int) -> Sample:
    return Sample(tuple(count / value for value in seconds.values))


def _padding(server: ServerProcess, load: LoadGenerator, texts: Sequence[str]) -> float:
    before = server.metrics()
    load.closed(build_requests(texts, BULK_TEXTS), 4)
    after = server.metrics()
    real, padding = (after[(name,)] - before[(name,)] for name in ("tokens_total", "padding_tokens_total"))
    return padding / (real + padding)
