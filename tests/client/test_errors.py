import pickle

import grpc
import pytest

import seqenc
from seqenc.errors import Violation, error_from_call, error_from_status


@pytest.mark.parametrize(
    ("code", "reason", "retry_after_s", "expected"),
    [
        ("INVALID_ARGUMENT", "INVALID_INPUT", None, seqenc.InvalidInputError),
        ("INVALID_ARGUMENT", "", None, seqenc.InvalidInputError),
        ("NOT_FOUND", "UNKNOWN_MODEL", None, seqenc.UnknownModelError),
        ("NOT_FOUND", "", None, seqenc.SeqencError),
        ("FAILED_PRECONDITION", "REVISION_MISMATCH", None, seqenc.RevisionMismatchError),
        ("FAILED_PRECONDITION", "NO_ATTENTION_MAPS", None, seqenc.NoAttentionMapsError),
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 0.5, seqenc.OverloadedError),
        ("RESOURCE_EXHAUSTED", "QUOTA", 2, seqenc.OverloadedError),
        ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE", None, seqenc.ReplyTooLargeError),
        ("RESOURCE_EXHAUSTED", "", None, seqenc.SeqencError),
        ("UNAUTHENTICATED", "", None, seqenc.UnauthenticatedError),
        ("DEADLINE_EXCEEDED", "", None, seqenc.DeadlineExceededError),
        ("CANCELLED", "", None, seqenc.CallCancelledError),
        ("UNAVAILABLE", "DRAINING", None, seqenc.UnavailableError),
        ("INTERNAL", "INTERNAL", None, seqenc.InternalError),
        ("UNIMPLEMENTED", "", None, seqenc.SeqencError),
    ],
)
def test_each_status_has_its_type(build_status, code, reason, retry_after_s, expected):
    error = error_from_status(
        build_status(grpc.StatusCode[code], "why", reason=reason, retry_after_s=retry_after_s)
    )
    assert type(error) is expected
    assert (error.code.name, error.reason, error.retry_after_s) == (code, reason, retry_after_s)
    assert str(error) == f"{code}: why"
    assert error.retryable is (code == "UNAVAILABLE" or retry_after_s is not None)


def test_input_indices_are_those_of_the_whole_call(build_status):
    status = build_status(
        grpc.StatusCode.INVALID_ARGUMENT,
        "inputs[3].token_ids.ids[7]: too large",
        violations={"inputs[3].token_ids.ids[7]": "too large", "options.dimensions": "too many"},
    )
    error = error_from_status(status, offset=200)
    assert error.message == "inputs[203].token_ids.ids[7]: too large"
    assert error.violations == (
        Violation("inputs[203].token_ids.ids[7]", "too large"),
        Violation("options.dimensions", "too many"),
    )


def test_a_code_of_the_future_is_unknown(build_status):
    status = build_status(grpc.StatusCode.INTERNAL)
    status.code = 99
    assert error_from_status(status).code is grpc.StatusCode.UNKNOWN


class Call:
    def __init__(self, metadata):
        self._metadata = metadata

    def code(self):
        return grpc.StatusCode.INTERNAL

    def details(self):
        return "plain"

    def trailing_metadata(self):
        return self._metadata


@pytest.mark.parametrize(
    "metadata", [None, (), (("grpc-status-details-bin", b"\xff\xff"),), (("other", "x"),)]
)
def test_a_call_without_readable_details_keeps_its_status(metadata):
    error = error_from_call(Call(metadata))
    assert (type(error), error.message) == (seqenc.InternalError, "plain")


def test_errors_survive_pickling(build_status):
    error = error_from_status(build_status(grpc.StatusCode.UNAVAILABLE, "x", reason="R", retry_after_s=1))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), vars(copy)) == (type(error), vars(error))
