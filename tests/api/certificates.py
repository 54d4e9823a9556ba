"""Certificates of throw-away authorities, written to files as an operator would hand them to the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

from api.files import replace

SERVER_NAME = "encoder.test"


@dataclass(frozen=True)
class CertificateFiles:
    """What the server is started with; `issue` replaces certificate and key by newly made ones."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def client_ca(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert(SERVER_NAME)
        replace(self.key, issued.private_key_pem.bytes())
        replace(self.certificate, _join(issued.cert_chain_pems))

    def trust(self, *authorities: trustme.CA) -> None:
        replace(self.client_ca, _join(authority.cert_pem for authority in authorities))


def client_credentials(authority: trustme.CA, own: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    """Trusts the authority's servers, and shows the client's own certificate where there is one."""
    if own is None:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        own.private_key_pem.bytes(),
        _join(own.cert_chain_pems),
    )


def _join(blobs: Iterable[trustme.Blob]) -> bytes:
    return b"".join(blob.bytes() for blob in blobs)
