"""What the right answer is: transformers' BertModel on rows of one length, so without padding, and NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, BertModel

Array = NDArray[Any]
Content = str | tuple[str, str] | dict[str, list[int]]


@dataclass(frozen=True)
class Reference:
    """Of one input's real tokens, in order; n of them."""

    ids: list[int]
    token_embeddings: Array  # (n, D)
    attention: Array  # (L, H, n, n)

    def pooled(self, pooling: str) -> Array:
        return pool(self.token_embeddings, pooling)


class BertOracle:
    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = BertModel.from_pretrained(folder, attn_implementation="eager")

    def __call__(self, content: Content) -> Reference:
        return self.all([content])[0]

    def all(self, contents: Sequence[Content]) -> list[Reference]:
        """Of texts, pairs of texts, or ids with an attention_mask and type_ids where they matter."""
        rows = [content if isinstance(content, dict) else self._tokenize(content) for content in contents]
        found: dict[int, Reference] = {}
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]["ids"]))
        for _, group in groupby(by_length, key=lambda index: len(rows[index]["ids"])):
            indices = list(group)
            found.update(zip(indices, self._run([rows[index] for index in indices]), strict=True))
        return [found[index] for index in range(len(rows))]

    def _run(self, rows: list[dict[str, list[int]]]) -> Iterator[Reference]:
        """Of rows of one length, which need no padding."""
        ids = torch.tensor([row["ids"] for row in rows])
        mask = torch.tensor([row.get("attention_mask") or [1] * len(row["ids"]) for row in rows])
        types = torch.tensor([row.get("type_ids") or [0] * len(row["ids"]) for row in rows])
        with torch.inference_mode():
            outputs = self._model(ids, mask, types, output_attentions=True)
        hidden, maps = outputs.last_hidden_state.numpy(), torch.stack(outputs.attentions, dim=1).numpy()
        for row, real_mask in enumerate(mask.numpy()):
            real = np.flatnonzero(real_mask)
            yield Reference(ids[row][real].tolist(), hidden[row][real], maps[row][:, :, real[:, None], real])

    def _tokenize(self, content: str | tuple[str, str]) -> dict[str, list[int]]:
        # In a batch: alone, a pair whose second text is empty would be taken for one text.
        encoded = self.tokenizer([content])
        return {"ids": encoded["input_ids"][0], "type_ids": encoded["token_type_ids"][0]}


def pool(token_embeddings: Array, pooling: str) -> Array:
    if pooling == "cls":
        return np.asarray(token_embeddings[0])
    if pooling == "last":
        return np.asarray(token_embeddings[-1])
    return np.asarray(getattr(token_embeddings, pooling)(axis=0))


def normalize(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def cosines(vectors: Array, expected: Array) -> Array:
    """Of each row with its counterpart, in double precision."""
    return np.asarray(
        (normalize(vectors.astype(np.float64)) * normalize(expected.astype(np.float64))).sum(-1)
    )


def assert_same(vectors: Array, expected: Array) -> None:
    """The same vectors as far as float32 can tell across batch shapes."""
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert cosines(vectors, expected).min() >= 0.99999
