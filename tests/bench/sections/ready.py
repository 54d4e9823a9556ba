"""Time from the command to a server that answers, with the artifact in the file cache."""

from __future__ import annotations

import time

from bench.context import Context
from bench.measure import interleave
from bench.report import Check, Section, Table

_LIMIT_S = {"openvino": 8.0}


def measure(context: Context) -> Section:
    def start() -> float:
        started = time.perf_counter()
        with context.server():
            return time.perf_counter() - started

    seconds = interleave({"start": start}, context.rounds)["start"]
    table = Table(f"Time to ready ({context.setting})", ("seconds",), [[seconds]])
    limit = _LIMIT_S.get(context.provider, 3.0)
    return Section("ready", [table], [Check("time to ready", seconds.median, limit, "at most", " s")])
