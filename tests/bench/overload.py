"""`python -m bench.overload`: what is still answered at three times the load that the server can take.

Calls of 16 texts in an open loop, against the peak that a closed loop gets in the same round. Refusals must
come at once, and health must stay SERVING.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.context import Context
from bench.load import build_requests, poisson_arrivals
from bench.measure import Sample, percentile
from bench.outcomes import Outcome, closed_loop, connect, encode_of, open_loop
from bench.report import Check, Section, Table
from bench.run import add_setting, run_alone
from bench.workload import texts_of

TEXTS = 16
CALLERS = 8
OVERLOAD = 3.0
# A second or two of work: what waits longer is of little use to its caller.
FLAGS = ("--max-inputs", "256", "--max-queued-inputs", "256")
_PROBE_INTERVAL_S = 0.1
_PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Round:
    """Rates in texts a second; `overloaded` are the calls at OVERLOAD times the peak."""

    peak: float
    goodput: float
    overloaded: list[Outcome]
    health: Counter[str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.overload", description=__doc__)
    add_setting(parser)
    run_alone("overload", parser.parse_args(), lambda context: [measure(context)])


def measure(context: Context) -> Section:
    requests = build_requests(texts_of(2000), TEXTS)
    seconds = 8.0 if context.quick else 20.0
    with context.server(*FLAGS) as server:
        asyncio.run(_peak(server.grpc_address, requests, seconds))
        rounds = [
            asyncio.run(_measure_round(server.grpc_address, requests, seconds, seed))
            for seed in range(context.rounds)
        ]
    return _section(context, rounds)


async def _measure_round(address: str, requests: Sequence[bytes], seconds: float, seed: int) -> Round:
    peak = await _peak(address, requests, seconds)
    if not peak:
        raise RuntimeError(f"no call was answered in {seconds} s; the machine is too busy to measure")
    arrivals = poisson_arrivals(OVERLOAD * peak / TEXTS, seconds, seed=seed)
    health: Counter[str] = Counter()
    async with connect(address) as channel, connect(address) as probes:
        watching = asyncio.ensure_future(_watch_health(probes, health))
        outcomes = await open_loop(encode_of(channel), requests, arrivals)
        watching.cancel()
    return Round(peak, _rate(outcomes), outcomes, health)


async def _peak(address: str, requests: Sequence[bytes], seconds: float) -> float:
    async with connect(address) as channel:
        return _rate(await closed_loop(encode_of(channel), requests, CALLERS, seconds))


def _rate(outcomes: Sequence[Outcome]) -> float:
    """Texts a second from the first call to the last answer: what waits in the queue at the end counts."""
    answered = [call.ended for call in outcomes if call.code == "OK"]
    return TEXTS * len(answered) / max(answered, default=1.0)


async def _watch_health(channel: grpc.aio.Channel, found: Counter[str]) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    while True:
        begun = time.perf_counter()
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=_PROBE_TIMEOUT_S)
            found[health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)] += 1
        except grpc.aio.AioRpcError as error:
            found[error.code().name] += 1
        await asyncio.sleep(max(0.0, begun + _PROBE_INTERVAL_S - time.perf_counter()))


def _section(context: Context, rounds: Sequence[Round]) -> Section:
    peak = Sample(tuple(found.peak for found in rounds))
    goodput = Sample(tuple(found.goodput for found in rounds))
    calls = [call for found in rounds for call in found.overloaded]
    refused = [call.seconds for call in calls if call.code == "RESOURCE_EXHAUSTED"]
    codes = Counter(call.code for call in calls)
    health = sum((found.health for found in rounds), Counter[str]())
    refused_ms = 1000 * percentile(refused, 0.99) if refused else 0.0
    return Section(
        "overload",
        [
            Table(
                f"Calls of {TEXTS} texts at {OVERLOAD:g} times the peak ({context.setting})",
                ("peak, texts/s", "answered, texts/s", "share, %", "calls", "refused, p99 ms"),
                [[peak, goodput, goodput.over(peak).times(100), len(calls), refused_ms]],
                (
                    f"Peak: {CALLERS} callers in a closed loop. Overload: Poisson arrivals in an open loop, "
                    f"on the server's own cores. Outcomes: {_list(codes)}. Health: {_list(health)}.",
                ),
            )
        ],
        [
            Check(
                "answered at three times the peak, share of it", goodput.over(peak).median, 0.85, "at least"
            ),
            Check("refused calls, share of all", len(refused) / len(calls), 0.3, "at least"),
            Check("time to refuse a call, p99", refused_ms, 50.0, "at most", " ms"),
            Check("health checks SERVING", health["SERVING"] / health.total(), 1.0, "at least"),
            Check("calls that failed in another way", len(calls) - codes["OK"] - len(refused), 0, "at most"),
        ],
    )


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
