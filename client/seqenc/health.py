"""Answers of grpc.health.v1 as the names of their statuses."""

from __future__ import annotations

import grpc
from google.protobuf.wrappers_pb2 import Int32Value

from seqenc.errors import SeqencError

_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def health_of_response(response: Int32Value) -> str:
    return _STATUSES[response.value]


def health_of_error(error: SeqencError) -> str:
    """NOT_FOUND is how the protocol answers for a service that the server does not have."""
    if error.code is grpc.StatusCode.NOT_FOUND:
        return "SERVICE_UNKNOWN"
    raise error
