import pytest

from seqenc import InvalidInputError
from seqenc.requests import Chunk, Chunker, RequestTemplate, split
from seqenc.v1 import encoder_pb2 as pb


def sequences(*texts):
    return [pb.Sequence(text=text) for text in texts]


def texts(chunks):
    return [(chunk.offset, [sequence.text for sequence in chunk.sequences]) for chunk in chunks]


def test_inputs_are_split_by_count_in_order():
    chunks = split(sequences("a", "b", "c", "d", "e"), Chunker(2, 1000))
    assert texts(chunks) == [(0, ["a", "b"]), (2, ["c", "d"]), (4, ["e"])]


def test_inputs_are_split_by_bytes_in_order():
    chunks = split(sequences("a" * 40, "b" * 40, "c"), Chunker(10, 70))
    assert texts(chunks) == [(0, ["a" * 40]), (1, ["b" * 40, "c"])]


def test_nothing_gives_no_chunk():
    assert list(split([], Chunker(2, 100))) == []


def test_inputs_are_taken_no_further_ahead_than_the_one_that_does_not_fit():
    taken = []
    source = (taken.append(text) or pb.Sequence(text=text) for text in "abcdef")
    next(split(source, Chunker(2, 1000)))
    assert taken == ["a", "b", "c"]


@pytest.mark.parametrize("length", [1, 100, 127, 128, 5000, 70_000])
def test_a_request_stays_within_the_message_limit(length):
    limit = 200_000
    template = RequestTemplate("model", pb.EncodeOptions(prompt="p" * 50), "revision", "request")
    room = limit - template.encode(Chunk(0, [])).ByteSize()
    chunks = list(split(sequences(*["x" * length] * 1000), Chunker(10_000, room)))
    sizes = [template.encode(chunk).ByteSize() for chunk in chunks]
    assert max(sizes) <= limit
    assert sum(len(chunk.sequences) for chunk in chunks) == 1000
    if len(sizes) > 1:
        assert sizes[0] > limit - length - 10 * len(chunks[0].sequences)


def test_an_input_that_no_request_can_hold_is_refused_by_its_index():
    with pytest.raises(InvalidInputError, match=r"inputs\[2\]: takes \d+ bytes .* takes 100") as caught:
        list(split(sequences("a", "b", "c" * 100), Chunker(2, 100)))
    assert caught.value.violations[0].field == "inputs[2]"
    assert caught.value.reason == "INVALID_INPUT"
