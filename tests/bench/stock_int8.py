"""ONNX Runtime's own recipe for an int8 encoder, to compare ours with: `python -m bench.stock_int8 OUT`.

transformers' BertModel, exported by TorchScript since the optimizer finds no attention in what the newer
exporter writes; then the transformer optimizer; then quantize_dynamic with a scale for each column.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch

from model.source import resolve_source


class _Tokens(torch.nn.Module):
    """The inputs by position, as tracing passes them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def build(out: Path) -> None:
    transformers: Any = importlib.import_module("transformers")
    optimizer: Any = importlib.import_module("onnxruntime.transformers.optimizer")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    model = transformers.BertModel.from_pretrained(
        resolve_source("default"), attn_implementation="eager", add_pooling_layer=False
    ).eval()
    with tempfile.TemporaryDirectory() as folder:
        plain, fused = Path(folder) / "plain.onnx", Path(folder) / "fused.onnx"
        _export(_Tokens(model), plain)
        config = model.config
        found = optimizer.optimize_model(
            str(plain), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
        )
        attentions = found.get_fused_operator_statistics()["Attention"]
        if attentions != config.num_hidden_layers:
            raise RuntimeError(f"the optimizer fused {attentions} of {config.num_hidden_layers} attentions")
        found.save_model_to_file(str(fused))
        # The fused operators have no shape inference.
        options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantization.quantize_dynamic(fused, out, per_channel=True, extra_options=options)


def _export(model: torch.nn.Module, path: Path) -> None:
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 8, dtype=torch.int64)
    torch.onnx.export(
        model,
        (ids, ids, torch.zeros_like(ids)),
        str(path),
        input_names=names,
        output_names=["token_embeddings"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*names, "token_embeddings")},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
