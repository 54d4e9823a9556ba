"""One file of weights that several ONNX graphs share as their external data."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx_ir as ir

# ONNX asks for page-aligned offsets, so that a runtime can map the file.
_PAGE = 4096
# Smaller tensors (shapes, scalars) stay in the graph.
_SMALLEST_EXTERNAL = 1024


class SharedWeights:
    """Appends each distinct tensor once. Equal bytes are one entry, whatever the tensor is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._offsets: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write_graph(self, model: ir.Model, path: Path, *, add: bool = True) -> None:
        """Writes the model, its large initializers moved into this file unless they are there already.

        Without `add`, initializers that this file does not have stay in the graph.
        """
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.nbytes < _SMALLEST_EXTERNAL:
                continue
            data = tensor.tobytes()
            digest = hashlib.sha256(data).hexdigest()
            if add and digest not in self._offsets:
                self._offsets[digest] = self._append(data)
            if digest in self._offsets:
                value.const_value = self._external(tensor, self._offsets[digest], len(data))
        self._file.flush()
        path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))

    def _external(self, tensor: ir.TensorProtocol, offset: int, length: int) -> ir.ExternalTensor:
        return ir.ExternalTensor(
            location=self.path.name,
            offset=offset,
            length=length,
            dtype=tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=self.path.parent,
        )

    def _append(self, data: bytes) -> int:
        offset = -(-self._file.tell() // _PAGE) * _PAGE
        self._file.seek(offset)
        self._file.write(data)
        return offset
