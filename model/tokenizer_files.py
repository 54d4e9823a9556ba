"""What the files beside tokenizer.json and vocab.txt say about a tokenizer.

They are tokenizer_config.json, special_tokens_map.json and added_tokens.json, and config.json for the class
alone. Each key has the meaning that transformers gives it; one that would change token ids and cannot be
followed is refused by name. Keys that no supported class reads are left alone.
"""

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from model.files import read_json

CONFIG = "tokenizer_config.json"
VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_ADDED_TOKENS = "added_tokens.json"

BERT = "BertTokenizer"
XLM_ROBERTA = "XLMRobertaTokenizer"
AS_STORED = "PreTrainedTokenizerFast"
# Each class, and what is built for it. DistilBERT's differs from BERT's in that it makes no type ids.
_CLASSES = {
    BERT: BERT,
    "ConvBertTokenizer": BERT,
    "DistilBertTokenizer": BERT,
    "ElectraTokenizer": BERT,
    "LayoutLMTokenizer": BERT,
    "LxmertTokenizer": BERT,
    "MobileBertTokenizer": BERT,
    "SqueezeBertTokenizer": BERT,
    XLM_ROBERTA: XLM_ROBERTA,
    AS_STORED: AS_STORED,
    "TokenizersBackend": AS_STORED,
}
_CLASSES_WITHOUT_TYPE_IDS = ("DistilBertTokenizer",)

# The roles in the order in which transformers adds their tokens, and what the classes call them.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_DEFAULT_ROLES = {
    BERT: {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    XLM_ROBERTA: {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": "<mask>",
    },
    AS_STORED: {},
}

# Keys that change ids with some class or version of transformers, and the values with which they do not.
_SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "do_word_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
    "mecab_kwargs": (None, {}),
    "sudachi_kwargs": (None, {}),
    "jumanpp_kwargs": (None, {}),
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    "clean_text": (None, True),
    "wordpieces_prefix": (None, "##"),
    "fast_tokenizer_files": (None, [], [TOKENIZER]),
    "init_inputs": (None, []),
    "vocab": (None,),
    "merges": (None,),
    "model_specific_special_tokens": (None, {}),
}
_MODEL_FILES_READ_INSTEAD = ("tokenizer.model", "tiktoken.model", "tekken.json")


class TokenizerError(ValueError):
    """A checkpoint without a usable tokenizer."""


