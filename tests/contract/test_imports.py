"""Importing does nothing else, and loads none of what the service and the client must run without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).with_name("import_probe.py")
BUILD_TIME = {"model", "torch", "onnx", "onnxscript", "transformers", "safetensors", "huggingface_hub"}
NOT_FOR_CLIENTS = BUILD_TIME | {"service", "onnxruntime", "tokenizers", "pydantic", "rich"}


@pytest.fixture(scope="module", params=["service", "seqenc"])
def imported(request: pytest.FixtureRequest) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", str(PROBE), request.param]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found | {"package": request.param}


def test_loads_nothing_it_must_run_without(imported: dict[str, Any]) -> None:
    unwanted = BUILD_TIME if imported["package"] == "service" else NOT_FOR_CLIENTS
    assert unwanted.isdisjoint(imported["modules"])


def test_the_probe_saw_the_package(imported: dict[str, Any]) -> None:
    own = [name for name in imported["modules"] if name.split(".")[0] == imported["package"]]
    assert len(own) > 5


def test_reads_no_environment(imported: dict[str, Any]) -> None:
    assert imported["environment_readers"] == []


def test_starts_and_configures_nothing(imported: dict[str, Any]) -> None:
    assert imported["sessions"] == 0
    assert imported["log_handlers"] == []
    assert imported["threads"] == ["MainThread"]
