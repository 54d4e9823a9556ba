"""fp32 graph -> int8 graph: every product with a weight matrix in int8, one scale and offset a row.

Dynamic quantisation in ONNX Runtime's stock recipe has one scale for a whole tensor, so that a text's vector
depends on what it is batched with. Here each row of activations (a token) has its own:

    s = (hi - lo) / 255    z = round(-lo / s)    q = round(x / s) + z, in 0 … 255

with lo <= 0 <= hi, the row's range. Weights W are int8 with one scale w a column, symmetric. Then

    x W  ~  s w (q - z) Wq  =  s w [q z … z] [Wq; C]

where the rows of C are int8 and add up to minus the column sums of Wq: the offset costs a few more columns of
the integer product, exactly, instead of two more passes over its float result. The columns of z come from
columns of zeros, which quantise to z, behind x; with them in the row, lo <= 0 <= hi needs no care.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_MAX_UINT8 = 255
_MAX_INT8 = 127
# A row of zeros would be divided by 0.
_MIN_SCALE = np.float32(1e-9)
# What these are never below; GELU's minimum is -0.16997.
_LOWEST = {"Gelu": np.float32(-0.17), "Relu": np.float32(0)}


@dataclass(frozen=True)
class _Rows:
    """Activations quantised row by row: `augmented` is [q z … z], `scales` (rows, 1)."""

    augmented: ir.Value
    scales: ir.Value


@dataclass(frozen=True)
class _Chain:
    """A product, its bias and a function that feeds one other product alone, as in a feed-forward layer."""

    product: ir.Node
    addition: ir.Node
    activations: ir.Value


def quantize_weights(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(K, N) -> int8 (K, N) and the scale of each column (N,); a zero column has scale 1."""
    largest = np.abs(weights).max(axis=0)
    scales = np.where(largest > 0, largest / _MAX_INT8, 1).astype(np.float32)
    return np.rint(weights / scales).astype(np.int8), scales


def offset_rows(quantized: NDArray[np.int8], count: int) -> NDArray[np.int8]:
    """`count` int8 rows that add up to minus the column sums; it takes `offset_row_count`."""
    left = -quantized.sum(axis=0, dtype=np.int64)
    rows = np.zeros((count, quantized.shape[1]), np.int8)
    for row in rows:
        row[:] = np.clip(left, -_MAX_INT8, _MAX_INT8)
        left -= row
    return rows


