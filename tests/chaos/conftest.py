"""How long to make trouble for, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.tally import TALLY, Tally

_SHORT_S = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-s", type=float, help="seconds of load for each fault; else a short form")


@pytest.fixture(scope="session")
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--chaos-s", default=None) or _SHORT_S)


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    return request.config.stash.setdefault(TALLY, Tally())


@pytest.fixture(autouse=True)
def _every_call_is_answered_right(tally: Tally) -> Iterator[None]:
    wrong, lost = tally.wrong, tally.lost
    yield
    assert (tally.wrong - wrong, tally.lost - lost) == (0, 0)
