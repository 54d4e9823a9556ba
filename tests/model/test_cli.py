"""The command as its user sees it: exit codes, and one clear line for what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from folders import Editable, Exported
from model.cli import main


def test_export_reports_its_stages_and_equals_another_export(
    native_artifact: Exported, tiny_native: Path, tmp_path: Path
) -> None:
    """In a process of its own, as the other: what tests do to PyTorch's threads moves last digits."""
    target = tmp_path / "tiny-native"
    command = [Path(sys.executable).with_name("seqenc-model"), "export", tiny_native, "--out", target]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{target}: tiny-native, revision ")
    assert "wrote encoder.fused.onnx" in done.stderr
    for path in native_artifact.folder.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_name_is_that_of_the_directory(tiny_artifact: Path) -> None:
    assert json.loads((tiny_artifact / "manifest.json").read_text("utf-8"))["name"] == tiny_artifact.name


@pytest.mark.parametrize(
    ("source", "message"),
    [("./no/such", "neither a folder nor a Hub id"), ("{existing}", "exists; choose another --out")],
)
def test_refusals_are_one_line(
    source: str, message: str, native_artifact: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = native_artifact.folder if "existing" in source else tmp_path / "out"
    assert main(["export", source, "--out", str(out)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("seqenc-model export: ")
    assert message in last


def test_verify(native_artifact: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(native_artifact.folder)]) == 0
    assert "everything is as the manifest says" in capsys.readouterr().out


def test_verify_says_what_is_off(
    native_artifact: Exported, editable: Editable, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = editable(native_artifact.folder)
    (copy.path / "tokenizer.json").write_text("{}")
    assert main(["verify", str(copy.path)]) == 1
    assert "seqenc-model verify: tokenizer.json is damaged" in capsys.readouterr().err


def test_verify_runs_without_pytorch(native_artifact: Exported) -> None:
    program = (
        "import sys; from model.cli import main; "
        f"code = main(['verify', {str(native_artifact.folder)!r}]); "
        "sys.exit(code or int('torch' in sys.modules))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True).returncode == 0


def test_info(native_artifact: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(native_artifact.folder)]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "tiny-native",
        "sinusoidal" if False else "max_positions",
        "encoder.fused.onnx",
        "1.000000",
    ):
        assert expected in shown


def test_info_as_json(native_artifact: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(native_artifact.folder), "--json"]) == 0
    manifest = json.loads((native_artifact.folder / "manifest.json").read_text("utf-8"))
    assert json.loads(capsys.readouterr().out) == manifest


@pytest.mark.parametrize("command", ["verify", "info"])
def test_a_folder_that_is_no_artifact(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 1
    assert "is not an artifact" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["export"], ["export", "default"], ["fly"], ["info", "a", "--xml"]]
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: seqenc-model" in capsys.readouterr().err
