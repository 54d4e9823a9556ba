"""Throughput by length of text, and by lanes and threads."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.context import Context
from bench.load import build_requests
from bench.measure import Contender, Sample, interleave
from bench.report import Cell, Check, Plot, Section, Table
from bench.sections.throughput import BULK_TEXTS
from bench.workload import texts_with_tokens

LENGTHS = (8, 16, 32, 64, 128, 256)
SHORT = 16


def measure(context: Context) -> Section:
    lanes, check = _measure_lanes(context)
    return Section("scaling", [_measure_lengths(context), lanes], [check] if check else [])


def _texts(context: Context, tokens: int) -> list[str]:
    """As many as make up a round's work."""
    count = (4_096 if context.quick else 16_384) // tokens
    return texts_with_tokens(context.artifact.tokenizer_path, tokens, count)


def _measure_lengths(context: Context) -> Table:
    rows: list[list[Cell]] = []
    with context.engine() as engine, context.server_and_load() as (_, load):
        for tokens in LENGTHS:
            texts = _texts(context, tokens)
            engine.ask("load", texts=texts)
            requests = build_requests(texts, BULK_TEXTS)
            found = interleave(
                {
                    "engine": lambda: float(engine.ask("run")),
                    "gRPC": partial(load.closed, requests, 4),
                },
                context.rounds,
            )
            rates = [_rate(found[name], tokens * len(texts)) for name in ("engine", "gRPC")]
            share = found["engine"].over(found["gRPC"]).times(100)
            rows.append([str(tokens), *rates, _rate(found["gRPC"], len(texts)), share])
    return Table(
        f"By length of text ({context.setting})",
        ("tokens of a text", "engine, tokens/s", "gRPC, tokens/s", "gRPC, texts/s", "% of the engine"),
        rows,
        ("Calls of 64 texts, 4 callers.",),
        Plot("line", "tokens of a text", ("engine, tokens/s", "gRPC, tokens/s")),
    )


def _measure_lanes(context: Context) -> tuple[Table, Check | None]:
    """Engine alone, short texts."""
    texts = _texts(context, SHORT)
    settings = {f"{lanes} × 1": (lanes, 1) for lanes in range(1, context.cores + 1)}
    if context.cores > 1:
        settings[f"1 × {context.cores}"] = (1, context.cores)
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, (lanes, threads) in settings.items():
            engine = stack.enter_context(context.engine(lanes=lanes, threads_per_lane=threads))
            engine.ask("load", texts=texts)
            contenders[name] = partial(engine.ask, "run")
        found = interleave(contenders, context.rounds)
    one = found["1 × 1"]
    rows: list[list[Cell]] = [
        [name, _rate(sample, SHORT * len(texts)), one.over(sample)] for name, sample in found.items()
    ]
    table = Table(
        f"By lanes and threads a lane, engine alone, texts of {SHORT} tokens ({context.setting})",
        ("lanes × threads", "tokens/s", "times one lane"),
        rows,
        plot=Plot("bar", "lanes × threads", ("times one lane",)),
    )
    if context.cores == 1:
        return table, None
    return table, Check("two lanes over one", one.over(found["2 × 1"]).median, 1.8, "at least", " ×")


def _rate(seconds: Sample, count: int) -> Sample:
    return Sample(tuple(count / value for value in seconds.values))
