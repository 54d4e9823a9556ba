"""`seqenc` with an engine that fails on command: lines `FAULT COUNT` on standard input.

Each is answered by how many batches were struck so far. LAST_ANSWERS_S in the environment is how long the end
waits for what was told to end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from chaos.faults import POISON_ID, SLOW_S, Fault
from service import server
from service.cli import main
from service.core.collation import BatchArrays
from service.core.engine import Engine
from service.types import Array

Run = Callable[..., dict[str, Array]]


class LaneDied(BaseException):
    """What no `except Exception` catches."""


class FaultyEngine:
    """Stands before `Engine.run`; the fault asked for last strikes as often as was asked."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._fault = Fault.NONE
        self._left = 0
        self._go_on = threading.Event()
        self.struck = 0
        self._shapes = 0

    def ask(self, fault: Fault, count: int) -> None:
        with self._lock:
            self._fault, self._left = fault, count
            if fault is Fault.NONE:
                self._go_on.set()
            elif fault is Fault.HANG:
                self._go_on.clear()

    def run(self, engine: Engine, graph: str, arrays: BatchArrays, *rest: Any) -> dict[str, Array]:
        if (arrays.input_ids == POISON_ID).any():
            raise RuntimeError("poison")
        fault = self._next_fault()
        if fault is Fault.RAISE:
            raise RuntimeError("the engine failed")
        if fault is Fault.DIE:
            raise LaneDied
        if fault is Fault.HANG:
            self._go_on.wait()
        if fault is Fault.SLOW:
            time.sleep(SLOW_S)
        outputs = self._run(engine, graph, arrays, *rest)
        return self._misshape(outputs) if fault is Fault.SHAPE else outputs

    def _next_fault(self) -> Fault:
        with self._lock:
            if not self._left:
                return Fault.NONE
            self._left -= 1
            self.struck += 1
            return self._fault

    def _misshape(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """A row or a column too few or too many, or all but one."""
        self._shapes += 1
        changes: tuple[Callable[[Array], Array], ...] = (
            lambda array: array[:-1],
            lambda array: np.concatenate([array, array[:1]]),
            lambda array: array[..., :-1],
            lambda array: array[..., :1],
            lambda array: array[..., None],
        )
        change = changes[self._shapes % len(changes)]
        return {name: change(array) for name, array in outputs.items()}


def obey(engine: FaultyEngine, commands: TextIO) -> None:
    for line in commands:
        fault, count = line.split()
        engine.ask(Fault(fault), int(count))
        print(engine.struck, flush=True)


if __name__ == "__main__":
    if last_answers_s := os.environ.get("LAST_ANSWERS_S"):
        server._LAST_ANSWERS_S = float(last_answers_s)
    faulty = FaultyEngine(Engine.run)
    Engine.run = lambda *arguments: faulty.run(*arguments)  # type: ignore[method-assign]
    threading.Thread(target=obey, args=(faulty, sys.stdin), daemon=True).start()
    sys.exit(main())
