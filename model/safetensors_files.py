"""The safetensors files of a checkpoint folder -> float32 tensors under our names; never opens a pickle."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.files import FileFormatError, is_there, read_json
from model.names import WeightNames

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The same weights in another precision, which transformers reads only when it is asked for by name.
_VARIANT = re.compile(r"model\..+\.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# What training leaves beside the weights.
_TRAINING_STATE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state\w*)\.\w+")
_TENSORFLOW_OR_FLAX = ("*.h5", "*.msgpack", "*.ckpt.index")
_CONVERTED = ("*.gguf", "*.onnx", "*.mlmodel", "*.tflite")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Names and shapes in one error.
_MOST_NAMED = 8


class WeightsError(ValueError):
    """Weights that cannot be loaded; the message names the file or the weights."""


def read_weights(folder: Path, names: WeightNames, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Our names -> tensors of exactly the shapes asked for.

    What is missing, unexpected or of another shape is named, in the checkpoint's own words.
    """
    weights: dict[str, Tensor] = {}
    unexpected: list[str] = []
    for name, tensor in _read_files(folder):
        ours = names.ours(name)
        if ours is None:
            if not names.is_unused(name):
                unexpected.append(name)
        elif ours in weights:
            raise WeightsError(f"the weight {name} is there twice, under two names")
        else:
            weights[ours] = _as_float32(name, tensor)
    _check(weights, unexpected, names, shapes)
    return weights


def _read_files(folder: Path) -> Iterator[tuple[str, Tensor]]:
    single, indexed = is_there(folder / WEIGHTS), is_there(folder / INDEX)
    if single and indexed:
        raise WeightsError(f"{folder} has both {WEIGHTS} and {INDEX}; remove the one that is out of date")
    if single:
        _refuse_unread(folder, {WEIGHTS})
        yield from _read_file(folder / WEIGHTS)
    elif indexed:
        files = _indexed_files(folder)
        _refuse_unread(folder, {path.name for path, _ in files})
        for path, names in files:
            yield from _read_file(path, names)
    else:
        raise WeightsError(_why_none(folder))


def _refuse_unread(folder: Path, read: set[str]) -> None:
    others = [name for name in _named(folder, ("*.safetensors",)) if not _VARIANT.fullmatch(name)]
    if unread := [name for name in others if name not in read]:
        raise WeightsError(
            f"{folder} has {_list(unread)} beside {_list(sorted(read))}, and nothing says whether they "
            "belong to the model; remove them if they do not"
        )


def _why_none(folder: Path) -> str:
    neither = f"{folder} has neither {WEIGHTS} nor {INDEX}"
    if others := _named(folder, ("*.safetensors",)):
        return (
            f"{neither}, but {_list(others)}; rename the file that holds all weights to {WEIGHTS}, or "
            "restore the index of its parts"
        )
    if pickled := [name for name in _named(folder, _PICKLED) if not _TRAINING_STATE.fullmatch(name)]:
        return (
            f"{folder} has only pickled weights ({_list(pickled)}), which can run code when opened. "
            'Convert them where you trust them: python -c "from transformers import AutoModel; '
            "AutoModel.from_pretrained('FOLDER').save_pretrained('FOLDER')\" writes model.safetensors"
        )
    if foreign := _named(folder, _TENSORFLOW_OR_FLAX):
        return (
            f"{folder} has only weights of TensorFlow or Flax ({_list(foreign)}). Convert them with "
            'transformers before version 5: python -c "from transformers import AutoModel; '
            "AutoModel.from_pretrained('FOLDER', from_tf=True).save_pretrained('FOLDER')\" writes "
            "model.safetensors; from_flax=True in place of from_tf=True for Flax"
        )
    if converted := _named(folder, _CONVERTED):
        return f"{neither}, only {_list(converted)}; export the checkpoint that was converted into that"
    return neither


def _named(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted(path.name for pattern in patterns for path in folder.glob(pattern))


def _indexed_files(folder: Path) -> list[tuple[Path, set[str]]]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileFormatError(f"{folder / INDEX} has no weight_map")
    files: dict[str, set[str]] = {}
    for weight, file in weight_map.items():
        files.setdefault(str(file), set()).add(weight)
    for file in files:
        if Path(file).name != file:
            raise WeightsError(f"{INDEX} names {file!r}, which is not a file of its own folder")
        if not is_there(folder / file):
            raise WeightsError(f"{INDEX} names {file}, which is missing from {folder}")
    return [(folder / file, weights) for file, weights in sorted(files.items())]


def _read_file(path: Path, indexed: set[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            absent = sorted((indexed or set()) - present)
            if absent:
                raise WeightsError(f"{path.name} lacks {_list(absent)}, which {INDEX} places there")
            for name in sorted(present):
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error


def _as_float32(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in _FLOATS:
        raise WeightsError(f"weight {name} is {tensor.dtype}; supported: float16, bfloat16, float32, float64")
    tensor = tensor.to(torch.float32)
    if not tensor.isfinite().all():
        raise WeightsError(f"weight {name} holds NaN or infinity")
    return tensor


def _check(
    found: Mapping[str, Tensor], unexpected: list[str], names: WeightNames, shapes: Mapping[str, torch.Size]
) -> None:
    problems = []
    if missing := sorted(names.theirs(name) for name in set(shapes) - set(found)):
        problems.append(f"missing weights: {_list(missing)}")
    if unexpected:
        problems.append(f"unexpected weights: {_list(unexpected)}")
    misshapen = [name for name in sorted(found) if found[name].shape != shapes[name]]
    problems += [
        f"weight {names.theirs(name)} is {tuple(found[name].shape)}, by config.json {tuple(shapes[name])}"
        for name in misshapen[:_MOST_NAMED]
    ]
    if problems:
        raise WeightsError("; ".join(problems))


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
