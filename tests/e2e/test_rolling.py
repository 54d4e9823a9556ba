"""Servers come and go under load: by a rolling update, by kill -9, and by scaling up."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.connection_balancer import balance_connections
from e2e.fleet import Fleet, start_fleet
from e2e.haproxy import run_haproxy
from e2e.open_load import WAIT_S, OpenLoad, Retries, open_load
from seqenc import Client

CONNECTION_AGE_S = 2.0


@pytest.fixture
def fleet(tiny_artifact: Path) -> Iterator[Fleet]:
    with start_fleet(tiny_artifact, 3) as fleet:
        yield fleet


@pytest.fixture
def haproxy() -> str:
    path = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if path is None:
        pytest.skip("needs haproxy, of Debian's package haproxy")
    return path


def use_all(client: Client, fleet: Fleet) -> None:
    """Calls until every server has been reached, so that all connections stand."""
    while not all(fleet.requests()):
        client.encode("a text")


def replace_all(fleet: Fleet, client: Client) -> None:
    """One after the other, each with calls in flight, and no call may fail."""
    with open_load(client) as load:
        for place in range(len(fleet.servers)):
            load.wait_for_more(20)
            fleet.replace(place, lambda: load.wait_for_more(10))
        load.wait_for_more(60)
    assert load.failures == {}


def test_a_rolling_update_loses_no_call(fleet: Fleet) -> None:
    with Client(fleet.addresses, deadline_s=30) as client:
        use_all(client, fleet)
        replace_all(fleet, client)
        use_all(client, fleet)


def test_a_rolling_update_behind_haproxy_loses_no_call(fleet: Fleet, haproxy: str, tmp_path: Path) -> None:
    with run_haproxy(haproxy, fleet, tmp_path) as address, Client(address, deadline_s=30) as client:
        use_all(client, fleet)
        replace_all(fleet, client)
        use_all(client, fleet)


def hold_calls(client: Client, fleet: Fleet, callers: Executor) -> list[Future[Any]]:
    """Twelve calls, of which four stay with the first server, which stands still."""
    use_all(client, fleet)
    fleet.servers[0].process.send_signal(signal.SIGSTOP)
    calls = [callers.submit(client.encode, "a text") for _ in range(12)]
    while sum(call.done() for call in calls) < 8:
        pass
    return calls


def test_calls_in_flight_end_where_they_are(tiny_artifact: Path) -> None:
    retries = Retries()
    with (
        start_fleet(tiny_artifact, 3, "--drain-delay-s", "600") as fleet,
        Client(fleet.addresses, deadline_s=60, retry=retries.policy) as client,
        ThreadPoolExecutor(12) as callers,
    ):
        calls = hold_calls(client, fleet, callers)
        old = fleet.servers[0]
        old.process.send_signal(signal.SIGTERM)
        old.process.send_signal(signal.SIGCONT)
        old.wait_for("draining")
        assert all(len(call.result().results) == 1 for call in calls)
        assert retries.count == 0


def test_kill_9_fails_only_calls_in_flight_and_they_are_retried(fleet: Fleet) -> None:
    retries = Retries()
    with (
        Client(fleet.addresses, deadline_s=60, retry=retries.policy) as client,
        ThreadPoolExecutor(12) as callers,
    ):
        calls = hold_calls(client, fleet, callers)
        assert retries.count == 0
        fleet.servers[0].process.kill()
        assert all(len(call.result().results) == 1 for call in calls)
        assert retries.count == 4
        for _ in range(30):
            client.encode("a text")
        assert retries.count == 4


def newest_share(fleet: Fleet, load: OpenLoad) -> float:
    """Of the calls that are answered while this load has twenty answered."""
    before = fleet.requests()
    load.wait_for_more(20)
    answered = [after - earlier for earlier, after in zip(before, fleet.requests(), strict=True)]
    return answered[-1] / sum(answered)


def test_a_server_that_is_added_gets_its_share_within_the_connection_age(tiny_artifact: Path) -> None:
    flags = ("--max-connection-age-s", str(CONNECTION_AGE_S))
    with (
        start_fleet(tiny_artifact, 2, *flags) as fleet,
        balance_connections(fleet.addresses) as balancer,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Client(balancer.address, deadline_s=30)) for _ in range(6)]
        loads = [stack.enter_context(open_load(client, 10)) for client in clients]
        loads[0].wait_for_more(10)
        fleet.add()
        balancer.backends.append(fleet.addresses[-1])
        until = time.monotonic() + WAIT_S
        # Even shares would be a third.
        while newest_share(fleet, loads[0]) < 1 / 6:
            assert time.monotonic() < until
        assert all(load.failures == {} for load in loads)
