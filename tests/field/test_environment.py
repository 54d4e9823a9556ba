"""What the environment must not change, and what it may lack: other programs' variables, homes, streams."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from e2e.server_process import BIN, clean_environment, start_server
from model.cli import main as model_main
from service.cli import main


@pytest.fixture(autouse=True)
def _own_process(isolated_logging: None) -> Iterator[None]:
    """Commands set up logging and variables for their whole process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder of a user without HOME and without an entry in the list of users."""

    def unknown(_: object) -> NoReturn:
        raise KeyError("not found")

    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


def test_other_programs_variables_change_nothing(tiny_artifact: Path, tmp_path: Path) -> None:
    """Counters are not shared through PROMETHEUS_MULTIPROC_DIR, nor is anything left in the home folder."""
    counters, home = tmp_path / "counters", tmp_path / "home"
    counters.mkdir()
    home.mkdir()
    environment = {
        "PROMETHEUS_MULTIPROC_DIR": str(counters),
        "PROMETHEUS_DISABLE_CREATED_SERIES": "perhaps",
        "HOME": str(home),
        "XDG_CACHE_HOME": "",
        "RAYON_NUM_THREADS": "many",
        "TOKENIZERS_PARALLELISM": "perhaps",
        "COLUMNS": "abc",
    }
    with start_server(tiny_artifact, environment=environment) as server:
        assert server.metrics()["lanes",] >= 1
        assert server.metrics()["requests_total", "OK", "Encode"] == 0
    assert list(counters.iterdir()) == []
    assert list(home.iterdir()) == []


def test_nor_do_they_where_the_folder_is_missing(tiny_artifact: Path, tmp_path: Path) -> None:
    environment = {"prometheus_multiproc_dir": str(tmp_path / "missing")}
    with start_server(tiny_artifact, environment=environment) as server:
        assert server.metrics()["lanes",] >= 1


def test_a_machine_without_affinity(tiny_artifact: Path, tmp_path: Path) -> None:
    """As macOS is, and sandboxes that forbid the call."""
    patch = "import os\nfor name in {names}:\n    vars(os).pop(name, None)\n"
    names = ["sched_getaffinity", "sched_setaffinity", "posix_fadvise", "memfd_create", "copy_file_range"]
    (tmp_path / "sitecustomize.py").write_text(patch.format(names=names))
    with start_server(tiny_artifact, environment={"PYTHONPATH": str(tmp_path)}) as server:
        assert server.metrics()["lanes",] >= 1


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_job_without_affinity(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: bool
) -> None:
    def refuse(_: int) -> NoReturn:
        raise PermissionError

    if forbidden:
        monkeypatch.setattr(os, "sched_getaffinity", refuse)
    else:
        monkeypatch.delattr(os, "sched_getaffinity")
    (tmp_path / "texts.txt").write_text("it\n")
    job = ["job", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
    assert main([*job, "--artifact", str(tiny_artifact)]) == 0


def test_the_default_model_without_a_home(homeless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_main(["export", "default", "--out", "out"]) == 1
    assert "XDG_CACHE_HOME" in last_line(capsys)


@pytest.mark.parametrize("source", ["~nosuch/x", "~", "~/x"])
def test_a_home_that_is_not_known(homeless: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_main(["export", source, "--out", "out"]) == 1
    assert f"{source}: its user's home folder is not known; name the whole path" in last_line(capsys)


def test_the_hub_without_a_home(homeless: Path) -> None:
    """In a process of its own: the Hub's client looks when it is loaded."""
    program = (
        "import pwd, sys\n"
        "def unknown(_): raise KeyError\n"
        "pwd.getpwuid = unknown\n"
        "from model.cli import main\n"
        "sys.exit(main(['export', 'organisation/model', '--out', 'out']))"
    )
    ended = subprocess.run(
        [BIN / "python", "-c", program], capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert ended.returncode == 1
    assert "set HF_HOME or HOME" in ended.stderr.splitlines()[-1]
    assert list(homeless.iterdir()) == []


@pytest.mark.parametrize("cache", ["relative", "~/cache"])
def test_a_cache_that_is_not_an_absolute_path(
    homeless: Path, cache: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert model_main(["export", "default", "--out", "out"]) == 1
    assert f"XDG_CACHE_HOME is {cache!r}, not an absolute path" in last_line(capsys)
    assert list(homeless.iterdir()) == []


def test_a_cache_that_cannot_be_written(
    homeless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (homeless / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(homeless / "file"))
    assert model_main(["export", "default", "--out", "out"]) == 1
    line = last_line(capsys)
    assert "Not a directory" in line
    assert "XDG_CACHE_HOME" in line


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_EXPORTER_OTLP_COMPRESSION", "weird"), ("OTEL_BSP_MAX_QUEUE_SIZE", "-1")]
)
def test_a_variable_that_opentelemetry_cannot_use(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["serve", "--artifact", "artifact", "--otlp-endpoint", "http://localhost:1"]) == 1
    assert "correct the variable OTEL_" in last_line(capsys)


class TestPositionalVariables:
    def test_a_text_on_the_command_line_wins(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SEQENC_TEXTS", "hello")
        assert main(["encode", "hi", "--address", "localhost:1"]) == 1
        assert "UNAVAILABLE" in last_line(capsys)

    @pytest.mark.parametrize("name", ["a.parquet", '["a.parquet"', "{}"])
    def test_a_variable_holds_one_input(
        self,
        tiny_artifact: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        name: str,
    ) -> None:
        monkeypatch.setenv("SEQENC_INPUTS", name)
        job = ["job", "--out", str(tmp_path / "out"), "--artifact", str(tiny_artifact)]
        assert main(job) == 1
        assert last_line(capsys).startswith(f"seqenc: {name} ")

    def test_an_empty_input_is_not_the_current_folder(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SEQENC_INPUTS", "")
        assert main(["job", "--out", "out", "--artifact", "artifact"]) == 2
        assert "an input is empty" in last_line(capsys)

    def test_what_is_missing_is_named_as_it_is_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["job", "--out", "out", "--artifact", "artifact"]) == 2
        assert "inputs is required (or set SEQENC_INPUTS)" in last_line(capsys)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    """Nobody listens at the address."""
    command = f"exec {BIN / 'seqenc'} encode --address 127.0.0.1:1 --deadline-s 5 {closed}"
    ended = subprocess.run(
        ["sh", "-c", command],
        input="it\n",
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )
    assert ended.returncode in (0, 1)
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_at_the_end_of_a_job_is_one_line(tiny_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("it\n")
    command: list[str | Path] = [BIN / "seqenc", "job", tmp_path / "texts.txt", "--out", tmp_path / "out"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command, "--artifact", tiny_artifact, "--log-level", "error"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=clean_environment(),
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("seqenc: standard output cannot be written: No space left on device;")
