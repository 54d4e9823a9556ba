"""What the engine of a server under test can be told to do wrong."""

from __future__ import annotations

import enum

# A batch with this token fails, always: the tiny model's [MASK], which no text has.
POISON_ID = 4
SLOW_S = 0.2


class Fault(enum.StrEnum):
    """HANG does not heed being stopped, and lasts until NONE is asked for; DIE ends the lane's thread; SLOW
    takes SLOW_S longer.
    """

    NONE = "none"
    RAISE = "raise"
    SHAPE = "shape"
    SLOW = "slow"
    HANG = "hang"
    DIE = "die"
