"""What a checkpoint says about its use: pooling, normalisation, limits and prompts.

Read from the files of sentence-transformers where there are some, else from our own fields in config.json.
Whatever would change a vector and cannot be served is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.config import ConfigError
from model.files import is_there, read_json, read_json_list

POOLING_MODES = ("cls", "mean", "max", "last", "none")
NATIVE_FIELDS = ("pooling", "normalize", "max_tokens", "prompts", "default_prompt_name")

# sentence-transformers' names, in the order in which it would concatenate several.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING_NAMES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
# sentence-transformers reads the first of these that there is.
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Keys of sentence_bert_config.json that change nothing for an encoder of text.
_HARMLESS_TRANSFORMER_KEYS = {"max_seq_length", "do_lower_case", "unpad_inputs"}
_TRANSFORMER_KEYS_WITH_VALUE = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
}
# transformers writes this number, or larger ones, for "no limit".
_NO_LIMIT = 10**6


@dataclass(frozen=True, kw_only=True)
class ServingDefaults:
    """`max_tokens` counts special tokens and is at most the encoder's max_positions."""

    pooling: str = "mean"
    normalize: bool = False
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    lowercase: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in POOLING_MODES:
            raise ConfigError(
                f"pooling {self.pooling!r} is not supported; supported: {', '.join(POOLING_MODES)}"
            )
        if not isinstance(self.normalize, bool):
            raise ConfigError(f"normalize is {self.normalize!r}; it must be true or false")
        if not isinstance(self.prompts, Mapping):
            raise ConfigError(f"prompts is {self.prompts!r}; it must map names to texts")
        for name, prompt in self.prompts.items():
            if not isinstance(prompt, str):
                raise ConfigError(f"prompt {name!r} is {prompt!r}; it must be text")
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ConfigError(
                f"default_prompt_name {self.default_prompt_name!r} is none of the prompts: "
                f"{', '.join(sorted(self.prompts)) or 'there are none'}"
            )


@dataclass(frozen=True)
class Layout:
    """Where a checkpoint keeps its encoder and tokenizer, and its sentence-transformers modules, if any."""

    encoder_folder: Path
    pooling_folder: Path | None = None
    normalize: bool = False
    is_sentence_transformer: bool = False


def read_layout(folder: Path) -> Layout:
    """From modules.json: Transformer, then at most one Pooling, then at most one Normalize."""
    if not is_there(folder / "modules.json"):
        return Layout(encoder_folder=folder)
    modules = [
        (_module_kind(entry), folder / str(entry.get("path", "")))
        for entry in read_json_list(folder / "modules.json")
    ]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(
            f"modules.json lists {', '.join(kinds) or 'nothing'}; "
            "supported: Transformer, then Pooling, then Normalize"
        )
    if "Normalize" in kinds:
        _check_normalize(modules[2][1])
    return Layout(
        encoder_folder=modules[0][1],
        pooling_folder=modules[1][1] if "Pooling" in kinds else None,
        normalize="Normalize" in kinds,
        is_sentence_transformer=True,
    )


def read_defaults(folder: Path, layout: Layout, *, max_positions: int, hidden_size: int) -> ServingDefaults:
    """A folder without modules.json: our own fields of config.json, else mean pooling, not normalised."""
    limit = _token_limit(layout.encoder_folder, max_positions)
    if not layout.is_sentence_transformer:
        own = {
            name: value for name, value in read_json(folder / "config.json").items() if name in NATIVE_FIELDS
        }
        own["max_tokens"] = _max_tokens(own.get("max_tokens"), limit, max_positions)
        return ServingDefaults(**own)
    paths = [layout.encoder_folder / name for name in _TRANSFORMER_FILES]
    path = next((path for path in paths if path.is_file()), paths[0])
    transformer = _read_optional(path)
    _check_transformer(path.name, transformer)
    settings = _read_optional(folder / "config_sentence_transformers.json")
    _require("config_sentence_transformers.json", "model_type", settings, "SentenceTransformer")
    return ServingDefaults(
        pooling=_pooling(layout.pooling_folder, hidden_size),
        normalize=layout.normalize,
        max_tokens=_max_tokens(transformer.get("max_seq_length"), limit, max_positions),
        prompts=settings.get("prompts") or {},
        default_prompt_name=settings.get("default_prompt_name"),
        lowercase=bool(transformer.get("do_lower_case")),
    )


