"""Any legal request is answered, any illegal one refused, and the server is as good as before after both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from e2e import strategies
from e2e.legality import Rules
from e2e.oracle import assert_same
from e2e.refusals import check_refusal, reason, status_of
from e2e.server_process import ServerProcess
from seqenc.v1 import encoder_pb2 as pb
from service.api.inference import open_inference_pb2 as inference

WITH_A_HOLE = pb.TokenIds(ids=[2, 9, 3], attention_mask=[1, 0, 1])
GOOD = pb.EncodeRequest(inputs=[pb.Sequence(text="the word"), pb.Sequence(token_ids=WITH_A_HOLE)])
REASONS = {
    "INVALID_ARGUMENT": "INVALID_INPUT",
    "NOT_FOUND": "UNKNOWN_MODEL",
    "FAILED_PRECONDITION": "REVISION_MISMATCH",
}
ITEM_BYTES = {0: 4, 1: 4, 2: 2, 3: 2, 4: 1, 5: 1}
SERVICE = "/seqenc.v1.EncoderService/"
REQUESTS: dict[str, Any] = {
    SERVICE + "Encode": pb.EncodeRequest,
    SERVICE + "Tokenize": pb.TokenizeRequest,
    SERVICE + "GetModel": pb.GetModelRequest,
    "/inference.GRPCInferenceService/ModelInfer": inference.ModelInferRequest,
}
INFER = "/inference.GRPCInferenceService/ModelInfer"


def examples(count: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.fixture(scope="module")
def rules(tiny_stub: Any, tiny_artifact: Path) -> Rules:
    tokenizer = Tokenizer.from_file(str(tiny_artifact / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return Rules(tiny_stub.GetModel(pb.GetModelRequest()).model, tokenizer)


@pytest.fixture(scope="module")
def still_good(tiny_stub: Any, tiny_server: ServerProcess) -> Callable[[], None]:
    """Checks that the process is the one that it was, and that a good call is answered right."""
    expected = embeddings(tiny_stub.Encode(GOOD))

    def check() -> None:
        assert_same(embeddings(tiny_stub.Encode(GOOD)), expected)
        assert tiny_server.is_running

    return check


@pytest.fixture(scope="module")
def channel(tiny_server: ServerProcess) -> Any:
    with grpc.insecure_channel(tiny_server.grpc_address) as channel:
        yield channel


def embeddings(response: pb.EncodeResponse) -> Any:
    return np.frombuffer(response.embeddings.data, "<f4").reshape(response.embeddings.shape)


def check_status(status: status_pb2.Status, allowed: set[str]) -> None:
    name = next(code.name for code in grpc.StatusCode if code.value[0] == status.code)
    assert name in allowed
    assert reason(status) == REASONS[name]
    if name == "INVALID_ARGUMENT":
        check_refusal(status)


def check_response(rules: Rules, request: pb.EncodeRequest, response: pb.EncodeResponse) -> None:
    options, count = request.options, len(request.inputs)
    bad = set(rules.bad_inputs(request))
    assert response.request_id == request.request_id
    assert len(response.results) == count
    assert response.HasField("embeddings") == (options.pooling != pb.POOLING_NONE)
    if response.HasField("embeddings"):
        check_vectors(rules, options, response, bad)
    for index, encoding in enumerate(response.results):
        assert encoding.HasField("status") == (index in bad)
        if index in bad:
            check_status(encoding.status, {"INVALID_ARGUMENT"})
        else:
            check_encoding(rules, request.inputs[index], options, encoding)


def check_vectors(
    rules: Rules, options: pb.EncodeOptions, response: pb.EncodeResponse, bad: set[int]
) -> None:
    width = options.dimensions if options.HasField("dimensions") else rules.model.hidden_size
    if options.embedding_type == pb.DATA_TYPE_UBINARY:
        width //= 8
    vectors = response.embeddings
    assert list(vectors.shape) == [len(response.results), width]
    assert len(vectors.data) == len(response.results) * width * ITEM_BYTES[options.embedding_type]
    assert vectors.type == (options.embedding_type or pb.DATA_TYPE_FLOAT32)
    assert bool(response.embedding_scales) == (options.embedding_type == pb.DATA_TYPE_INT8)
    rows = np.frombuffer(vectors.data, np.uint8).reshape(len(response.results), -1)
    assert not rows[sorted(bad)].any()
    if vectors.type == pb.DATA_TYPE_FLOAT32:
        assert np.isfinite(embeddings(response)).all()


def check_encoding(
    rules: Rules, sequence: pb.Sequence, options: pb.EncodeOptions, encoding: pb.Encoding
) -> None:
    count = rules.token_count(sequence, options)
    assert encoding.token_count == count
    assert len(encoding.tokens) == (count if options.tokens else 0)
    assert encoding.HasField("token_embeddings") == options.token_embeddings
    if options.token_embeddings:
        assert list(encoding.token_embeddings.shape) == [count, rules.model.hidden_size]
        assert np.isfinite(np.frombuffer(encoding.token_embeddings.data, "<f4")).all()
    assert encoding.HasField("attention") == options.HasField("attention")
    if options.HasField("attention"):
        attention = options.attention
        layers, heads = len(attention.layers) or 2, len(attention.heads) or 2
        if attention.reduction == pb.ATTENTION_REDUCTION_ROLLOUT:
            layers = 1
        if attention.reduction > pb.ATTENTION_REDUCTION_NONE:
            heads = 1
        assert list(encoding.attention.shape) == [layers, heads, count, count]
        dtype = "<f2" if attention.type == pb.DATA_TYPE_FLOAT16 else "<f4"
        maps = np.frombuffer(encoding.attention.data, dtype).reshape(encoding.attention.shape)
        np.testing.assert_allclose(maps.astype(np.float32).sum(axis=-1), 1, atol=0.01)


@examples(700)
@given(request=strategies.encode_requests())
def test_encode(tiny_stub: Any, rules: Rules, still_good: Any, request: pb.EncodeRequest) -> None:
    if problems := rules.problems(request):
        check_status(status_of(tiny_stub.Encode, request), problems)
    else:
        check_response(rules, request, tiny_stub.Encode(request))
    still_good()


@examples(150)
@given(sent=st.lists(strategies.encode_requests(), max_size=6))
def test_encode_stream(tiny_stub: Any, rules: Rules, still_good: Any, sent: list[pb.EncodeRequest]) -> None:
    answers = list(tiny_stub.EncodeStream(iter(sent)))
    assert [answer.request_id for answer in answers] == [request.request_id for request in sent]
    for request, answer in zip(sent, answers, strict=True):
        if problems := rules.problems(request):
            check_status(answer.error, problems)
        else:
            check_response(rules, request, answer.response)
    still_good()


@examples(400)
@given(request=strategies.tokenize_requests())
def test_tokenize(tiny_stub: Any, rules: Rules, still_good: Any, request: pb.TokenizeRequest) -> None:
    problems = set()
    if request.model not in ("", rules.model.name):
        problems.add("NOT_FOUND")
    wrong = any(rules.reading_problems(request.options)) or not request.inputs
    bad = [] if wrong else rules.bad_inputs(request)
    if wrong or (bad and request.options.on_error != pb.ON_ERROR_PER_INPUT):
        problems.add("INVALID_ARGUMENT")
    if problems:
        check_status(status_of(tiny_stub.Tokenize, request), problems)
    else:
        results = tiny_stub.Tokenize(request).results
        assert [index for index, result in enumerate(results) if result.HasField("status")] == bad
        for sequence, result in zip(request.inputs, results, strict=True):
            assert len(result.tokens) == (rules.token_count(sequence, request.options) or 0)
    still_good()


def valid_bytes(method: str) -> st.SearchStrategy[Any]:
    if method.endswith("Encode"):
        return strategies.encode_requests()
    if method.endswith("Tokenize"):
        return strategies.tokenize_requests()
    if method == INFER:
        return strategies.infer_requests()
    return st.builds(pb.GetModelRequest, model=st.text(max_size=5))


@pytest.mark.parametrize("method", REQUESTS)
@examples(200)
@given(data=st.data())
def test_bytes_of_any_kind(channel: Any, rules: Rules, still_good: Any, method: str, data: Any) -> None:
    sent = data.draw(st.one_of(st.binary(max_size=60), strategies.damaged(valid_bytes(method))))
    try:
        request = REQUESTS[method].FromString(sent)
    except DecodeError:
        check_status(status_of(channel.unary_unary(method), sent), {"INVALID_ARGUMENT"})
    else:
        check_decodable(channel.unary_unary(method), sent, request, rules)
    still_good()


def check_decodable(call: Any, sent: bytes, request: Any, rules: Rules) -> None:
    """What can be decoded is judged by what it says; of most methods only that they judge at all."""
    if isinstance(request, pb.EncodeRequest):
        if problems := rules.problems(request):
            check_status(status_of(call, sent), problems)
        else:
            check_response(rules, request, pb.EncodeResponse.FromString(call(sent)))
        return
    try:
        call(sent)
    except grpc.RpcError:
        check_status(status_of(call, sent), set(REASONS))


@examples(60)
@given(data=st.data())
def test_streams_of_any_bytes(channel: Any, still_good: Any, data: Any) -> None:
    part = st.one_of(st.binary(max_size=60), strategies.damaged(strategies.encode_requests()))
    parts = data.draw(st.lists(part, max_size=4))
    whole = [part for part in parts if is_decodable(part)]
    call = channel.stream_stream(SERVICE + "EncodeStream")(iter(parts))
    if len(whole) == len(parts):
        assert len(list(call)) == len(parts)
    else:
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    still_good()


def is_decodable(data: bytes) -> bool:
    try:
        pb.EncodeRequest.FromString(data)
    except DecodeError:
        return False
    return True


@examples(300)
@given(case=strategies.infer_cases())
def test_model_infer(channel: Any, rules: Rules, still_good: Any, case: tuple[Any, bool]) -> None:
    request, legal = case
    call = channel.unary_unary(INFER)
    if legal:
        reply = inference.ModelInferResponse.FromString(call(request.SerializeToString()))
        (output,) = reply.outputs
        assert list(output.shape) == [request.inputs[0].shape[0], rules.model.hidden_size]
        vectors = np.frombuffer(reply.raw_output_contents[0], "<f4")
        assert np.isfinite(vectors).all()
    else:
        check_status(status_of(call, request.SerializeToString()), {"INVALID_ARGUMENT", "NOT_FOUND"})
    still_good()
