"""Whatever a command is given, it ends with a documented status and a sentence, never with a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.cli import main as model_main
from service.cli import COMMANDS, main

# Nobody listens there, and ports that the system chooses.
AWAY, FREE = "127.0.0.1:1", "127.0.0.1:0"
BASE = {
    "serve": {"grpc_address": FREE, "http_address": FREE},
    "tune": {"seconds": "0.1"},
    "job": {},
    "encode": {"address": AWAY, "deadline_s": "0.05"},
    "tokenize": {"address": AWAY, "deadline_s": "0.05"},
    "attend": {"address": AWAY, "deadline_s": "0.05"},
    "health": {"address": AWAY},
}
FILES = {
    "artifact",
    "out",
    "inputs",
    "metrics_textfile",
    "tls_ca",
    "tls_certificate",
    "tls_client_ca",
    "tls_key",
    "token_file",
    "tokens_file",
    "tuning",
}
# A Ray cluster takes seconds to start, an artifact that loads would serve for ever.
LEFT_ALONE = {"engine", "seconds", "timeout_s", "deadline_s", "warmup_timeout_s"}
OTHER_VARIABLES = (
    *("HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"),
    *("GRPC_TRACE", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PROMETHEUS_MULTIPROC_DIR", "HF_HOME"),
    *("http_proxy", "no_proxy", "SEQENC_", "SEQENC_UNKNOWN", "SEQENC_PORT", "seqenc_lanes"),
)

# As the system hands over bytes that are not UTF-8; no argument or variable holds a zero.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0") | st.characters(
    min_codepoint=0xDC80, max_codepoint=0xDCFF
)
values = st.text(characters, max_size=20) | st.sampled_from(
    [
        *("", "0", "-1", "1", "1e400", "nan", "inf", "9" * 400, "true", "auto", "none", "null", "{}", "[1]"),
        *(":", ":0", "[::1]:1", "host:99999", f"{'x' * 300}:1", "..:1", "xn--:1", ",", "unix:/x", "ipv4:"),
        *("dns:///", "https://[::", "https://x:abc", "{a}", "{", "{0}", "{a!r}", "{a.b[c]}", "é" * 3000),
        *("parquet", "jsonl", "npy", "int8", "bf16", "cuda", "openvino", "-", "--", " 1 ", "0x10", "1_000"),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of odd files, and of folders that hold such files under the names that are looked for."""
    folder = tmp_path_factory.mktemp("odd")
    contents = {
        "empty": b"",
        "binary": bytes(range(256)),
        "broken": b'{"a": [1,',
        "list": b"[1]",
        "object": b"{}",
        "deep": b"[" * 100_000,
        "utf-16": "{}".encode("utf-16"),
        "pem": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        inner = folder / f"{name}-folder"
        inner.mkdir()
        for file in ("manifest.json", "config.json", "tokenizer.json", "model.safetensors", "a.jsonl"):
            (inner / file).write_bytes(content)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    return folder


def files(folder: Path) -> st.SearchStrategy[str]:
    """A pipe that nobody writes to would be waited for; folders are not, so artifacts may be one."""
    return st.sampled_from(
        [
            *(str(path) for path in sorted(folder.iterdir()) if path.name != "pipe"),
            *("", "missing", "x" * 5000, "a/" * 2000, "~nosuch/x", "/dev/null", "nosuch://x", "*", "["),
            *("file:///x", "memory://x", "\udcff"),
        ]
    )


@contextmanager
def surroundings(folder: Path, variables: dict[str, str]) -> Iterator[io.StringIO]:
    """The environment and the working folder of one command; yields what it says on standard error."""
    before, here, stdin = dict(os.environ), Path.cwd(), sys.stdin
    said = io.StringIO()
    os.environ.update(variables)
    os.chdir(folder)
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"it\n\xff\n"))
    try:
        with redirect_stderr(said), redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
            yield said
    finally:
        sys.stdin = stdin
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def check(
    folder: Path,
    command: Callable[[Sequence[str]], int],
    arguments: list[str],
    variables: dict[str, str],
) -> None:
    with surroundings(folder, variables) as said:
        try:
            status: object = command(arguments)
        except SystemExit as end:  # argparse's way
            status = end.code
    assert status in ((0, 1, 2, 3) if arguments[0] == "job" else (0, 1, 2))
    assert "Traceback" not in said.getvalue()
    assert status in (0, 3) or said.getvalue().strip()


@settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_odd_flags_and_variables(folder: Path, isolated_logging: None, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(COMMANDS.keys() - {"probe"})))  # which takes no flags
    fields = sorted(set(COMMANDS[name].settings.model_fields) - LEFT_ALONE)
    odd = files(folder)
    chosen: dict[str, str] = dict(BASE[name])
    for field in {"artifact", "out", "inputs"} & set(fields):
        if not (field == "artifact" and name == "job" and data.draw(st.booleans())):
            chosen[field] = data.draw(odd)
    for field in data.draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)):
        chosen[field] = data.draw(odd if field in FILES else values | odd)
    variables = data.draw(st.dictionaries(st.sampled_from(OTHER_VARIABLES), values | odd, max_size=1))
    arguments = [name]
    for field, value in chosen.items():
        if data.draw(st.integers(0, 3)) == 0:
            variables[f"SEQENC_{field.upper()}"] = value
        elif field in ("inputs", "texts", "text"):
            arguments.append(value)
        else:
            arguments.append(f"--{field.replace('_', '-')}={value}")
    check(folder, main, arguments, variables)


@settings(
    max_examples=30,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_odd_artifacts_and_checkpoints(folder: Path, data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(["verify", "info"]))
    check(folder, model_main, [command, data.draw(files(folder))], {})
    source = data.draw(files(folder).filter(lambda file: not file.endswith("-folder")))
    check(folder, model_main, ["export", source, "--out", "new"], {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("content", ["list", "object", "deep", "broken", "binary", "empty", "utf-16"])
def test_odd_checkpoints(folder: Path, content: str) -> None:
    check(folder, model_main, ["export", str(folder / f"{content}-folder"), "--out", "new"], {})


@pytest.mark.parametrize("flag", ["--tls-certificate", "--tls-key", "--tls-client-ca", "--tokens-file"])
def test_a_pipe_is_not_waited_for(folder: Path, flag: str, isolated_logging: None) -> None:
    others = {"--tls-certificate", "--tls-key"} - {flag} if flag.startswith("--tls") else set()
    arguments = ["serve", "--artifact", str(folder), flag, str(folder / "pipe")]
    for other in others:
        arguments += [other, str(folder / "pipe")]
    check(folder, main, arguments, {})
