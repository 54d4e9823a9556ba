"""Runs an image that buildah has as a cluster would, and reports its size and its time to ready.

User 10001, a read-only root, no network but loopback, process 1 of a namespace of its own. Needs root and
buildah: `make image-test`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MIB = 1 << 20
_USER = 10001
_MAX_BYTES = 400 * 10**6
# The shell is the check's own way in; the image needs none.
_ENTER = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount --bind /dev "$ROOT/dev"
mount -o remount,ro,bind "$ROOT"
ip link set lo up
exec env -i $VARIABLES chroot --userspec=10001:10001 "$ROOT" "$@"
"""


class CheckError(Exception):
    """What the image does not do as it should."""


class Running:
    """The image's own command, in namespaces of its own; `process` is their outer end."""

    def __init__(self, process: subprocess.Popen[bytes], variables: dict[str, str]) -> None:
        self.process = process
        self._variables = variables

    @property
    def pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            raise CheckError(f"the server did not start, status {self.process.poll()}")
        return int(children[0])

    def run(self, *command: str, user: int = _USER) -> subprocess.CompletedProcess[str]:
        """Runs a command of the image beside the server."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root"]
        enter += ["--setuid", str(user), "--setgid", str(user), "--"]
        return subprocess.run(
            [*enter, *command], env=self._variables, capture_output=True, text=True, check=False
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    image = parser.parse_args().image
    try:
        check(image)
    except CheckError as error:
        print(f"image-test: {error}", file=sys.stderr)
        return 1
    return 0


def check(image: str) -> None:
    config = json.loads(_buildah("inspect", "--type", "image", image))["Docker"]["config"]
    _require(config["User"] == f"{_USER}:{_USER}", f"it runs as {config['User']}")
    _require("Healthcheck" in config, "it has no health check")
    with _mounted(image) as root:
        _check_size(root)
        started = time.monotonic()
        with _started(root, config) as server:
            _wait_until_ready(server)
            print(f"ready after {time.monotonic() - started:.1f} s")
            _require(server.run(*config["Healthcheck"]["Test"][1:]).returncode == 0, "its health check fails")
            _check_encodes(server)
            _check_is_closed(server)
            os.kill(server.pid, signal.SIGTERM)
            status = server.process.wait(60)
            _require(status == 0, f"it ends with status {status} after SIGTERM")
    print("encodes as a user without rights, without a network, and ends with status 0")


def _buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def _mounted(image: str) -> Iterator[Path]:
    container = _buildah("from", "--pull-never", image)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


@contextmanager
def _started(root: Path, config: dict[str, Any]) -> Iterator[Running]:
    variables = dict(entry.split("=", 1) for entry in config["Env"])
    own = {"PATH": os.environ["PATH"], "ROOT": str(root), "VARIABLES": " ".join(config["Env"])}
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
    command += [*config["Entrypoint"], *config["Cmd"]]
    with subprocess.Popen(command, env=own, stderr=subprocess.PIPE) as process:
        try:
            yield Running(process, variables)
        finally:
            process.kill()


def _check_size(root: Path) -> None:
    server, model = _bytes_of(root / "opt" / "seqenc"), _bytes_of(root / "artifacts")
    base = _bytes_of(root) - server - model
    print(f"size: base {base / _MIB:.0f} MiB, server {server / _MIB:.0f} MiB, model {model / _MIB:.0f} MiB")
    # The official base is 130 MB; the one at hand may be fatter.
    _require(server + min(base, 130 * 10**6) < _MAX_BYTES, "it is over 400 MB without the model")


def _bytes_of(folder: Path) -> int:
    size = subprocess.run(["du", "-sxb", folder], check=True, capture_output=True, text=True).stdout
    return int(size.split()[0])


def _wait_until_ready(server: Running) -> None:
    log = []
    assert server.process.stderr
    for line in server.process.stderr:
        log.append(line.decode())
        if " ready " in log[-1]:
            return
    raise CheckError(f"it ended before it was ready: {''.join(log)}")


def _check_encodes(server: Running) -> None:
    text = "The bank of the river was muddy."
    encoded = server.run("seqenc", "encode", "--format", "jsonl", text)
    _require(encoded.returncode == 0, f"it does not encode: {encoded.stderr}")
    _require(len(json.loads(encoded.stdout)["embedding"]) > 0, "it gives an empty vector")


def _check_is_closed(server: Running) -> None:
    status = Path(f"/proc/{server.pid}/status").read_text()
    _require(f"Uid:\t{_USER}\t{_USER}" in status, "the server does not run as its user")
    _require(f"CapEff:\t{0:016x}" in status, "the server has capabilities")
    for path in ("/opt/seqenc/x", "/artifacts/model/x", "/x"):
        _require(server.run("/usr/bin/touch", path, user=0).returncode != 0, f"{path} can be written")
    python = "/opt/seqenc/bin/python3"
    for module in ("torch", "transformers", "onnx", "pip"):
        _require(server.run(python, "-c", f"import {module}").returncode != 0, f"{module} is installed")
    reach = "import socket; socket.create_connection(('192.0.2.1', 443), 2)"
    _require(server.run(python, "-c", reach).returncode != 0, "it has a network")


def _require(kept: bool, complaint: str) -> None:
    if not kept:
        raise CheckError(complaint)


if __name__ == "__main__":
    sys.exit(main())
