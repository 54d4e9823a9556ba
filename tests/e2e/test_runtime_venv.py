"""What is installed for serving: no PyTorch, no ONNX, no transformers, and everything that a server needs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.server_process import LOCAL, ServerProcess, clean_environment

ROOT = Path(__file__).parents[2]
SOURCES = ("model", "service", "seqenc_process.py", "client", "pyproject.toml", "README.md", "LICENSE")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
ENCODE = """
import sys
from seqenc import Client
with Client(sys.argv[1]) as client:
    print(client.encode("The bank of the river was muddy.").embeddings.shape)
"""


def pip(runtime: Path, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """Run this interpreter's pip on the environment, which has none of its own."""
    command = [sys.executable, "-m", "pip", "--python", runtime / "python", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment's bin folder, with the server as an operator installs it."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_SOURCES)
        else:
            shutil.copy(ROOT / name, folder)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    install = ["install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", "./client", ".[cpu]"]
    pip(venv / "bin", *install, cwd=folder)
    return venv / "bin"


@pytest.fixture
def runtime_server(runtime: Path, tiny_artifact: Path) -> Iterator[ServerProcess]:
    flags = ["--log-format", "json", *LOCAL]
    command: list[str | Path] = [runtime / "seqenc", "serve", "--artifact", tiny_artifact, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment()) as process:
        yield ServerProcess(process)
        process.kill()


def test_nothing_of_build_time_is_installed(runtime: Path) -> None:
    listing = pip(runtime, "list", "--format", "json")
    installed = {package["name"].lower() for package in json.loads(listing)}
    assert {"seqenc", "seqenc-client", "onnxruntime"} <= installed
    assert installed.isdisjoint({"torch", "onnx", "onnxscript", "transformers", "safetensors"})
    pip(runtime, "check")


def test_the_packages_are_whole(runtime: Path) -> None:
    (site,) = runtime.parent.glob("lib/python*/site-packages")
    sources = runtime.parents[1]
    assert _files(site, "model") == _files(sources, "model")
    assert _files(site, "service") == _files(sources, "service")
    assert _files(site, "seqenc") == _files(sources / "client", "seqenc")
    assert not (site / "tests").exists()
    assert list(site.glob("seqenc-*.dist-info/licenses/LICENSE"))


def test_serves_and_stops(runtime: Path, runtime_server: ServerProcess) -> None:
    runtime_server.wait_for("ready")
    encode: list[str | Path] = [runtime / "python", "-c", ENCODE, runtime_server.grpc_address]
    encoded = subprocess.run(encode, capture_output=True, text=True, check=True)
    assert encoded.stdout == "(1, 32)\n"
    runtime_server.process.send_signal(signal.SIGTERM)
    assert runtime_server.wait() == 0


def _files(root: Path, package: str) -> set[Path]:
    files = {path.relative_to(root) for path in (root / package).rglob("*") if path.is_file()}
    return {path for path in files if path.suffix != ".pyc"}
