import grpc
import numpy as np
import pytest

from seqenc import RevisionMismatchError
from seqenc.decode import decode_tensor, empty_result, merge_encoded, merge_tokenized
from seqenc.options import build_options
from seqenc.types import ModelInfo, Token
from seqenc.v1 import encoder_pb2 as pb

INFO = ModelInfo(
    name="m",
    revision="r",
    family="bert",
    hidden_size=16,
    embedding_size=16,
    layer_count=2,
    head_count=2,
    vocabulary_size=10,
    max_tokens=8,
    max_positions=16,
    pooling="mean",
    normalize=True,
    prompts={},
    precision="fp32",
    provider="cpu",
    attention_maps=True,
    max_input_count=10,
    max_message_bytes=1000,
    fidelity=1.0,
)


def tensor(type_, array):
    return pb.Tensor(type=type_, shape=array.shape, data=array.tobytes())


def response(rows, **fields):
    rows = np.asarray(rows, np.float32)
    fields = {"revision": "r", "precision": "fp32", "results": [pb.Encoding() for _ in rows], **fields}
    return pb.EncodeResponse(embeddings=tensor(pb.DATA_TYPE_FLOAT32, rows), **fields)


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [
        (pb.DATA_TYPE_FLOAT32, np.float32),
        (pb.DATA_TYPE_FLOAT16, np.float16),
        (pb.DATA_TYPE_INT8, np.int8),
        (pb.DATA_TYPE_UBINARY, np.uint8),
    ],
)
def test_a_tensor_keeps_its_values_type_and_shape(type_, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    decoded = decode_tensor(tensor(type_, array))
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, array)
    decoded[0] = 1  # belongs to the caller


def test_bfloat16_is_widened_exactly():
    values = np.array([[1.0, -2.5, 0.15625], [np.inf, 3e38, -0.0]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    decoded = decode_tensor(tensor(pb.DATA_TYPE_BFLOAT16, halves))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded.view(np.uint32), halves.astype(np.uint32) << 16)
    assert decoded[0].tolist() == [1.0, -2.5, 0.15625]


def test_parts_are_merged_in_order():
    merged = merge_encoded(
        [
            (0, response([[1, 2], [3, 4]], timing=pb.Timing(total_seconds=1))),
            (2, response([[5, 6]], timing=pb.Timing(tokenize_seconds=0.5, total_seconds=2))),
        ]
    )
    assert merged.embeddings.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert [encoding.embedding.tolist() for encoding in merged.results] == [[1, 2], [3, 4], [5, 6]]
    assert (merged.timing.total_s, merged.timing.tokenize_s) == (2, 0.5)
    assert merged.embedding_scales is None


def test_int8_scales_are_merged_with_their_rows():
    parts = [
        (
            row,
            pb.EncodeResponse(
                embeddings=tensor(pb.DATA_TYPE_INT8, np.array([[1, -127]], np.int8)),
                embedding_scales=[scale],
                results=[pb.Encoding()],
            ),
        )
        for row, scale in enumerate([0.5, 0.25])
    ]
    merged = merge_encoded(parts)
    assert merged.embedding_scales.tolist() == [0.5, 0.25]
    assert [encoding.embedding_scale for encoding in merged.results] == [0.5, 0.25]


@pytest.mark.parametrize("other", [{"revision": "r2"}, {"precision": "int8"}])
def test_vectors_of_two_models_are_not_merged(other):
    with pytest.raises(RevisionMismatchError, match="expected_revision"):
        merge_encoded([(0, response([[1]])), (1, response([[2]], **other))])


def test_a_failed_input_has_a_status_with_its_own_index_and_no_vector(build_status):
    status = build_status(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations={"inputs[1].text": "too long"})
    merged = merge_encoded(
        [(4, response([[1, 1], [0, 0]], results=[pb.Encoding(token_count=3), pb.Encoding(status=status)]))]
    )
    good, bad = merged.results
    assert (good.status, good.token_count) == (None, 3)
    assert bad.embedding is None
    assert bad.status.violations[0].field == "inputs[5].text"


def test_everything_of_an_encoding_arrives():
    maps = np.random.default_rng(0).random((1, 2, 3, 3)).astype(np.float16)
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    encoding = pb.Encoding(
        token_count=3,
        unknown_token_count=1,
        truncated=True,
        token_embeddings=tensor(pb.DATA_TYPE_FLOAT32, vectors),
        attention=tensor(pb.DATA_TYPE_FLOAT16, maps),
        tokens=[pb.Token(id=5, text="##a", start=1, end=2, special=True, segment=-1)],
    )
    result = merge_encoded([(0, pb.EncodeResponse(results=[encoding]))])
    (decoded,) = result.results
    assert result.embeddings is None
    assert decoded.embedding is None
    np.testing.assert_array_equal(decoded.attention, maps)
    np.testing.assert_array_equal(decoded.token_embeddings, vectors)
    assert decoded.tokens == (Token(id=5, text="##a", start=1, end=2, special=True, segment=-1),)
    assert (decoded.token_count, decoded.unknown_token_count, decoded.truncated) == (3, 1, True)


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({}, (0, 16), np.float32),
        ({"dimensions": 8}, (0, 8), np.float32),
        ({"embedding_type": "float16"}, (0, 16), np.float16),
        ({"embedding_type": "bfloat16"}, (0, 16), np.float32),
        ({"embedding_type": "int8"}, (0, 16), np.int8),
        ({"embedding_type": "ubinary"}, (0, 2), np.uint8),
    ],
)
def test_no_inputs_give_no_rows_of_the_right_width(options, shape, dtype):
    result = empty_result(INFO, build_options(**options), "id")
    assert (result.embeddings.shape, result.embeddings.dtype) == (shape, dtype)
    assert (result.results, result.model, result.revision, result.request_id) == ([], "m", "r", "id")


def test_no_inputs_without_pooling_have_no_array():
    assert empty_result(INFO, build_options(pooling="none"), "").embeddings is None


def test_tokenizations_are_merged_in_order(build_status):
    bad = build_status(grpc.StatusCode.INVALID_ARGUMENT, "inputs[0]: no")
    first = pb.TokenizeResponse(results=[pb.TokenizedSequence(truncated=True, tokens=[pb.Token(id=1)])])
    second = pb.TokenizeResponse(results=[pb.TokenizedSequence(status=bad)])
    results = merge_tokenized([(0, first), (1, second)])
    assert [len(result.tokens) for result in results] == [1, 0]
    assert (results[0].truncated, results[0].status) == (True, None)
    assert results[1].status.message == "inputs[1]: no"
