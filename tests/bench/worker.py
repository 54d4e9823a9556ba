"""A contender in a process of its own, asked and answered in lines of JSON; idle between two questions.

Needs nothing but the standard library, so that it also runs in the virtual environments of peers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
Handler = Callable[..., Any]
# The root first: the folders tests/service and tests/model must not shadow the packages.
_MODULES = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


class WorkerError(RuntimeError):
    """The worker could not start or could not answer."""


class Worker:
    """Runs `python -m module`, which calls `answer_questions`; what it prints goes to `log`."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _MODULES, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer; raises WorkerError with the worker's own words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps([question, arguments]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"the worker ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["result"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()


def answer_questions(handlers: Mapping[str, Handler]) -> None:
    """Serves a Worker until it closes. Prints of libraries must not end up among the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question, arguments = json.loads(line)
        try:
            answer = {"result": handlers[question](**arguments)}
        except Exception as error:
            answer = {"error": f"{question}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
