"""What a client was made with; the same for sync and async."""

from __future__ import annotations

from dataclasses import dataclass

from seqenc.channel import Connection
from seqenc.checks import check_integer, check_text, kind
from seqenc.requests import RequestTemplate
from seqenc.retry import Deadline, RetryPolicy
from seqenc.v1 import encoder_pb2 as pb


@dataclass(frozen=True)
class ClientSettings:
    connection: Connection
    model: str
    expected_revision: str
    deadline_s: float | None
    max_concurrent_calls: int
    retry: RetryPolicy

    def __post_init__(self) -> None:
        check_text("model", self.model)
        check_text("expected_revision", self.expected_revision)
        Deadline(self.deadline_s)
        check_integer(
            "max_concurrent_calls", self.max_concurrent_calls, "an int of at least 1", range(1, 2**31)
        )
        if not isinstance(self.retry, RetryPolicy):
            raise TypeError(f"retry: expected a RetryPolicy, not {kind(self.retry)}")

    def template(self, options: pb.EncodeOptions, request_id: str = "") -> RequestTemplate:
        check_text("request_id", request_id)
        return RequestTemplate(self.model, options, self.expected_revision, request_id)

    def deadline(self, deadline_s: float | None) -> Deadline:
        return Deadline(self.deadline_s if deadline_s is None else deadline_s)
