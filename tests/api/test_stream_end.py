"""How a stream ends when its caller leaves or its time is up at an unlucky moment; gRPC is a script here."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from seqenc.v1 import encoder_pb2 as pb
from service.api.allowance import Allowance
from service.api.encode import EncoderService
from service.api.handlers import stream
from service.api.lifecycle import Lifecycle
from service.api.observation import Observer
from service.api.request_log import RequestLog
from service.config import ServeSettings
from service.errors import DeadlineExceededError, NotReadyError, ServiceError
from service.metrics import Metrics


class Failing(Lifecycle):
    """Every message gets one error."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__()
        self._error = error

    @property
    def pipeline(self) -> Any:
        raise self._error


class Aborted(Exception):
    pass


class Caller:
    """Sends `messages` and nothing more. What is written to it is kept, or fails once it has `left`."""

    def __init__(self, messages: int, *, remaining_s: float | None = None, left: bool = False) -> None:
        self._messages = messages
        self._remaining_s = remaining_s
        self._left = left
        self.answers: list[pb.EncodeStreamResponse] = []
        self.status: grpc.StatusCode | None = None

    async def read(self) -> Any:
        if not self._messages:
            return grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
        self._messages -= 1
        return pb.EncodeRequest(inputs=[pb.Sequence(text="a")])

    async def write(self, answer: pb.EncodeStreamResponse) -> None:
        if self._left:
            raise grpc.aio.InternalError("the call is over")
        self.answers.append(answer)

    def time_remaining(self) -> float | None:
        return self._remaining_s

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, status: grpc.StatusCode, *_: Any, **__: Any) -> None:
        self.status = status
        raise Aborted


async def serve(caller: Caller, error: ServiceError) -> Metrics:
    settings, metrics = ServeSettings(artifact="unused"), Metrics()
    observer = Observer(metrics, RequestLog(0.0, 0.0))
    service = EncoderService(Failing(error), observer, Allowance(settings, metrics), max_stream_inflight=4)
    handler: Any = stream("EncodeStream", pb.EncodeRequest, service.encode_stream, observer)
    with pytest.raises(asyncio.CancelledError) if caller._left else pytest.raises(Aborted):
        await handler.stream_stream(None, caller)
    return metrics


def ended(metrics: Metrics, code: str) -> float:
    return float(metrics.requests_total.labels("EncodeStream", code)._value.get())


@pytest.mark.parametrize(
    ("remaining_s", "code"), [(None, "CANCELLED"), (60.0, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED")]
)
async def test_an_answer_that_finds_no_caller_is_no_fault_of_the_server(
    remaining_s: float | None, code: str
) -> None:
    metrics = await serve(Caller(3, remaining_s=remaining_s, left=True), NotReadyError())
    assert (ended(metrics, code), ended(metrics, "INTERNAL")) == (1, 0)


async def test_a_stream_whose_time_is_up_ends_with_that() -> None:
    caller = Caller(3, remaining_s=0.0)
    metrics = await serve(caller, DeadlineExceededError())
    assert caller.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caller.answers == []
    assert ended(metrics, "DEADLINE_EXCEEDED") == 1
