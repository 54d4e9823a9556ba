"""What may not be sent is refused by field and limit before anything is queued, and touches nobody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from e2e.oracle import assert_same
from e2e.refusals import SECRET, check_refusal, refusal, violations
from e2e.server_process import ServerProcess
from seqenc.v1 import encoder_pb2 as pb

GOOD = pb.Sequence(text="a good text")


def ids(*values: int, mask: tuple[int, ...] = (), types: tuple[int, ...] = ()) -> pb.Sequence:
    return pb.Sequence(token_ids=pb.TokenIds(ids=values, attention_mask=mask, type_ids=types))


# Wrong inputs: the field below the input, a part of what is said of it.
INPUTS: dict[str, tuple[pb.Sequence, str, str]] = {
    "no content": (pb.Sequence(), "", "text, text_pair or token_ids"),
    "empty row": (ids(), ".token_ids.ids", "no ids, must have 1 to 512"),
    "row over the positions": (ids(*[7] * 513), ".token_ids.ids", "must have 1 to 512"),
    "negative id": (ids(101, -1, 102), ".token_ids.ids[1]", "is -1, must be 0 to 30521"),
    "id of another vocabulary": (ids(101, 7, 30522), ".token_ids.ids[2]", "is 30522, must be 0 to 30521"),
    "largest id": (ids((1 << 31) - 1), ".token_ids.ids[0]", "30521"),
    "smallest id": (ids(-(1 << 31)), ".token_ids.ids[0]", "30521"),
    "short mask": (ids(101, 7, 102, mask=(1, 1)), ".token_ids.attention_mask", "2 values for 3 ids"),
    "long mask": (ids(101, mask=(1, 1)), ".token_ids.attention_mask", "2 values for 1 ids"),
    "mask of 2": (ids(101, 7, mask=(1, 2)), ".token_ids.attention_mask[1]", "is 2, must be 0 to 1"),
    "mask of -1": (ids(101, 7, mask=(-1, 1)), ".token_ids.attention_mask[0]", "is -1, must be 0 to 1"),
    "nothing real": (ids(101, 7, mask=(0, 0)), ".token_ids.attention_mask", "at least one"),
    "short types": (ids(101, 7, types=(0,)), ".token_ids.type_ids", "1 values for 2 ids"),
    "type of 2": (ids(101, 7, types=(0, 2)), ".token_ids.type_ids[1]", "is 2, must be 0 to 1"),
    "type of -1": (ids(101, 7, types=(-1, 0)), ".token_ids.type_ids[0]", "is -1, must be 0 to 1"),
    "long text": (pb.Sequence(text=f"{SECRET} " * 100), ".text", "402 tokens, the limit is 256"),
    "long pair": (
        pb.Sequence(text_pair=pb.TextPair(first=f"{SECRET} " * 40, second=f"{SECRET} " * 60)),
        ".text_pair",
        "403 tokens, the limit is 256",
    ),
    "huge text": (pb.Sequence(text="a" * 2_000_001), ".text", "2000001 characters, the limit is 2000000"),
    "huge second text": (
        pb.Sequence(text_pair=pb.TextPair(first="a", second="a" * 2_000_001)),
        ".text_pair.second",
        "2000001 characters, the limit is 2000000",
    ),
}


def maps(**options: Any) -> dict[str, Any]:
    return {"attention": pb.AttentionOptions(**options)}


# Wrong options: the field, a part of what is said of it.
NOTHING = {"pooling": pb.POOLING_NONE}
MAPS = {**NOTHING, "tokens": True}
OPTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no dimensions": ({"dimensions": 0}, "dimensions", "1 to 384"),
    "negative dimensions": ({"dimensions": -1}, "dimensions", "1 to 384"),
    "too many dimensions": ({"dimensions": 385}, "dimensions", "is 385, must be 1 to 384"),
    "bits of 7": ({"dimensions": 7, "embedding_type": pb.DATA_TYPE_UBINARY}, "dimensions", "multiple of 8"),
    "unknown prompt": ({"prompt_name": SECRET}, "prompt_name", "is not a prompt of this model"),
    "two prompts": ({"prompt_name": "a", "prompt": "b"}, "prompt", "together with prompt_name"),
    "layer over": (maps(layers=[0, 6]), "attention.layers[1]", "-6 to 5"),
    "layer under": (maps(layers=[-7]), "attention.layers[0]", "-6 to 5"),
    "layer twice": (maps(layers=[5, -1]), "attention.layers[1]", "again"),
    "head over": (maps(heads=[12]), "attention.heads[0]", "-12 to 11"),
    "head under": (maps(heads=[0, -13]), "attention.heads[1]", "-12 to 11"),
    "head twice": (maps(heads=[1, 2, 1]), "attention.heads[2]", "again"),
    "maps of bytes": (
        maps(type=pb.DATA_TYPE_INT8),
        "attention.type",
        "float16",
    ),
    "nothing to return": (NOTHING, "pooling", "nothing to return"),
    "dimensions of nothing": ({**MAPS, "dimensions": 8}, "dimensions", "pooling is NONE"),
    "length of nothing": ({**MAPS, "normalize": True}, "normalize", "pooling is NONE"),
    "type of nothing": ({**MAPS, "embedding_type": pb.DATA_TYPE_INT8}, "embedding_type", "pooling is NONE"),
    "no tokens": ({"max_tokens": 0}, "max_tokens", "1 to 512"),
    "negative tokens": ({"max_tokens": -5}, "max_tokens", "1 to 512"),
    "tokens over the positions": ({"max_tokens": 513}, "max_tokens", "1 to 512"),
    "priority over": ({"priority": 4}, "priority", "-3 to 3"),
    "priority under": ({"priority": -4}, "priority", "-3 to 3"),
    "unknown pooling": ({"pooling": 9}, "pooling", "0 to 5"),
    "unknown type": ({"embedding_type": 9}, "embedding_type", "0 to 5"),
    "unknown truncation": ({"truncation": 4}, "truncation", "0 to 3"),
    "unknown on_error": ({"on_error": 3}, "on_error", "0 to 2"),
    "unknown reduction": (maps(reduction=9), "attention.reduction", "0 to 3"),
    "unknown type of maps": (maps(type=9), "attention.type", "0 to 5"),
    "negative enum": ({"pooling": -1}, "pooling", "0 to 5"),
}


def batches(server: ServerProcess) -> float:
    return server.metrics()["batch_inputs_count",]


@pytest.mark.parametrize("case", INPUTS.values(), ids=INPUTS.keys())
def test_wrong_inputs(stub: Any, server: ServerProcess, case: tuple[pb.Sequence, str, str]) -> None:
    wrong, field, text = case
    before = batches(server)
    for place, inputs in ((0, [wrong]), (1, [GOOD, wrong, GOOD])):
        status = refusal(stub.Encode, pb.EncodeRequest(inputs=inputs))
        ((found, description),) = violations(status)
        assert found == f"inputs[{place}]{field}"
        assert text in description
        assert found in status.message
    assert batches(server) == before


@pytest.mark.parametrize("case", INPUTS.values(), ids=INPUTS.keys())
def test_wrong_inputs_beside_good_ones(stub: Any, case: tuple[pb.Sequence, str, str]) -> None:
    wrong, field, text = case
    options = pb.EncodeOptions(on_error=pb.ON_ERROR_PER_INPUT, token_embeddings=True)
    response = stub.Encode(pb.EncodeRequest(inputs=[GOOD, wrong, GOOD], options=options))
    alone = stub.Encode(pb.EncodeRequest(inputs=[GOOD]))
    rows = np.frombuffer(response.embeddings.data, "<f4").reshape(response.embeddings.shape)
    assert rows.shape == (3, 384)
    for place in (0, 2):
        assert not response.results[place].HasField("status")
        assert_same(rows[place], np.frombuffer(alone.embeddings.data, "<f4"))
    assert not rows[1].any()
    ((found, description),) = violations(check_refusal(response.results[1].status))
    assert found == f"inputs[1]{field}"
    assert text in description
    assert response.results[1].token_count == 0
    assert not response.results[1].HasField("token_embeddings")


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS.keys())
def test_wrong_options(stub: Any, server: ServerProcess, case: tuple[dict[str, Any], str, str]) -> None:
    options, field, text = case
    before = batches(server)
    for default in ({}, {"on_error": pb.ON_ERROR_PER_INPUT}):
        request = pb.EncodeRequest(inputs=[GOOD], options=pb.EncodeOptions(**{**default, **options}))
        found = dict(violations(refusal(stub.Encode, request)))
        assert text in found[f"options.{field}"]
    assert batches(server) == before


@pytest.mark.parametrize("method", ["Encode", "Tokenize"])
def test_calls_of_no_or_too_many_inputs(stub: Any, server: ServerProcess, method: str) -> None:
    before = batches(server)
    for count in (0, 2049):
        request = getattr(pb, f"{method}Request")(inputs=[GOOD] * count)
        ((field, description),) = violations(refusal(getattr(stub, method), request))
        assert field == "inputs"
        assert f"has {count} sequences, must be 1 to 2048" in description
    assert batches(server) == before


def test_many_violations_are_cut_and_counted(stub: Any) -> None:
    request = pb.EncodeRequest(inputs=[ids()] * 1000)
    status = refusal(stub.Encode, request)
    fields = [field for field, _ in violations(status)]
    assert fields == [f"inputs[{index}].token_ids.ids" for index in range(len(fields))]
    assert "999 more" in status.message


def test_others_of_the_same_moment_are_not_touched(stub: Any) -> None:
    good = pb.EncodeRequest(inputs=[GOOD] * 8)
    expected = np.frombuffer(stub.Encode(good).embeddings.data, "<f4").reshape(8, 384)
    small = [case for case, _, _ in INPUTS.values() if case.ByteSize() < 10_000]
    wrong = [pb.EncodeRequest(inputs=[GOOD, case]) for case in small]
    together = threading.Barrier(8)

    def bad_caller() -> None:
        together.wait()
        for request in wrong:
            refusal(stub.Encode, request)

    def good_caller() -> None:
        together.wait()
        for _ in range(10):
            vectors = np.frombuffer(stub.Encode(good).embeddings.data, "<f4").reshape(8, 384)
            assert_same(vectors, expected)

    with ThreadPoolExecutor(8) as callers:
        for caller in [callers.submit(run) for run in [bad_caller, good_caller] * 4]:
            caller.result()


@pytest.mark.parametrize(
    "data",
    [b"\x12\x05\x0a\x03\xf0\x9f\x92", b"\x12\x09\x0a\x07bad \xed\xa0\xbd", b"\xff\xff\xff", b"\x12\x7f\x00"],
    ids=["cut in a character", "surrogate", "no tag", "cut in a field"],
)
@pytest.mark.parametrize("method", ["Encode", "Tokenize", "GetModel"])
def test_bytes_that_are_no_message(server: ServerProcess, method: str, data: bytes) -> None:
    path = f"/seqenc.v1.EncoderService/{method}"
    if method == "GetModel":
        data = b"\x0a\x03\xf0\x9f\x92"
    with grpc.insecure_channel(server.grpc_address) as opened:
        channel: Any = opened
        status = refusal(channel.unary_unary(path), data)
        assert violations(status)[0][0] == "request"
        assert "Traceback" not in status.message
        good = pb.EncodeRequest(inputs=[GOOD]).SerializeToString()
        reply = channel.unary_unary("/seqenc.v1.EncoderService/Encode")(good)
    assert len(pb.EncodeResponse.FromString(reply).results) == 1


def test_the_process_outlives_every_zero_size(stub: Any, server: ServerProcess) -> None:
    for inputs in ([ids()], [ids(101, 7, 102), ids()], []):
        refusal(stub.Encode, pb.EncodeRequest(inputs=inputs))
    response = stub.Encode(pb.EncodeRequest(inputs=[ids(101)]))
    assert np.isfinite(np.frombuffer(response.embeddings.data, "<f4")).all()
    assert server.is_running


NOTHING_LEFT = ["", " ", "\n\t", "\u200b", "\x00\x01", "\u0301", "\ufeff"]


@pytest.mark.parametrize("text", NOTHING_LEFT, ids=ascii)
def test_texts_of_nothing_have_the_vector_of_the_special_tokens(client: Any, text: str) -> None:
    nothing = client.encode([[101, 102]]).embeddings[0]
    beside = client.encode("beside").embeddings[0]
    result = client.encode(["beside", text, "beside"])
    assert np.isfinite(result.embeddings).all()
    assert result.results[1].token_count == 2
    for vector, expected in zip(result.embeddings, (beside, nothing, beside), strict=True):
        assert_same(vector, expected)


def test_an_empty_second_text_is_still_a_pair(client: Any) -> None:
    row = {"ids": [101, 7632, 102, 102], "type_ids": [0, 0, 0, 1]}
    pair, row = client.encode([("hi", ""), row]).embeddings
    assert_same(pair, row)


def test_line_breaks_split_words_and_control_characters_vanish(client: Any) -> None:
    same = ["note book", "note\nbook", "note\r\nbook", "note\tbook", "note\u2028book"]
    vectors = client.encode(same).embeddings
    assert_same(vectors, np.repeat(vectors[:1], len(same), axis=0))
    assert_same(client.encode("note\x00book").embeddings, client.encode("notebook").embeddings)


def test_the_clients_own_edges(client: Any) -> None:
    assert client.encode([]).embeddings.shape == (0, 384)
    assert client.encode("document").embeddings.shape == (1, 384)
    assert client.encode(np.array(["a", "b"])).embeddings.shape == (2, 384)
    with pytest.raises(TypeError, match=r"inputs\[1\]"):
        client.encode(["a", float("nan"), None, 3])
