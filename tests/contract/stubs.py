"""Writes the Python stubs of protos/ into the packages that ship them, or checks the committed ones."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.toolchains import ROOT, protoc_folder

MESSAGES = ("python_out", "pyi_out")
# grpcio-tools 1.62 has no wheels for later ones.
RUNS_HERE = sys.version_info < (3, 13)


@dataclass(frozen=True, slots=True)
class Stubs:
    """A .proto under protos/, the folder below which its stubs keep its path, and which stubs are wanted."""

    proto: str
    package_root: str
    outputs: tuple[str, ...]

    def generate(self, folder: Path) -> None:
        run_protoc(self.proto, *(f"--{output}={folder}" for output in self.outputs))

    def stale(self) -> Iterator[str]:
        """Committed files, relative to the root, that protoc would write otherwise."""
        with tempfile.TemporaryDirectory() as folder:
            self.generate(Path(folder))
            for fresh in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                committed = ROOT / self.package_root / fresh.relative_to(folder)
                if not committed.is_file() or committed.read_bytes() != fresh.read_bytes():
                    yield str(committed.relative_to(ROOT))


ALL_STUBS = (
    Stubs("seqenc/v1/encoder.proto", "client", (*MESSAGES, "grpc_python_out")),
    Stubs("inference/open_inference.proto", "service/api", MESSAGES),
)


def run_protoc(proto: str, *flags: str) -> None:
    command = (sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"), *flags, proto)
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(protoc_folder())})


def stale_stubs() -> list[str]:
    return [file for stubs in ALL_STUBS for file in stubs.stale()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not RUNS_HERE:
        print("stubs are written and checked with Python 3.11 or 3.12: not done", file=sys.stderr)
        return 1 if options.write else 0
    if options.write:
        for stubs in ALL_STUBS:
            stubs.generate(ROOT / stubs.package_root)
        return 0
    for file in (stale := stale_stubs()):
        print(f"{file} is not what protos/ gives; run `make proto` and commit it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
