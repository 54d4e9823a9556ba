"""A server with mutual TLS, tokens and a port for probes, as its users and its operator meet it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from api.certificates import SERVER_NAME, CertificateFiles
from e2e.server_process import ServerProcess, run_seqenc, start_server
from seqenc import Client, SeqencError, Tls

TOKEN = "alice-secret-0123456789"  # noqa: S105


@dataclass(frozen=True)
class Secured:
    server: ServerProcess
    folder: Path

    @property
    def tls(self) -> Tls:
        return Tls(
            self.folder / "roots.pem", self.folder / "client.pem", self.folder / "client.pem", SERVER_NAME
        )


@pytest.fixture(scope="module")
def secured(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    servers, clients, files = trustme.CA(), trustme.CA(), CertificateFiles(folder)
    files.issue(servers)
    files.trust(clients)
    servers.cert_pem.write_to_path(folder / "roots.pem")
    clients.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    (folder / "tokens").write_text(f"alice:{TOKEN}\n")
    (folder / "token").write_text(f"{TOKEN}\n")
    flags = {
        "--tls-certificate": files.certificate,
        "--tls-key": files.key,
        "--tls-client-ca": files.client_ca,
        "--tokens-file": folder / "tokens",
        "--health-address": "127.0.0.1:0",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    with start_server(tiny_artifact, *words) as server:
        yield Secured(server, folder)


def test_the_client_with_certificate_and_token_is_served(secured: Secured) -> None:
    with Client(secured.server.grpc_address, tls=secured.tls, token=TOKEN, deadline_s=30) as client:
        assert len(client.encode(["a", "b"]).results) == 2
        assert client.health() == "SERVING"


def test_the_client_with_another_token_is_not(secured: Secured) -> None:
    with Client(secured.server.grpc_address, tls=secured.tls, token=f"{TOKEN}0", deadline_s=30) as client:
        with pytest.raises(SeqencError) as raised:
            client.encode(["a"])
        assert raised.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert client.health() == "SERVING"


def test_the_commands(secured: Secured) -> None:
    folder = secured.folder
    flags: list[str | Path] = ["--address", secured.server.grpc_address, "--tls-ca", folder / "roots.pem"]
    flags += ["--tls-certificate", folder / "client.pem", "--tls-key", folder / "client.pem"]
    flags += ["--tls-server-name", SERVER_NAME]
    assert run_seqenc("health", *flags).returncode == 0
    encoded = run_seqenc("encode", *flags, "--token-file", folder / "token", "a text")
    assert encoded.returncode == 0, encoded.stderr
    refused = run_seqenc("encode", *flags, "a text")
    assert refused.returncode != 0
    assert "token" in refused.stderr


def test_a_plain_probe(secured: Secured) -> None:
    address = str(secured.server.wait_for("listening", "health_address")["health_address"])
    with grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--tokens-file", "no.such.file"], "seqenc: --tokens-file no.such.file cannot be read"),
        (
            ["--tls-certificate", "no.such.file", "--tls-key", "no.such.file"],
            "seqenc: --tls-certificate no.such.file cannot be read",
        ),
    ],
)
def test_files_that_cannot_be_used_end_the_start_in_one_line(
    tiny_artifact: Path, flags: list[str], line: str
) -> None:
    ended = run_seqenc("serve", "--artifact", tiny_artifact, "--grpc-address", "127.0.0.1:0", *flags)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in ended.stderr
