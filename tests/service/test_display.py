import io
import json

import grpc
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from seqenc import Encoding, InvalidInputError, Token, Tokenization
from service import display

ERROR = InvalidInputError(grpc.StatusCode.INVALID_ARGUMENT, "inputs[0].text: has 300 tokens")


def token(text, *, special=False):
    return Token(id=7, text=text, start=0, end=len(text), special=special, segment=0)


def encoding(embedding=None, **fields):
    empty = {
        "embedding": embedding,
        "embedding_scale": None,
        "token_embeddings": None,
        "attention": None,
        "tokens": (),
        "token_count": 3,
        "unknown_token_count": 0,
        "truncated": False,
        "precision": "fp32",
        "status": None,
    }
    return Encoding(**{**empty, **fields})


@pytest.fixture
def console():
    return display.build_console(io.StringIO())


def output(console):
    return console.file.getvalue()


def vector(*values, dtype=np.float32):
    return np.array(values, dtype)


def test_output_that_is_no_terminal_has_no_escapes_and_a_fixed_width(console):
    display.print_encodings(console, ["word " * 200] * 3, [encoding(vector(3, 4, 0, 0, 0))] * 3)
    assert "\x1b" not in output(console)
    assert max(map(len, output(console).splitlines())) <= display.PLAIN_WIDTH


def test_an_encoding_is_a_row_with_its_norm_and_first_values(console):
    display.print_encodings(console, ["a text"], [encoding(vector(3, 4, 0, 0, 0), truncated=True)])
    row = output(console).splitlines()[1]
    for part in ["a text", "3 (truncated)", "5.0000", "3.0000 4.0000 0.0000 0.0000 … (5 values)"]:
        assert part in row


def test_the_norm_of_int8_takes_its_scale(console):
    display.print_encodings(console, ["a"], [encoding(vector(3, 4, dtype=np.int8), embedding_scale=0.5)])
    assert "2.5000  3 4" in output(console)


def test_bits_have_no_norm(console):
    display.print_encodings(console, ["a"], [encoding(vector(3, 4, dtype=np.uint8))])
    assert output(console).splitlines()[1].split() == ["0", "a", "3", "3", "4"]


def test_a_failed_text_shows_its_error(console):
    display.print_encodings(console, ["a", "b"], [encoding(status=ERROR), encoding(vector(1))])
    assert "has 300 tokens" in output(console)
    assert "1.0000" in output(console)


def test_many_rows_are_cut_and_counted(console):
    count = display.MAX_ROWS + 5
    display.print_encodings(console, ["a"] * count, [encoding(vector(1))] * count)
    assert "… and 5 more texts; --format jsonl has all" in output(console)
    assert len(output(console).splitlines()) == display.MAX_ROWS + 2


def test_control_characters_do_not_reach_the_terminal(console):
    display.print_encodings(console, ["\x1b[31mred\x07"], [encoding(vector(1))])
    assert "�[31mred�" in output(console)


@pytest.mark.parametrize(
    ("charset", "shown"),
    [("utf-8", "é 日 …"), ("cp1252", "é \\u65e5 ..."), ("ascii", "\\xe9 \\u65e5 ...")],
)
def test_letters_that_an_encoding_lacks_are_escaped_before_columns_are_measured(charset, shown):
    file = io.TextIOWrapper(io.BytesIO(), charset, write_through=True)
    display.print_encodings(display.build_console(file), ["é 日 …"], [encoding(vector(1))])
    header, row = file.buffer.getvalue().decode(charset).splitlines()
    assert shown in row
    assert cell_len(header) == cell_len(row)


def test_wide_characters_are_cut_to_their_columns(console):
    display.print_encodings(console, ["漢" * 100], [encoding(vector(1))])
    assert "漢" * 19 + "…" in output(console)
    assert "漢" * 20 not in output(console)


def test_token_details_show_tokens_with_their_vectors(console):
    details = encoding(
        tokens=(token("[CLS]"), token("it"), token("[SEP]")),
        token_embeddings=np.array([[1, 0], [3, 4], [0, 2]], np.float32),
    )
    display.print_token_details(console, "it", details)
    assert output(console).splitlines()[4].split() == ["1", "it", "5.0000", "3.0000", "4.0000"]


