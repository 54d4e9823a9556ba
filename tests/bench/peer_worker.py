"""A peer inside its own virtual environment: `python -m bench.peer_worker KIND '{"model": …}'`.

Imports nothing of seqenc.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.worker import answer_questions

Encode = Callable[[Sequence[str], int], Any]  # texts, texts a batch -> (N, D)
BATCH_SIZES = (8, 16, 32, 64)
TRIAL_TEXTS = 64


class Peer:
    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._texts: list[str] = []
        self._batch_size = BATCH_SIZES[0]

    def load(self, texts: list[str]) -> int:
        """Takes the texts; the batch size that is fastest for some of them, which `run` uses."""
        self._texts = texts[:TRIAL_TEXTS]
        self.run()
        seconds = {size: self._try(size) for size in BATCH_SIZES}
        self._batch_size = min(seconds, key=lambda size: seconds[size])
        self._texts = texts
        return self._batch_size

    def _try(self, batch_size: int) -> float:
        self._batch_size = batch_size
        return min(self.run() for _ in range(2))

    def run(self) -> float:
        """Seconds from texts to vectors."""
        started = time.perf_counter()
        self._encode(self._texts, self._batch_size)
        return time.perf_counter() - started

    def vectors(self, texts: list[str]) -> list[list[float]]:
        return [[float(value) for value in vector] for vector in self._encode(texts, BATCH_SIZES[0])]


def sentence_transformers(model: str, backend: str, precision: str, optimization: str = "") -> Encode:
    """`optimization`: a level of the ONNX backend, made once and kept beside the model."""
    library: Any = importlib.import_module("sentence_transformers")
    options: dict[str, Any] = {}
    if backend == "torch":
        options["torch_dtype"] = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    if backend == "openvino":
        hint = {"fp32": "f32", "bf16": "bf16"}[precision]
        options["ov_config"] = {"INFERENCE_PRECISION_HINT": hint}
    if optimization:
        options["file_name"] = f"onnx/model_{optimization}.onnx"
        if not Path(model, options["file_name"]).exists():
            plain = library.SentenceTransformer(model, backend=backend, device="cpu")
            library.export_optimized_onnx_model(plain, optimization, model)
    transformer = library.SentenceTransformer(model, backend=backend, device="cpu", model_kwargs=options)

    def encode(texts: Sequence[str], batch_size: int) -> Any:
        return transformer.encode(
            list(texts), batch_size=batch_size, show_progress_bar=False, normalize_embeddings=True
        )

    return encode


def fastembed(model: str, precision: str, file_name: str, output_name: str) -> Encode:
    """A folder with an ONNX file in that precision that has the tokens' vectors as `output_name`."""
    library: Any = importlib.import_module("fastembed")
    description: Any = importlib.import_module("fastembed.common.model_description")
    library.TextEmbedding.add_custom_model(
        model="local",
        pooling=description.PoolingType.MEAN,
        normalization=True,
        sources=description.ModelSource(url="file://local"),
        dim=384,
        model_file=file_name,
        output_name=output_name,
    )
    embedding = library.TextEmbedding("local", specific_model_path=model)

    def encode(texts: Sequence[str], batch_size: int) -> Any:
        return list(embedding.embed(list(texts), batch_size=batch_size))

    return encode


if __name__ == "__main__":
    kinds: dict[str, Callable[..., Encode]] = {
        "sentence_transformers": sentence_transformers,
        "fastembed": fastembed,
    }
    peer = Peer(kinds[sys.argv[1]](**json.loads(sys.argv[2])))
    answer_questions({"load": peer.load, "run": peer.run, "vectors": peer.vectors})
