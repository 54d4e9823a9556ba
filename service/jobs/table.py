"""A block's rows and what became of them -> a table with the output's schema."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.jobs.encoded import Encoded, Model, VectorShape
from service.jobs.errors import JobError
from service.jobs.rows import ID, Selection
from service.jobs.shards import Block
from service.types import Array, DataType, Vectors

EMBEDDING, SCALE, TOKEN_EMBEDDINGS = "embedding", "embedding_scale", "token_embeddings"
_VALUES = {
    DataType.FLOAT32: pa.float32(),
    DataType.FLOAT16: pa.float16(),
    DataType.INT8: pa.int8(),
}


@dataclass(frozen=True, slots=True)
class Layout:
    schema: pa.Schema
    id_name: str
    selection: Selection
    shape: VectorShape

    def build(self, block: Block, encoded: Encoded) -> pa.Table:
        failed = np.array([error is not None for error in encoded.errors], np.bool_)
        columns = {self.id_name: block.ids}
        if encoded.vectors is not None:
            columns[EMBEDDING] = _vectors(encoded.vectors, failed, self.schema.field(EMBEDDING).type)
            if encoded.vectors.scales is not None:
                columns[SCALE] = pa.array(encoded.vectors.scales, mask=failed)
        if self.shape.token_size is not None:
            kind = self.schema.field(TOKEN_EMBEDDINGS).type
            columns[TOKEN_EMBEDDINGS] = _token_embeddings(encoded, failed, kind)
        columns["token_count"] = pa.array(encoded.token_counts)
        columns["truncated"] = pa.array(encoded.truncated)
        columns["error"] = pa.array(encoded.errors, pa.string())
        for name in self.selection.keep_columns:
            if name != self.id_name:
                columns[name] = block.rows.column(name)
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def build_layout(rows: pa.Schema, selection: Selection, shape: VectorShape, model: Model) -> Layout:
    """`rows` is the schema of the row batches. The model's identity goes into the schema's metadata."""
    id_name = selection.id_column or "id"
    id_type = rows.field(ID).type if selection.id_column else pa.int64()
    fields = [pa.field(id_name, id_type)]
    if shape.dimensions is not None:
        fields.append(pa.field(EMBEDDING, _vector_type(shape)))
        if shape.data_type is DataType.INT8:
            fields.append(pa.field(SCALE, pa.float32()))
    if shape.token_size is not None:
        fields.append(pa.field(TOKEN_EMBEDDINGS, pa.list_(pa.list_(pa.float32(), shape.token_size))))
    fields += [
        pa.field("token_count", pa.int32()),
        pa.field("truncated", pa.bool_()),
        pa.field("error", pa.string()),
    ]
    fields += [pa.field(name, rows.field(name).type) for name in selection.keep_columns if name != id_name]
    names = [field.name for field in fields]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise JobError(
            f"the output has a column {', '.join(sorted(repeated))} of its own; rename the input's, or leave "
            "it out of --id-column and --keep-columns"
        )
    metadata = {
        "seqenc.model": model.name,
        "seqenc.revision": model.revision,
        "seqenc.precision": model.precision,
    }
    return Layout(pa.schema(fields, metadata), id_name, selection, shape)


def _vector_type(shape: VectorShape) -> pa.DataType:
    assert shape.dimensions is not None  # noqa: S101
    if shape.data_type is DataType.UBINARY:
        return pa.binary(shape.dimensions // 8)
    return pa.list_(_VALUES[shape.data_type], shape.dimensions)


def _vectors(vectors: Vectors, failed: Array, kind: pa.DataType) -> pa.Array:
    """Null where a row failed."""
    if pa.types.is_fixed_size_binary(kind):
        validity = pa.array(~failed).buffers()[1]
        data = np.ascontiguousarray(vectors.data)
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(failed), [validity, pa.py_buffer(data)])
    flat = pa.array(np.ascontiguousarray(vectors.data).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=pa.array(failed))


def _token_embeddings(encoded: Encoded, failed: Array, kind: pa.DataType) -> pa.Array:
    width = kind.value_type.list_size
    rows = [np.zeros((0, width), np.float32) if each is None else each for each in encoded.token_embeddings]
    values = np.concatenate(rows) if rows else np.zeros((0, width), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind.value_type)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors, type=kind, mask=pa.array(failed))
