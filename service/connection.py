"""Connection settings -> the client they ask for."""

from __future__ import annotations

from seqenc import Client, Tls
from seqenc.retry import DEFAULT_RETRY, RetryPolicy
from service.client_settings import ConnectionSettings


def open_client(
    settings: ConnectionSettings,
    *,
    address: str | None = None,
    expected_revision: str = "",
    deadline_s: float | None = None,
    retry: RetryPolicy = DEFAULT_RETRY,
) -> Client:
    """`address` in place of the settings' own. Raise OSError or ValueError for unusable files."""
    try:
        token = settings.token_file.read_text("utf-8").strip() if settings.token_file else None
    except UnicodeError:
        raise ValueError(
            f"--token-file {settings.token_file} is not text; name a file with the token alone"
        ) from None
    return Client(
        address or settings.address,
        tls=_tls(settings),
        token=token,
        expected_revision=expected_revision,
        deadline_s=deadline_s,
        retry=retry,
    )


def _tls(settings: ConnectionSettings) -> Tls | None:
    tls = Tls(settings.tls_ca, settings.tls_certificate, settings.tls_key, settings.tls_server_name)
    return tls if settings.tls or tls != Tls() else None
