import numpy as np
import pytest

from seqenc import TokenIds
from seqenc.inputs import build_sequences, each_input
from seqenc.v1 import encoder_pb2 as pb


def text(value):
    return pb.Sequence(text=value)


def pair(first, second):
    return pb.Sequence(text_pair=pb.TextPair(first=first, second=second))


def ids(*values, mask=(), types=()):
    return pb.Sequence(token_ids=pb.TokenIds(ids=values, attention_mask=mask, type_ids=types))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("document", [text("document")]),
        ("", [text("")]),
        (np.str_("a"), [text("a")]),
        (["a", "b"], [text("a"), text("b")]),
        (("a", "b", "c"), [text("a"), text("b"), text("c")]),
        (["a"], [text("a")]),
        (np.array(["a", "b"]), [text("a"), text("b")]),
        (np.array(["a", "b"], dtype=object), [text("a"), text("b")]),
        (np.array("a"), [text("a")]),
        ([np.str_("a")], [text("a")]),
        ((value for value in "ab"), [text("a"), text("b")]),
        (("a", "b"), [pair("a", "b")]),
        ([("a", ""), "c"], [pair("a", ""), text("c")]),
        ([101, 7, 102], [ids(101, 7, 102)]),
        ((101, 102, 103), [ids(101, 102, 103)]),
        (np.array([101, 102]), [ids(101, 102)]),
        (np.array([[1, 2], [3, 4]], np.int32), [ids(1, 2), ids(3, 4)]),
        ([[1, 2], np.array([3], np.uint16), "a"], [ids(1, 2), ids(3), text("a")]),
        ([[np.int64(1), 2]], [ids(1, 2)]),
        ([[]], [ids()]),
        ([np.array([], np.int64)], [ids()]),
        (TokenIds([1, 2], [1, 0]), [ids(1, 2, mask=[1, 0])]),
        ({"ids": [1, 2], "type_ids": [0, 1]}, [ids(1, 2, types=[0, 1])]),
        ([{"ids": np.array([1, 2]), "attention_mask": np.array([True, False])}], [ids(1, 2, mask=[1, 0])]),
        ([], []),
        ((), []),
        (np.array([]), []),
        (np.zeros((0, 5), np.int64), []),
    ],
)
def test_inputs_become_sequences(inputs, expected):
    assert build_sequences(inputs) == expected


def test_an_empty_row_of_ids_is_still_a_row_of_ids():
    assert build_sequences([[]])[0].WhichOneof("content") == "token_ids"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["a", float("nan"), None, 3], r"inputs\[1\]: .* not float"),
        (["a", None], r"inputs\[1\]: .* not NoneType"),
        ([3, "a"], r"inputs\[0\]: .* not int"),
        ([True, False], r"inputs\[0\]: .* not bool"),
        (b"bytes", r"inputs\[0\]: .* not bytes"),
        ([b"bytes"], r"inputs\[0\]: .* not bytes"),
        (np.array(["a", np.nan], dtype=object), r"inputs\[1\]: .* not float"),
        (np.array([1.5, 2.5]), r"inputs\[0\]: .* not float"),
        (np.ones((2, 3)), r"inputs\[0\]: .* not list of float"),
        (["a", ["b", "c"]], r"inputs\[1\]: .* tuple of two str.* not list of str"),
        ([("a", "b", "c")], r"inputs\[0\]: .* not tuple of str"),
        ([("a", None)], r"inputs\[0\]: .* not tuple of str"),
        ([{"ids": [1.5]}], r"inputs\[0\]: ids: .* not list of float"),
        ([{"ids": [1], "attention_mask": 1}], r"inputs\[0\]: attention_mask: .* not int"),
        (None, "inputs: .* not NoneType"),
        (3, "inputs: .* not int"),
    ],
)
def test_what_is_no_input_is_a_type_error_that_names_it(inputs, message):
    with pytest.raises(TypeError, match=message):
        build_sequences(inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["fine", "bad \ud83d end"], r"inputs\[1\]: .*surrogates not allowed"),
        ([[1], [2**31]], r"inputs\[1\]: .*out of range"),
        ([{"input_ids": [1]}], r"inputs\[0\]: .*ids, attention_mask, type_ids; found input_ids"),
        ([{"type_ids": [1]}], r"inputs\[0\]: .*found no ids"),
    ],
)
def test_a_value_that_cannot_be_sent_is_a_value_error_that_names_it(inputs, message):
    with pytest.raises(ValueError, match=message):
        build_sequences(inputs)


def test_iterators_are_not_drawn_from_before_they_are_asked():
    drawn = []
    source = (drawn.append(text) or text for text in "ab")
    values = iter(each_input(source))
    assert drawn == []
    assert next(values) == "a"
    assert drawn == ["a"]
