"""A real server process whose engine can be told to fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.faults import Fault
from chaos.tally import Tally
from e2e.server_process import LOCAL, ServerProcess, clean_environment

TESTS = Path(__file__).parents[1]


class ChaosServer(ServerProcess):
    def __init__(self, process: subprocess.Popen[str], tally: Tally) -> None:
        super().__init__(process)
        self.tally = tally
        self._struck = 0

    def inject(self, fault: Fault, count: int = 1) -> int:
        """The next `count` batches are to be struck; counts and returns how many were until then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{fault} {count}\n")
        self.process.stdin.flush()
        struck = int(self.process.stdout.readline())
        self.tally.faults += struck - self._struck
        self._struck = struck
        return struck

    @property
    def gauges(self) -> dict[str, float]:
        """Of what is in work; all 0 when nothing is."""
        metrics = self.metrics()
        names = ("queued_inputs", "queued_tokens", "inflight_requests", "busy_lanes")
        return {name: metrics[name,] for name in names}

    @property
    def worst_events(self) -> list[str]:
        """What it logged as critical."""
        return [event["event"] for event in self.events if event.get("level") == "critical"]


@contextmanager
def start_chaos_server(
    artifact: Path, tally: Tally, *flags: str | Path, last_answers_s: float | None = None
) -> Iterator[ChaosServer]:
    """`last_answers_s` is how long its end waits for what was told to end; by default the server's own."""
    # gRPC is loaded here before `main` says that it is to be silent.
    environment = {"PYTHONPATH": str(TESTS), "GRPC_VERBOSITY": "NONE"}
    if last_answers_s is not None:
        environment["LAST_ANSWERS_S"] = str(last_answers_s)
    command: list[str | Path] = [sys.executable, "-m", "chaos.launcher", "serve", "--artifact", artifact]
    process = subprocess.Popen(
        [*command, "--log-format", "json", "--lanes", "2", *LOCAL, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | environment,
    )
    with process:
        try:
            server = ChaosServer(process, tally)
            server.wait_for("ready")
            yield server
            if server.is_running:
                server.inject(Fault.NONE, 0)
        finally:
            process.kill()
