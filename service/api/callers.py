"""Who makes a call: the name of its bearer token, else of its certificate, else nobody in particular."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import grpc

ANONYMOUS = "anonymous"
_CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")
# Set where the token is checked; a call is one task from there on.
_token_name: ContextVar[str | None] = ContextVar("token_name", default=None)


def remember_token_name(name: str) -> None:
    """For the call that this is run for."""
    _token_name.set(name)


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    return _token_name.get() or _certificate_name(context) or ANONYMOUS


def _certificate_name(context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """The subject's common name, else its first alternative name."""
    properties = context.auth_context()
    names = (name for key in _CERTIFICATE_NAMES for name in properties.get(key, ()))
    return next((name.decode(errors="replace") for name in names if name), None)
