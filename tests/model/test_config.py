"""Configurations that are read, and those that are refused by name."""

from typing import Any

import pytest

from model.config import ConfigError, EncoderConfig, require_family

BERT = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}
OURS = {
    "vocabulary_size": 100,
    "hidden_size": 32,
    "layer_count": 2,
    "head_count": 4,
    "feed_forward_size": 64,
    "max_positions": 48,
}


def test_bert_defaults_are_those_of_transformers() -> None:
    config = EncoderConfig.from_bert(BERT)
    assert config == EncoderConfig(
        **OURS, type_vocabulary_size=2, activation="gelu", norm_eps=1e-12, dropout=0.1
    )
    assert (config.positions, config.norm) == ("learned", "post")


def test_bert_values_are_taken() -> None:
    values = {
        **BERT,
        "type_vocab_size": 5,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-6,
        "is_decoder": False,
    }
    config = EncoderConfig.from_bert(values)
    assert (config.type_vocabulary_size, config.activation, config.norm_eps) == (5, "gelu_tanh", 1e-6)


def test_own_fields_round_trip() -> None:
    config = EncoderConfig(**OURS, positions="sinusoidal", norm="pre", activation="relu")
    assert EncoderConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported; supported: gelu, gelu_new"),
        ({"hidden_act": "gelu_fast"}, "hidden_act 'gelu_fast'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key' is not supported; supported: absolute"),
        ({"is_decoder": True}, "is_decoder = True is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": 30}, "hidden_size 30 is not divisible by head_count 4"),
        ({"num_hidden_layers": 0}, "layer_count is 0; it must be a whole number of at least 1"),
        ({"vocab_size": "100"}, "vocabulary_size is '100'"),
        ({"num_attention_heads": True}, "head_count is True"),
        ({"layer_norm_eps": -1.0}, "norm_eps is -1.0"),
        ({"layer_norm_eps": float("nan")}, "norm_eps is nan"),
    ],
)
def test_bert_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_bert({**BERT, **change})


def test_missing_bert_sizes_are_all_named() -> None:
    with pytest.raises(ConfigError, match="misses vocab_size, max_position_embeddings"):
        EncoderConfig.from_bert(
            {k: v for k, v in BERT.items() if k not in ("vocab_size", "max_position_embeddings")}
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "swish"}, "activation 'swish' is not supported; supported: gelu, gelu_tanh, relu"),
        ({"positions": "rotary"}, "positions 'rotary' is not supported; supported: learned, sinusoidal"),
        ({"norm": "rms"}, "norm 'rms' is not supported; supported: post, pre"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"colour": "red"}, "unknown fields colour"),
    ],
)
def test_own_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**OURS, **change})


def test_own_missing_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="missing fields: hidden_size"):
        EncoderConfig.from_dict({name: value for name, value in OURS.items() if name != "hidden_size"})


@pytest.mark.parametrize("family", ["roberta", "distilbert", None, 3])
def test_other_families_are_named_with_the_supported(family: object) -> None:
    with pytest.raises(
        ConfigError, match=rf"model_type {family!r} is not supported; supported: bert, seqenc"
    ):
        require_family({"model_type": family})
