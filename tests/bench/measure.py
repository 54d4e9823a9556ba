"""Interleaved rounds and what is said of them: medians, spread, and ratios of the same round.

The machine may be shared and its speed drifts, so that only values of one round are comparable.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Contender = Callable[[], float]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Sample:
    """One contender's values, one a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of one value: itself twice."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a share of the median."""
        low, high = self.quartiles
        return (high - low) / 2 / self.median

    def over(self, other: Sample) -> Sample:
        """The ratio to another contender, round by round."""
        return Sample(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    def times(self, factor: float) -> Sample:
        return Sample(tuple(value * factor for value in self.values))


def interleave(contenders: Mapping[Name, Contender], rounds: int) -> dict[Name, Sample]:
    """Each contender once a round, in an order that is reversed from round to round, after one warm-up."""
    for contender in contenders.values():
        contender()
    values: dict[Name, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            values[name].append(contenders[name]())
    return {name: Sample(tuple(found)) for name, found in values.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]
