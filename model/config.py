"""The shape of an encoder and how to read it from a checkpoint's config.json; knows nothing of tensors."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
POSITIONS = ("learned", "sinusoidal")
NORMS = ("post", "pre")
FAMILIES = ("bert", "seqenc")

_BERT_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_BERT_SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layer_count",
    "num_attention_heads": "head_count",
    "intermediate_size": "feed_forward_size",
    "max_position_embeddings": "max_positions",
}
_BERT_UNSUPPORTED_IF_SET = (
    "add_cross_attention",
    "is_decoder",
    "is_encoder_decoder",
    "pruned_heads",
)
# What quantization tools write.
_QUANTIZED = ("quantization_config", "compression_config")


class ConfigError(ValueError):
    """A configuration that cannot be built; the message names the field, the value and what is supported."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and choices of an encoder.

    `norm` places layer normalisation after ("post", BERT) or before ("pre") each sub-layer. Post-norm also
    normalises the embeddings, pre-norm the last layer's output. `max_positions` is the number of rows of
    learned positions; sinusoidal positions have no such end, there it only bounds what is served.
    """

    vocabulary_size: int
    hidden_size: int
    layer_count: int
    head_count: int
    feed_forward_size: int
    max_positions: int
    type_vocabulary_size: int = 2
    activation: str = "gelu"
    positions: str = "learned"
    norm: str = "post"
    norm_eps: float = 1e-12
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                _require_positive_integer(field.name, getattr(self, field.name))
        _require_one_of("activation", self.activation, ACTIVATIONS)
        _require_one_of("positions", self.positions, POSITIONS)
        _require_one_of("norm", self.norm, NORMS)
        _require_between("norm_eps", self.norm_eps, 0.0, 1.0)
        _require_between("dropout", self.dropout, 0.0, 1.0)
        if self.hidden_size % self.head_count:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by head_count {self.head_count}; "
                "every head needs the same width"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From our own names. Names that are not fields are an error."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown fields {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        missing = [name for name in _BERT_SIZES.values() if name not in values]
        if missing:
            raise ConfigError(f"missing fields: {', '.join(missing)}")
        return cls(**values)

    @classmethod
    def from_bert(cls, values: Mapping[str, Any]) -> Self:
        """From a Hugging Face BERT's config.json. What would change its result is built or refused."""
        _refuse_unsupported(values)
        missing = [name for name in _BERT_SIZES if name not in values]
        if missing:
            raise ConfigError(f"config.json misses {', '.join(missing)}")
        return cls(
            **{ours: values[theirs] for theirs, ours in _BERT_SIZES.items()},
            type_vocabulary_size=values.get("type_vocab_size", 2),
            activation=_BERT_ACTIVATIONS[values.get("hidden_act", "gelu")],
            norm_eps=values.get("layer_norm_eps", 1e-12),
            dropout=values.get("hidden_dropout_prob", 0.1),
        )


def require_family(values: Mapping[str, Any]) -> str:
    """The supported family that a config.json names in `model_type`."""
    family = values.get("model_type")
    _require_one_of("model_type", family, FAMILIES)
    return str(family)


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    for name in _BERT_UNSUPPORTED_IF_SET:
        if values.get(name):
            raise ConfigError(f"{name} = {values[name]!r} is not supported; only plain encoders are")
    for name in _QUANTIZED:
        if values.get(name):
            raise ConfigError(
                f"{name} = {values[name]!r} is not supported; export the model that was quantized: its "
                "artifact has an int8 graph of its own"
            )
    _require_one_of("hidden_act", values.get("hidden_act", "gelu"), tuple(_BERT_ACTIVATIONS))
    positions = values.get("position_embedding_type") or "absolute"
    _require_one_of("position_embedding_type", positions, ("absolute",))


def _require_one_of(name: str, value: object, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise ConfigError(f"{name} {value!r} is not supported; supported: {', '.join(supported)}")


def _require_positive_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _require_between(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < high:
        raise ConfigError(f"{name} is {value!r}; it must be at least {low} and below {high}")
