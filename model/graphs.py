"""Encoder -> ONNX graph in memory, one for each kind; knows nothing of files.

Every graph takes input_ids, attention_mask and token_type_ids, int64 (batch, sequence) with free axes. It
gives token_embeddings (batch, sequence, hidden) and pooled_<mode> (batch, hidden) for each pooling.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor, nn

from model.attention import MASKED_SCORE, MultiHeadAttention
from model.encoder import Encoder
from model.pooling import POOLINGS
from model.quantize import quantize_graph

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOLED = tuple(f"pooled_{mode}" for mode in POOLINGS)


@dataclass(frozen=True)
class GraphKind:
    """One way to write an encoder down. `name` is the manifest's `kind`."""

    name: str
    file: str
    with_attentions: bool = False
    precision: str = "fp32"


class FusedMultiHeadAttention(MultiHeadAttention):
    """Attention as ONNX Runtime's com.microsoft.MultiHeadAttention. Exports only; cannot run in PyTorch."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if mask is None:
            raise ValueError("the fused attention needs a padding mask (B, 1, 1, Sk)")
        attended = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (query, key, value, None, *self.masking(mask, query)),
            attrs={"num_heads": self.head_count, "mask_filter_value": MASKED_SCORE},
            dtype=query.dtype,
            shape=query.shape,
            version=1,
        )
        # The operator adds one number to every score of a fully masked row, which softmax cancels.
        return attended * mask[:, 0].any(dim=-1, keepdim=True), None

    def masking(self, mask: Tensor, query: Tensor) -> tuple[Tensor | None, ...]:
        """The operator's inputs from key_padding_mask on; the padding mask is its fastest on a CPU."""
        del query
        return (mask[:, 0, 0, :].to(torch.int32),)


class BiasedMultiHeadAttention(FusedMultiHeadAttention):
    """The same for CUDA, whose memory-efficient kernel takes no padding mask but a bias (B, 1, Sq, Sk)."""

    def masking(self, mask: Tensor, query: Tensor) -> tuple[Tensor | None, ...]:
        bias = torch.where(mask, 0.0, HALF_MASKED_SCORE).to(query.dtype)  # (B, 1, 1, Sk)
        return None, bias.expand(-1, -1, query.size(1), -1)


# As MASKED_SCORE, finite in float16.
HALF_MASKED_SCORE = -1e4

PLAIN = GraphKind("plain", "encoder.fp32.onnx")
FUSED = GraphKind("fused", "encoder.fused.onnx")
INT8 = GraphKind("fused", "encoder.int8.onnx", precision="int8")
FP16 = GraphKind("fused", "encoder.fp16.onnx", precision="fp16")
ATTENTION = GraphKind("attention", "attention.fp32.onnx", with_attentions=True)


class GraphModule(nn.Module):
    """The encoder with a graph's inputs and outputs."""

    def __init__(self, encoder: Encoder, with_attentions: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.with_attentions = with_attentions

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        mask = attention_mask != 0
        hidden, attentions = self.encoder(
            input_ids, mask, token_type_ids, with_attentions=self.with_attentions
        )
        # A mean over hundreds of tokens needs more than float16.
        hidden = hidden.float()
        return (hidden, *(pool(hidden, mask) for pool in POOLINGS.values()), *attentions)


def output_names(kind: GraphKind, layer_count: int) -> list[str]:
    maps = [f"attentions_{layer}" for layer in range(layer_count)] if kind.with_attentions else []
    return ["token_embeddings", *POOLED, *maps]


def build_graphs(encoder: Encoder) -> Iterator[tuple[GraphKind, ir.Model]]:
    """The graphs of an encoder in evaluation mode, one at a time: each is invalid once the next is taken."""
    model = _trace(encoder, ATTENTION, MultiHeadAttention)
    yield ATTENTION, model
    # The same graph without its maps; a trace takes seconds.
    del model.graph.outputs[1 + len(POOLED) :]
    yield PLAIN, model
    del model
    model = _trace(encoder, FUSED, FusedMultiHeadAttention)
    yield FUSED, model
    quantize_graph(model)
    yield INT8, model
    del model
    yield FP16, _trace(encoder, FP16, BiasedMultiHeadAttention, torch.float16)


def _trace(
    encoder: Encoder,
    kind: GraphKind,
    attention: type[MultiHeadAttention],
    dtype: torch.dtype = torch.float32,
) -> ir.Model:
    module = GraphModule(_with_attention(encoder, attention, dtype), kind.with_attentions).eval()
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    # Sizes other than 0 and 1, which torch.export would take for constants.
    example = tuple(torch.ones(2, 3, dtype=torch.int64) for _ in INPUTS)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            verbose=False,
            input_names=INPUTS,
            output_names=output_names(kind, encoder.config.layer_count),
            dynamic_shapes=({0: batch, 1: sequence},) * len(INPUTS),
        )
    if program is None:
        raise RuntimeError(f"torch.onnx.export returned no program for the {kind.name} graph")
    return _strip_traces(program.model)


def _with_attention(encoder: Encoder, attention: type[MultiHeadAttention], dtype: torch.dtype) -> Encoder:
    """An encoder with another attention kernel and the same tensors, copied only for another type."""
    with torch.device("meta"):
        other = Encoder(encoder.config, attention=attention)
    tensors = {name: tensor.to(dtype) for name, tensor in encoder.state_dict().items()}
    other.load_state_dict(tensors, assign=True)
    return other


def _strip_traces(model: ir.Model) -> ir.Model:
    """Without the exporter's stack traces, which hold paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and of torchvision; none of it concerns the encoder."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
