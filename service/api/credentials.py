"""TLS of the gRPC address: certificate, key and the roots of clients, taken up anew when the files change."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from seqenc.certificates import PemFile, check_pair, check_roots
from service.api.rereading import Rereading, read_file
from service.config import ServeSettings
from service.errors import StartError
from service.logs import log_event

logger = logging.getLogger(__name__)


def load_credentials(settings: ServeSettings) -> grpc.ServerCredentials | None:
    """None for a server without TLS; raises StartError for files that cannot be used."""
    if not (settings.tls_certificate and settings.tls_key):
        return None
    certificate, key, roots = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    paths = [path for path in (certificate, key, roots) if path]
    certificates = Rereading("the TLS certificates", paths, lambda: _load(certificate, key, roots))
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
        require_client_authentication=roots is not None,
    )


def _load(certificate: Path, key: Path, roots: Path | None) -> grpc.ServerCertificateConfiguration:
    chain = _read("--tls-certificate", certificate)
    secret = _read("--tls-key", key)
    trusted = _read("--tls-client-ca", roots) if roots else None
    try:
        warnings = check_pair(chain, secret, "server")
        if trusted:
            warnings += check_roots(trusted)
    except (ValueError, OSError) as error:
        raise StartError(str(error)) from error
    for warning in warnings:
        log_event(logger, logging.WARNING, "clients will not connect", reason=warning)
    return grpc.ssl_server_certificate_configuration(
        [(secret.data, chain.data)], trusted.data if trusted else None
    )


def _read(flag: str, path: Path) -> PemFile:
    return PemFile(flag, path, read_file(flag, path))
