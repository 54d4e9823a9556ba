"""The weights file that the fp32 graphs share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from folders import Exported
from model.artifact import WEIGHTS
from model.graphs import ATTENTION, FUSED, PLAIN


def externals(path: Path) -> dict[str, tuple[int, int]]:
    """Initialiser -> offset and length in the weights file."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            assert where["location"] == WEIGHTS
            found[tensor.name] = (int(where["offset"]), int(where["length"]))
    return found


@pytest.mark.parametrize("kind", [FUSED, ATTENTION], ids=["fused", "attention"])
def test_graphs_share_every_weight(kind: object, exported: Exported) -> None:
    plain = externals(exported.folder / PLAIN.file)
    other = externals(exported.folder / (FUSED if kind is FUSED else ATTENTION).file)
    assert set(plain.values()) == set(other.values())


def test_each_tensor_is_stored_once(exported: Exported) -> None:
    spans = sorted(set(externals(exported.folder / PLAIN.file).values()))
    assert all(offset % 4096 == 0 for offset, _ in spans)
    assert all(a + length <= b for (a, length), (b, _) in pairwise(spans))
    size = (exported.folder / WEIGHTS).stat().st_size
    assert size == max(offset + length for offset, length in spans)


def test_bytes_are_those_of_the_encoder(exported: Exported) -> None:
    stored = (exported.folder / WEIGHTS).read_bytes()
    offset, length = externals(exported.folder / PLAIN.file)["encoder.embeddings.token.weight"]
    table = np.frombuffer(stored[offset : offset + length], np.float32).reshape(1000, 32)
    np.testing.assert_array_equal(table, exported.checkpoint.encoder.embeddings.token.weight.numpy())
