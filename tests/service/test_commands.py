import io
import json
import os
import subprocess
import sys

import grpc
import numpy as np
import pytest

from seqenc import (
    EncodeResult,
    Encoding,
    InvalidInputError,
    Timing,
    Tls,
    Token,
    Tokenization,
    UnavailableError,
)
from service import commands, connection
from service.client_settings import AttendSettings, EncodeSettings, HealthSettings, TokenizeSettings
from service.config import SettingsError, load_settings

TOKENS = tuple(Token(i, text, 0, 1, False, 0) for i, text in enumerate(["[CLS]", "animal", "it"]))
WEIGHTS = np.array([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05], [0.3, 0.65, 0.05]], np.float32)
BAD_INPUT = InvalidInputError(grpc.StatusCode.INVALID_ARGUMENT, "inputs[0].text:\n too long")


class FakeModel:
    name = "fake"
    layer_count = 6
    head_count = 12


class FakeClient:
    """Answers every text with a vector of its length; "bad" fails where errors are per input."""

    def __init__(self, address, **options):
        FakeClient.last = self
        self.address = address
        self.made_with = options
        self.calls = []
        self.health_status = FakeClient.health_status

    health_status = "SERVING"
    error = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def encode(self, inputs, **options):
        self._called(inputs, options)
        results = [self._encoding(text) for text in inputs]
        return EncodeResult(None, None, results, "fake", "r", "fp32", Timing(0, 0, 0, 0), "")

    def encode_stream(self, inputs, **options):
        self._called([], options)
        return map(self._encoding, inputs)

    def tokenize(self, inputs, **options):
        self._called(inputs, options)
        return [Tokenization(TOKENS, False, BAD_INPUT if text == "bad" else None) for text in inputs]

    def model(self):
        return FakeModel

    def health(self, service, *, deadline_s):
        self._called(service, {"deadline_s": deadline_s})
        return self.health_status

    def _called(self, inputs, options):
        self.calls.append((inputs, options))
        if FakeClient.error:
            raise FakeClient.error

    def _encoding(self, text):
        return Encoding(
            embedding=np.array([len(text), 0], np.float32),
            embedding_scale=None,
            token_embeddings=None,
            attention=WEIGHTS[None, None],
            tokens=TOKENS,
            token_count=3,
            unknown_token_count=0,
            truncated=False,
            precision="fp32",
            status=BAD_INPUT if text == "bad" else None,
        )


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(connection, "Client", FakeClient)
    monkeypatch.setattr(FakeClient, "error", None)
    monkeypatch.setattr(FakeClient, "health_status", "SERVING")
    return FakeClient


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_encode_prints_a_line_of_json_for_each_text(capsys):
    assert commands.run_encode(EncodeSettings(texts=["a", "bcd"], format="jsonl")) == 0
    assert [(line["text"], line["embedding"]) for line in lines(capsys)] == [("a", [1, 0]), ("bcd", [3, 0])]


def test_encode_prints_a_table(capsys):
    assert commands.run_encode(EncodeSettings(texts=["a", "bcd"], tokens=True)) == 0
    text = capsys.readouterr().out
    assert "3.0000 0.0000" in text
    assert text.count("animal") == 2


@pytest.mark.parametrize("texts", [[], ["-"]])
@pytest.mark.parametrize("format_", ["jsonl", "table"])
def test_texts_come_from_standard_input_line_by_line(monkeypatch, capsys, texts, format_):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\n three \n"))
    assert commands.run_encode(EncodeSettings(texts=texts, format=format_)) == 0
    if format_ == "jsonl":
        assert [line["text"] for line in lines(capsys)] == ["one", "", " three "]
    else:
        assert FakeClient.last.calls[0][0] == ["one", "", " three "]


