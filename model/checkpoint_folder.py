"""Refuses a checkpoint folder for what stands in it, would change the vectors and is not read here."""

from pathlib import Path

from model.files import is_there, read_json
from model.serving_defaults import Layout

_ADAPTERS = ("adapter_config.json", "adapter_model.*", "pytorch_adapter.bin", "pytorch_lora_weights.*")
_SENTENCE_TRANSFORMERS = (
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "[0-9]_*/config.json",
)


class CheckpointError(ValueError):
    """The message names the file or folder and says what to do."""


def check_folder(folder: Path, layout: Layout) -> None:
    """Raise CheckpointError for the first such thing, FileFormatError for a file that was never fetched."""
    encoder = layout.encoder_folder
    for part in dict.fromkeys((folder, encoder, layout.pooling_folder or folder)):
        _refuse_adapter(part)
        for path in (*sorted(part.glob("*.json")), part / "vocab.txt"):
            is_there(path)
    if not (encoder / "config.json").is_file():
        raise CheckpointError(_why_no_checkpoint(encoder))
    for file in ("config.json", "tokenizer_config.json"):
        _refuse_own_code(encoder / file)
    if not layout.is_sentence_transformer:
        _refuse_leftovers(folder)


def _refuse_adapter(folder: Path) -> None:
    if found := _named(folder, _ADAPTERS):
        raise CheckpointError(
            f"{folder} has an adapter ({', '.join(found)}), which is not applied here. Merge the adapter "
            'first: python -c "from transformers import AutoModel; from peft import PeftModel; '
            f"PeftModel.from_pretrained(AutoModel.from_pretrained('BASE'), '{folder}')"
            ".merge_and_unload().save_pretrained('MERGED')\"; add the tokenizer's files and export MERGED"
        )


def _refuse_own_code(path: Path) -> None:
    """`auto_map` names classes in Python files of the checkpoint, which transformers runs when told to."""
    if path.is_file() and (auto_map := read_json(path).get("auto_map")):
        raise CheckpointError(
            f"{path}: auto_map = {auto_map!r} names code of the checkpoint's own, which is never run; if "
            "the model is a plain BERT without that code, remove auto_map"
        )


def _refuse_leftovers(folder: Path) -> None:
    if found := _named(folder, _SENTENCE_TRANSFORMERS):
        raise CheckpointError(
            f"{folder} has {', '.join(found)} of sentence-transformers, but no modules.json, which says "
            "how they are used; copy the whole model, or remove them for mean pooling without more"
        )


def _why_no_checkpoint(folder: Path) -> str:
    if (folder / "manifest.json").is_file():
        return f"{folder} is an artifact; name the checkpoint that it was exported from"
    inner = sorted([*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")])
    example = f", such as {inner[0].parent}" if inner else ""
    return f"{folder} has no config.json; name the folder that a model's save_pretrained wrote{example}"


def _named(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted({str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern)})
