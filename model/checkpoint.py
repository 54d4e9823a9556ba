"""A checkpoint folder -> an Encoder with its tokenizer and defaults, and an Encoder -> our own format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model.checkpoint_folder import check_folder
from model.config import ConfigError, EncoderConfig, require_family
from model.encoder import Encoder
from model.files import read_json
from model.names import WeightNames
from model.safetensors_files import WEIGHTS, read_weights
from model.serving_defaults import NATIVE_FIELDS, ServingDefaults, read_defaults, read_layout
from model.tokenizer import largest_id, load_tokenizer
from model.unknown_token import check_unknown_token


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    family: str
    encoder: Encoder
    tokenizer: Tokenizer
    defaults: ServingDefaults

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config


def load_checkpoint(folder: Path) -> Checkpoint:
    """An encoder in evaluation mode, in float32. Errors are ValueErrors that say what is wrong and where."""
    layout = read_layout(folder)
    check_folder(folder, layout)
    values = read_json(layout.encoder_folder / "config.json")
    family = require_family(values)
    config = _read_config(family, values)
    defaults = read_defaults(
        folder, layout, max_positions=config.max_positions, hidden_size=config.hidden_size
    )
    tokenizer = load_tokenizer(layout.encoder_folder, lowercase=defaults.lowercase)
    tokenizer_file = layout.encoder_folder / "tokenizer.json"
    check_unknown_token(tokenizer, tokenizer_file.name if tokenizer_file.is_file() else "vocab.txt")
    _check_vocabulary(tokenizer, config)
    encoder = _load_encoder(layout.encoder_folder, family, config)
    return Checkpoint(family=family, encoder=encoder, tokenizer=tokenizer, defaults=defaults)


def save_checkpoint(
    encoder: Encoder, tokenizer: Tokenizer, folder: Path, *, defaults: ServingDefaults | None = None
) -> None:
    """Writes our own format, which `load_checkpoint` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": "seqenc", **encoder.config.to_dict()}
    if defaults is not None:
        values |= {name: getattr(defaults, name) for name in NATIVE_FIELDS}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    weights = {name: tensor.detach().contiguous() for name, tensor in encoder.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    tokenizer.save(str(folder / "tokenizer.json"))


def _read_config(family: str, values: Mapping[str, Any]) -> EncoderConfig:
    if family == "bert":
        return EncoderConfig.from_bert(values)
    others = {"model_type", *NATIVE_FIELDS}
    return EncoderConfig.from_dict({name: value for name, value in values.items() if name not in others})


def _check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig) -> None:
    largest = largest_id(tokenizer)
    if largest >= config.vocabulary_size:
        raise ConfigError(
            f"the tokenizer gives ids up to {largest}, the encoder has {config.vocabulary_size} token "
            f"vectors; remove {tokenizer.id_to_token(largest)!r} and its like from the tokenizer, or give "
            "the model vectors for them (resize_token_embeddings)"
        )


def _load_encoder(folder: Path, family: str, config: EncoderConfig) -> Encoder:
    with torch.device("meta"):
        encoder = Encoder(config)
    shapes = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    weights = read_weights(folder, WeightNames(family, shapes), shapes)
    encoder.load_state_dict(weights, assign=True)
    return encoder.eval().requires_grad_(False)
