"""Statuses of gRPC as typed exceptions; the one place that reads google.rpc error details."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_INPUT_INDEX = re.compile(r"\binputs\[(\d+)\]")
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Detail = TypeVar("Detail", bound=Message)


@dataclass(frozen=True)
class Violation:
    """One thing wrong with a request: the path of the field, such as inputs[3].text, and what it breaks."""

    field: str
    description: str


class SeqencError(Exception):
    """A call, or one input of it, that failed.

    reason is the server's own, such as QUEUE_FULL, empty where it gave none. retry_after_s: how long the
    server asks to wait before the same call is worth a retry; None: it will not get better by waiting.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        violations: tuple[Violation, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, reason, violations, retry_after_s)
        self.code = code
        self.message = message
        self.reason = reason
        self.violations = violations
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        return self.code is grpc.StatusCode.UNAVAILABLE or self.retry_after_s is not None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class InvalidInputError(SeqencError):
    """Inputs or options that the server refuses; violations say which."""


class UnknownModelError(SeqencError):
    """The server serves another model."""


class RevisionMismatchError(SeqencError):
    """Vectors would come from other weights than expected, or from several."""


class NoAttentionMapsError(SeqencError):
    """The server was started without attention maps."""


class OverloadedError(SeqencError):
    """The server's queue is full or a quota is used up."""


class ReplyTooLargeError(SeqencError):
    """The reply would pass the server's message limit: ask for less a call."""


class UnauthenticatedError(SeqencError):
    """No or wrong credentials."""


class DeadlineExceededError(SeqencError):
    """The deadline passed before the answer."""


class CallCancelledError(SeqencError):
    """The call was cancelled, for instance by closing its client."""


class UnavailableError(SeqencError):
    """No server could be reached, or it is starting or draining."""


class InternalError(SeqencError):
    """A fault of the server; its log has the details."""


_BY_REASON = {
    "INVALID_INPUT": InvalidInputError,
    "UNKNOWN_MODEL": UnknownModelError,
    "REVISION_MISMATCH": RevisionMismatchError,
    "NO_ATTENTION_MAPS": NoAttentionMapsError,
    "QUEUE_FULL": OverloadedError,
    "QUOTA": OverloadedError,
    "REPLY_TOO_LARGE": ReplyTooLargeError,
}
_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CallCancelledError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.INTERNAL: InternalError,
}


# What gRPC says of calls that their own side cancelled.
_CANCELLED_HERE = ("Channel closed!", "Channel closed.", "Locally cancelled by application!")


class FailedCall(Protocol):
    """What the errors of gRPC's sync and async calls have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> object: ...


def error_from_call(call: FailedCall, offset: int = 0) -> SeqencError:
    """offset is what inputs[0] of the request is to its caller."""
    status = status_pb2.Status(code=call.code().value[0], message=call.details() or "")
    if call.code() is grpc.StatusCode.CANCELLED and status.message not in _CANCELLED_HERE:
        # gRPC's core says so, in place of UNAVAILABLE, to a call that meets a server which begins to stop.
        status.code = grpc.StatusCode.UNAVAILABLE.value[0]
    for key, value in call.trailing_metadata() or ():  # type: ignore[attr-defined]
        if key == _DETAILS_KEY:
            status = _parse(value) or status
    return error_from_status(status, offset)


def error_from_status(status: status_pb2.Status, offset: int = 0) -> SeqencError:
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    info = _detail(status, error_details_pb2.ErrorInfo())
    retry = _detail(status, error_details_pb2.RetryInfo())
    request = _detail(status, error_details_pb2.BadRequest()) or error_details_pb2.BadRequest()
    reason = info.reason if info else ""
    return _error_type(code, reason)(
        code,
        _shift(status.message, offset),
        reason,
        tuple(Violation(_shift(v.field, offset), v.description) for v in request.field_violations),
        retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
    )


def _error_type(code: grpc.StatusCode, reason: str) -> type[SeqencError]:
    return _BY_REASON.get(reason) or _BY_CODE.get(code, SeqencError)


def _detail(status: status_pb2.Status, detail: Detail) -> Detail | None:
    return next((detail for packed in status.details if packed.Unpack(detail)), None)


def _parse(value: bytes) -> status_pb2.Status | None:
    try:
        return status_pb2.Status.FromString(value)
    except DecodeError:
        return None


def _shift(text: str, offset: int) -> str:
    """Turns a request's input indices into those of a call that was split into several requests."""
    return _INPUT_INDEX.sub(lambda match: f"inputs[{int(match[1]) + offset}]", text)
