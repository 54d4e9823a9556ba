"""The README's examples run as they are written, print what they say, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.server_process import BIN, ServerProcess, clean_environment
from seqenc import SeqencError
from service.errors import ServiceError, TryLaterError

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^\.venv/bin/seqenc ((?:encode|attend) .*)$", TEXT, re.MULTILINE)
LINKS = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
# What an example says it prints: after a print at the margin, up to a colon, or alone on a line.
SHOWN = re.compile(r"^print\(.*\)  # ([^:\n]+)|^# (.+)$", re.MULTILINE)


@pytest.mark.parametrize("example", PYTHON)
def test_python_prints_what_it_says(example: str, server: ServerProcess) -> None:
    code = example.replace("localhost:50051", server.grpc_address)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for after_print, alone in SHOWN.findall(example):
        assert (after_print or alone) in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str, server: ServerProcess) -> None:
    environment = clean_environment() | {"SEQENC_ADDRESS": server.grpc_address}
    result = subprocess.run(
        [BIN / "seqenc", *shlex.split(command)], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("link", LINKS)
def test_link_leads_somewhere(link: str) -> None:
    assert (README.parent / link).exists()


@pytest.mark.parametrize("error", [*ServiceError.__subclasses__(), *TryLaterError.__subclasses__()])
def test_every_reason_is_listed(error: type[ServiceError]) -> None:
    assert f"`{error.reason}`" in TEXT


@pytest.mark.parametrize("error", SeqencError.__subclasses__())
def test_every_error_of_the_client_is_listed(error: type[SeqencError]) -> None:
    assert f"`{error.__name__}`" in TEXT


def test_examples_were_found() -> None:
    assert len(PYTHON) >= 3
    assert len(COMMANDS) >= 2
    assert len(LINKS) >= 10
