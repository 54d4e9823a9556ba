"""Where the server's CPU time goes under load, by Linux's `perf`: shares of the libraries it is spent in."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.context import Context
from bench.load import build_requests
from bench.report import Cell, Check, Section, Table
from bench.sections.throughput import BULK_TEXTS
from bench.workload import texts_of

_LINE = re.compile(r"\s*([\d.]+)%\s+(\S+)")
# What a library belongs to, by a part of its name; the first that fits.
_PARTS = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "ONNX Runtime",
    "[JIT]": "ONNX Runtime",  # OpenVINO's products are code that it writes at run time
    "tokenizers": "tokenizers",
    "cygrpc": "gRPC",
    "_message": "protobuf",
    "multiarray": "NumPy",
    "python": "Python",
    "kernel": "kernel",
}
_REST = "libc and the rest"
_HERTZ = 499
_SETTLE_S = 2.0


def available() -> bool:
    return shutil.which("perf") is not None


def measure(context: Context) -> Section:
    seconds = 8.0 if context.quick else 30.0
    texts = texts_of(context.text_count)
    with context.server_and_load() as (server, load):
        bulk, single = build_requests(texts, BULK_TEXTS), build_requests(texts, 1)
        profiles = {
            f"calls of {BULK_TEXTS} texts": _profile(
                server.process.pid, seconds, lambda: load.closed(bulk, 4)
            ),
            "calls of one text": _profile(server.process.pid, seconds, lambda: load.closed(single, 32)),
        }
    parts = (*dict.fromkeys(_PARTS.values()), _REST)
    rows: list[list[Cell]] = [[part, *(100 * found[part] for found in profiles.values())] for part in parts]
    table = Table(
        f"The server's CPU time by library, % ({context.setting})",
        ("library", *profiles),
        rows,
        ("4 callers in bulk, 32 with one text a call. A call of libc counts as libc's, whoever makes it.",),
    )
    share = profiles[f"calls of {BULK_TEXTS} texts"]["ONNX Runtime"]
    return Section("profile", [table], [Check("share of ONNX Runtime in bulk", share, 0.85, "at least")])


def _profile(pid: int, seconds: float, put_load: Callable[[], object]) -> dict[str, float]:
    """Shares of CPU time by part, while the load is put on again and again."""
    settled = time.perf_counter() + _SETTLE_S
    while time.perf_counter() < settled:
        put_load()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "perf.data"
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(_HERTZ), "-o", str(data)]
        with subprocess.Popen([*command, "-p", str(pid), "--", "sleep", str(seconds)]) as recorder:
            while recorder.poll() is None:
                put_load()
        return _read_shares(data)


def _read_shares(data: Path) -> dict[str, float]:
    command = ["perf", "report", "-i", str(data), "--sort", "dso", "--stdio"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shares: dict[str, float] = defaultdict(float)
    for match in filter(None, map(_LINE.match, page.splitlines())):
        shares[_part(match[2])] += float(match[1]) / 100
    return shares


def _part(library: str) -> str:
    return next((part for mark, part in _PARTS.items() if mark in library), _REST)
