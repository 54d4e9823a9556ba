"""Turns keyword options into EncodeOptions messages; limits and combinations are the server's to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from seqenc.checks import check_bool, check_integer, check_text, kind
from seqenc.types import Attention, EncodeOptions, TokenizeOptions
from seqenc.v1 import encoder_pb2 as pb


def build_options(**options: Unpack[EncodeOptions]) -> pb.EncodeOptions:
    """Raise TypeError or ValueError that names the option and what is allowed."""
    _check_names("", options, EncodeOptions)
    return pb.EncodeOptions(
        pooling=_value(pb.Pooling, "POOLING", "pooling", options.get("pooling")),
        normalize=check_bool("normalize", options.get("normalize")),
        dimensions=_integer(options, "dimensions", "an int from 1 to the model's embedding_size"),
        embedding_type=_value(pb.DataType, "DATA_TYPE", "embedding_type", options.get("embedding_type")),
        truncation=_value(pb.Truncation, "TRUNCATION", "truncation", options.get("truncation")),
        max_tokens=_integer(options, "max_tokens", "an int from 1 to the model's max_positions"),
        prompt_name=check_text("prompt_name", options.get("prompt_name")),
        prompt=check_text("prompt", options.get("prompt")),
        token_embeddings=check_bool("token_embeddings", options.get("token_embeddings")),
        tokens=check_bool("tokens", options.get("tokens")),
        attention=_attention(options.get("attention")),
        on_error=_value(pb.OnError, "ON_ERROR", "on_error", options.get("on_error")),
        priority=_integer(options, "priority", "an int from -3 to 3"),
    )


def build_tokenize_options(**options: Unpack[TokenizeOptions]) -> pb.EncodeOptions:
    _check_names("", options, TokenizeOptions)
    return build_options(**options)


def pooling_name(value: int) -> str:
    return pb.Pooling.Name(value).removeprefix("POOLING_").lower()


def _attention(attention: object) -> pb.AttentionOptions | None:
    if attention is None or isinstance(attention, bool | np.bool_):
        return pb.AttentionOptions() if attention else None
    if not isinstance(attention, Mapping):
        raise TypeError(
            "attention: expected True, False or a dict of layers, heads, reduction and type, "
            f"not {kind(attention)}"
        )
    _check_names("attention: ", attention, Attention)
    reduction, data_type = attention.get("reduction"), attention.get("type")
    return pb.AttentionOptions(
        layers=_indices("attention layers", attention.get("layers")),
        heads=_indices("attention heads", attention.get("heads")),
        reduction=_value(pb.AttentionReduction, "ATTENTION_REDUCTION", "attention reduction", reduction),
        type=_value(pb.DataType, "DATA_TYPE", "attention type", data_type),
    )


def _indices(name: str, values: object) -> list[int]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if values is None:
        return []
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise TypeError(
            f"{name}: expected a list of ints, from 0, or from the last with -1, not {kind(values)}"
        )
    return [check_integer(f"{name}[{index}]", value, "an int") for index, value in enumerate(values)]


def _integer(options: Mapping[str, Any], name: str, allowed: str) -> int | None:
    value = options.get(name)
    return None if value is None else check_integer(name, value, allowed)


def _check_names(prefix: str, given: Mapping[str, Any], known: type) -> None:
    """known: a TypedDict, whose keys are the names that there are."""
    for name in given:
        if name not in known.__annotations__:
            shown = f" {name!r}" if isinstance(name, str) and name.isidentifier() else ""
            raise TypeError(
                f"{prefix}unexpected keyword{shown}: expected one of {', '.join(known.__annotations__)}"
            )


def _value(enum: Any, prefix: str, option: str, name: object) -> Any:
    """The enum's number for a name such as "mean"; its unspecified value for None."""
    if name is None:
        return 0
    names = [full.removeprefix(f"{prefix}_").lower() for full in enum.keys()[1:]]
    if not isinstance(name, str):
        raise TypeError(f"{option}: expected one of {', '.join(names)}, not {kind(name)}")
    if name not in names:
        shown = f"={name!r}" if name.isidentifier() else ""
        raise ValueError(f"{option}{shown}: expected one of {', '.join(names)}")
    return enum.Value(f"{prefix}_{name.upper()}")
