"""What keeps a server from starting: one clear line, a non-zero exit, and never ready."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.server_process import LOCAL, run_seqenc, start_server

Damage = Callable[[Path], None]


@pytest.fixture
def copy(tiny_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_artifact, tmp_path / "copy"))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def sign(folder: Path, name: str) -> None:
    """Makes the manifest agree with an altered file."""
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for entry in (*manifest["files"], *manifest["graphs"]):
        if entry["file"] == name:
            entry["sha256"] = digest
    (folder / "manifest.json").write_text(json.dumps(manifest))


def swap_selfcheck_vectors(folder: Path) -> None:
    path = folder / "selfcheck.json"
    content = json.loads(path.read_text())
    first, second = content["cases"][:2]
    first["pooled_mean"], second["pooled_mean"] = second["pooled_mean"], first["pooled_mean"]
    path.write_text(json.dumps(content))
    sign(folder, path.name)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def flip(name: str) -> Damage:
    return lambda folder: flip_last_byte(folder / name)


def overwrite(name: str, data: str, *, signed: bool) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_text(data)
        if signed:
            sign(folder, name)

    return damage


def edit(**changes: Any) -> Damage:
    """Sets fields of the manifest; None takes one out."""

    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        manifest = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in manifest.items() if value is not None}))

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no manifest": (remove("manifest.json"), "manifest.json cannot be read"),
    "manifest of no JSON": (overwrite("manifest.json", "{", signed=False), "not valid JSON"),
    "newer schema": (edit(schema_version=2), "schema_version 2"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json cannot be read"),
    "no graph": (remove("encoder.fused.onnx"), "encoder.fused.onnx cannot be read"),
    "no weights": (remove("weights.fp32.bin"), "weights.fp32.bin cannot be read"),
    "other weights": (flip("weights.fp32.bin"), "weights.fp32.bin has sha256"),
    "other graph of maps": (flip("attention.fp32.onnx"), "attention.fp32.onnx has sha256"),
    "other vectors": (flip("selfcheck.json"), "selfcheck.json has sha256"),
    "tokenizer of no JSON": (overwrite("tokenizer.json", "{", signed=True), "tokenizer.json cannot be read"),
    "graph of no ONNX": (overwrite("encoder.fused.onnx", "onnx", signed=True), "cannot load"),
    "self-check of no cases": (overwrite("selfcheck.json", "{}", signed=True), "selfcheck.json"),
    "vectors of another model": (swap_selfcheck_vectors, "self-check failed"),
}


@pytest.mark.parametrize("case", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_artifact(copy: Path, case: tuple[Damage, str]) -> None:
    damage, text = case
    damage(copy)
    with start_server(copy, wait=False) as server:
        assert server.wait() == 1
    lines = [event["line"] for event in server.events if not event["event"]]
    assert len(lines) == 1, server.events
    assert lines[0].startswith("seqenc: ")
    assert text in lines[0]
    assert not any(event["event"] == "ready" for event in server.events)


def test_maps_that_are_not_loaded_may_be_missing(copy: Path) -> None:
    (copy / "attention.fp32.onnx").unlink()
    with start_server(copy, "--attention-maps", "false") as server:
        assert server.is_running


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["--lane", "1"], "--lane"),
        (["--lanes", "0"], "--lanes"),
        (["--precision", "fp8"], "--precision"),
        (["--max-message-bytes", "4294967296"], "--max-message-bytes"),
        (["--attention-maps=perhaps"], "--attention-maps"),
        (["--attention-maps", "perhaps"], "perhaps"),
        (["--drain-timeout-s", "-1"], "--drain-timeout-s"),
        (["--max-inputs", "10", "--max-queued-inputs", "9"], "--max-queued-inputs 9"),
        (["--lanes"], "--lanes"),
        (["stray"], "stray"),
    ],
    ids=" ".join,
)
def test_wrong_flags(tiny_artifact: Path, flags: list[str], text: str) -> None:
    check_usage(run_seqenc("serve", "--artifact", tiny_artifact, *LOCAL, *flags), text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEQENC_NO_SUCH_FLAG", "1"),
        ("SEQENC_LANES", "many"),
        ("SEQENC_ATTENTION_MAPS", "perhaps"),
        ("SEQENC_PORTS", "1"),
    ],
)
def test_wrong_variables(tiny_artifact: Path, name: str, value: str) -> None:
    check_usage(run_seqenc("serve", "--artifact", tiny_artifact, *LOCAL, environment={name: value}), name)


def test_an_artifact_is_required() -> None:
    check_usage(run_seqenc("serve"), "--artifact")


@pytest.mark.parametrize(
    ("flag", "address"),
    [
        ("--grpc-address", "127.0.0.1:99999"),
        ("--grpc-address", ":50051"),
        ("--http-address", "127.0.0.1:http"),
        ("--http-address", "9090"),
        ("--health-address", ""),
    ],
)
def test_addresses_that_are_none(tiny_artifact: Path, flag: str, address: str) -> None:
    check_usage(run_seqenc("serve", "--artifact", tiny_artifact, *LOCAL, f"{flag}={address}"), flag)


@pytest.mark.parametrize("flag", ["--grpc-address", "--http-address"])
def test_addresses_of_other_machines(tiny_artifact: Path, flag: str) -> None:
    with start_server(tiny_artifact, flag, "192.0.2.1:50051", wait=False) as server:
        assert server.wait() == 1
    (line,) = [event["line"] for event in server.events if not event["event"]]
    assert f"{flag} 192.0.2.1:50051 cannot be used" in line


def check_usage(ended: subprocess.CompletedProcess[str], text: str) -> None:
    assert ended.returncode == 2
    *usage, line = ended.stderr.splitlines()
    assert all(above.startswith(("usage: ", " ")) for above in usage)
    assert line.startswith("seqenc")
    assert text in line
    assert not ended.stdout


def test_settings_come_from_flags_then_variables(tiny_artifact: Path) -> None:
    environment = {
        "SEQENC_LANES": "3",
        "SEQENC_MAX_INPUTS": "7",
        "SEQENC_SERVICE_HOST": "10.0.0.1",
        "SEQENC_PORT": "tcp://10.0.0.1:50051",
        "SEQENC_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    with start_server(tiny_artifact, "--lanes", "1", environment=environment) as server:
        settings = server.wait_for("starting")
        assert (settings["lanes"], settings["max_inputs"]) == (1, 7)
        assert server.metrics()["lanes",] == 1
    assert len([event for event in server.events if event["event"] == "starting"]) == 1
