"""The texts of a measurement are as many as its report says."""

from __future__ import annotations

import pytest

from bench.workload import texts_of


@pytest.mark.parametrize("count", [0, 1, 2000, 4096])
def test_as_many_texts_as_asked_for(count: int) -> None:
    assert len(texts_of(count)) == count


def test_texts_come_again_after_the_last() -> None:
    texts = texts_of(2001)
    assert texts[2000] == texts[0]
    assert texts[:2000] == texts_of(2000)
