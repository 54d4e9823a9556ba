"""Requests for a tiny model, as hypothesis draws them: legal parts with a wrong one now and then; garbage."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from seqenc.v1 import encoder_pb2 as pb
from service.api.inference import open_inference_pb2 as inference

NAME = "tiny-bert"
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
WORDS = st.sampled_from(["the", "of", "and", "word", "zebra", "[SEP]", "é", "中", "!", "\x00", "\n", "💩"])


@cache
def often(usual: st.SearchStrategy[Any], seldom: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A call has so many parts that one in 40 makes every third call wrong."""
    return st.sampled_from([usual] * 39 + [seldom]).flatmap(lambda chosen: chosen)


@cache
def texts() -> st.SearchStrategy[str]:
    words = st.lists(WORDS, max_size=12).map(" ".join)
    long = st.integers(50, 400).map(lambda count: "word " * count)
    return often(st.one_of(words, st.text(max_size=20)), st.one_of(long, st.text(max_size=200)))


@st.composite
def token_ids(draw: st.DrawFn) -> pb.TokenIds:
    longest = draw(often(st.just(12), st.just(70)))
    id = draw(often(st.just(st.integers(0, 999)), st.just(st.one_of(st.integers(-1, 1000), INT32))))
    ids = draw(st.lists(id, min_size=1, max_size=longest))
    same = st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))
    other = st.lists(often(st.integers(-1, 2), INT32), max_size=10)
    mask: list[int] = draw(st.one_of(st.just([]), often(same, other)))
    types: list[int] = draw(st.one_of(st.just([]), often(same, other)))
    return pb.TokenIds(ids=draw(often(st.just(ids), st.just([]))), attention_mask=mask, type_ids=types)


@cache
def sequences() -> st.SearchStrategy[pb.Sequence]:
    text = texts().map(lambda text: pb.Sequence(text=text))
    pair = st.tuples(texts(), texts()).map(
        lambda pair: pb.Sequence(text_pair=pb.TextPair(first=pair[0], second=pair[1]))
    )
    row = token_ids().map(lambda ids: pb.Sequence(token_ids=ids))
    return often(st.one_of(text, pair, row, row), st.just(pb.Sequence()))


@st.composite
def attentions(draw: st.DrawFn) -> pb.AttentionOptions:
    indices = often(st.lists(st.integers(-2, 1), max_size=1), st.lists(st.integers(-3, 2), max_size=3))
    options: dict[str, Any] = {
        "layers": draw(indices),
        "heads": draw(indices),
        "reduction": draw(often(st.integers(0, 3), INT32)),
        "type": draw(often(st.integers(0, 2), INT32)),
    }
    return pb.AttentionOptions(**options)


@cache
def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


@st.composite
def reading_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "truncation": draw(often(st.integers(0, 3), INT32)),
        "max_tokens": draw(optional(often(st.integers(4, 64), INT32))),
        "prompt_name": draw(often(st.just(""), st.text(max_size=5))),
        "prompt": draw(often(st.just(""), texts())),
        "on_error": draw(often(st.sampled_from([2, 0, 1]), INT32)),
    }


@st.composite
def encode_options(draw: st.DrawFn) -> pb.EncodeOptions:
    chosen = {
        "pooling": draw(often(st.sampled_from([2, 3, 4, 5, 0, 1]), INT32)),
        "normalize": draw(optional(st.booleans())),
        "dimensions": draw(optional(often(st.integers(1, 4).map(lambda eights: 8 * eights), INT32))),
        "embedding_type": draw(often(st.sampled_from([1, 2, 3, 4, 5, 0]), INT32)),
        "token_embeddings": draw(st.booleans()),
        "tokens": draw(st.booleans()),
        "attention": draw(optional(attentions())),
        "priority": draw(often(st.integers(-3, 3), INT32)),
    }
    return pb.EncodeOptions(**chosen, **draw(reading_options()))


@st.composite
def encode_requests(draw: st.DrawFn) -> pb.EncodeRequest:
    return pb.EncodeRequest(
        model=draw(often(st.sampled_from(["", NAME]), st.text(max_size=5))),
        inputs=draw(often(st.lists(sequences(), min_size=1, max_size=4), st.just([]))),
        options=draw(encode_options()),
        request_id=draw(st.text(max_size=5)),
        expected_revision=draw(often(st.just(""), st.text(max_size=5))),
    )


