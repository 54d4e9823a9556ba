"""By how much time is left, a caller left because its time was up or for reasons of its own."""

from __future__ import annotations

import pytest

from service.core.deadline import is_over


@pytest.mark.parametrize(
    ("remaining_s", "given_s", "over"),
    [
        (-1, 0, True),
        (0, 60, True),
        (0.019, 0, True),
        (0.021, 0, False),
        (0.119, 10, True),
        (0.121, 10, False),
        (60, 60, False),
    ],
)
def test_a_hundredth_and_the_way_to_the_server_are_allowed_for(
    remaining_s: float, given_s: float, over: bool
) -> None:
    assert is_over(remaining_s, given_s) is over
