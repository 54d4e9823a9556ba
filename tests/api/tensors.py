"""Requests of the Open Inference Protocol from arrays and texts, and arrays from its responses."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.api.inference import open_inference_pb2 as pb

Array = NDArray[Any]
Values = Array | Sequence[str]
_DTYPES = {"FP32": np.float32, "INT64": np.int64}
_PARAMETER_FIELDS: dict[type, str] = {bool: "bool_param", int: "int64_param", str: "string_param"}


def infer_request(
    inputs: Mapping[str, Values],
    outputs: Iterable[str] = (),
    *,
    raw: bool = True,
    parameters: Mapping[str, bool | int | str] | None = None,
    **fields: Any,
) -> pb.ModelInferRequest:
    """Texts become BYTES, arrays INT64 or INT32 by their dtype; contents are raw or typed."""
    request = pb.ModelInferRequest(**fields)
    for name, values in inputs.items():
        add_input(request, name, values, raw=raw)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        setattr(request.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    return request


def add_input(request: pb.ModelInferRequest, name: str, values: Values, *, raw: bool = True) -> None:
    if isinstance(values, np.ndarray):
        tensor = request.inputs.add(name=name, datatype=values.dtype.name.upper(), shape=values.shape)
        typed = {"INT64": "int64_contents", "INT32": "int_contents"}[tensor.datatype]
        data, elements = values.tobytes(), values.ravel().tolist()
    else:
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(values)])
        typed, elements = "bytes_contents", [text.encode() for text in values]
        data = pack_bytes(elements)
    if raw:
        request.raw_input_contents.append(data)
    else:
        getattr(tensor.contents, typed).extend(elements)


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def outputs_of(response: pb.ModelInferResponse) -> dict[str, Array]:
    """In the order sent."""
    assert len(response.outputs) == len(response.raw_output_contents)
    return {
        tensor.name: np.frombuffer(data, _DTYPES[tensor.datatype]).reshape(tuple(tensor.shape))
        for tensor, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }
