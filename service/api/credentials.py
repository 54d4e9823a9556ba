"""TLS of the gRPC address: certificate, key and the roots of clients, taken up anew when the files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from service.api.rereading import Rereading, read_file
from service.config import ServeSettings
from service.errors import StartError


@dataclass(frozen=True, slots=True)
class _Files:
    certificate: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path]


def load_credentials(settings: ServeSettings) -> grpc.ServerCredentials | None:
    """None for a server without TLS; raises StartError for files that cannot be used."""
    if not (settings.tls_certificate and settings.tls_key):
        return None
    files = _Files(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    certificates = Rereading("the TLS certificates", files.paths, lambda: _load(files))
    given = certificates.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at every handshake; None: as before."""
        nonlocal given
        latest = certificates.current()
        changed, given = latest is not given, latest
        return latest if changed else None

    return grpc.dynamic_ssl_server_credentials(
        given,
        fetch,  # type: ignore[arg-type]  # the stubs leave out None
        require_client_authentication=files.client_ca is not None,
    )


def _load(files: _Files) -> grpc.ServerCertificateConfiguration:
    chain = read_file("--tls-certificate", files.certificate)
    key = read_file("--tls-key", files.key)
    roots = read_file("--tls-client-ca", files.client_ca) if files.client_ca else None
    _check(files)
    return grpc.ssl_server_certificate_configuration([(key, chain)], roots)


def _check(files: _Files) -> None:
    """Raises StartError for what gRPC itself would only refuse at the first handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key under a passphrase is refused rather than asked about on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise StartError(
            f"--tls-certificate {files.certificate} and --tls-key {files.key} cannot be used "
            f"({_reason(error)}); name a PEM certificate chain and its own unencrypted PEM key"
        ) from error
    if files.client_ca:
        _check_roots(context, files.client_ca)


def _check_roots(context: ssl.SSLContext, client_ca: Path) -> None:
    try:
        context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError) as error:
        raise StartError(
            f"--tls-client-ca {client_ca} cannot be used ({_reason(error)}); name a PEM file of certificates"
        ) from error


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None) or "not PEM"
    return str(reason).lower().replace("_", " ")