@dataclass(frozen=True)
class StatedToken:
    """An added token and the id that a file gives it."""

    id: int
    token: AddedToken
    where: str


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """`added` is sorted by id; `extra` tokens get the next free ids, after those of the roles."""

    kind: str
    values: Mapping[str, Any]
    roles: Mapping[str, AddedToken]
    added: tuple[StatedToken, ...]
    extra: tuple[AddedToken, ...]
    type_ids: bool

    def text_of(self, role: str) -> str:
        """The token of a role that every sequence needs."""
        if role not in self.roles:
            raise TokenizerError(f"{CONFIG}: {role} is null; every sequence needs it")
        return self.roles[role].content

    def switch(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{CONFIG}: {name} is {value!r}; it must be true or false")
        return value

    def optional_switch(self, name: str) -> bool | None:
        return None if self.values.get(name) is None else self.switch(name, default=False)


def read_settings(folder: Path) -> TokenizerSettings:
    """Raise TokenizerError where transformers would make other ids than can be made here."""
    values = _read_optional(folder / CONFIG)
    name = _class_name(folder, values)
    kind = _CLASSES[name]
    for key, supported in _SUPPORTED_VALUES.items():
        if values.get(key) not in supported:
            raise TokenizerError(
                f"{CONFIG}: {key} = {values[key]!r} is not supported, because it changes token ids; "
                f"supported: {json.dumps(supported[-1])}"
            )
    if not (folder / TOKENIZER).is_file():
        for file in _MODEL_FILES_READ_INSTEAD:
            if (folder / file).exists():
                raise TokenizerError(f"{file} is not supported; {how_to_write_tokenizer(folder)}")
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    named = _named_extra_tokens(values)
    if "added_tokens_decoder" in values:
        added = _stated_tokens(values["added_tokens_decoder"])
    else:
        values |= _special_tokens_map(folder / _SPECIAL_TOKENS_MAP, values.get("extra_special_tokens"))
        added = _added_tokens(folder / _ADDED_TOKENS, _stated_special_tokens(values))
        added |= _stored_tokens(folder / TOKENIZER)
        named |= _named_extra_tokens(values)
    values.setdefault("extra_special_tokens", values.get("additional_special_tokens"))
    inputs = values.get("model_input_names", ["token_type_ids"])
    if not isinstance(inputs, list):
        raise TokenizerError(f"{CONFIG}: model_input_names is {inputs!r}; it must be a list of names")
    return TokenizerSettings(
        kind=kind,
        values=values,
        roles=_roles(values, named, _DEFAULT_ROLES[kind]),
        added=tuple(added[id] for id in sorted(added)),
        extra=_extra_tokens(values["extra_special_tokens"]),
        type_ids="token_type_ids" in inputs and name not in _CLASSES_WITHOUT_TYPE_IDS,
    )


def how_to_write_tokenizer(folder: Path) -> str:
    return (
        f"write {TOKENIZER} with transformers.AutoTokenizer.from_pretrained({str(folder)!r})"
        f".backend_tokenizer.save({TOKENIZER!r}) and set tokenizer_class to {AS_STORED!r} in {CONFIG}"
    )


def _class_name(folder: Path, values: Mapping[str, Any]) -> str:
    """The class without "Fast"; where none is named, the family's. Our own format has a tokenizer.json."""
    config = _read_optional(folder / "config.json")
    default = AS_STORED if config.get("model_type") == "seqenc" else BERT
    for file, stated in (
        (CONFIG, values.get("tokenizer_class")),
        ("config.json", config.get("tokenizer_class")),
    ):
        if stated:
            name = AS_STORED if stated == AS_STORED else str(stated).removesuffix("Fast")
            if name not in _CLASSES:
                raise TokenizerError(
                    f"{file}: tokenizer_class {stated!r} is not supported; supported: "
                    f"{', '.join(sorted(_CLASSES))}. If it has a backend_tokenizer in transformers, "
                    f"{how_to_write_tokenizer(folder)}"
                )
            return name
    return default


def _special_tokens_map(path: Path, extra: object) -> dict[str, Any]:
    """Its tokens replace those of tokenizer_config.json, but for a list of extra ones, which is joined."""
    found: dict[str, Any] = {
        key: {**value, "special": True} if isinstance(value, dict) and "content" in value else value
        for key, value in _read_optional(path).items()
    }
    if isinstance(extra, list) and isinstance(found.get("extra_special_tokens"), list):
        found["extra_special_tokens"] = extra + found["extra_special_tokens"]
    return found


def _stated_special_tokens(values: Mapping[str, Any]) -> set[str]:
    """The tokens that are special in added_tokens.json, which additional_special_tokens alone are not."""
    stated = [values[role] for role in ROLES if values.get(role)]
    extra = values.get("extra_special_tokens") or []
    return {_token(token, "special token").content for token in (*stated, *extra)}


def _roles(
    values: Mapping[str, Any], named: Mapping[str, Any], defaults: Mapping[str, str]
) -> dict[str, AddedToken]:
    """The seven roles first, then tokens under names of a model's own, such as `image_token`."""
    stated = {role: values.get(role, defaults.get(role)) for role in ROLES}
    own = {key: value for key, value in values.items() if key.endswith("_token") and key not in ROLES}
    stated |= {key: value for key, value in own.items() if isinstance(value, str | dict)}
    return {role: _token(value, role) for role, value in (stated | dict(named)).items() if value is not None}


def _named_extra_tokens(values: dict[str, Any]) -> dict[str, Any]:
    """extra_special_tokens may name them, as roles are named; those are taken out of `values`."""
    named = isinstance(values.get("extra_special_tokens"), dict)
    return dict(values.pop("extra_special_tokens")) if named else {}


def _extra_tokens(value: object) -> tuple[AddedToken, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise TokenizerError(f"{CONFIG}: extra_special_tokens is {value!r}; it must be a list of tokens")
    return tuple(_token(token, "extra_special_tokens") for token in value)


def _stated_tokens(decoder: object) -> dict[int, StatedToken]:
    where = f"{CONFIG}: added_tokens_decoder"
    if not isinstance(decoder, dict):
        raise TokenizerError(f"{where} must map ids to tokens")
    return _by_id((_stated(where, id, _token(token, where, special=False)) for id, token in decoder.items()))


def _added_tokens(path: Path, special: Set[str]) -> dict[int, StatedToken]:
    return _by_id(
        _stated(
            path.name, id, AddedToken(content, normalized=content not in special, special=content in special)
        )
        for content, id in _read_optional(path).items()
    )


def _stored_tokens(path: Path) -> dict[int, StatedToken]:
    where = f"{path.name}: added_tokens"
    stored = _read_optional(path).get("added_tokens") or []
    return _by_id(_stated(where, token.get("id"), _token(token, where, special=False)) for token in stored)


def _by_id(tokens: Iterable[StatedToken]) -> dict[int, StatedToken]:
    return {stated.id: stated for stated in tokens}


def _stated(where: str, id: object, token: AddedToken) -> StatedToken:
    if isinstance(id, str) and id.isdecimal():
        id = int(id)
    if not isinstance(id, int) or isinstance(id, bool) or id < 0:
        raise TokenizerError(f"{where}: {token.content!r} has the id {id!r}; an id is a whole number")
    return StatedToken(id, token, where)


def _token(value: object, where: str, *, special: bool = True) -> AddedToken:
    """From a token's text, or from its fields as transformers writes them."""
    if isinstance(value, str):
        return AddedToken(value, special=special)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        known = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: bool(value[name]) for name in known if name in value}
        return AddedToken(value["content"], **{"special": special, **flags})
    raise TokenizerError(f"{where} is {value!r}; a token is a text or an object with `content`")


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
