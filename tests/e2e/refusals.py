"""How calls are refused: statuses and their details as they arrive on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

# What a caller sends and no refusal may repeat.
SECRET = "correct horse battery staple"  # noqa: S105


def refusal(method: Callable[[Any], object], request: Any) -> status_pb2.Status:
    """How the call is refused."""
    return check_refusal(status_of(method, request))


def status_of(method: Callable[[Any], object], request: Any) -> status_pb2.Status:
    """The status, with its details, of a call that fails."""
    with pytest.raises(grpc.RpcError) as raised:
        method(request)
    error: Any = raised.value
    status = status_pb2.Status(code=error.code().value[0], message=error.details())
    for name, value in error.trailing_metadata():
        if name == "grpc-status-details-bin":
            detailed = status_pb2.Status.FromString(value)
            assert (detailed.code, detailed.message) == (status.code, status.message)
            return detailed
    return status


def check_refusal(status: status_pb2.Status) -> status_pb2.Status:
    """That it is INVALID_ARGUMENT with the details that every refusal of an input has."""
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert reason(status) == "INVALID_INPUT"
    found = violations(status)
    assert 1 <= len(found) <= 16
    assert sum(len(f"{field}{text}".encode()) for field, text in found) <= 1024
    for word in SECRET.split():
        assert word.encode() not in status.SerializeToString()
    return status


def violations(status: status_pb2.Status) -> list[tuple[str, str]]:
    request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(request) for detail in status.details)
    return [(violation.field, violation.description) for violation in request.field_violations]


def reason(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert info.domain == "seqenc"
    return str(info.reason)
