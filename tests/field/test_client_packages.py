"""The client runs beside old releases of protobuf and grpcio, and so beside whatever else needs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Generated code that needs a later release refuses at import, and asks these for it.
IMPORT = """
import sys
import grpc
from google.protobuf import runtime_version, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

runtime_version.MAJOR, runtime_version.MINOR, runtime_version.PATCH = map(int, sys.argv[1].split("."))
grpc.__version__ = sys.argv[2]
import seqenc
import service.api.inference.open_inference_pb2
print(seqenc.Client("localhost:1"))
"""


def lower_bound(pyproject: str, package: str) -> tuple[int, ...]:
    project = tomllib.loads((ROOT / pyproject).read_text())["project"]
    (line,) = (line for line in project["dependencies"] if re.split("[<>=]", line)[0] == package)
    match = re.search(r">=([\d.]+)", line)
    assert match
    return tuple(map(int, match[1].split(".")))


def test_it_asks_for_no_recent_release() -> None:
    assert lower_bound("client/pyproject.toml", "protobuf") <= (4, 25, 8)
    assert lower_bound("client/pyproject.toml", "grpcio") <= (1, 59)
    assert lower_bound("client/pyproject.toml", "numpy") <= (1, 26)
    assert lower_bound("pyproject.toml", "protobuf") <= (4, 25, 8)


def test_its_stubs_accept_the_oldest_that_it_asks_for() -> None:
    bounds = (
        ".".join(map(str, lower_bound("client/pyproject.toml", name))) for name in ("protobuf", "grpcio")
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT, *bounds],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
