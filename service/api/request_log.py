"""A line for a share of all calls, and for every slow one: what it came to, and where its time went."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Protocol

from service.logs import log_event

logger = logging.getLogger(__name__)


class EndedCall(Protocol):
    """Times in seconds; those of a stream's messages are added up, but for that of the slowest."""

    method: str
    code: str
    input_count: int
    tokenize_s: float
    queue_s: float
    inference_s: float
    slowest_s: float

    @property
    def seconds(self) -> float: ...


class RequestLog:
    def __init__(
        self, sample_rate: float, slow_call_s: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._sample_rate = sample_rate
        self._slow_call_s = slow_call_s
        self._draw = draw

    def write(self, call: EndedCall, trace_id: str = "") -> None:
        """A stream may last; it is slow when one of its messages was."""
        seconds = call.slowest_s if call.method == "EncodeStream" else call.seconds
        if self._slow_call_s and seconds >= self._slow_call_s:
            _log("slow call", call, trace_id)
        elif self._draw() < self._sample_rate:
            _log("call", call, trace_id)


def _log(event: str, call: EndedCall, trace_id: str) -> None:
    log_event(
        logger,
        logging.INFO,
        event,
        method=call.method,
        code=call.code,
        seconds=round(call.seconds, 6),
        inputs=call.input_count,
        tokenize_s=round(call.tokenize_s, 6),
        queue_s=round(call.queue_s, 6),
        inference_s=round(call.inference_s, 6),
        **({"trace_id": trace_id} if trace_id else {}),
    )
