"""The tuning file: written, read, applied below flags, and refused where it does not hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.config import ServeSettings
from service.errors import StartError
from service.tuning import Choice, Tuning, load_tuning, read_cpu_model

CHOICE = Choice(provider="cpu", precision="int8", lanes=3, threads_per_lane=2, max_batch_tokens=256)
TUNING = Tuning(revision="53aa", cpu_model="Fast CPU", cores=6, choice=CHOICE)
CPU_INFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Fast CPU @ 2.00GHz
stepping\t: 8

processor\t: 1
model name\t: Other CPU
"""


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    TUNING.save(path, [{"lanes": 3, "texts_per_s": 100.0}])
    assert load_tuning(path) == TUNING
    assert json.loads(path.read_text())["measurements"] == [{"lanes": 3, "texts_per_s": 100.0}]


def test_the_choice_fills_in_what_nobody_set() -> None:
    settings = TUNING.apply(ServeSettings(artifact=Path("a"), lanes=8, precision="fp32"))
    assert (settings.lanes, settings.precision) == (8, "fp32")
    assert (settings.provider, settings.threads_per_lane, settings.max_batch_tokens) == ("cpu", 2, 256)


def test_the_environment_goes_before_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQENC_LANES", "5")
    assert TUNING.apply(ServeSettings(artifact=Path("a"))).lanes == 5


class TestCheck:
    def check(self, tuning: Tuning) -> None:
        tuning.check(Path("tuning.json"), revision="53aa", cores=6)

    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.tuning.read_cpu_model", lambda: "Fast CPU")

    def test_where_it_holds(self) -> None:
        self.check(TUNING)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"revision": "54bb"}, "made for artifact revision '54bb', here it is '53aa'"),
            ({"cpu_model": "Slow CPU"}, "made for CPU model 'Slow CPU', here it is 'Fast CPU'"),
            ({"cores": 2}, "made for usable cores 2, here it is 6"),
        ],
    )
    def test_where_it_does_not(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(StartError) as error:
            self.check(replace(TUNING, **change))
        assert message in str(error.value)


class TestBrokenFile:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StartError, match=r"tuning\.json cannot be read \(No such file or directory\)"):
            load_tuning(tmp_path / "tuning.json")

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "[]",
            "{}",
            '{"schema_version": 2}',
            '{"schema_version": 1}',
            '{"schema_version": 1, "revision": "a", "cpu_model": "b", "cores": "many", "choice": {}}',
            '{"schema_version": 1, "revision": "a", "cpu_model": "b", "cores": 2, "choice": {"lanes": 1}}',
        ],
    )
    def test_of_another_kind(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "tuning.json"
        path.write_text(content)
        with pytest.raises(StartError, match=r"tuning\.json is not a tuning file"):
            load_tuning(path)


class TestCpuModel:
    def test_of_the_first_processor(self, tmp_path: Path) -> None:
        (tmp_path / "cpuinfo").write_text(CPU_INFO)
        model = read_cpu_model(tmp_path / "cpuinfo")
        assert model == "Fast CPU @ 2.00GHz, cpu family 6, model 143, stepping 8"

    def test_without_a_name(self, tmp_path: Path) -> None:
        (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
        assert read_cpu_model(tmp_path / "cpuinfo") == "unknown"
        assert read_cpu_model(tmp_path / "nowhere") == "unknown"
