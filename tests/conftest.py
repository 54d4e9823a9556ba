"""The artifacts of tiny models, exported once a run for every folder of tests; the chaos tests' summary."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

import tiny_models
from chaos.tally import TALLY, Tally

# Servers of the tests are on this machine; proxies are for pip.
os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), "localhost,127.0.0.1,::1"]))

# How long an example takes depends on what else the machine does.
settings.register_profile("seqenc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqenc")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all processes of a run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def tiny_bert(run_folder: Path) -> Path:
    """The checkpoint's folder; its artifact is beside it."""
    return export_once(run_folder / "tiny_bert", tiny_models.write_tiny_bert, "tiny-bert")


@pytest.fixture(scope="session")
def tiny_artifact(tiny_bert: Path) -> Path:
    return tiny_bert.with_name("tiny-bert")


@pytest.fixture(scope="session")
def tiny_native(run_folder: Path) -> Path:
    """The same for an encoder of our own format."""
    return export_once(run_folder / "tiny_native", tiny_models.write_tiny_native, "tiny-native")


def export_once(folder: Path, write_checkpoint: Callable[[Path], object], name: str) -> Path:
    checkpoint = folder / "checkpoint"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            write_checkpoint(checkpoint)
            command = [
                Path(sys.executable).with_name("seqenc-model"),
                "export",
                checkpoint,
                "--out",
                folder / name,
            ]
            subprocess.run(command, check=True, capture_output=True)
    return checkpoint


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's tally to the process that writes the summary; fail a run in CI that skipped tests."""
    tally = session.config.stash.get(TALLY, None)
    if tally and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["chaos"] = tally.write()
    if os.environ.get("CI") and _skipped(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skipped(config: pytest.Config) -> int:
    """Return how many tests were skipped, in the process that writes the summary."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", [])) if reporter else 0


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if written := getattr(node, "workeroutput", {}).get("chaos"):
        node.config.stash.setdefault(TALLY, Tally()).add(written)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if tally := config.stash.get(TALLY, None):
        terminalreporter.write_line(f"chaos: {tally}")
    if os.environ.get("CI") and (count := _skipped(config)):
        terminalreporter.write_line(f"{count} tests skipped; CI skips none: install what they need", red=True)
