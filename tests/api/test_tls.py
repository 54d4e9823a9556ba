"""TLS and mutual TLS: who gets a connection, what a change of the files does, and which are refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from api.certificates import SERVER_NAME, CertificateFiles, client_credentials
from api.files import replace
from api.own_server import OwnServer, check_health, serve_here
from service.api.credentials import load_credentials
from service.config import ServeSettings, SettingsError, load_settings
from service.errors import StartError

AUTHORITY, OTHER_AUTHORITY, CLIENT_AUTHORITY, OTHER_CLIENT_AUTHORITY = (trustme.CA() for _ in range(4))
CLIENT = CLIENT_AUTHORITY.issue_cert("client.test")


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    files = CertificateFiles(tmp_path)
    files.issue(AUTHORITY)
    files.trust(CLIENT_AUTHORITY)
    return files


def settings_of(files: CertificateFiles, *, mutual: bool = False) -> dict[str, Any]:
    given = {"tls_certificate": files.certificate, "tls_key": files.key}
    return given | ({"tls_client_ca": files.client_ca} if mutual else {})


async def connect(server: OwnServer, authority: trustme.CA, own: trustme.LeafCert | None = None) -> str:
    """What a call over a new connection comes to."""
    async with server.secure_channel(client_credentials(authority, own), SERVER_NAME) as channel:
        return await check_health(channel)


async def test_a_client_that_trusts_the_authority_is_served(files: CertificateFiles) -> None:
    async with serve_here(**settings_of(files)) as server:
        assert await connect(server, AUTHORITY) == "NOT_SERVING"
        assert await connect(server, OTHER_AUTHORITY) == "UNAVAILABLE"


async def test_plaintext_is_not_served(files: CertificateFiles) -> None:
    async with serve_here(**settings_of(files)) as server, server.channel() as channel:
        assert await check_health(channel) == "UNAVAILABLE"


async def test_mutual_tls_serves_only_certificates_of_its_roots(files: CertificateFiles) -> None:
    async with serve_here(**settings_of(files, mutual=True)) as server:
        assert await connect(server, AUTHORITY, CLIENT) == "NOT_SERVING"
        assert await connect(server, AUTHORITY) == "UNAVAILABLE"
        stranger = OTHER_CLIENT_AUTHORITY.issue_cert("client.test")
        assert await connect(server, AUTHORITY, stranger) == "UNAVAILABLE"


async def test_new_connections_see_a_new_certificate_and_old_ones_live_on(files: CertificateFiles) -> None:
    async with (
        serve_here(**settings_of(files)) as server,
        server.secure_channel(client_credentials(AUTHORITY), SERVER_NAME) as open_before,
    ):
        assert await check_health(open_before) == "NOT_SERVING"
        files.issue(OTHER_AUTHORITY)
        assert await connect(server, OTHER_AUTHORITY) == "NOT_SERVING"
        assert await connect(server, AUTHORITY) == "UNAVAILABLE"
        assert await check_health(open_before) == "NOT_SERVING"


async def test_new_roots_let_other_clients_in(files: CertificateFiles) -> None:
    async with serve_here(**settings_of(files, mutual=True)) as server:
        files.trust(OTHER_CLIENT_AUTHORITY)
        assert await connect(server, AUTHORITY, CLIENT) == "UNAVAILABLE"
        other = OTHER_CLIENT_AUTHORITY.issue_cert("client.test")
        assert await connect(server, AUTHORITY, other) == "NOT_SERVING"


@pytest.mark.parametrize("content", [b"", b"not PEM\n", None])
async def test_files_that_turn_bad_leave_the_last_good_ones_in_use(
    files: CertificateFiles, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_here(**settings_of(files)) as server:
        replace(files.certificate, content)
        assert await connect(server, AUTHORITY) == "NOT_SERVING"
        assert await connect(server, AUTHORITY) == "NOT_SERVING"
        refused = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert [record.message for record in refused] == ["the TLS certificates kept as they were"]
        assert "--tls-certificate" in refused[0].fields["refused"]  # type: ignore[attr-defined]
        files.issue(OTHER_AUTHORITY)
        assert await connect(server, OTHER_AUTHORITY) == "NOT_SERVING"


async def test_a_certificate_that_comes_before_its_key_waits_for_it(files: CertificateFiles) -> None:
    old_key = files.key.read_bytes()
    async with serve_here(**settings_of(files)) as server:
        files.issue(OTHER_AUTHORITY)
        new_key = files.key.read_bytes()
        replace(files.key, old_key)
        assert await connect(server, AUTHORITY) == "NOT_SERVING"
        replace(files.key, new_key)
        assert await connect(server, OTHER_AUTHORITY) == "NOT_SERVING"


async def test_a_mounted_secret_changes_by_one_symbolic_link(tmp_path: Path) -> None:
    """As Kubernetes replaces all files of a volume at once."""
    old, new = CertificateFiles(tmp_path / "old"), CertificateFiles(tmp_path / "new")
    for files, authority in ((old, AUTHORITY), (new, OTHER_AUTHORITY)):
        files.folder.mkdir()
        files.issue(authority)
    link = tmp_path / "data"
    link.symlink_to(old.folder)
    async with serve_here(**settings_of(CertificateFiles(link))) as server:
        assert await connect(server, AUTHORITY) == "NOT_SERVING"
        fresh = tmp_path / "fresh"
        fresh.symlink_to(new.folder)
        fresh.replace(link)
        assert await connect(server, OTHER_AUTHORITY) == "NOT_SERVING"
        assert await connect(server, AUTHORITY) == "UNAVAILABLE"


def refusal_of(files: CertificateFiles) -> str:
    settings = ServeSettings(artifact=files.folder, **settings_of(files, mutual=True))
    with pytest.raises(StartError) as raised:
        load_credentials(settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "flag"),
    [("certificate", "--tls-certificate"), ("key", "--tls-key"), ("client_ca", "--tls-client-ca")],
)
def test_a_file_that_cannot_be_used_is_named(files: CertificateFiles, name: str, flag: str) -> None:
    path: Path = getattr(files, name)
    for content in (b"", b"not PEM\n", "-----BEGIN CERTIFICATE-----\né".encode()):
        path.write_bytes(content)
        assert f"{flag} {path}" in refusal_of(files)
    path.unlink()
    assert (
        refusal_of(files) == f"{flag} {path} cannot be read: No such file or directory; name a readable file"
    )
    path.mkdir()
    assert f"{flag} {path} cannot be read" in refusal_of(files)


def test_a_key_of_another_certificate_is_refused(files: CertificateFiles) -> None:
    files.key.write_bytes(AUTHORITY.issue_cert(SERVER_NAME).private_key_pem.bytes())
    assert "key values mismatch" in refusal_of(files)


def test_without_files_there_is_no_tls(tmp_path: Path) -> None:
    assert load_credentials(ServeSettings(artifact=tmp_path)) is None


@pytest.mark.parametrize(
    "flags",
    [
        {"tls_certificate": "a"},
        {"tls_key": "b"},
        {"tls_client_ca": "c"},
        {"tls_key": "b", "tls_client_ca": "c"},
    ],
)
def test_flags_that_make_no_whole_are_refused(flags: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--tls-certificate and --tls-key"):
        load_settings(ServeSettings, {"artifact": "x", **flags})


def test_credentials_are_made_of_good_files(files: CertificateFiles) -> None:
    settings = ServeSettings(artifact=files.folder, **settings_of(files, mutual=True))
    assert isinstance(load_credentials(settings), grpc.ServerCredentials)
