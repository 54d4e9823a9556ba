"""The tokenizer of a checkpoint, as a tokenizers.Tokenizer without truncation and padding of its own.

The reference is transformers: the same ids for every text, or a refusal. What is built depends on the class
that the checkpoint names. transformers 5 builds the pipelines of BertTokenizer and XLMRobertaTokenizer itself
and takes little more than the vocabulary from tokenizer.json, where transformers 4 takes the whole file; so a
file with another pipeline is refused, unless both versions agree on what it means.

Special tokens that surround texts or stand for what is missing, such as [SEP], are never found in a text:
they stay special, and the server takes them for text. Other added tokens, special or not, are there to be
written into texts and are found as transformers finds them: they become plain added tokens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.tokenizer_files import (
    AS_STORED,
    BERT,
    CONFIG,
    ROLES,
    TOKENIZER,
    VOCABULARY,
    XLM_ROBERTA,
    TokenizerError,
    TokenizerSettings,
    how_to_write_tokenizer,
    read_settings,
)

_SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
# Steps of a converted XLM-RoBERTa's normalizer that change nothing ahead of a split at spaces.
_SPACES_ONLY = ({"type": "Replace", "pattern": {"Regex": " {2,}"}}, {"type": "Strip"})
# Where Python's lower() makes a final sigma of a capital one, unless four marks or more stand before it.
_CASED, _IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{Mn}\p{Lm}\p{Sk}\p{Cf}'’.:·]"
_BEFORE = "|".join(_CASED + _IGNORED * count for count in range(4))
_FINAL_SIGMA = Regex(f"(?<={_BEFORE})Σ(?!{_IGNORED}*{_CASED})")


def load_tokenizer(folder: Path, *, lowercase: bool = False) -> Tokenizer:
    """From tokenizer.json, else a BERT vocab.txt. `lowercase` is sentence-transformers' do_lower_case."""
    stored = _read_stored(folder / TOKENIZER)
    settings = read_settings(folder)
    if settings.kind == BERT:
        tokenizer = _bert(folder, stored, settings)
    elif stored is None:
        raise TokenizerError(
            f"{folder} has no {TOKENIZER}, without which {settings.kind} cannot be built; "
            f"{how_to_write_tokenizer(folder)}"
        )
    elif settings.kind == XLM_ROBERTA:
        tokenizer = _xlm_roberta(stored, settings)
    else:
        tokenizer = _as_stored(stored, settings)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer = _with_plain_added_tokens(tokenizer, settings)
    return _lowercased_first(tokenizer) if lowercase else tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of pad, unknown, cls and sep, each only where the vocabulary has it."""
    found = {}
    for role in ("pad", "unknown", "cls", "sep"):
        ids = [tokenizer.token_to_id(spelling) for spelling in _SPECIAL_TOKENS[role]]
        known = [token_id for token_id in ids if token_id is not None]
        if known:
            found[role] = known[0]
    return found


def largest_id(tokenizer: Tokenizer) -> int:
    """The largest id of the vocabulary, of added tokens and of what is put around texts."""
    return max([*tokenizer.get_vocab().values(), *_ids_around_texts(tokenizer)], default=0)


def _read_stored(path: Path) -> Tokenizer | None:
    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"{path.name} cannot be read: {error}") from error


def _as_stored(stored: Tokenizer, settings: TokenizerSettings) -> Tokenizer:
    definition = json.loads(stored.to_str())
    if dropout := definition["model"].get("dropout"):
        raise TokenizerError(
            f"{TOKENIZER}: the model's dropout is {dropout}, which gives other ids each time; set it to null"
        )
    splitter = definition["pre_tokenizer"] or {}
    prefix = settings.values.get("add_prefix_space")
    if prefix is not None and splitter.get("add_prefix_space", prefix) != prefix:
        raise TokenizerError(
            f"{CONFIG}: add_prefix_space is {prefix!r}, the pre_tokenizer of {TOKENIZER} has "
            f"{splitter['add_prefix_space']!r}, and versions of transformers differ on which counts; "
            f"remove it from {CONFIG} to follow {TOKENIZER}"
        )
    _add_tokens(stored, settings)
    return stored


def _bert(folder: Path, stored: Tokenizer | None, settings: TokenizerSettings) -> Tokenizer:
    """BERT's pipeline over the vocabulary of tokenizer.json or vocab.txt."""
    unknown = settings.text_of("unk_token")
    definition = {} if stored is None else json.loads(stored.to_str())
    if stored is None:
        vocabulary = _read_vocabulary(folder)
    else:
        vocabulary = dict(definition["model"]["vocab"])
        if definition["model"]["type"] != "WordPiece" and unknown not in vocabulary:
            # transformers 5 cannot encode with such a file, transformers 4 takes it as it is.
            return _as_stored(stored, settings)
        expected = {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##"}
        _require_part(definition, "model", {**expected, "max_input_chars_per_word": 100}, BERT)
        if definition["normalizer"] is not None:
            _require_part(definition, "normalizer", {"type": "BertNormalizer", "clean_text": True}, BERT)
        _require_part(definition, "pre_tokenizer", {"type": "BertPreTokenizer"}, BERT)
    for role in ("cls_token", "sep_token"):
        if settings.text_of(role) not in vocabulary:
            raise TokenizerError(
                f"{VOCABULARY if stored is None else TOKENIZER} has no {settings.text_of(role)}, which every "
                f"BERT sequence needs; add it, or name the token that takes its place as {role} in {CONFIG}"
            )
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.switch("tokenize_chinese_chars", default=True),
        strip_accents=settings.optional_switch("strip_accents"),
        lowercase=settings.switch("do_lower_case", default=True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(tokenizer, settings)
    cls, sep = settings.text_of("cls_token"), settings.text_of("sep_token")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    if stored is not None:
        _require_same_around_texts(stored, tokenizer, BERT)
        _require_added_tokens(definition, tokenizer)
    return tokenizer


def _xlm_roberta(stored: Tokenizer, settings: TokenizerSettings) -> Tokenizer:
    """XLM-RoBERTa's pipeline over the pieces and the character map of tokenizer.json."""
    definition = json.loads(stored.to_str())
    _require_part(definition, "model", {"type": "Unigram", "unk_id": 3, "byte_fallback": False}, XLM_ROBERTA)
    scheme = "always" if settings.switch("add_prefix_space", default=True) else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    if definition["pre_tokenizer"] != metaspace:
        _require_part(definition, "pre_tokenizer", split, XLM_ROBERTA)
    normalizer = definition["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    maps = [step for step in steps if step["type"] == "Precompiled"]
    others = [step for step in steps if step["type"] != "Precompiled"]
    if len(maps) > 1 or not all(any(step | known == step for known in _SPACES_ONLY) for step in others):
        raise _other_part("normalizer", XLM_ROBERTA)
    changes: dict[str, Any] = {
        "normalizer": maps[0] if maps else None,
        "pre_tokenizer": split,
        "added_tokens": [],
    }
    tokenizer = Tokenizer.from_str(json.dumps(definition | changes))
    _add_tokens(tokenizer, settings)
    bos, eos = settings.text_of("bos_token"), settings.text_of("eos_token")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[(token, _id_of(tokenizer, token)) for token in (bos, eos)],
    )
    _require_same_around_texts(stored, tokenizer, XLM_ROBERTA)
    _require_added_tokens(definition, tokenizer)
    return tokenizer


def _read_vocabulary(folder: Path) -> dict[str, int]:
    path = folder / VOCABULARY
    if not path.is_file():
        raise TokenizerError(
            f"{folder} has neither {TOKENIZER} nor {VOCABULARY}; write one with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    try:
        return models.WordPiece.read_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"{VOCABULARY} cannot be read: {error}; it must be UTF-8 text") from error


def _add_tokens(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """In transformers' order, since tokens that are not in the vocabulary get the next free ids."""
    placed = {token.content for role, token in settings.roles.items() if role in ROLES}
    tokens = [stated.token for stated in settings.added]
    for token in tokens:
        token.special = token.special or token.content in {role.content for role in settings.roles.values()}
    known = {token.content for token in (*tokenizer.get_added_tokens_decoder().values(), *tokens)}
    new = {token.content: token for token in (*settings.roles.values(), *settings.extra)}
    unstated = [token for content, token in new.items() if content not in known]
    # No text can contain these, so that they need no id unless one of another token follows from it.
    while unstated and unstated[-1].content in placed and tokenizer.token_to_id(unstated[-1].content) is None:
        unstated.pop()
    tokenizer.add_tokens([*tokens, *unstated])
    for stated in settings.added:
        given = tokenizer.token_to_id(stated.token.content)
        if given != stated.id:
            raise TokenizerError(
                f"{stated.where}: {stated.token.content!r} has id {stated.id}, but transformers gives it "
                f"{given}, since a token of the vocabulary keeps its id and others follow the vocabulary "
                "without gaps; correct the id or the vocabulary"
            )
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    taken = set(vocabulary.values())
    for id, token in tokenizer.get_added_tokens_decoder().items():
        if token.content not in vocabulary and id in taken:
            raise TokenizerError(
                f"the added token {token.content!r} gets id {id}, which another token has, because the "
                "vocabulary lists a token twice; give each line its own token"
            )


def _require_part(definition: Mapping[str, Any], name: str, expected: Mapping[str, Any], kind: str) -> None:
    part = definition[name]
    if part is None or {**part, **expected} != part:
        raise _other_part(name, kind)


def _require_same_around_texts(stored: Tokenizer, built: Tokenizer, kind: str) -> None:
    def around(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
        probe = Tokenizer(models.WordLevel({"a": 0}, "a"))
        if tokenizer.post_processor is not None:
            probe.post_processor = tokenizer.post_processor
        return [(row.ids, row.type_ids) for row in (probe.encode("a"), probe.encode("a", "a"))]

    if around(stored) != around(built):
        raise _other_part("post_processor", kind)


def _require_added_tokens(definition: Mapping[str, Any], built: Tokenizer) -> None:
    """Raise where transformers 5 leaves out tokens that transformers 4 takes from tokenizer.json."""
    added = {token.content: id for id, token in built.get_added_tokens_decoder().items()}
    for token in definition["added_tokens"]:
        if added.get(token["content"]) != token["id"]:
            raise TokenizerError(
                f"{TOKENIZER} adds {token['content']!r} with id {token['id']}, {CONFIG} does not, and "
                "versions of transformers differ on which counts; add it to added_tokens_decoder in "
                f"{CONFIG}, or set tokenizer_class to {AS_STORED!r} there to follow {TOKENIZER}"
            )


def _other_part(name: str, kind: str) -> TokenizerError:
    return TokenizerError(
        f"{TOKENIZER}: its {name} is not that of {kind}, and while transformers 4 follows the file, "
        f"transformers 5 does not; set tokenizer_class to {AS_STORED!r} in {CONFIG} to follow the "
        f"file, or write the file again with transformers to follow {kind}"
    )


def _with_plain_added_tokens(tokenizer: Tokenizer, settings: TokenizerSettings) -> Tokenizer:
    """The same ids; special are only the tokens that are never taken from a text."""
    definition = json.loads(tokenizer.to_str())
    model = definition["model"]
    never = {spelling for spellings in _SPECIAL_TOKENS.values() for spelling in spellings}
    never |= {token.content for role, token in settings.roles.items() if role in ROLES}
    never |= {str(tokenizer.id_to_token(id)) for id in _ids_around_texts(tokenizer)}
    if model.get("unk_token") is not None:
        never.add(model["unk_token"])
    elif model.get("unk_id") is not None:
        never.add(model["vocab"][model["unk_id"]][0])
    split = settings.values.get("split_special_tokens") is True
    for token in definition["added_tokens"]:
        token["special"] = token["content"] in never or (split and token["special"])
    if not settings.type_ids:
        definition["post_processor"] = _without_type_ids(definition["post_processor"])
    return Tokenizer.from_str(json.dumps(definition))


def _without_type_ids(processor: dict[str, Any] | None) -> dict[str, Any]:
    """For models that transformers gives no type ids, because the tokenizer's model_input_names lack them."""
    if processor is None:
        template = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:0", special_tokens=[])
        processor = json.loads(template.__getstate__())
    elif processor["type"] == "TemplateProcessing":
        for piece in (*processor["single"], *processor["pair"]):
            for part in piece.values():
                part["type_id"] = 0
    elif processor["type"] != "RobertaProcessing":
        raise TokenizerError(
            f"{CONFIG}: model_input_names without token_type_ids is not supported with a post_processor of "
            f"type {processor['type']}; supported: TemplateProcessing"
        )
    return processor


def _ids_around_texts(tokenizer: Tokenizer) -> set[int]:
    return {*tokenizer.encode("").ids, *tokenizer.encode("", "").ids}


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise TokenizerError(f"{TOKENIZER} has no {token}, which every sequence needs; add it")
    return found


def _lowercased_first(tokenizer: Tokenizer) -> Tokenizer:
    """sentence-transformers lowers a text with Python's lower() before anything else sees it."""
    lowercases = _lowercases(json.loads(tokenizer.to_str())["normalizer"])
    for token in tokenizer.get_added_tokens_decoder().values():
        text = token.content
        found = token.normalized and (lowercases or text == text.lower())
        if not token.special and text.lower() != text.upper() and not found:
            raise TokenizerError(
                f"sentence_bert_config.json: do_lower_case is not supported with the added token {text!r}, "
                "which is looked for in the text before it is lowered; set do_lower_case to false there and "
                f"let the tokenizer lower texts (do_lower_case in {CONFIG})"
            )
    rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    lower = [normalizers.Replace(_FINAL_SIGMA, "ς"), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence([*lower, *rest])
    return tokenizer


def _lowercases(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(_lowercases(part) for part in normalizer["normalizers"])
    return normalizer["type"] == "Lowercase" or bool(normalizer.get("lowercase"))
