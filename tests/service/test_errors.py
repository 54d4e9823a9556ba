"""What a refusal carries to the caller."""

from __future__ import annotations

import pytest

from service.errors import (
    MAX_VIOLATION_BYTES,
    MAX_VIOLATIONS,
    Code,
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidInputError,
    NoAttentionMapsError,
    NotReadyError,
    QueueFullError,
    ReplyTooLargeError,
    RevisionMismatchError,
    ServiceError,
    UnauthenticatedError,
    UnknownModelError,
    Violation,
)


def violations(count: int, description: str = "is wrong") -> list[Violation]:
    return [Violation(f"inputs[{index}]", description) for index in range(count)]


def carried_bytes(error: InvalidInputError) -> int:
    return sum(len((item.field + item.description).encode()) for item in error.violations)


def test_one_violation_is_the_message() -> None:
    error = InvalidInputError.of("inputs[3].token_ids.ids[7]", "is -1, must be 0 to 9")
    assert str(error) == "inputs[3].token_ids.ids[7]: is -1, must be 0 to 9"
    assert error.violations == (Violation("inputs[3].token_ids.ids[7]", "is -1, must be 0 to 9"),)
    assert error.total == 1


@pytest.mark.parametrize(("count", "carried"), [(1, 1), (16, 16), (17, 16), (2048, 16)])
def test_at_most_16_violations_are_carried_and_all_are_counted(count: int, carried: int) -> None:
    error = InvalidInputError(violations(count))
    assert MAX_VIOLATIONS == 16
    assert error.violations == tuple(violations(carried))
    assert error.total == count
    assert str(error).endswith(f"(and {count - 1} more)") is (count > 1)


@pytest.mark.parametrize("character", ["x", "é", "語"])
def test_at_most_1_kib_of_violations_is_carried(character: str) -> None:
    error = InvalidInputError(violations(16, character * 100))
    assert MAX_VIOLATION_BYTES == 1024
    assert 0 < carried_bytes(error) <= 1024
    one_more = carried_bytes(error) // len(error.violations)
    assert carried_bytes(error) + one_more > 1024


@pytest.mark.parametrize("character", ["x", "é", "語", "💩"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_violation_that_is_too_long_is_shortened_not_lost(character: str, count: int) -> None:
    error = InvalidInputError(violations(count, character * 5000))
    assert len(error.violations) == 1
    assert error.violations[0].field == "inputs[0]"
    assert error.violations[0].description.startswith(character * 200)
    assert error.violations[0].description.endswith("…")
    assert carried_bytes(error) <= 1024
    assert error.total == count


def test_violations_in_the_terms_of_another_protocol() -> None:
    error = InvalidInputError(violations(20))
    renamed = error.rename(lambda violation: Violation("text", violation.description))
    assert {violation.field for violation in renamed.violations} == {"text"}
    assert (len(renamed.violations), renamed.total) == (16, 20)
    assert str(renamed) == "text: is wrong (and 19 more)"


def test_a_generator_of_violations_will_do() -> None:
    assert InvalidInputError(violation for violation in violations(3)).total == 3


@pytest.mark.parametrize(
    ("error", "code", "reason", "named"),
    [
        (InvalidInputError.of("a", "b"), Code.INVALID_ARGUMENT, "INVALID_INPUT", "a: b"),
        (UnknownModelError("mini"), Code.NOT_FOUND, "UNKNOWN_MODEL", "mini"),
        (RevisionMismatchError("53aa"), Code.FAILED_PRECONDITION, "REVISION_MISMATCH", "53aa"),
        (NoAttentionMapsError(), Code.FAILED_PRECONDITION, "NO_ATTENTION_MAPS", "--attention-maps"),
        (QueueFullError("full", retry_after_s=2.5), Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full"),
        (ReplyTooLargeError(75, 64), Code.RESOURCE_EXHAUSTED, "REPLY_TOO_LARGE", "75 bytes, the limit is 64"),
        (DeadlineExceededError(), Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "deadline"),
        (UnauthenticatedError(), Code.UNAUTHENTICATED, "UNAUTHENTICATED", "bearer"),
        (NotReadyError(), Code.UNAVAILABLE, "NOT_READY", "starting"),
        (DrainingError(), Code.UNAVAILABLE, "DRAINING", "shutting down"),
        (InternalError(), Code.INTERNAL, "INTERNAL", "log"),
    ],
)
def test_status_reason_and_message(error: ServiceError, code: Code, reason: str, named: str) -> None:
    assert (error.code, error.reason) == (code, reason)
    assert named in str(error)


def test_a_full_queue_says_when_to_come_back() -> None:
    assert QueueFullError("full", retry_after_s=2.5).retry_after_s == 2.5
