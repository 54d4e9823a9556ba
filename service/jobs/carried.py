"""Columns carried along: brought to the type they have in the output, with text that every reader takes."""

from __future__ import annotations

import logging
from functools import cache

import pyarrow as pa

from service.jobs.arrow_json import decode, texts_of
from service.jobs.errors import JobError
from service.jobs.surrogates import replace_surrogates
from service.logs import log_event

logger = logging.getLogger(__name__)


def fit(array: pa.Array, kind: pa.DataType, path: str, name: str) -> pa.Array:
    """Values that the files' common type has no room for become null, and the log says so."""
    try:
        return fit_all(array, kind, path, name)
    except JobError:
        values = [_fit_value(array.slice(row, 1), kind) for row in range(len(array))]
    _warn_once(path, name, str(kind))
    return pa.concat_arrays(values)


def fit_all(array: pa.Array, kind: pa.DataType, path: str, name: str) -> pa.Array:
    """Raises JobError where a value does not fit. What becomes a string is its JSON."""
    if _is_text(kind) and not _is_text(array.type):
        texts = [None if text is None else replace_surrogates(text) for text in texts_of(array)]
        return pa.array(texts, kind)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobError(
            f"{path}: column {name} does not fit the other files' ({error}); make them one type"
        ) from error


def repair_text(array: pa.Array) -> pa.Array:
    """The same with `replace_surrogates` of all strings, however deep they are."""
    if is_valid(array):
        return array
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, repair_text(array.storage))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, repair_text(array.dictionary))
    if _is_text(kind):
        return pa.array([None if text is None else replace_surrogates(text) for text in decode(array)], kind)
    if pa.types.is_struct(kind):
        children = [repair_text(array.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_nested(kind) and kind.num_fields == 1:
        own = array.buffers()[: kind.num_buffers]
        return pa.Array.from_buffers(
            kind, len(array), own, offset=array.offset, children=[repair_text(array.values)]
        )
    return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@cache
def _warn_once(path: str, name: str, kind: str) -> None:
    event = "some values do not fit the type of this column in all files, and are null"
    log_event(logger, logging.WARNING, event, file=path, column=name, type=kind)


def _fit_value(value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)
