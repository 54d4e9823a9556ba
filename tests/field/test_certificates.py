"""Certificates that gRPC cannot use are refused for what they are, by servers and by clients."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.files import replace
from e2e.server_process import start_server
from seqenc import AsyncClient, Client, Tls
from service.cli import main

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
P256 = ec.generate_private_key(ec.SECP256R1())
AUTHORITY = ec.generate_private_key(ec.SECP256R1())
SERVER = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
CLIENT = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])


def issue(
    key: object, *extensions: x509.ExtensionType, begins: datetime = NOW - DAY, ends: datetime = NOW + DAY
) -> bytes:
    """A certificate for localhost, as PEM."""
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    builder = builder.subject_name(_name("encoder")).issuer_name(_name("authority"))
    builder = builder.not_valid_before(begins).not_valid_after(ends)
    builder = builder.public_key(key.public_key())  # type: ignore[attr-defined]
    for extension in (x509.SubjectAlternativeName([x509.DNSName("localhost")]), *extensions):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(AUTHORITY, hashes.SHA256()).public_bytes(Encoding.PEM)


def pem(key: object, password: bytes = b"", form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    written: bytes = key.private_bytes(Encoding.PEM, form, encryption)  # type: ignore[attr-defined]
    return written


def authority(*, begins: datetime = NOW - DAY, ends: datetime = NOW + DAY) -> bytes:
    name = _name("authority")
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    builder = builder.subject_name(name).issuer_name(name).public_key(AUTHORITY.public_key())
    builder = builder.not_valid_before(begins).not_valid_after(ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(AUTHORITY, hashes.SHA256()).public_bytes(Encoding.PEM)


def usage(**bits: bool) -> x509.KeyUsage:
    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**(dict.fromkeys(names.split(), False) | bits))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


GOOD, GOOD_KEY, ROOTS = issue(P256), pem(P256), authority()
DER = x509.load_pem_x509_certificate(GOOD).public_bytes(Encoding.DER)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Files:
    folder: Path

    def write(self, certificate: bytes, key: bytes, roots: bytes = ROOTS) -> None:
        replace(self.key, key)
        replace(self.certificate, certificate)
        replace(self.roots, roots)

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def roots(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def server_flags(self) -> list[str]:
        return ["--tls-certificate", str(self.certificate), "--tls-key", str(self.key)]

    @property
    def client_tls(self) -> Tls:
        return Tls(ca=self.roots, certificate=self.certificate, key=self.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path)
    files.write(GOOD, GOOD_KEY)
    return files


def keys_of_other_kinds() -> dict[str, object]:
    return {
        "Ed25519": ed25519.Ed25519PrivateKey.generate(),
        "Ed448": ed448.Ed448PrivateKey.generate(),
        "P-521": ec.generate_private_key(ec.SECP521R1()),
        "P-224": ec.generate_private_key(ec.SECP224R1()),
        "secp256k1": ec.generate_private_key(ec.SECP256K1()),
        "a rare type": ec.generate_private_key(ec.BrainpoolP256R1()),
        "DSA": dsa.generate_private_key(1024),  # noqa: S505
    }


BAD_PAIRS: dict[str, tuple[bytes, bytes, str]] = {
    **{
        name: (issue(key), pem(key), rf"certificate .*tls.crt .*\({name}\).*RSA, P-256 or P-384")
        for name, key in keys_of_other_kinds().items()
    },
    "byte-order mark": (BYTE_ORDER_MARK + GOOD, GOOD_KEY, "certificate .*tls.crt has a byte-order mark"),
    "byte-order mark within": (
        GOOD + BYTE_ORDER_MARK + ROOTS,
        GOOD_KEY,
        "certificate .*tls.crt has a byte-order mark",
    ),
    "byte-order mark of the key": (GOOD, BYTE_ORDER_MARK + GOOD_KEY, "key .*tls.key has a byte-order mark"),
    "UTF-16": (GOOD.decode().encode("utf-16"), GOOD_KEY, "certificate .*tls.crt is UTF-16"),
    "DER": (DER, GOOD_KEY, "certificate .*tls.crt is not PEM; if it is DER, convert it"),
    "empty": (b"", GOOD_KEY, "certificate .*tls.crt is empty"),
    "empty key": (GOOD, b"\n", "key .*tls.key is empty"),
    "no PEM": (b"certificate", GOOD_KEY, "certificate .*tls.crt is not PEM"),
    "exchanged": (GOOD_KEY, GOOD, r"certificate .*tls.crt has a PEM block \(PRIVATE KEY\)"),
    "cut off": (GOOD[:-40], GOOD_KEY, "certificate .*tls.crt has a PEM block .* cut off"),
    "indented": (GOOD.replace(b"\n", b"\n  "), GOOD_KEY, "certificate .*tls.crt .* indented"),
    "damaged": (
        GOOD + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        GOOD_KEY,
        "certificate .*tls.crt: certificate 2 is damaged",
    ),
    "encrypted key": (GOOD, pem(P256, b"secret"), "key .*tls.key is encrypted"),
    "encrypted key of the older form": (
        GOOD,
        pem(P256, b"secret", PrivateFormat.TraditionalOpenSSL),
        "key .*tls.key is encrypted",
    ),
    "key of another certificate": (GOOD, pem(AUTHORITY), "tls.crt and .*tls.key cannot be used together"),
    "authority first": (ROOTS + issue(AUTHORITY), GOOD_KEY, "begins with the key's own certificate"),
    "no signatures": (issue(P256, usage(key_agreement=True)), GOOD_KEY, "key usage digitalSignature"),
}


@pytest.fixture(params=BAD_PAIRS.values(), ids=BAD_PAIRS.keys())
def bad_pair(request: pytest.FixtureRequest, files: Files) -> str:
    """What is said of the files, which are written."""
    certificate, key, message = request.param
    files.write(certificate, key)
    return str(message)


def serve_refusal(files: Files, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The last line of a server that does not start for its certificates."""
    assert main(["serve", "--artifact", str(files.folder), *files.server_flags, *flags]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("seqenc: --tls-")
    return line


@pytest.fixture(autouse=True)
def _own_logging(isolated_logging: None) -> None:
    """Commands set up logging for their whole process."""


def test_a_server_does_not_start_with_them(
    files: Files, bad_pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(bad_pair, serve_refusal(files, capsys))


def test_a_client_is_not_made_with_them(files: Files, bad_pair: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError, match=bad_pair):
            make("localhost:1", tls=files.client_tls)


def test_a_command_says_so(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(b"", GOOD_KEY)
    flags = ["--address", "localhost:1", *files.server_flags]
    for command in (["health"], ["encode", "a"]):
        assert main([*command, *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"certificate {files.certificate} is empty" in line


@pytest.mark.parametrize("roots", [b"", b"roots", BYTE_ORDER_MARK + ROOTS, GOOD_KEY, ROOTS[:-40], DER])
def test_roots_that_cannot_be_used(files: Files, roots: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(GOOD, GOOD_KEY, roots)
    assert f"--tls-client-ca {files.roots}" in serve_refusal(
        files, capsys, "--tls-client-ca", str(files.roots)
    )
    with pytest.raises(ValueError, match=str(files.roots)):
        Client("localhost:1", tls=files.roots)


def test_a_client_reads_pipes_once(files: Files, tiny_artifact: Path) -> None:
    """As a shell gives them for `--tls-ca <(command)`."""
    files.write(GOOD, GOOD_KEY)
    pipes: list[int] = []
    for path in (files.roots, files.certificate, files.key):
        read, write = os.pipe()
        os.write(write, path.read_bytes())
        os.close(write)
        pipes.append(read)
    tls = Tls(*(f"/dev/fd/{pipe}" for pipe in pipes), server_name="localhost")
    mutual = ("--tls-client-ca", str(files.roots))
    with (
        start_server(tiny_artifact, *files.server_flags, *mutual) as server,
        Client(server.grpc_address, tls=tls) as client,
    ):
        assert client.health() == "SERVING"


def test_a_client_needs_certificate_and_key(files: Files) -> None:
    with pytest.raises(ValueError, match="go together"):
        Client("localhost:1", tls=Tls(certificate=files.certificate))


def test_the_purpose_must_be_the_servers(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(issue(P256, CLIENT), GOOD_KEY)
    assert "serverAuth" in serve_refusal(files, capsys)


def test_a_client_is_warned_of_another_purpose(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.write(issue(P256, SERVER), GOOD_KEY)
    Client("localhost:1", tls=files.client_tls).close()
    assert "clientAuth" in caplog.text


@pytest.mark.parametrize(
    ("begins", "ends", "said"), [(-3, -1, "certificate 1 expired on"), (1, 3, "certificate 1 is valid from")]
)
def test_a_client_is_warned_of_dates(
    files: Files, begins: int, ends: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(issue(P256, begins=NOW + begins * DAY, ends=NOW + ends * DAY), GOOD_KEY)
    Client("localhost:1", tls=files.client_tls).close()
    assert f"tls certificate {files.certificate}: {said}" in caplog.text


def test_of_several_roots_some_may_have_expired(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    expired = authority(begins=NOW - 2 * DAY, ends=NOW - DAY)
    files.write(GOOD, GOOD_KEY, ROOTS + expired)
    Client("localhost:1", tls=files.roots).close()
    assert not caplog.text
    files.write(GOOD, GOOD_KEY, expired)
    Client("localhost:1", tls=files.roots).close()
    assert "expired" in caplog.text


GOOD_PAIRS: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "RSA": lambda: _pair(rsa.generate_private_key(65537, 2048)),
    "RSA of 1024 bits": lambda: _pair(rsa.generate_private_key(65537, 1024)),  # noqa: S505
    "P-384": lambda: _pair(ec.generate_private_key(ec.SECP384R1())),
    "CRLF": lambda: (GOOD.replace(b"\n", b"\r\n"), GOOD_KEY.replace(b"\n", b"\r\n")),
    "key in the same file": lambda: (GOOD_KEY + GOOD, GOOD_KEY),
    "text before": lambda: (b"Bag Attributes\n    localKeyID: 01\n" + GOOD, GOOD_KEY),
    "key of the older form": lambda: (GOOD, pem(P256, form=PrivateFormat.TraditionalOpenSSL)),
    "chain out of order": lambda: (GOOD + ROOTS + GOOD, GOOD_KEY),
    "all purposes named": lambda: (
        issue(P256, SERVER, usage(digital_signature=True, key_encipherment=True)),
        GOOD_KEY,
    ),
}


def _pair(key: object) -> tuple[bytes, bytes]:
    return issue(key), pem(key)


def health_over_tls(address: str) -> str:
    """By a client of gRPC's own, over a connection of its own."""
    credentials = grpc.ssl_channel_credentials(ROOTS)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", "localhost")]
    with grpc.secure_channel(address, credentials, options) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            check(b"", timeout=30)
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined,no-any-return]
        return "answered"


def test_a_running_server_takes_up_good_files_and_keeps_them_from_bad_ones(
    files: Files, tiny_artifact: Path
) -> None:
    with start_server(tiny_artifact, *files.server_flags) as server:
        address = server.grpc_address
        for certificate, key in (make() for make in GOOD_PAIRS.values()):
            files.write(certificate, key)
            assert health_over_tls(address) == "answered"
        for certificate, key, _ in BAD_PAIRS.values():
            files.write(certificate, key)
            assert health_over_tls(address) == "answered"
        files.write(issue(P256, begins=NOW - 2 * DAY, ends=NOW - DAY), GOOD_KEY)
        assert health_over_tls(address) == "UNAVAILABLE"
        server.wait_for("clients will not connect")
    kept = [event["refused"] for event in server.events if event["event"].endswith("kept as they were")]
    assert len(kept) == len(BAD_PAIRS)
    for (_, _, message), refused in zip(BAD_PAIRS.values(), kept, strict=True):
        assert re.search(message, refused)
    assert not any("unhandled" in event["event"] or "traceback" in event for event in server.events)


def test_an_address_in_use_is_called_that(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--artifact", str(files.folder), "--grpc-address", address]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"seqenc: --grpc-address {address} cannot be used: Address already in use")


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "encoder.invalid:50051", "[::zz]:50051"])
def test_an_address_that_is_not_this_machines_is_not_called_in_use(
    files: Files, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--artifact", str(files.folder), "--grpc-address", address]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"seqenc: --grpc-address {address} cannot be used: ")
    assert "in use" not in line
