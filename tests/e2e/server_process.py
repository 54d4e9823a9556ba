"""A `seqenc serve` process and what can be seen of it from outside: log, exit code, HTTP address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from seqenc.v1.encoder_pb2_grpc import EncoderServiceStub

BIN = Path(sys.executable).parent
LOCAL = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
START_S = 60.0
# Twice the drain's timeout: a call that meets the moment in which gRPC closes may be left until then.
END_S = 60.0
_MIB = 1 << 20


class ServerProcess:
    """`events` are the log's lines as JSON objects, read from the start on a thread of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._log_ended = False
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def grpc_address(self) -> str:
        return str(self.wait_for("listening", "grpc_address")["grpc_address"])

    @property
    def http_address(self) -> str:
        return str(self.wait_for("listening", "http_address")["http_address"])

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def resident_mib(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / _MIB

    def wait_for(self, event: str, field: str = "event", timeout_s: float = START_S) -> dict[str, Any]:
        """The first log line of that event that has the field."""

        def find() -> dict[str, Any] | None:
            lines = (line for line in self.events if line["event"] == event and field in line)
            return next(lines, None)

        with self._changed:
            self._changed.wait_for(lambda: find() or self._log_ended, timeout_s)
            if found := find():
                return found
        raise AssertionError(f"no log line {event!r} with {field!r}; the log is {self.events}")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the HTTP address."""
        try:
            with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=START_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name, without the prefix, and its labels' values, sorted by label."""
        _, page = self.get("/metrics")
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return {
            (sample.name.removeprefix("seqenc_"), *sample.labels.values()): sample.value for sample in samples
        }

    def wait(self, timeout_s: float = END_S) -> int:
        """The exit code, once the whole log has been read."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._append(_parse(line))
        with self._changed:
            self._log_ended = True
            self._changed.notify_all()

    def _append(self, event: dict[str, Any]) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


def _parse(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"event": "", "line": line.rstrip("\n")}


@contextmanager
def start_server(
    artifact: Path, *flags: str, environment: dict[str, str] | None = None, wait: bool = True
) -> Iterator[ServerProcess]:
    """Starts a server, waits until it is ready unless told not to, and kills it at the end."""
    command: list[str | Path] = [
        BIN / "seqenc",
        "serve",
        "--artifact",
        artifact,
        "--log-format",
        "json",
        *LOCAL,
        *flags,
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=clean_environment() | (environment or {})
    )
    with process:
        try:
            server = ServerProcess(process)
            if wait:
                server.wait_for("ready")
            yield server
        finally:
            process.kill()


@contextmanager
def connect(server: ServerProcess) -> Iterator[Any]:
    """A stub of EncoderService, without the client in between."""
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        yield EncoderServiceStub(channel)  # type: ignore[no-untyped-call]


def run_seqenc(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command that is expected to end by itself."""
    return subprocess.run(
        [BIN / "seqenc", *arguments],
        capture_output=True,
        text=True,
        timeout=START_S,
        env=clean_environment() | (environment or {}),
        check=False,
    )


def clean_environment() -> dict[str, str]:
    """This process's, without settings of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SEQENC_")}
