"""Virtual environments of the peers, each with pinned versions, made once under build/peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.worker import ROOT

FOLDER = ROOT / "build" / "peers"
_REQUIREMENTS = ROOT / "tests" / "bench" / "peer_requirements"


class SetupError(RuntimeError):
    """A peer cannot be installed here; the message is the installer's last line."""


def prepare(environment: str) -> Path:
    """The environment's bin folder, installed first where that is still to be done."""
    folder = FOLDER / environment
    requirements = _REQUIREMENTS / f"{environment}.txt"
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"installing {requirements.name} into {folder}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        # The file lists everything, so that nothing is resolved anew.
        _run([str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", "-r", str(requirements)])
        installed.write_text(requirements.read_text())
    return folder / "bin"


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise SetupError(f"{' '.join(command[:3])}: {lines[-1] if lines else 'no message'}")
