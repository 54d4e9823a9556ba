"""seqenc.v1.EncoderService on the pipeline."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from seqenc.v1 import encoder_pb2 as pb
from service.api.allowance import Allowance
from service.api.convert import encode_call, encode_response, model_response, status_of, tokenize_response
from service.api.handlers import Context, Undecodable, as_service_error, stream, unary
from service.api.lifecycle import Lifecycle
from service.api.observation import Observer, timed
from service.core.deadline import is_over
from service.errors import DeadlineExceededError, DrainingError

_EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
Answers = asyncio.Queue[asyncio.Task[pb.EncodeStreamResponse] | None]
SERVICE_NAME = "seqenc.v1.EncoderService"


class EncoderService:
    def __init__(
        self, lifecycle: Lifecycle, observer: Observer, allowance: Allowance, *, max_stream_inflight: int
    ) -> None:
        self._lifecycle = lifecycle
        self._observer = observer
        self._allowance = allowance
        self._max_stream_inflight = max_stream_inflight

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Encode": unary("Encode", pb.EncodeRequest, self.encode, self._observer),
            "EncodeStream": stream("EncodeStream", pb.EncodeRequest, self.encode_stream, self._observer),
            "Tokenize": unary("Tokenize", pb.TokenizeRequest, self.tokenize, self._observer),
            "GetModel": unary("GetModel", pb.GetModelRequest, self.get_model, self._observer),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    async def encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        return await self._encode(request, context, wait_for_room=False)

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        pipeline = self._lifecycle.pipeline
        pipeline.check_count(len(request.inputs))
        self._allowance.take(context, len(request.inputs), counted=False)
        deadline = self._allowance.deadline_of(context)
        with timed(len(request.inputs)):
            tokenized = await pipeline.tokenize(encode_call(request, pipeline.model), deadline=deadline)
        return tokenize_response(tokenized, len(request.inputs))

    async def get_model(self, request: pb.GetModelRequest, _: Context) -> pb.GetModelResponse:
        pipeline = self._lifecycle.pipeline
        pipeline.check_model(request.model)
        return model_response(pipeline.model, pipeline.config)

    async def encode_stream(self, context: Context) -> None:
        """Answers in the order sent; reads on only while fewer than the allowed messages are in work.

        Once the server drains, what comes is refused, and the stream ends when it has nothing in work.
        """
        answers: Answers = asyncio.Queue()
        room = asyncio.Semaphore(self._max_stream_inflight)
        try:
            async with asyncio.TaskGroup() as tasks:
                drained = tasks.create_task(self._drain(answers))
                writer = tasks.create_task(_write_answers(answers, room, context))
                await room.acquire()
                while isinstance(request := await _read(context, drained), pb.EncodeRequest):
                    answers.put_nowait(tasks.create_task(self._answer(request, context)))
                    await room.acquire()
                answers.put_nowait(None)
                await writer
                drained.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        if isinstance(request, Undecodable):
            raise request.error()
        if request is not _EOF:
            raise DrainingError

    async def _drain(self, answers: Answers) -> None:
        """Until the server drains and nothing is in work."""
        await self._lifecycle.draining.wait()
        await answers.join()

    async def _answer(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeStreamResponse:
        """Raises DeadlineExceededError when the deadline is the stream's, which ends with it."""
        answer = pb.EncodeStreamResponse(request_id=request.request_id)
        code = "OK"
        try:
            answer.response.CopyFrom(await self._encode(request, context, wait_for_room=True))
        except Exception as raised:
            error = as_service_error(raised)
            if isinstance(error, DeadlineExceededError) and _is_over(context):
                raise
            code = str(error.code)
            answer.error.CopyFrom(status_of(error))
        self._observer.answer_message(code)
        return answer

    async def _encode(
        self, request: pb.EncodeRequest, context: Context, *, wait_for_room: bool
    ) -> pb.EncodeResponse:
        pipeline = self._lifecycle.pipeline
        # Before they are converted: the millions of empty inputs that fit a message would take minutes.
        pipeline.check_count(len(request.inputs))
        deadline = self._allowance.deadline_of(context)
        if wait_for_room:
            await self._allowance.wait(context, len(request.inputs), deadline)
        else:
            self._allowance.take(context, len(request.inputs))
        call = encode_call(request, pipeline.model)
        with timed(len(request.inputs)) as timeline:
            result = await pipeline.encode(
                call, deadline=deadline, wait_for_room=wait_for_room, timeline=timeline
            )
        return encode_response(request, result, pipeline.model)


def _is_over(context: Context) -> bool:
    remaining_s = context.time_remaining()
    return remaining_s is not None and is_over(remaining_s, 0.0)


async def _read(context: Context, drained: asyncio.Task[None]) -> Any:
    """What `context.read` gives; None once the stream is drained."""
    reading = asyncio.ensure_future(context.read())
    # gRPC has no way to take a read back: one that is left ends with the call, and what it says then is old.
    reading.add_done_callback(lambda read: read.cancelled() or read.exception())
    await asyncio.wait({reading, drained}, return_when=asyncio.FIRST_COMPLETED)
    return reading.result() if reading.done() else None


async def _write_answers(answers: Answers, room: asyncio.Semaphore, context: Context) -> None:
    while task := await answers.get():
        await context.write(await task)
        answers.task_done()
        room.release()
