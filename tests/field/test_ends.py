"""How commands end: the exit status for a signal at every moment, and for output that cannot be written."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

import pytest

from e2e.server_process import BIN, LOCAL, START_S, ServerProcess, clean_environment, start_server

# It loads for some seconds: each lane has sessions of its own.
SLOW_START = ("--lanes", "64", "--threads-per-lane", "2", "--memory-limit-bytes", str(1 << 50))
ENDS = {SIGTERM: 143, SIGINT: 130}


@contextmanager
def running(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **{"env": clean_environment(), **pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def held_imports(tmp_path: Path) -> dict[str, str]:
    """An environment in which the first large import says so on standard error and does not end."""
    for name in ("pydantic", "numpy", "rich"):
        lines = ("import os, threading", "os.write(2, b'held\\n')", "threading.Event().wait()")
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
    return clean_environment() | {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (("seqenc", "serve"), {SIGTERM: 0, SIGINT: 0, SIGHUP: 0}),
        (("seqenc", "job"), ENDS),
        (("seqenc-model", "export", "default", "--out", "x"), ENDS),
    ],
)
def test_a_signal_during_the_imports(
    held_imports: dict[str, str], command: tuple[str, ...], ends: dict[signal.Signals, int]
) -> None:
    for number, status in ends.items():
        with running(BIN / command[0], *command[1:], env=held_imports) as process:
            assert process.stderr
            assert process.stderr.readline() == "held\n"
            process.send_signal(number)
            assert process.stderr.read() == ""
            assert process.wait(START_S) == status


def test_process_1_hears_sigterm_during_the_imports(held_imports: dict[str, str]) -> None:
    """The kernel drops a signal that process 1 has no handler for."""
    isolated = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    if not shutil.which("unshare") or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("this machine lends no process namespace")
    with running(*isolated, BIN / "seqenc", "serve", env=held_imports) as process:
        assert process.stderr
        assert process.stderr.readline() == "held\n"
        (inner,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(inner), SIGTERM)
        assert process.wait(START_S) == 0


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_signal_while_the_model_is_loaded(tiny_artifact: Path, number: int) -> None:
    with start_server(tiny_artifact, *SLOW_START, "--drain-delay-s", "3600", wait=False) as server:
        server.wait_for("memory planned")
        server.process.send_signal(number)
        assert server.wait() == 0
        assert server.events[-1]["event"] == "stopped before it was ready"


def test_a_start_that_takes_too_long(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact, *SLOW_START, "--warmup-timeout-s", "0.1", wait=False) as server:
        assert server.wait() == 1
        (line,) = [event["line"] for event in server.events if not event["event"]]
        assert "raise --warmup-timeout-s" in line


def test_sighup_drains_unless_it_was_ignored_from_the_start(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact) as server:
        server.process.send_signal(SIGHUP)
        assert server.wait() == 0
        server.wait_for("stopped")
    command = ("nohup", BIN / "seqenc", "serve", "--artifact", tiny_artifact, "--log-format", "json", *LOCAL)
    with running(*command) as process:
        server = ServerProcess(process)
        server.wait_for("ready")
        process.send_signal(SIGHUP)
        assert server.get("/readyz") == (200, "ready\n")
        process.send_signal(SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("command", ["encode", "job"])
@pytest.mark.parametrize("number", ENDS)
def test_a_signal_while_a_server_does_not_answer(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n")
    what = {"encode": ("a text",), "job": (texts, "--out", tmp_path / "out")}[command]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with running(BIN / "seqenc", command, *what, "--address", address) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(number)
                _, err = process.communicate(timeout=START_S)
    assert process.returncode == ENDS[number]
    assert err.splitlines()[-1].startswith("seqenc: interrupted")
    assert "Traceback" not in err


@pytest.mark.parametrize("module", ["service.cli", "model.cli"])
def test_a_module_is_its_command(module: str) -> None:
    with running(sys.executable, "-m", module, "nonsense") as process:
        _, err = process.communicate()
    assert process.returncode == 2
    assert "invalid choice: 'nonsense'" in err


COMMANDS = [("seqenc", "--version"), ("seqenc-model", "--help")]


def run_onto(command: tuple[str, ...], stdout: int) -> tuple[int, str]:
    environment = clean_environment()
    environment.pop("PYTHONUNBUFFERED", None)
    with running(BIN / command[0], *command[1:], stdout=stdout, env=environment) as process:
        _, err = process.communicate()
    return process.returncode, err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        status, err = run_onto(command, full.fileno())
    assert status == 1
    assert err == f"{command[0]}: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_left(command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run_onto(command, write) == (1, "")
    finally:
        os.close(write)


def test_a_job_without_standard_streams(tiny_artifact: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n")
    job = (BIN / "seqenc", "job", texts, "--out", tmp_path / "out", "--artifact", tiny_artifact)
    with running("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *job) as process:
        assert process.wait(START_S) == 0
    assert (tmp_path / "out" / "part-00000.parquet").exists()
