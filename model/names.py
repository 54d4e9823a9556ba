"""Names of weights: other people's -> ours, one table for each family."""

import re
from collections.abc import Iterable

# Ours -> Hugging Face's BERT. {n} is the layer.
_BERT = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{n}.attention.query": "encoder.layer.{n}.attention.self.query",
    "layers.{n}.attention.key": "encoder.layer.{n}.attention.self.key",
    "layers.{n}.attention.value": "encoder.layer.{n}.attention.self.value",
    "layers.{n}.attention.output": "encoder.layer.{n}.attention.output.dense",
    "layers.{n}.attention_norm": "encoder.layer.{n}.attention.output.LayerNorm",
    "layers.{n}.feed_forward.expand": "encoder.layer.{n}.intermediate.dense",
    "layers.{n}.feed_forward.contract": "encoder.layer.{n}.output.dense",
    "layers.{n}.feed_forward_norm": "encoder.layer.{n}.output.LayerNorm",
}
# What checkpoints converted from TensorFlow call a layer norm's weight and bias.
_BERT_ALIASES = {".gamma": ".weight", ".beta": ".bias"}
# Heads that an encoder does not use, and buffers that hold no weights.
_BERT_UNUSED = re.compile(r"(bert\.)?(pooler\.|cls\.|embeddings\.(position_ids|token_type_ids)$)")


class WeightNames:
    """Translates between the names of one family and those of an Encoder's state."""

    def __init__(self, family: str, state: Iterable[str]) -> None:
        self._family = family
        self._theirs = {name: _bert_name(name) if family == "bert" else name for name in state}
        self._ours = {theirs: ours for ours, theirs in self._theirs.items()}

    def ours(self, theirs: str) -> str | None:
        """None where an encoder has no such weight."""
        if self._family == "bert":
            theirs = theirs.removeprefix("bert.")
            for alias, name in _BERT_ALIASES.items():
                theirs = theirs.removesuffix(alias) + name if theirs.endswith(alias) else theirs
        return self._ours.get(theirs)

    def theirs(self, ours: str) -> str:
        return self._theirs[ours]

    def is_unused(self, theirs: str) -> bool:
        """Known to belong to a head or buffer that an encoder leaves out."""
        return self._family == "bert" and _BERT_UNUSED.match(theirs) is not None


def _bert_name(ours: str) -> str:
    module, _, parameter = ours.rpartition(".")
    layer = re.match(r"layers\.(\d+)\.", module)
    if layer is None:
        return f"{_BERT[module]}.{parameter}"
    pattern = module.replace(layer[1], "{n}", 1)
    return f"{_BERT[pattern].replace('{n}', layer[1])}.{parameter}"
