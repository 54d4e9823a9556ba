"""Tools whose packages are not the server's, installed under build/ anew when what they need changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NODE_FILES = [HERE / "node" / name for name in ("package.json", "package-lock.json", "encode.mjs")]
TRITON_REQUIREMENTS = HERE / "tritonclient-requirements.txt"
PROTOC_REQUIREMENTS = HERE / "protoc-requirements.txt"


def tritonclient_python() -> Path:
    """The interpreter of a venv with tritonclient, which needs another protobuf than the server."""

    def install(venv: Path) -> None:
        _run(sys.executable, "-m", "venv", venv)
        pip = (venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "install", "--no-deps", "--requirement", TRITON_REQUIREMENTS)

    venv = install_once(ROOT / "build" / "venvs" / "tritonclient", [TRITON_REQUIREMENTS], install)
    return venv / "bin" / "python"


def protoc_folder() -> Path:
    """A folder for PYTHONPATH with grpc_tools, whose protoc is older than the installed protobuf."""

    def install(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "install", "--no-deps", "--target", folder, "--requirement", PROTOC_REQUIREMENTS)

    return install_once(ROOT / "build" / "protoc", [PROTOC_REQUIREMENTS], install)


def node_folder() -> Path:
    """The example for Node.js beside the packages it imports."""

    def install(folder: Path) -> None:
        for file in NODE_FILES:
            shutil.copy(file, folder)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder)

    return install_once(ROOT / "build" / "node", NODE_FILES, install)


def install_once(folder: Path, sources: Sequence[Path], install: Callable[[Path], None]) -> Path:
    """Anew where a source has changed or the last installation did not finish."""
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    done = folder / ".installed"
    if not done.is_file() or done.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install(folder)
        done.write_text(digest)
    return folder


def _run(*command: str | Path, folder: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=folder)
