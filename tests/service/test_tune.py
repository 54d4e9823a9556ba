"""`seqenc tune` on a tiny artifact: what it measures, what it chooses, and where its file is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.config import ServeSettings, TuneSettings
from service.core.artifact import load_artifact
from service.core.cores import count_usable_cores
from service.errors import StartError
from service.tune import Measurement, choose, load_sequences, run_tune
from service.tuning import Choice, load_tuning


def measurement(tokens_per_s: float, worst_cosine: float) -> Measurement:
    return Measurement(Choice("cpu", "fp32", 2, 1, 512), tokens_per_s, 0.001, worst_cosine)


def test_the_fastest_of_the_faithful_is_chosen() -> None:
    fast_but_off, fast, slow = measurement(900, 0.99), measurement(500, 0.9995), measurement(100, 1.0)
    assert choose([slow, fast_but_off, fast], min_cosine=0.999) is fast
    assert choose([slow, fast_but_off, fast], min_cosine=0.9) is fast_but_off


def test_nothing_faithful_is_an_error_that_says_how_near_it_came() -> None:
    with pytest.raises(StartError, match=r"the best has 0\.990000"):
        choose([measurement(900, 0.99)], min_cosine=0.999)


def test_sequences_are_real_text_of_many_lengths(tiny_artifact: Path) -> None:
    artifact = load_artifact(tiny_artifact)
    lengths = [len(sequence) for sequence in load_sequences(artifact)]
    assert len(lengths) >= 300
    assert max(lengths) == artifact.max_tokens
    assert len(set(lengths)) > 20


def test_a_run_writes_what_serve_takes(
    tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tuning.json"
    settings = TuneSettings(artifact=tiny_artifact, out=out, min_cosine=0.9, seconds=0.2)
    assert run_tune(settings) == 0
    table = capsys.readouterr().out
    assert "int8" in table
    assert "tokens/s" in table
    artifact, tuning = load_artifact(tiny_artifact), load_tuning(out)
    tuning.check(out, revision=artifact.revision, cores=count_usable_cores())
    served = tuning.apply(ServeSettings(artifact=tiny_artifact, lanes=1))
    assert served.lanes == 1
    assert served.precision == tuning.choice.precision
    assert served.max_batch_tokens == tuning.choice.max_batch_tokens
    measured = json.loads(out.read_text())["measurements"]
    assert {(row["choice"]["provider"], row["choice"]["precision"]) for row in measured} == {
        ("cpu", "fp32"),
        ("cpu", "int8"),
    }
    assert all(row["tokens_per_s"] > 0 and row["worst_cosine"] > 0.9 for row in measured)


def test_a_place_that_cannot_be_written_is_one_clear_line(tiny_artifact: Path, tmp_path: Path) -> None:
    settings = TuneSettings(
        artifact=tiny_artifact, out=tmp_path / "tuning.json" / "x", min_cosine=0.9, seconds=0.05
    )
    (tmp_path / "tuning.json").write_text("")
    with pytest.raises(StartError, match="cannot be written"):
        run_tune(settings)