def offset_row_count(quantized: NDArray[np.int8]) -> int:
    return int(-(-np.abs(quantized.sum(axis=0, dtype=np.int64)).max() // _MAX_INT8))


def quantize_graph(model: ir.Model) -> None:
    """Turns a fused fp32 graph into its int8 form, in place."""
    graph = model.graph
    products = [node for node in graph if _is_weight_product(node)]
    by_input: dict[ir.Value, list[ir.Node]] = {}
    for node in products:
        by_input.setdefault(_input(node, 0), []).append(node)
    chains = [chain for activations in by_input if (chain := _chain_before(activations))]
    builder = _Builder(graph, chains)
    for chain in chains:
        builder.widen(chain, _extra_columns(by_input[chain.activations]))
    for activations, consumers in by_input.items():
        builder.replace(activations, consumers)
    _move_biases_into_attention(graph)
    _drop_unused_initializers(graph)


def _chain_before(activations: ir.Value) -> _Chain | None:
    """What gives `activations`, if every value on the way is read by the next node alone."""
    function = activations.producer()
    if function is None or function.op_type not in _LOWEST or len(activations.uses()) > 1:
        return None
    addition = _bias_addition(_input(function, 0))
    product = _input(addition, 0).producer() if addition else None
    if addition is None or product is None or len(product.outputs[0].uses()) > 1:
        return None
    return _Chain(product, addition, activations) if _is_weight_product(product) else None


def _is_weight_product(node: ir.Node) -> bool:
    if node.op_type != "MatMul" or node.domain != "":
        return False
    weights = _input(node, 1).const_value
    return weights is not None and len(weights.shape) == 2


class _Builder:
    """Inserts nodes before the ones they replace. Along a chain, rows stay (rows, width)."""

    def __init__(self, graph: ir.Graph, chains: list[_Chain]) -> None:
        self._graph = graph
        self._starts = {chain.product for chain in chains}
        self._ends = {chain.activations for chain in chains}
        self._count = 0
        first = graph[0]
        shape = self._add(first, "Shape", graph.inputs[0])
        minus_one = self._constant(np.array([-1], np.int64))
        # (B, S, -1), for any width
        self._rank_3 = self._add(first, "Concat", shape, minus_one, axis=0)
        self._axis_1 = self._constant(np.array([1], np.int64))
        self._zero_point = self._constant(np.uint8(0))
        self._one = self._constant(np.float32(1))
        self._step = self._constant(np.float32(1 / _MAX_UINT8))
        self._min_scale = self._constant(_MIN_SCALE)

    def widen(self, chain: _Chain, extra: int) -> None:
        """Lets a chain end in columns of zeros, as its function keeps 0."""
        weights, bias = _numpy(_input(chain.product, 1)), _numpy(_input(chain.addition, 1))
        chain.product.replace_input_with(1, self._constant(np.pad(weights, ((0, 0), (0, extra)))))
        chain.addition.replace_input_with(1, self._constant(np.pad(bias, (0, extra))))
        for value in (chain.addition.outputs[0], chain.activations):
            value.shape = None  # no longer (B, S, width)

    def replace(self, activations: ir.Value, consumers: list[ir.Node]) -> None:
        """Quantises the activations once for all the products that read them."""
        extra = _extra_columns(consumers)
        rows = self._quantize_rows(consumers[0], activations, extra)
        for node in consumers:
            quantized, scales = quantize_weights(_numpy(_input(node, 1)))
            weights = np.concatenate([quantized, offset_rows(quantized, extra)])
            product = self._add(
                node,
                "MatMulIntegerToFloat",
                *(rows.augmented, self._constant(weights), self._one, self._constant(scales)),
                self._zero_point,
                domain="com.microsoft",
            )
            result = self._add(node, "Mul", product, rows.scales)
            if node not in self._starts:
                result = self._add(node, "Reshape", result, self._rank_3)
            ir.convenience.replace_all_uses_with(node.outputs[0], result)
            self._graph.remove(node, safe=True)

    def _quantize_rows(self, before: ir.Node, activations: ir.Value, extra: int) -> _Rows:
        width = _numpy(_input(before, 1)).shape[0]
        rows = activations if activations in self._ends else self._pad(before, activations, width, extra)
        high = self._add(before, "ReduceMax", rows, self._axis_1, keepdims=0)  # (rows,)
        function = activations.producer()
        if function is not None and function.op_type in _LOWEST:
            # Known without looking at the rows.
            spread = self._add(before, "Sub", high, self._constant(_LOWEST[function.op_type]))
            minus_low = self._add(before, "Sub", spread, high)
        else:
            low = self._add(before, "ReduceMin", rows, self._axis_1, keepdims=0)
            spread = self._add(before, "Sub", high, low)
            minus_low = self._add(before, "Neg", low)
        steps = self._add(before, "Mul", spread, self._step)
        scales = self._add(before, "Max", steps, self._min_scale)
        offsets = self._add(before, "QuantizeLinear", minus_low, scales, axis=0)
        return _Rows(
            augmented=self._add(before, "QuantizeLinear", rows, scales, offsets, axis=0),
            scales=self._add(before, "Unsqueeze", scales, self._axis_1),
        )

    def _pad(self, before: ir.Node, activations: ir.Value, width: int, extra: int) -> ir.Value:
        """(rows, width + extra), ending in zeros"""
        flat = self._add(before, "Reshape", activations, self._constant(np.array([-1, width])))
        return self._add(before, "Pad", flat, self._constant(np.array([0, 0, 0, extra])))

    def _add(
        self,
        before: ir.Node,
        op_type: str,
        *inputs: ir.Value,
        domain: str = "",
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes=attributes, domain=domain)
        self._graph.insert_before(before, node)
        node.outputs[0].name = self._new_name(op_type)
        return node.outputs[0]

    def _constant(self, array: NDArray[np.generic] | np.generic) -> ir.Value:
        return _add_initializer(self._graph, self._new_name("constant"), np.asarray(array))

    def _new_name(self, what: str) -> str:
        self._count += 1
        return f"int8_{what}_{self._count}"


def _extra_columns(products: list[ir.Node]) -> int:
    """As many as the offset needs; at least one, so that a row's range has 0 in it."""
    counts = (offset_row_count(quantize_weights(_numpy(_input(node, 1)))[0]) for node in products)
    return max(1, *counts)


def _move_biases_into_attention(graph: ir.Graph) -> None:
    """The attention operator adds the projections' biases itself, which saves three passes."""
    for number, node in enumerate([node for node in graph if node.op_type == "MultiHeadAttention"]):
        additions = [_bias_addition(_input(node, place)) for place in range(3)]
        found = [addition for addition in additions if addition is not None]
        if node.inputs[3] is not None or len(found) < len(additions):
            continue
        for place, addition in enumerate(found):
            node.replace_input_with(place, _input(addition, 0))
        joined = np.concatenate([_numpy(_input(addition, 1)) for addition in found])
        node.replace_input_with(3, _add_initializer(graph, f"int8_attention_bias_{number}", joined))
        graph.remove(dict.fromkeys(found), safe=True)


def _bias_addition(value: ir.Value) -> ir.Node | None:
    """The node that gives `value` by adding a constant vector, if it is made so and read only once."""
    addition = value.producer()
    if addition is None or addition.op_type != "Add" or len(value.uses()) > 1:
        return None
    tensor = _input(addition, 1).const_value
    return addition if tensor is not None and len(tensor.shape) == 1 else None


def _drop_unused_initializers(graph: ir.Graph) -> None:
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]


def _add_initializer(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def _input(node: ir.Node, place: int) -> ir.Value:
    value = node.inputs[place]
    if value is None:
        raise ValueError(f"{node.op_type} has no input {place}")
    return value


def _numpy(value: ir.Value) -> NDArray[np.float32]:
    if value.const_value is None:
        raise ValueError(f"{value.name} is not a constant")
    return value.const_value.numpy().astype(np.float32)
