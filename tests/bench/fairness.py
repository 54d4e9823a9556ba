"""`python -m bench.fairness`: what single texts wait while another client has 10,000 texts in work.

The same arrivals of single texts, alone and beside the other client, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.context import BATCH_TOKENS, Context
from bench.load import build_requests, poisson_arrivals
from bench.measure import percentile
from bench.outcomes import Encode, Outcome, connect, encode_of, open_loop
from bench.report import Cell, Check, Section, Table
from bench.run import add_setting, run_alone
from bench.worker import Worker
from bench.workload import texts_of, texts_with_tokens

BULK_TEXTS, BULK_CALLS = 10_000, 10
SINGLE_TOKENS = 32
SINGLES_PER_S = 10.0
_ALONE, _BESIDE = "alone", "beside 10,000 texts"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.fairness", description=__doc__)
    add_setting(parser)
    run_alone("fairness", parser.parse_args(), lambda context: [measure(context)])


def measure(context: Context) -> Section:
    singles = build_requests(texts_with_tokens(context.artifact.tokenizer_path, SINGLE_TOKENS, 256), 1)
    bulk = build_requests(_bulk_texts(), BULK_TEXTS // BULK_CALLS)
    seconds = 5.0 if context.quick else 30.0
    found: dict[str, list[Outcome]] = {_ALONE: [], _BESIDE: []}
    batches = []
    with context.engine() as engine, context.server() as server:
        for seed in range(context.rounds):
            batches.append(_full_batch_seconds(engine))
            arrivals = poisson_arrivals(SINGLES_PER_S, seconds, seed=seed)
            found[_ALONE] += asyncio.run(_measure(server.grpc_address, singles, arrivals, []))
            found[_BESIDE] += asyncio.run(_measure(server.grpc_address, singles, arrivals, bulk))
    return _section(context, found, statistics.median(batches))


def _bulk_texts() -> list[str]:
    """Shuffled, so that no two calls are in step."""
    texts = texts_of(2000)
    draw = random.Random(0)
    return [text for _ in range(BULK_TEXTS // len(texts)) for text in draw.sample(texts, len(texts))]


def _full_batch_seconds(engine: Worker) -> float:
    batch = BATCH_TOKENS // SINGLE_TOKENS
    return float(engine.ask("run_side_by_side", batch=batch, tokens=SINGLE_TOKENS, repeats=10))


async def _measure(
    address: str, singles: Sequence[bytes], arrivals: Sequence[float], bulk: Sequence[bytes]
) -> list[Outcome]:
    async with connect(address) as channel, connect(address) as other, _in_work(encode_of(other), bulk):
        return await open_loop(encode_of(channel), singles, arrivals)


@asynccontextmanager
async def _in_work(encode: Encode, requests: Sequence[bytes]) -> AsyncIterator[None]:
    """All requests at once, each sent again when it is answered; left where they are at the end."""

    async def call_on(request: bytes) -> None:
        while True:
            await encode(request)

    calls = [asyncio.ensure_future(call_on(request)) for request in requests]
    yield
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    if failures := [end for end in ends if not isinstance(end, asyncio.CancelledError)]:
        raise RuntimeError(f"{len(failures)} bulk calls failed, the first with {failures[0]!r}")


def _section(context: Context, found: dict[str, list[Outcome]], batch_s: float) -> Section:
    failed = sum(call.code != "OK" for calls in found.values() for call in calls)
    limit = percentile([call.seconds for call in found[_ALONE]], 0.99) + 2 * batch_s
    beside = percentile([call.seconds for call in found[_BESIDE]], 0.99)
    return Section(
        "fairness",
        [
            Table(
                f"Single texts of {SINGLE_TOKENS} tokens, {SINGLES_PER_S:g} a second ({context.setting})",
                ("single texts", "calls", "p50, ms", "p95, ms", "p99, ms"),
                [_row(name, calls) for name, calls in found.items()],
                (
                    f"The other client has {BULK_CALLS} calls of {BULK_TEXTS // BULK_CALLS} texts in work at "
                    f"any moment. A full batch takes {1000 * batch_s:.0f} ms where every lane has one. "
                    "A latency counts from the scheduled arrival.",
                ),
            )
        ],
        [
            Check(
                "p99 beside bulk: alone and two full batches", 1000 * beside, 1000 * limit, "at most", " ms"
            ),
            Check("single texts that failed", failed, 0, "at most"),
        ],
    )


def _row(name: str, calls: Sequence[Outcome]) -> list[Cell]:
    seconds = [call.seconds for call in calls]
    return [name, len(calls), *(1000 * percentile(seconds, share) for share in (0.5, 0.95, 0.99))]


if __name__ == "__main__":
    main()
