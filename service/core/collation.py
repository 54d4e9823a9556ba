"""Sequences -> the arrays of a batch, and a batch's outputs -> the calls they belong to.

Runs on a lane's thread. Knows nothing of ONNX Runtime or of who waits for the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.attention import reduce_maps
from service.types import Array, AttentionPlan, Floats, Ids, Outputs, Pooling, TokenizedSequence


@dataclass(frozen=True, slots=True)
class BatchArrays:
    input_ids: Ids  # (B, S)
    attention_mask: Ids  # (B, S)
    token_type_ids: Ids  # (B, S)

    @property
    def padded_tokens(self) -> int:
        return self.input_ids.size


class Collector:
    """The results of one call, filled batch by batch; batches fill distinct rows, side by side."""

    def __init__(self, sequences: Sequence[TokenizedSequence], outputs: Outputs, hidden_size: int) -> None:
        count = len(sequences)
        self.outputs = outputs
        self.sequences = sequences
        self.hidden_size = hidden_size
        self.vectors: Floats | None = None
        if outputs.pooling is not Pooling.NONE:
            self.vectors = np.zeros((count, hidden_size), np.float32)
        self.token_embeddings: list[Floats | None] = [None] * count
        self.attention: list[Array | None] = [None] * count


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch: input `index` of the call that `collector` gathers."""

    collector: Collector
    index: int

    @property
    def sequence(self) -> TokenizedSequence:
        return self.collector.sequences[self.index]


def collate(rows: Sequence[Row], *, pad_id: int, length_multiple: int = 1) -> BatchArrays:
    sequences = [row.sequence for row in rows]
    longest = max(map(len, sequences))
    width = -(-longest // length_multiple) * length_multiple
    input_ids = np.full((len(rows), width), pad_id, np.int64)
    attention_mask = np.zeros((len(rows), width), np.int64)
    token_type_ids = np.zeros((len(rows), width), np.int64)
    for row, sequence in enumerate(sequences):
        length = len(sequence)
        input_ids[row, :length] = sequence.ids
        attention_mask[row, :length] = 1 if sequence.mask is None else sequence.mask
        if sequence.type_ids is not None:
            token_type_ids[row, :length] = sequence.type_ids
    return BatchArrays(input_ids, attention_mask, token_type_ids)


def output_names(rows: Sequence[Row], layers: Sequence[int]) -> list[str]:
    """The graph outputs that at least one row needs, plus the maps of `layers`."""
    wanted = [row.collector.outputs for row in rows]
    names = {f"pooled_{outputs.pooling}" for outputs in wanted if outputs.pooling is not Pooling.NONE}
    if any(outputs.token_embeddings for outputs in wanted):
        names.add("token_embeddings")
    names.update(f"attentions_{layer}" for layer in layers)
    return sorted(names) or ["pooled_cls"]


def distribute(rows: Sequence[Row], outputs: dict[str, Array]) -> None:
    """Copies each row's share of a batch's outputs to its collector."""
    for name, values in outputs.items():
        _check_shape(name, values, rows)
    for collector, places in _by_collector(rows).items():
        _scatter_vectors(collector, places, outputs)
        if collector.outputs.token_embeddings:
            for place, index in places:
                collector.token_embeddings[index] = _real_tokens(
                    outputs["token_embeddings"][place], collector.sequences[index]
                )
        if collector.outputs.attention:
            for place, index in places:
                collector.attention[index] = _maps(
                    outputs, place, collector.sequences[index], collector.outputs.attention
                )


def _check_shape(name: str, values: Array, rows: Sequence[Row]) -> None:
    """Raises ValueError for shapes that NumPy would stretch or cut: they would be wrong answers."""
    longest = max(len(row.sequence) for row in rows)
    width = rows[0].collector.hidden_size
    count, *rest = values.shape
    if name.startswith("pooled_"):
        fits = rest == [width]
    elif name == "token_embeddings":
        fits = len(rest) == 2 and rest[0] >= longest and rest[1] == width
    else:
        fits = len(rest) == 3 and min(rest[1:]) >= longest
    if count != len(rows) or not fits:
        raise ValueError(
            f"graph output {name} has shape {values.shape} for {len(rows)} rows of up to {longest} tokens"
        )


def _by_collector(rows: Sequence[Row]) -> dict[Collector, list[tuple[int, int]]]:
    places: dict[Collector, list[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.collector, []).append((place, row.index))
    return places


def _scatter_vectors(collector: Collector, places: list[tuple[int, int]], outputs: dict[str, Array]) -> None:
    if collector.vectors is not None:
        rows, indices = zip(*places, strict=True)
        collector.vectors[list(indices)] = outputs[f"pooled_{collector.outputs.pooling}"][list(rows)]


def _real_tokens(row: Array, sequence: TokenizedSequence) -> Floats:
    real = slice(len(sequence)) if sequence.mask is None else np.flatnonzero(sequence.mask)
    return np.array(row[real], np.float32)


def _maps(outputs: dict[str, Array], place: int, sequence: TokenizedSequence, plan: AttentionPlan) -> Array:
    length = len(sequence)
    layers = np.stack([outputs[f"attentions_{layer}"][place, :, :length, :length] for layer in plan.layers])
    if sequence.mask is not None:
        real = np.flatnonzero(sequence.mask)
        layers = layers[:, :, real[:, None], real]
    return reduce_maps(layers, plan)
