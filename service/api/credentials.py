"""TLS of the gRPC address: certificate, key and the roots of clients, taken up anew when the files change."""

from __future__ import annotations

import logging

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
    certificate = PemFile("--tls-certificate", settings.tls_certificate)
    key = PemFile("--tls-key", settings.tls_key)
    roots = PemFile("--tls-client-ca", settings.tls_client_ca) if settings.tls_client_ca else None
    paths = [file.path for file in (certificate, key, roots) if file]
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


def _load(certificate: PemFile, key: PemFile, roots: PemFile | None) -> grpc.ServerCertificateConfiguration:
    chain = read_file(certificate.name, certificate.path)
    secret = read_file(key.name, key.path)
    trusted = read_file(roots.name, roots.path) if roots else None
    try:
        warnings = check_pair(certificate, key, "server")
        if roots:
            warnings += check_roots(roots)
    except (ValueError, OSError) as error:
        raise StartError(str(error)) from error
    for warning in warnings:
        log_event(logger, logging.WARNING, "clients will not connect", reason=warning)
    return grpc.ssl_server_certificate_configuration([(secret, chain)], trusted)
