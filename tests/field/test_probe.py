"""The image's health check: it follows the server's own settings, and costs next to nothing."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trustme

from e2e.server_process import BIN, START_S, ServerProcess, clean_environment
from service.cli import main

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text()
READY = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nready\n"
STARTING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\nstarting\n"


def health_check() -> list[str]:
    """The command of the image, as it is here."""
    (command,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.M)
    program, *arguments = json.loads(command)
    return [str(BIN / program), *arguments]


@contextmanager
def answering(host: str, reply: bytes) -> Iterator[int]:
    """A port of `host` that gives this answer to whoever comes."""
    try:
        server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server:

        def answer() -> None:
            connection, _ = server.accept()
            with closing(connection):
                connection.recv(4096)
                connection.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, str]:
    """Settings of a server with mutual TLS whose gRPC address is not the default."""
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("server.test")
    for name, blob in {
        "chain.pem": certificate.cert_chain_pems[0],
        "key.pem": certificate.private_key_pem,
        "roots.pem": other.cert_pem,
    }.items():
        blob.write_to_path(str(tmp_path / name))
    return {
        "SEQENC_GRPC_ADDRESS": "127.0.0.1:0",
        "SEQENC_TLS_CERTIFICATE": str(tmp_path / "chain.pem"),
        "SEQENC_TLS_KEY": str(tmp_path / "key.pem"),
        "SEQENC_TLS_CLIENT_CA": str(tmp_path / "roots.pem"),
    }


def test_a_server_with_mutual_tls_at_other_addresses(tiny_artifact: Path, secured: dict[str, str]) -> None:
    settings = secured | {"SEQENC_HTTP_ADDRESS": f"127.0.0.1:{free_port()}", "SEQENC_LOG_FORMAT": "json"}
    environment = clean_environment() | settings
    command = [BIN / "seqenc", "serve", "--artifact", tiny_artifact]

    def check() -> tuple[int, str]:
        ran = subprocess.run(health_check(), env=environment, capture_output=True, text=True, timeout=START_S)
        return ran.returncode, ran.stdout

    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            ServerProcess(process).wait_for("ready")
            assert check() == (0, "ready\n")
        finally:
            process.kill()
    assert check() == (1, "")


def test_it_imports_nothing_large() -> None:
    environment = clean_environment() | {"PYTHONPROFILEIMPORTTIME": "1"}
    ran = subprocess.run(health_check(), env=environment, capture_output=True, text=True, timeout=START_S)
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "socket" in imported
    assert not imported & {"pydantic", "numpy", "grpc", "rich", "argparse", "asyncio", "ssl"}


@pytest.mark.parametrize(
    ("listened_on", "given"),
    [("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "localhost"), ("::1", "[::]"), ("::1", "[::1]")],  # noqa: S104
)
def test_the_address_of_the_variable(
    listened_on: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(listened_on, READY) as port:
        monkeypatch.setenv("SEQENC_HTTP_ADDRESS", f"{given}:{port}")
        assert main(["probe"]) == 0
    assert capsys.readouterr().out == "ready\n"


@pytest.mark.parametrize(
    ("reply", "said"),
    [(STARTING, "starting"), (b"", "no answer"), (READY.replace(b"ready", b"hello"), "hello")],
)
def test_what_is_not_a_ready_server(
    reply: bytes, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering("127.0.0.1", reply) as port:
        monkeypatch.setenv("SEQENC_HTTP_ADDRESS", f"127.0.0.1:{port}")
        assert main(["probe"]) == 1
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize("flag", ["--http-address={}", "--http-address {}"])
def test_a_flag_of_process_1_wins_over_the_variable(flag: str) -> None:
    """In a process namespace of its own, whose process 1 has the command line of a server."""
    isolated = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    if not shutil.which("unshare") or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("this machine lends no process namespace")
    environment = clean_environment() | {"SEQENC_HTTP_ADDRESS": f"127.0.0.1:{free_port()}"}
    with answering("127.0.0.1", READY) as port:
        flags = flag.format(f"0.0.0.0:{port}").split()
        script = 'probe=$1; shift; "$probe" probe; echo $?'
        command = [*isolated, "sh", "-c", script, "sh", health_check()[0], "serve", *flags]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S)
    assert ran.stdout == "ready\n0\n", ran.stderr


@pytest.mark.parametrize("address", ["garbage", ":9090", "localhost:http", "[::1"])
def test_an_address_that_is_none_is_named(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEQENC_HTTP_ADDRESS", address)
    assert main(["probe"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--http-address {address}: " in line
