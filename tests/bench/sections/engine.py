"""The engine alone with the best batches, against the machine's ceiling in the same rounds."""

from __future__ import annotations

from bench.context import BATCH_TOKENS, Context
from bench.measure import interleave
from bench.report import Check, Section, Table
from bench.workload import describe, texts_of


def measure(context: Context) -> Section:
    texts = texts_of(context.text_count)
    seconds = 1.0 if context.quick else 2.0
    with context.engine() as engine, context.ceiling() as ceiling:
        loaded = engine.ask("load", texts=texts)
        found = interleave(
            {
                "ceiling": lambda: float(ceiling.ask("rate", precision=context.precision, seconds=seconds)),
                "engine": lambda: loaded["flops"] / engine.ask("run") / 1e9,
            },
            context.rounds,
        )
    engine_rate, limit = found["engine"], found["ceiling"]
    share = engine_rate.over(limit)
    texts_rate = engine_rate.times(1e9 / loaded["flops"] * len(texts))
    tokens_rate = engine_rate.times(1e9 / loaded["flops"] * sum(loaded["lengths"]))
    table = Table(
        f"Engine alone, best batches ({context.setting})",
        ("texts/s", "tokens/s", "GFLOP/s", "ceiling GFLOP/s", "% of the ceiling", "padding %"),
        [[texts_rate, tokens_rate, engine_rate, limit, share.times(100), 100 * loaded["padding"]]],
        (
            describe(texts, loaded["lengths"]) + ".",
            f"Sorted by length, at most {BATCH_TOKENS} padded tokens a batch, {context.cores} lanes; "
            "arithmetic of real tokens only.",
        ),
    )
    check = Check("engine with best batches, share of the ceiling", share.median, 0.75, "at least")
    return Section("engine", [table], [check])
