"""The tokenizer of a checkpoint, as a tokenizers.Tokenizer without truncation and padding of its own."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
}


class TokenizerError(ValueError):
    """A checkpoint without a usable tokenizer."""


def load_tokenizer(folder: Path, *, lowercase: bool = False) -> Tokenizer:
    """From tokenizer.json, else a BERT vocab.txt. `lowercase` is sentence-transformers' do_lower_case."""
    tokenizer = _read_tokenizer(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lowercase and not _lowercases(json.loads(tokenizer.to_str())["normalizer"]):
        rest = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of pad, unknown, cls and sep, each only where the vocabulary has it."""
    found = {}
    for role, spellings in _SPECIAL_TOKENS.items():
        ids = [tokenizer.token_to_id(spelling) for spelling in spellings]
        known = [token_id for token_id in ids if token_id is not None]
        if known:
            found[role] = known[0]
    return found


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"{path.name} cannot be read: {error}") from error
    if (folder / "vocab.txt").is_file():
        return _bert_tokenizer(folder)
    raise TokenizerError(
        f"{folder} has neither tokenizer.json nor vocab.txt; write one with "
        "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
    )


def _bert_tokenizer(folder: Path) -> Tokenizer:
    """What transformers' BertTokenizer builds from vocab.txt and tokenizer_config.json."""
    settings = _read_settings(folder / "tokenizer_config.json")
    vocabulary = _read_vocabulary(folder / "vocab.txt")
    special = {
        role: _token_text(settings.get(f"{role}_token", f"[{role.upper()}]"))
        for role in ("unk", "sep", "pad", "cls", "mask")
    }
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=special["unk"], max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special['cls']}:0 $A:0 {special['sep']}:0",
        pair=f"{special['cls']}:0 $A:0 {special['sep']}:0 $B:1 {special['sep']}:1",
        special_tokens=[(special[role], _token_id(vocabulary, special[role])) for role in ("cls", "sep")],
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special.values() if text in vocabulary]
    )
    return tokenizer


def _read_settings(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def _read_vocabulary(path: Path) -> dict[str, int]:
    lines = path.read_text("utf-8").split("\n")
    return {line.rstrip("\r"): index for index, line in enumerate(lines) if line or index < len(lines) - 1}


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _token_id(vocabulary: dict[str, int], token: str) -> int:
    if token not in vocabulary:
        raise TokenizerError(f"vocab.txt has no {token}, which every BERT sequence needs")
    return vocabulary[token]


def _lowercases(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(_lowercases(part) for part in normalizer["normalizers"])
    return normalizer["type"] == "Lowercase" or bool(normalizer.get("lowercase"))
