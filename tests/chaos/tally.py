"""What the chaos tests did and found, in one line at the end of the run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest


@dataclass
class Tally:
    """`lost`: calls that were never answered; `wrong`: vectors that are not their text's."""

    calls: int = 0
    faults: int = 0
    wrong: int = 0
    lost: int = 0
    codes: Counter[str] = field(default_factory=Counter)

    def count(self, code: str) -> None:
        """The one outcome of a call."""
        self.calls += 1
        self.codes[code] += 1

    def add(self, written: str) -> None:
        """What another process did, as its `write` gave it."""
        other = json.loads(written)
        self.codes.update(other.pop("codes"))
        for name, count in other.items():
            setattr(self, name, getattr(self, name) + count)

    def write(self) -> str:
        return json.dumps(vars(self))

    def __str__(self) -> str:
        codes = ", ".join(f"{code} {count:,}" for code, count in self.codes.most_common())
        return (
            f"calls {self.calls:,} ({codes}), faults injected {self.faults:,}, "
            f"wrong answers {self.wrong}, lost calls {self.lost}"
        )


TALLY = pytest.StashKey[Tally]()
