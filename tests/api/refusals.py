"""What a caller sees of a call that was refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2


@dataclass(frozen=True)
class Refusal:
    """`violations` are fields and descriptions; `raw` is all that was sent of the status."""

    code: str
    message: str
    reason: str
    domain: str
    violations: list[tuple[str, str]]
    retry_delay: Duration | None
    raw: bytes

    @property
    def fields(self) -> list[str]:
        return [field for field, _ in self.violations]


def refusal_of(call: Callable[..., Any], request: Any, **options: Any) -> Refusal:
    """Fails where the call succeeds."""
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=30, **options)
    return read_refusal(raised.value)


def read_refusal(error: Any) -> Refusal:
    status = status_pb2.Status()
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            status.ParseFromString(value)
    info, bad, retry = details.ErrorInfo(), details.BadRequest(), details.RetryInfo()
    has_retry = False
    for packed in status.details:
        has_retry = packed.Unpack(retry) or has_retry
        packed.Unpack(info)
        packed.Unpack(bad)
    return Refusal(
        code=error.code().name,
        message=error.details(),
        reason=info.reason,
        domain=info.domain,
        violations=[(violation.field, violation.description) for violation in bad.field_violations],
        retry_delay=retry.retry_delay if has_retry else None,
        raw=error.details().encode() + status.SerializeToString(),
    )
