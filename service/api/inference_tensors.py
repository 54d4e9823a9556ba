"""Tensors of the Open Inference Protocol <-> NumPy arrays; every refusal names the tensor."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from service.api.inference import open_inference_pb2 as pb
from service.errors import InvalidInputError
from service.types import Array, Ids

# Inputs this model has: datatypes and number of axes.
INPUTS = {
    "text": (("BYTES",), 1),
    "text_pair": (("BYTES",), 1),
    "input_ids": (("INT64", "INT32"), 2),
    "attention_mask": (("INT64", "INT32"), 2),
    "token_type_ids": (("INT64", "INT32"), 2),
}
_INTEGERS: dict[str, np.dtype[Any]] = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}
_OUTPUT_TYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}
_LENGTH = struct.Struct("<I")


class Inputs:
    """The input tensors of a request: `texts` by name, and `integers` (n, s) by name; n <= `max_rows`."""

    def __init__(self, request: pb.ModelInferRequest, *, max_rows: int) -> None:
        self.texts: dict[str, list[str]] = {}
        self.integers: dict[str, Ids] = {}
        raw = request.raw_input_contents
        if raw and len(raw) != len(request.inputs):
            raise InvalidInputError.of(
                "raw_input_contents",
                f"has {len(raw)} entries for {len(request.inputs)} inputs; send one for each",
            )
        for index, tensor in enumerate(request.inputs):
            name = _check_declared(tensor, index, {*self.texts, *self.integers})
            _check_shape(name, tensor.shape, max_rows)
            data = raw[index] if raw else None
            if data is not None and tensor.HasField("contents"):
                raise InvalidInputError.of(name, "has contents beside raw_input_contents; send one of them")
            if tensor.datatype == "BYTES":
                self.texts[name] = _read_texts(name, tensor, data)
            else:
                self.integers[name] = _read_integers(name, tensor, data)


def add_output(response: pb.ModelInferResponse, name: str, array: Array) -> None:
    response.outputs.add(name=name, datatype=_OUTPUT_TYPES[array.dtype], shape=array.shape)
    response.raw_output_contents.append(array.tobytes())


def read_parameters(
    parameters: Mapping[str, pb.InferParameter], kinds: Mapping[str, str]
) -> dict[str, bool | int | str]:
    """`kinds`: the field of InferParameter that each known parameter must have."""
    values: dict[str, bool | int | str] = {}
    for name, parameter in parameters.items():
        if name not in kinds:
            raise InvalidInputError.of("parameters", f"has an unknown name; known are {', '.join(kinds)}")
        kind = parameter.WhichOneof("parameter_choice")
        if kind != kinds[name]:
            raise InvalidInputError.of(f"parameters[{name}]", f"must be a {kinds[name]}")
        values[name] = getattr(parameter, kinds[name])
    return values


def _check_declared(tensor: pb.ModelInferRequest.InferInputTensor, index: int, seen: set[str]) -> str:
    name = tensor.name
    if name not in INPUTS:
        raise InvalidInputError.of(
            f"inputs[{index}].name", f"is not an input of this model; it has {', '.join(INPUTS)}"
        )
    if name in seen:
        raise InvalidInputError.of(name, "is there twice; send each input once")
    datatypes, _ = INPUTS[name]
    if tensor.datatype not in datatypes:
        raise InvalidInputError.of(name, f"has another datatype; it must be {' or '.join(datatypes)}")
    if tensor.parameters:
        raise InvalidInputError.of(name, "has parameters, such as shared memory; this server takes none")
    return name


def _check_shape(name: str, shape: Sequence[int], max_rows: int) -> None:
    _, axes = INPUTS[name]
    if len(shape) != axes or min(shape) < 1 or shape[0] > max_rows:
        wanted = "[n]" if axes == 1 else "[n, s] with s at least 1"
        raise InvalidInputError.of(
            name, f"has shape {list(shape[:8])}, must be {wanted} and n 1 to {max_rows}; split larger calls"
        )


def _read_texts(name: str, tensor: pb.ModelInferRequest.InferInputTensor, data: bytes | None) -> list[str]:
    if data is None:
        contents: Sequence[bytes] = tensor.contents.bytes_contents
        _check_count(name, tensor, len(contents))
    else:
        contents = _split_raw(name, data, tensor.shape[0])
    texts: list[str] = []
    for index, content in enumerate(contents):
        try:
            texts.append(content.decode())
        except UnicodeDecodeError:
            raise InvalidInputError.of(f"{name}[{index}]", "is not valid UTF-8; send UTF-8 text") from None
    return texts


def _split_raw(name: str, data: bytes, count: int) -> list[bytes]:
    elements: list[bytes] = []
    end = 0
    for _ in range(count):
        start = end + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, end)[0] if start <= len(data) else start
        if end > len(data):
            raise InvalidInputError.of(
                name,
                f"its raw bytes end inside element {len(elements)} of {count}; "
                f"send each behind its length as {_LENGTH.size} bytes, little-endian",
            )
        elements.append(data[start:end])
    if end < len(data):
        raise InvalidInputError.of(name, f"has {len(data) - end} raw bytes behind the {count} of its shape")
    return elements


def _read_integers(name: str, tensor: pb.ModelInferRequest.InferInputTensor, data: bytes | None) -> Ids:
    dtype = _INTEGERS[tensor.datatype]
    if data is None:
        contents = tensor.contents
        typed = contents.int64_contents if tensor.datatype == "INT64" else contents.int_contents
        values = np.array(typed, np.int64)
    elif len(data) != prod(tensor.shape) * dtype.itemsize:
        raise InvalidInputError.of(
            name, f"has {len(data)} raw bytes, its shape needs {prod(tensor.shape) * dtype.itemsize}"
        )
    else:
        values = np.frombuffer(data, dtype).astype(np.int64)
    _check_count(name, tensor, len(values))
    return values.reshape(tuple(tensor.shape))


def _check_count(name: str, tensor: pb.ModelInferRequest.InferInputTensor, count: int) -> None:
    if count != prod(tensor.shape):
        raise InvalidInputError.of(name, f"has {count} elements, its shape needs {prod(tensor.shape)}")
