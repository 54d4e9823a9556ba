"""What ModelInfer refuses: by the tensor's name, before anything runs, and without a word of the user's."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable

import grpc
import numpy as np
import pytest

from api.api_server import ApiServer
from api.refusals import Refusal, refusal_of
from api.tensors import add_input, infer_request, outputs_of, pack_bytes
from service.api.inference import open_inference_pb2 as pb

PRIVATE = "xyzzy-plugh"
IDS = np.full((2, 3), 7)
Change = Callable[[pb.ModelInferRequest], None]


def changed(change: Change, **arrays: np.ndarray) -> pb.ModelInferRequest:
    """A good request of texts, or of the arrays given, with one thing changed."""
    request = infer_request(arrays) if arrays else infer_request({"text": [PRIVATE, PRIVATE]})
    change(request)
    return request


def text(**fields: object) -> Change:
    """Sets fields of the text tensor."""

    def change(request: pb.ModelInferRequest) -> None:
        for name, value in fields.items():
            if name == "shape":
                request.inputs[0].ClearField("shape")
                request.inputs[0].shape.extend(value)  # type: ignore[arg-type]
            else:
                setattr(request.inputs[0], name, value)

    return change


def raw(data: bytes) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        request.raw_input_contents[0] = data

    return change


def parameter(name: str, **value: object) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        request.parameters[name].CopyFrom(pb.InferParameter(**value))  # type: ignore[arg-type]

    return change


def extra(name: str, values: np.ndarray | list[str]) -> Change:
    return lambda request: add_input(request, name, values)


def wanted(*names: str, **parameters: str) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        for name in names:
            output = request.outputs.add(name=name)
            for key, value in parameters.items():
                output.parameters[key].string_param = value

    return change


def both(first: Change, second: Change) -> Change:
    def change(request: pb.ModelInferRequest) -> None:
        first(request)
        second(request)

    return change


def typed(field: str, *values: object, shape: tuple[int, ...] = (2,)) -> Change:
    """Moves the contents of the first tensor out of the raw ones."""

    def change(request: pb.ModelInferRequest) -> None:
        del request.raw_input_contents[:]
        text(shape=shape)(request)
        getattr(request.inputs[0].contents, field).extend(values)

    return change


def input_parameter(request: pb.ModelInferRequest) -> None:
    request.inputs[0].parameters["shared_memory_region"].string_param = PRIVATE


def contents_twice(request: pb.ModelInferRequest) -> None:
    request.inputs[0].contents.bytes_contents.append(PRIVATE.encode())


def raw_missing(request: pb.ModelInferRequest) -> None:
    request.inputs.add(name="text_pair", datatype="BYTES", shape=[2])


def no_inputs(request: pb.ModelInferRequest) -> None:
    request.ClearField("inputs")
    request.ClearField("raw_input_contents")


def nothing(request: pb.ModelInferRequest) -> None:
    """Leaves the request as it is."""


GOOD_BYTES = pack_bytes([PRIVATE.encode()] * 2)
OF_TEXT: dict[str, tuple[str, Change]] = {
    "dtype": ("text", text(datatype="FP32")),
    "dtype of integers": ("text", text(datatype="INT64")),
    "no dtype": ("text", text(datatype="")),
    "no shape": ("text", text(shape=[])),
    "two axes": ("text", text(shape=[2, 1])),
    "no rows": ("text", text(shape=[0])),
    "negative": ("text", text(shape=[-2])),
    "more rows than the limit": ("text", text(shape=[1 << 40])),
    "more rows than sent": ("text", text(shape=[3])),
    "fewer rows than sent": ("text", text(shape=[1])),
    "bytes missing": ("text", raw(GOOD_BYTES[:-1])),
    "a byte too many": ("text", raw(GOOD_BYTES + b"\0")),
    "cut in a length": ("text", raw(GOOD_BYTES + struct.pack("<I", 1)[:3])),
    "length past the end": ("text", raw(struct.pack("<I", 0xFFFFFFFF) + PRIVATE.encode())),
    "no bytes": ("text", raw(b"")),
    "not UTF-8": ("text[1]", raw(pack_bytes([b"fine", b"\xf0\x9f\x92" + PRIVATE.encode()]))),
    "not UTF-8, typed": ("text[0]", typed("bytes_contents", b"\xff" + PRIVATE.encode(), b"")),
    "typed count": ("text", typed("bytes_contents", PRIVATE.encode())),
    "typed as something else": ("text", typed("int64_contents", 1, 2)),
    "nothing typed": ("text", typed("bytes_contents")),
    "raw and typed": ("text", contents_twice),
    "raw for one of two": ("raw_input_contents", raw_missing),
    "parameters of an input": ("text", input_parameter),
    "unknown input": ("inputs[1].name", extra(PRIVATE, [PRIVATE])),
    "output's name as input": ("inputs[1].name", extra("embedding", IDS)),
    "twice": ("text", extra("text", [PRIVATE, PRIVATE])),
    "ids beside text": ("inputs", extra("input_ids", IDS)),
    "mask beside text": ("attention_mask", extra("attention_mask", IDS)),
    "too few pairs": ("text_pair", extra("text_pair", [PRIVATE])),
    "too long": ("text[1]", raw(pack_bytes([b"fine", f"{PRIVATE} ".encode() * 70]))),
    "a pair too long": ("text[1]", extra("text_pair", ["fine", f"{PRIVATE} " * 70])),
    "unknown output": ("outputs[0].name", wanted(PRIVATE)),
    "second output unknown": ("outputs[1].name", wanted("embedding", PRIVATE)),
    "output twice": ("outputs[1].name", wanted("embedding", "embedding")),
    "more outputs than there are": ("outputs", wanted(*["embedding"] * 5)),
    "parameters of an output": ("outputs[0].parameters", wanted("embedding", shared_memory_region=PRIVATE)),
    "unknown parameter": ("parameters", parameter(PRIVATE, string_param=PRIVATE)),
    "unknown pooling": ("parameters[pooling]", parameter("pooling", string_param=PRIVATE)),
    "pooling as a number": ("parameters[pooling]", parameter("pooling", int64_param=1)),
    "a parameter without value": ("parameters[pooling]", parameter("pooling")),
    "normalize as text": ("parameters[normalize]", parameter("normalize", string_param="true")),
    "dimensions as text": ("parameters[dimensions]", parameter("dimensions", string_param=PRIVATE)),
    "no dimensions": ("parameters[dimensions]", parameter("dimensions", int64_param=0)),
    "too many dimensions": ("parameters[dimensions]", parameter("dimensions", int64_param=33)),
    "huge dimensions": ("parameters[dimensions]", parameter("dimensions", int64_param=-(1 << 63))),
    "unknown truncation": ("parameters[truncation]", parameter("truncation", string_param=PRIVATE)),
    "unknown prompt": ("parameters[prompt_name]", parameter("prompt_name", string_param=PRIVATE)),
    "embedding without pooling": ("parameters[pooling]", parameter("pooling", string_param="none")),
    "pooling without embedding": (
        "parameters[pooling]",
        both(wanted("attentions"), parameter("pooling", string_param="cls")),
    ),
    "dimensions without embedding": (
        "parameters[dimensions]",
        both(wanted("token_embeddings"), parameter("dimensions", int64_param=4)),
    ),
    "no inputs": ("inputs", no_inputs),
}


ONES = np.ones_like(IDS)
BAD_ID, BAD_MASK, BAD_TYPE, NO_TOKEN = IDS.copy(), ONES.copy(), ONES.copy(), ONES.copy()
BAD_ID[1, 2], BAD_MASK[0, 1], BAD_TYPE[1, 0], NO_TOKEN[1] = 1000, 2, 2, 0
OF_IDS: dict[str, tuple[str, dict[str, np.ndarray], Change]] = {
    "too large": ("input_ids[1, 2]", {"input_ids": BAD_ID}, nothing),
    "negative": ("input_ids[0, 0]", {"input_ids": -IDS}, nothing),
    "too long": ("input_ids[0]", {"input_ids": np.full((1, 65), 7)}, nothing),
    "no columns": ("input_ids", {"input_ids": IDS[:, :0]}, nothing),
    "endless rows of nothing": ("input_ids", {"input_ids": IDS[:, :0]}, text(shape=[1 << 40, 0])),
    "one axis": ("input_ids", {"input_ids": IDS[0]}, nothing),
    "three axes": ("input_ids", {"input_ids": IDS[None]}, nothing),
    "bytes missing": ("input_ids", {"input_ids": IDS}, raw(IDS.tobytes()[:-1])),
    "bytes of 32 bits": ("input_ids", {"input_ids": IDS}, raw(IDS.astype(np.int32).tobytes())),
    "typed in the wrong field": (
        "input_ids",
        {"input_ids": IDS},
        typed("int_contents", *[7] * 6, shape=(2, 3)),
    ),
    "typed count": ("input_ids", {"input_ids": IDS}, typed("int64_contents", *[7] * 5, shape=(2, 3))),
    "unsigned": ("input_ids", {"input_ids": IDS}, text(datatype="UINT64")),
    "mask of 2": ("attention_mask[0, 1]", {"input_ids": IDS, "attention_mask": BAD_MASK}, nothing),
    "mask of another shape": ("attention_mask", {"input_ids": IDS, "attention_mask": ONES[:, :2]}, nothing),
    "mask turned": ("attention_mask", {"input_ids": IDS, "attention_mask": ONES.T}, nothing),
    "row of padding": ("attention_mask[1]", {"input_ids": IDS, "attention_mask": NO_TOKEN}, nothing),
    "type of 2": ("token_type_ids[1, 0]", {"input_ids": IDS, "token_type_ids": BAD_TYPE}, nothing),
    "fewer types": ("token_type_ids", {"token_type_ids": ONES[:1], "input_ids": IDS}, nothing),
    "mask alone": ("inputs", {"attention_mask": ONES}, nothing),
    "pair beside ids": ("text_pair", {"input_ids": IDS}, extra("text_pair", [PRIVATE])),
    "text beside ids": ("inputs", {"input_ids": IDS}, extra("text", [PRIVATE])),
}


def assert_refused(server: ApiServer, request: pb.ModelInferRequest, field: str) -> Refusal:
    refusal = refusal_of(server.inference.ModelInfer, request)
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_INPUT")
    assert refusal.fields[0] == field
    assert refusal.message.startswith(f"{field}: ")
    assert PRIVATE.encode() not in refusal.raw
    assert server.engine.runs == []
    return refusal


@pytest.mark.parametrize(("field", "change"), OF_TEXT.values(), ids=OF_TEXT)
def test_a_bad_request_of_texts(server: ApiServer, field: str, change: Change) -> None:
    assert_refused(server, changed(change), field)


@pytest.mark.parametrize(("field", "arrays", "change"), OF_IDS.values(), ids=OF_IDS)
def test_a_bad_request_of_ids(
    server: ApiServer, field: str, arrays: dict[str, np.ndarray], change: Change
) -> None:
    assert_refused(server, changed(change, **arrays), field)


def test_every_bad_row_is_named(server: ApiServer) -> None:
    refusal = assert_refused(
        server, infer_request({"input_ids": -np.tri(3, 4)[1:].astype(int)}), "input_ids[0, 0]"
    )
    assert refusal.fields == ["input_ids[0, 0]", "input_ids[1, 0]"]
    assert refusal.message.endswith("(and 1 more)")


def test_the_message_counts_every_bad_row(server: ApiServer) -> None:
    refusal = assert_refused(server, infer_request({"text": [f"{PRIVATE} " * 70] * 100}), "text[0]")
    assert len(refusal.violations) <= 16
    assert refusal.message.endswith("(and 99 more)")


def test_more_rows_than_the_limit_are_refused_unread(server: ApiServer) -> None:
    request = infer_request({"text": [""] * 2049})
    refusal = assert_refused(server, request, "text")
    assert "2048" in refusal.message


def test_the_connection_is_good_after_a_refusal(server: ApiServer) -> None:
    assert_refused(server, changed(raw(b"\xff")), "text")
    outputs = outputs_of(server.inference.ModelInfer(infer_request({"text": ["fine"]}), timeout=30))
    assert outputs["embedding"].shape == (1, 32)


def test_another_model_is_not_found(server: ApiServer) -> None:
    refusal = refusal_of(server.inference.ModelInfer, infer_request({"text": ["a"]}, model_name=PRIVATE))
    assert (refusal.code, refusal.reason) == ("NOT_FOUND", "UNKNOWN_MODEL")
    assert PRIVATE.encode() not in refusal.raw


def test_another_version_is_another_revision(server: ApiServer) -> None:
    refusal = refusal_of(server.inference.ModelInfer, infer_request({"text": ["a"]}, model_version="1"))
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "REVISION_MISMATCH")


@pytest.mark.parametrize("output", ["token_embeddings", "attentions"])
def test_a_reply_to_texts_that_would_be_too_large(small_reply_server: ApiServer, output: str) -> None:
    small_reply_server.engine.runs.clear()
    request = infer_request({"text": ["one two three four five six"] * 100}, [output])
    refusal = refusal_of(small_reply_server.inference.ModelInfer, request)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
    assert "65536" in refusal.message
    assert small_reply_server.engine.runs == []


@pytest.mark.parametrize("output", ["token_embeddings", "attentions"])
def test_a_reply_is_as_wide_as_the_ids_sent(small_reply_server: ApiServer, output: str) -> None:
    small_reply_server.engine.runs.clear()
    ids, mask = np.full((10, 64), 7), np.zeros((10, 64), int)
    mask[:, 0] = 1
    request = infer_request({"input_ids": ids, "attention_mask": mask}, [output])
    refusal = refusal_of(small_reply_server.inference.ModelInfer, request)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
    assert small_reply_server.engine.runs == []


@pytest.mark.parametrize(
    "outputs", [("token_embeddings",), ("embedding", "token_embeddings"), ("attentions",)]
)
@pytest.mark.parametrize("words", [1, 6, 17, 53])
def test_the_largest_reply_sent_is_within_the_limit(
    small_reply_server: ApiServer, outputs: tuple[str, ...], words: int
) -> None:
    def size(count: int) -> int | None:
        request = infer_request({"text": ["one " * words] * count}, outputs)
        return reply_size(small_reply_server, request)

    refused = bisect.bisect_left(range(1, 200), True, key=lambda count: size(count) is None)
    largest = size(refused)
    assert largest is not None
    assert 1 << 14 < largest <= 1 << 16


def reply_size(server: ApiServer, request: pb.ModelInferRequest) -> int | None:
    """None where it is refused as too large."""
    try:
        response: pb.ModelInferResponse = server.inference.ModelInfer(request, timeout=30)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return None
        raise
    return response.ByteSize()