def test_a_tokenization_lists_pieces_and_offsets(console):
    display.print_tokenization(console, "it", Tokenization((token("it"),), True, None))
    lines = output(console).splitlines()
    assert lines[2].split() == ["0", "7", "it", "0", "2", "0"]
    assert lines[3].startswith("truncated")


def test_a_failed_tokenization_shows_its_error(console):
    display.print_tokenization(console, "it", Tokenization((), False, ERROR))
    assert "has 300 tokens" in output(console)


TOKENS = (token("[CLS]", special=True), token("animal"), token("it"))
WEIGHTS = np.array([[0.5, 0.25, 0.25], [0.9, 0.097, 0.003], [0.3, 0.65, 0.05]], np.float32)


def test_a_map_is_a_grid_of_percentages_and_each_tokens_strongest_links(console):
    display.print_attention(console, "layer 5, head 11", TOKENS, WEIGHTS, top=2)
    lines = output(console).splitlines()
    assert lines[0] == "layer 5, head 11"
    assert lines[1].split() == ["0", "1", "2"]
    assert lines[3].split() == ["1", "animal", "90", "10", "·"]
    assert lines[4].split() == ["2", "it", "30", "65", "5"]
    assert lines[-1].rstrip() == "2  it      animal 0.65  [CLS] 0.30"


def test_a_map_wider_than_the_console_is_cut_with_a_note(console):
    count = 500
    tokens = [token(f"piece{i}") for i in range(count)]
    display.print_attention(console, "map", tokens, np.full((count, count), 1 / count), top=1)
    text = output(console)
    assert max(map(len, text.splitlines())) <= display.PLAIN_WIDTH
    assert "the first 27 of 500 tokens fit, --format jsonl has all" in text
    assert f"… and {count - display.MAX_ROWS} more tokens" in text


def test_a_terminal_gets_the_map_in_colour_by_weight():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=100)
    display.print_attention(console, "map", TOKENS, WEIGHTS, top=1)
    shades = {part.split("m")[0] for part in output(console).split("48;2;")[1:]}
    assert len(shades) == len(np.unique(np.round(WEIGHTS[WEIGHTS > 0.005], 2)))


def test_an_encoding_record_has_what_was_asked_for():
    full = encoding(
        vector(0.1, 1),
        tokens=(token("it"),),
        token_embeddings=np.array([[0.3, 2]], np.float32),
    )
    assert display.encoding_record(4, "it", full) == {
        "index": 4,
        "text": "it",
        "token_count": 3,
        "truncated": False,
        "embedding": [0.1, 1.0],
        "tokens": [{"id": 7, "text": "it", "start": 0, "end": 2, "special": False, "segment": 0}],
        "token_embeddings": [[0.3, 2.0]],
    }
    assert display.encoding_record(0, "a", encoding(status=ERROR)) == {
        "index": 0,
        "text": "a",
        "error": "INVALID_ARGUMENT: inputs[0].text: has 300 tokens",
    }
    quantised = encoding(vector(-3, 4, dtype=np.int8), embedding_scale=0.5)
    record = display.encoding_record(0, "a", quantised)
    assert (record["embedding"], record["embedding_scale"]) == ([-3, 4], 0.5)


def test_float32_survives_json_exactly():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    file = io.StringIO()
    display.write_json(file, display.encoding_record(0, "é\n", encoding(values)))
    (line,) = file.getvalue().splitlines()
    np.testing.assert_array_equal(np.array(json.loads(line)["embedding"], np.float32), values)
    assert "é" in line


def test_the_other_records_hold_everything():
    tokens = display.tokenization_record(1, "it", Tokenization((token("it"),), True, None))
    assert (tokens["truncated"], tokens["tokens"][0]["text"]) == (True, "it")
    assert "error" in display.tokenization_record(1, "it", Tokenization((), False, ERROR))
    attention = display.attention_record("map", TOKENS, WEIGHTS)
    assert attention["weights"][2] == [0.3, 0.65, 0.05]
    assert [entry["text"] for entry in attention["tokens"]] == ["[CLS]", "animal", "it"]
