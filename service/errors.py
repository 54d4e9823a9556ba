"""Every way a call can be refused or fail, raised where it is known; `api` turns one into a gRPC status.

A message says what was wrong, the limit, and what to do, and never repeats text of the user's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

MAX_VIOLATIONS = 16
MAX_VIOLATION_BYTES = 1024


class Code(enum.StrEnum):
    """The gRPC status codes in use, by name."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    UNAVAILABLE = "UNAVAILABLE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with a request: the field's path (`inputs[3].token_ids.ids[7]`) and what to do."""

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}"


class StartError(Exception):
    """The server cannot start; the message is the one line its operator sees."""


class ServiceError(Exception):
    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"


class InvalidInputError(ServiceError):
    """Carries at most 16 violations and 1 KiB of them; `total` counts all that were found."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_INPUT"

    def __init__(self, violations: Iterable[Violation]) -> None:
        found = list(violations)
        self.total = len(found)
        self.violations = tuple(_within_limits(found))
        super().__init__()

    def __str__(self) -> str:
        more = self.total - 1
        return str(self.violations[0]) + (f" (and {more} more)" if more else "")

    def rename(self, rename: Callable[[Violation], Violation]) -> InvalidInputError:
        """The same error in the terms of another protocol."""
        renamed = InvalidInputError(map(rename, self.violations))
        renamed.total = self.total
        return renamed

    @classmethod
    def of(cls, field: str, description: str) -> InvalidInputError:
        return cls([Violation(field, description)])


def _within_limits(violations: list[Violation]) -> Iterator[Violation]:
    left = MAX_VIOLATION_BYTES
    for place, violation in enumerate(violations[:MAX_VIOLATIONS]):
        left -= len(violation.field.encode()) + len(violation.description.encode())
        if left < 0:
            if place == 0:
                yield _shorten(violation)
            return
        yield violation


def _shorten(violation: Violation) -> Violation:
    ellipsis = "…"
    room = MAX_VIOLATION_BYTES - len((violation.field + ellipsis).encode())
    description = violation.description.encode()[:room].decode(errors="ignore")
    return Violation(violation.field, description + ellipsis)


class UnknownModelError(ServiceError):
    code = Code.NOT_FOUND
    reason = "UNKNOWN_MODEL"

    def __init__(self, served: str) -> None:
        super().__init__(f"this server serves only {served!r}; send that name or none")


class RevisionMismatchError(ServiceError):
    code = Code.FAILED_PRECONDITION
    reason = "REVISION_MISMATCH"

    def __init__(self, served: str) -> None:
        super().__init__(
            f"expected_revision is not what is served, {served}; "
            "call a server of that revision, or re-encode the index"
        )


class NoAttentionMapsError(ServiceError):
    code = Code.FAILED_PRECONDITION
    reason = "NO_ATTENTION_MAPS"

    def __init__(self) -> None:
        super().__init__("this server was started with --attention-maps false; leave options.attention unset")


class TryLaterError(ServiceError):
    """What is refused only for the moment."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(TryLaterError):
    reason = "QUEUE_FULL"


class QuotaExceededError(TryLaterError):
    reason = "QUOTA"


class ReplyTooLargeError(ServiceError):
    code = Code.RESOURCE_EXHAUSTED
    reason = "REPLY_TOO_LARGE"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the reply would have {size} bytes, the limit is {limit} (--max-message-bytes); "
            "send fewer inputs, or ask for fewer layers, heads or outputs"
        )


class UnauthenticatedError(ServiceError):
    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"

    def __init__(self) -> None:
        super().__init__(
            "this server takes calls with a bearer token that it knows; send authorization: Bearer …"
        )


class DeadlineExceededError(ServiceError):
    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the call was done; allow more time or send fewer inputs")


class NotReadyError(ServiceError):
    code = Code.UNAVAILABLE
    reason = "NOT_READY"

    def __init__(self) -> None:
        super().__init__("the server is starting; try again when its health is SERVING")


class DrainingError(ServiceError):
    code = Code.UNAVAILABLE
    reason = "DRAINING"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; call another one")


class InternalError(ServiceError):
    """An input that the engine failed on twice; why is in the log."""

    def __init__(self) -> None:
        super().__init__("the server failed on this input; its log has the reason")