@st.composite
def tokenize_requests(draw: st.DrawFn) -> pb.TokenizeRequest:
    return pb.TokenizeRequest(
        model=draw(often(st.sampled_from(["", NAME]), st.text(max_size=5))),
        inputs=draw(often(st.lists(sequences(), min_size=1, max_size=4), st.just([]))),
        options=pb.EncodeOptions(**draw(reading_options())),
    )


@st.composite
def damaged(draw: st.DrawFn, messages: st.SearchStrategy[Any]) -> bytes:
    """Bytes of a message with a few of them changed, cut out, put in, or left off at the end."""
    data = bytearray(draw(messages).SerializeToString() or b"\x00")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        new = draw(st.binary(max_size=3))
        data[place : place + draw(st.integers(0, 3))] = new
        data = data or bytearray(1)
    return bytes(data[: draw(often(st.just(len(data)), st.integers(0, len(data))))])


@st.composite
def infer_cases(draw: st.DrawFn) -> tuple[inference.ModelInferRequest, bool]:
    """A legal request, or one with a single thing wrong; and which of the two it is."""
    request = draw(infer_requests())
    fault = draw(st.sampled_from([None, None, *_FAULTS]))
    if fault:
        _FAULTS[fault](request)
    return request, fault is None


@st.composite
def infer_requests(draw: st.DrawFn) -> inference.ModelInferRequest:
    request = inference.ModelInferRequest(model_name=NAME, id=draw(st.text(max_size=5)))
    count, width = draw(st.integers(1, 4)), draw(st.integers(1, 10))
    if draw(st.booleans()):
        words = draw(st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=count, max_size=count))
        texts = [text.encode() for text in words]
        request.inputs.add(name="text", datatype="BYTES", shape=[count])
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))
    else:
        dtype, name = draw(st.sampled_from([("<i8", "INT64"), ("<i4", "INT32")]))
        values = draw(st.lists(st.integers(0, 999), min_size=count * width, max_size=count * width))
        request.inputs.add(name="input_ids", datatype=name, shape=[count, width])
        request.raw_input_contents.append(np.array(values, dtype).tobytes())
    return request


def _rename(request: inference.ModelInferRequest) -> None:
    request.inputs[0].name += "x"


def _retype(request: inference.ModelInferRequest) -> None:
    request.inputs[0].datatype = "FP32"


def _repeat(request: inference.ModelInferRequest) -> None:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])


def _lengthen(request: inference.ModelInferRequest) -> None:
    request.raw_input_contents[0] += b"\x00"


def _shorten(request: inference.ModelInferRequest) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][:-1]


def _add_axis(request: inference.ModelInferRequest) -> None:
    request.inputs[0].shape.append(1)


def _empty(request: inference.ModelInferRequest) -> None:
    request.inputs[0].shape[0] = 0


def _stretch(request: inference.ModelInferRequest) -> None:
    request.inputs[0].shape[0] = 1 << 40


def _negate(request: inference.ModelInferRequest) -> None:
    request.inputs[0].shape[0] = -1


def _drop(request: inference.ModelInferRequest) -> None:
    del request.inputs[:]


def _ask_for_another(request: inference.ModelInferRequest) -> None:
    request.outputs.add(name="logits")


def _set_unknown(request: inference.ModelInferRequest) -> None:
    request.parameters["temperature"].int64_param = 1


def _set_wrong_kind(request: inference.ModelInferRequest) -> None:
    request.parameters["pooling"].int64_param = 1


def _set_wrong_value(request: inference.ModelInferRequest) -> None:
    request.parameters["dimensions"].int64_param = -(1 << 40)


def _send_to_another(request: inference.ModelInferRequest) -> None:
    request.model_name = "another"


_FAULTS = {
    function.__name__: function
    for function in (
        _rename,
        _retype,
        _repeat,
        _lengthen,
        _shorten,
        _add_axis,
        _empty,
        _stretch,
        _negate,
        _drop,
        _ask_for_another,
        _set_unknown,
        _set_wrong_kind,
        _set_wrong_value,
        _send_to_another,
    )
}
