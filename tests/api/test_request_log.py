"""Which calls get a line in the log, and what it says."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.calls_of_every_kind import METHODS
from api.own_server import TIMEOUT_S, serve_here, until
from service.api.request_log import RequestLog
from service.core.engine import Engine

ENCODE, STREAM = METHODS["Encode"], METHODS["EncodeStream"]


@dataclass
class Call:
    method: str = "Encode"
    code: str = "OK"
    input_count: int = 2
    tokenize_s: float = 0.01
    queue_s: float = 0.02
    inference_s: float = 0.03
    slowest_s: float = 0.06
    seconds: float = 0.07


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    calls = [record for record in log.records if record.name == "service.api.request_log"]
    return [{"event": record.getMessage(), **vars(record)["fields"]} for record in calls]


def test_a_line_says_where_the_time_went(log: pytest.LogCaptureFixture) -> None:
    RequestLog(1, 0).write(Call(), "00ff")
    (line,) = lines(log)
    assert line == {
        "event": "call",
        "method": "Encode",
        "code": "OK",
        "seconds": 0.07,
        "inputs": 2,
        "tokenize_s": 0.01,
        "queue_s": 0.02,
        "inference_s": 0.03,
        "trace_id": "00ff",
    }


@pytest.mark.parametrize(("rate", "least", "most"), [(0, 0, 0), (1, 1000, 1000), (0.25, 200, 300)])
def test_a_share_of_all_calls(log: pytest.LogCaptureFixture, rate: float, least: int, most: int) -> None:
    request_log = RequestLog(rate, 0, random.Random(0).random)
    for _ in range(1000):
        request_log.write(Call())
    assert least <= len(lines(log)) <= most


@pytest.mark.parametrize(
    ("call", "slow_call_s", "events"),
    [
        (Call(seconds=2), 1, ["slow call"]),
        (Call(seconds=1), 1, ["slow call"]),
        (Call(seconds=0.9), 1, []),
        (Call(seconds=1000), 0, []),
        (Call("EncodeStream", seconds=1000), 1, []),
        (Call("EncodeStream", seconds=1000, slowest_s=2), 1, ["slow call"]),
    ],
)
def test_slow_calls_are_always_named(
    log: pytest.LogCaptureFixture, call: Call, slow_call_s: float, events: list[str]
) -> None:
    RequestLog(0, slow_call_s).write(call)
    assert [line["event"] for line in lines(log)] == events


async def test_by_default_only_slow_calls(tiny_artifact: Path, log: pytest.LogCaptureFixture) -> None:
    async with serve_here(tiny_artifact, slow_call_s=TIMEOUT_S) as server, server.channel() as channel:
        assert await ENCODE.code(channel) == "OK"
    assert lines(log) == []


async def test_calls_of_a_server(tiny_artifact: Path, log: pytest.LogCaptureFixture) -> None:
    async with serve_here(tiny_artifact, log_sample_rate=1) as server, server.channel() as channel:
        for method in METHODS.values():
            assert await method.code(channel) == "OK"
        assert await ENCODE.code(channel, b"\xff") == "INVALID_ARGUMENT"
    found = lines(log)
    assert [line["method"] for line in found] == [*METHODS, "Encode"]
    assert [line["inputs"] for line in found] == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    assert found[-1]["code"] == "INVALID_ARGUMENT"
    for line in found:
        stages = line["tokenize_s"] + line["queue_s"] + line["inference_s"]
        assert 0 <= stages <= line["seconds"] + 1e-5
        assert bool(stages) == bool(line["inputs"])


@pytest.mark.parametrize("method", [ENCODE, STREAM], ids=lambda method: method.name)
async def test_a_call_that_expired_in_the_queue(
    tiny_artifact: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    """Its time went where it was when the time was up."""
    gate, run = threading.Event(), Engine.run

    def wait_and_run(*arguments: Any) -> Any:
        gate.wait(TIMEOUT_S)
        return run(*arguments)

    # However much time was left when the caller went, its time was up.
    monkeypatch.setattr("service.core.deadline._TRAVEL_S", TIMEOUT_S)
    settings = {"lanes": 1, "slow_call_s": 1e-6}
    async with serve_here(tiny_artifact, **settings) as server, server.channel() as channel:
        read = server.metrics.registry.get_sample_value
        monkeypatch.setattr(Engine, "run", wait_and_run)
        held = asyncio.ensure_future(ENCODE.code(channel))
        await until(lambda: read("seqenc_busy_lanes") == 1)
        expiring = asyncio.ensure_future(method.code(channel, timeout=TIMEOUT_S))
        await until(lambda: read("seqenc_queued_inputs") == 1)
        expiring.cancel()
        await until(lambda: len(lines(log)) == 1)
        gate.set()
        assert await held == "OK"
    first, second = lines(log)
    assert (first["event"], first["method"], first["code"]) == ("slow call", method.name, "DEADLINE_EXCEEDED")
    assert first["inference_s"] == 0
    assert 0 < first["queue_s"] <= second["inference_s"]
