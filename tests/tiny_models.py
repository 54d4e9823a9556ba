"""Tiny checkpoints on disk for tests: a random BERT as transformers writes it, a native pre-norm encoder."""

import json
import string
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from model.checkpoint import save_checkpoint
from model.config import EncoderConfig
from model.encoder import Encoder

VOCABULARY_SIZE = 1000
MAX_POSITIONS = 64
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = (Path(__file__).parent / "tiny_words.txt").read_text("utf-8").split()
_SUFFIXES = ("##s", "##ed", "##ing", "##er", "##ly", "##es", "##est", "##ness", "##tion", "##al", "##able")


def write_tiny_bert(folder: Path, seed: int = 0) -> BertModel:
    """2 layers, hidden 32, 2 heads, 64 positions. Returns the model that was saved, in evaluation mode.

    Its tokenizer files have to be read together: tokenizer.json is cased where tokenizer_config.json is not,
    and the last two tokens are in added_tokens.json alone.
    """
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.3,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    _randomise_norms(model)
    model.save_pretrained(folder)
    tokenizer = json.loads(build_tokenizer().to_str())
    tokenizer["normalizer"]["lowercase"] = False
    added = {"[DRUG]": VOCABULARY_SIZE - 2, "covid19": VOCABULARY_SIZE - 1}
    vocabulary = tokenizer["model"]["vocab"].items()
    tokenizer["model"]["vocab"] = {token: id for token, id in vocabulary if id not in added.values()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "added_tokens.json").write_text(json.dumps(added), "utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": MAX_POSITIONS, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return model


def write_tiny_native(folder: Path, seed: int = 0) -> Encoder:
    """Pre-norm, sinusoidal, ReLU; served to 64 tokens. Returns the encoder saved, in evaluation mode."""
    torch.manual_seed(seed)
    config = EncoderConfig(
        vocabulary_size=VOCABULARY_SIZE,
        hidden_size=32,
        layer_count=2,
        head_count=2,
        feed_forward_size=64,
        max_positions=MAX_POSITIONS,
        activation="relu",
        positions="sinusoidal",
        norm="pre",
        norm_eps=1e-5,
    )
    encoder = Encoder(config).eval()
    _randomise_norms(encoder)
    save_checkpoint(encoder, build_tokenizer(), folder)
    return encoder


def build_tokenizer() -> Tokenizer:
    """A lower-casing WordPiece that knows common English words and every ASCII character."""
    tokenizer = Tokenizer(
        models.WordPiece(build_vocabulary(), unk_token=_SPECIAL[1], max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return tokenizer


def build_vocabulary() -> dict[str, int]:
    letters = string.ascii_lowercase + string.digits
    pieces = [*_SPECIAL, *letters, *string.punctuation, *(f"##{letter}" for letter in letters), *_SUFFIXES]
    tokens = list(dict.fromkeys([*pieces, *_WORDS]))
    unused = [f"[unused{number}]" for number in range(VOCABULARY_SIZE - len(tokens))]
    return {token: index for index, token in enumerate([*tokens, *unused][:VOCABULARY_SIZE])}


def _randomise_norms(module: torch.nn.Module) -> None:
    """Fresh layer norms are all ones and zeros, and biases zeros: two of them swapped would go unnoticed."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                centre = 1.0 if name.lower().endswith("norm.weight") else 0.0
                parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