def _module_kind(entry: Mapping[str, Any]) -> str:
    """The class name of a module, refused unless it is one of sentence-transformers' that is served here."""
    package, _, kind = str(entry.get("type", "")).rpartition(".")
    if package.split(".")[0] != "sentence_transformers" or kind not in (
        "Transformer",
        "Pooling",
        "Normalize",
    ):
        raise ConfigError(
            f"modules.json: module {entry.get('type')!r} is not supported; "
            "supported: Transformer, Pooling, Normalize"
        )
    return kind


def _token_limit(folder: Path, max_positions: int) -> int:
    tokenizer = _read_optional(folder / "tokenizer_config.json")
    stated = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    if isinstance(stated, int) and 0 < stated < _NO_LIMIT:
        return min(stated, max_positions)
    return max_positions


def _max_tokens(stated: object, limit: int, max_positions: int) -> int:
    """What the checkpoint states, within its positions; else the tokenizer's limit."""
    if stated is None:
        return limit
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 1:
        raise ConfigError(f"the token limit is {stated!r}; it must be a whole number of at least 1")
    return min(stated, max_positions)


def _check_transformer(where: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in _TRANSFORMER_KEYS_WITH_VALUE:
            _require(where, name, values, _TRANSFORMER_KEYS_WITH_VALUE[name])
        elif name == "modality_config":
            _check_modality(where, value)
        elif name not in _HARMLESS_TRANSFORMER_KEYS and value:
            raise ConfigError(f"{where}: {name} = {value!r} is not supported")


def _check_modality(where: str, modalities: Mapping[str, Any]) -> None:
    expected = {"method": "forward", "method_output_name": "last_hidden_state"}
    if modalities.get("text") != expected:
        raise ConfigError(
            f"{where}: modality_config for text is {modalities.get('text')!r}; supported: {expected}"
        )


def _check_normalize(folder: Path) -> None:
    values = _read_optional(folder / "config.json")
    for name in ("module_input_name", "module_output_name"):
        _require(f"{folder.name}/config.json", name, values, "sentence_embedding")


def _pooling(folder: Path | None, hidden_size: int) -> str:
    if folder is None:
        return "none"
    values = read_json(folder / "config.json")
    where = f"{folder.name}/config.json"
    _require(where, "include_prompt", values, True)
    for name in ("word_embedding_dimension", "embedding_dimension"):
        _require(where, name, values, hidden_size)
    modes = _pooling_modes(values)
    if len(modes) != 1:
        raise ConfigError(
            f"{where}: several poolings at once ({', '.join(modes)}) are not supported; choose one"
        )
    if modes[0] not in _POOLING_NAMES:
        raise ConfigError(
            f"{where}: pooling {modes[0]!r} is not supported; supported: {', '.join(_POOLING_NAMES)}"
        )
    return _POOLING_NAMES[modes[0]]


def _pooling_modes(values: Mapping[str, Any]) -> list[str]:
    """From `pooling_mode` (one name or several) or the older flags. Neither: mean."""
    named = values.get("pooling_mode")
    if named:
        return [named] if isinstance(named, str) else list(named)
    unknown = [name for name in values if name.startswith("pooling_mode_") and name not in _POOLING_FLAGS]
    if unknown:
        raise ConfigError(f"pooling flags {', '.join(unknown)} are not known")
    return [mode for flag, mode in _POOLING_FLAGS.items() if values.get(flag)] or ["mean"]


def _require(where: str, name: str, values: Mapping[str, Any], expected: object) -> None:
    value = values.get(name)
    if value is not None and value != expected:
        raise ConfigError(f"{where}: {name} = {value!r} is not supported; supported: {expected!r}")


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if is_there(path) else {}
