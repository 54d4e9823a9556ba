"""Refuses a tokenizer that fails on characters it does not know, for want of an unknown token."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

# No vocabulary has this character; it is for private use.
_UNKNOWN = "\U0010fffd"


class UnknownTokenError(ValueError):
    """The message names the key of the tokenizer and says what to do."""


def check_unknown_token(tokenizer: Tokenizer, file: str) -> None:
    """Raise UnknownTokenError when the tokenizer, read from `file`, fails on a text with unknown characters.

    A BPE that names no unknown token leaves such characters out, here as in transformers.
    """
    definition = json.loads(tokenizer.to_str())
    if problem := _problem(definition):
        raise UnknownTokenError(
            f"{file}: {problem}, so that the tokenizer fails on every text with a character that it does not "
            "know; name the token of the vocabulary that stands for unknown ones"
        )
    try:
        tokenizer.encode(_UNKNOWN)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library's Rust code is not an Exception
        raise UnknownTokenError(
            f"{file}: the tokenizer fails on a character that it does not know ({error}); correct it"
        ) from error


def _problem(definition: Mapping[str, Any]) -> str | None:
    model = definition["model"]
    if model["type"] == "Unigram":
        return "unk_id is not set" if model.get("unk_id") is None else None
    unknown, vocabulary = model.get("unk_token"), model["vocab"]
    if unknown in vocabulary:
        return None
    if model["type"] == "BPE" and (unknown is None or _knows_every_byte(definition)):
        return None
    return f"unk_token is {unknown!r}, which is not in the vocabulary"


def _knows_every_byte(definition: Mapping[str, Any]) -> bool:
    vocabulary = set(definition["model"]["vocab"])
    if definition["model"].get("byte_fallback"):
        return vocabulary >= {f"<0x{byte:02X}>" for byte in range(256)}
    steps = [definition["normalizer"], definition["pre_tokenizer"]]
    return any(map(_is_byte_level, steps)) and vocabulary >= set(pre_tokenizers.ByteLevel.alphabet())


def _is_byte_level(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return False
    parts = [*step.get("normalizers", ()), *step.get("pretokenizers", ())]
    return "ByteLevel" in step.values() or any(map(_is_byte_level, parts))