def test_lines_are_answered_before_all_of_standard_input_is_read(monkeypatch, capsys):
    def endless():
        yield "one\n"
        assert json.loads(capsys.readouterr().out)["text"] == "one"
        raise OSError("enough")

    class Endless:
        def __iter__(self):
            return endless()

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdin", Endless())
    assert commands.run_encode(EncodeSettings(format="jsonl")) == 1
    assert capsys.readouterr().err == "seqenc: enough\n"


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        (commands.run_encode, EncodeSettings),
        (commands.run_tokenize, TokenizeSettings),
        (commands.run_attend, AttendSettings),
    ],
)
def test_a_terminal_is_waited_for_only_where_asked_to(monkeypatch, capsys, run, settings):
    terminal = io.StringIO("it\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert run(settings()) == 2
    assert "no text: give one, or -" in capsys.readouterr().err
    dash = {"text": "-"} if settings is AttendSettings else {"texts": ["-"]}
    assert run(settings(**dash)) == 0


def test_options_reach_the_client(capsys):
    settings = EncodeSettings(
        address="a:1,b:2",
        texts=["x"],
        pooling="cls",
        normalize=False,
        dimensions=2,
        type="int8",
        truncation="left",
        max_tokens=9,
        prompt_name="query",
        token_embeddings=True,
        on_error="per_input",
        priority=2,
        deadline_s=3,
        expected_revision="r1",
    )
    assert commands.run_encode(settings) == 0
    client = FakeClient.last
    assert client.address == "a:1,b:2"
    assert (client.made_with["deadline_s"], client.made_with["expected_revision"]) == (3, "r1")
    _, options = client.calls[0]
    assert options == {
        "pooling": "cls",
        "normalize": False,
        "dimensions": 2,
        "embedding_type": "int8",
        "truncation": "left",
        "max_tokens": 9,
        "prompt_name": "query",
        "prompt": None,
        "token_embeddings": True,
        "tokens": False,
        "attention": None,
        "on_error": "per_input",
        "priority": 2,
    }


@pytest.mark.parametrize("format_", ["jsonl", "table"])
@pytest.mark.parametrize(
    ("run", "settings"), [(commands.run_encode, EncodeSettings), (commands.run_tokenize, TokenizeSettings)]
)
def test_a_bad_text_among_good_ones_is_an_exit_status_of_1(capsys, run, settings, format_):
    assert run(settings(texts=["a", "bad", "c"], format=format_)) == 1
    assert "too long" in capsys.readouterr().out


def test_an_error_is_one_line_that_names_the_server(fake, capsys):
    fake.error = BAD_INPUT
    assert commands.run_encode(EncodeSettings(address="host:1", texts=["a"])) == 1
    captured = capsys.readouterr()
    assert captured.err == "seqenc: host:1: INVALID_ARGUMENT: inputs[0].text: too long\n"
    assert captured.out == ""


def test_tokenize_prints_pieces_and_offsets(capsys):
    assert commands.run_tokenize(TokenizeSettings(texts=["a"], format="jsonl")) == 0
    assert [token["text"] for token in lines(capsys)[0]["tokens"]] == ["[CLS]", "animal", "it"]
    assert commands.run_tokenize(TokenizeSettings(texts=["a"])) == 0
    assert "animal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("choice", "attention", "name"),
    [
        ({}, {"layers": [-1], "reduction": "mean_heads"}, "layer 5 (of 0 to 5), mean of all heads"),
        ({"layer": 5, "head": -1}, {"layers": [5], "heads": [-1]}, "layer 5 (of 0 to 5), head 11"),
        ({"layer": 2, "reduction": "mean_heads"}, {"layers": [2], "reduction": "mean_heads"}, "layer 2"),
        ({"reduction": "rollout"}, {"reduction": "rollout"}, "rollout over 6 layers"),
    ],
)
def test_attend_asks_for_one_map_and_names_it(capsys, choice, attention, name):
    assert commands.run_attend(AttendSettings(text="it", **choice)) == 0
    inputs, options = FakeClient.last.calls[0]
    assert inputs == ["it"]
    assert options["attention"] == attention
    output = capsys.readouterr().out
    assert name in output
    assert "it      animal 0.65  [CLS] 0.30  it 0.05" in output


def test_attend_takes_a_pair_and_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nlines\n"))
    assert commands.run_attend(AttendSettings(pair="second", format="jsonl")) == 0
    assert FakeClient.last.calls[0][0] == [("first\nlines", "second")]
    np.testing.assert_array_equal(np.float32(lines(capsys)[0]["weights"]), WEIGHTS)


@pytest.mark.parametrize(
    "flags",
    [
        {"reduction": "rollout", "layer": "1"},
        {"reduction": "rollout", "head": "1"},
        {"reduction": "mean_heads", "head": "1"},
    ],
)
def test_a_choice_that_a_reduction_ignores_is_refused(flags):
    with pytest.raises(SettingsError, match="leave out"):
        load_settings(AttendSettings, flags)


@pytest.mark.parametrize(("status", "code"), [("SERVING", 0), ("NOT_SERVING", 1), ("SERVICE_UNKNOWN", 1)])
def test_health_is_also_an_exit_status(fake, capsys, status, code):
    fake.health_status = status
    assert commands.run_health(HealthSettings(service="s", timeout_s=2)) == code
    assert capsys.readouterr().out == f"{status}\n"
    assert fake.last.calls == [("s", {"deadline_s": 2})]


def test_a_server_that_is_away_is_not_healthy(fake, capsys):
    fake.error = UnavailableError(grpc.StatusCode.UNAVAILABLE, "refused")
    assert commands.run_health(HealthSettings()) == 1
    assert capsys.readouterr().err == "seqenc: localhost:50051: UNAVAILABLE: refused\n"


def test_tls_and_the_token_come_from_files(tmp_path, capsys):
    (tmp_path / "token").write_text("secret\n")
    ca = tmp_path / "ca.pem"
    commands.run_health(HealthSettings(token_file=tmp_path / "token", tls_ca=ca, tls_server_name="n"))
    made_with = FakeClient.last.made_with
    assert made_with["token"] == "secret"  # noqa: S105
    assert made_with["tls"] == Tls(ca=ca, server_name="n")
    commands.run_health(HealthSettings(tls=True))
    assert FakeClient.last.made_with["tls"] == Tls()
    commands.run_health(HealthSettings())
    assert FakeClient.last.made_with["tls"] is None


def test_a_token_file_that_is_missing_is_one_line(tmp_path, capsys):
    assert commands.run_health(HealthSettings(token_file=tmp_path / "none")) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_traceback():
    script = (
        "import sys; from service import commands, connection\n"
        "from service.client_settings import HealthSettings\n"
        "class Client:\n"
        "    def __init__(self, *a, **k): pass\n"
        "    __enter__ = lambda self: self\n"
        "    __exit__ = lambda *a: None\n"
        "    health = lambda *a, **k: 'SERVING'\n"
        "connection.Client = Client\n"
        "sys.exit(commands.run_health(HealthSettings()))\n"
    )
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (1, b"")
