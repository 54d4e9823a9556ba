"""What a client was made with; the same for sync and async."""

from __future__ import annotations

from dataclasses import dataclass

from seqenc.channel import Connection
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
        if self.max_concurrent_calls < 1:
            raise ValueError(f"max_concurrent_calls={self.max_concurrent_calls}: expected at least 1")

    def template(self, options: pb.EncodeOptions, request_id: str = "") -> RequestTemplate:
        return RequestTemplate(self.model, options, self.expected_revision, request_id)

    def deadline(self, deadline_s: float | None) -> Deadline:
        return Deadline(self.deadline_s if deadline_s is None else deadline_s)
