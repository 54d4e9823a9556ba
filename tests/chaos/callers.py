"""Callers that never rest: every kind of call, each with one outcome, every vector compared.

What is right: the vectors that the same server gave for each text alone, before anything was wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

import corpus
from chaos.faults import POISON_ID
from chaos.tally import Tally
from seqenc.v1 import encoder_pb2 as pb
from seqenc.v1.encoder_pb2_grpc import EncoderServiceStub

Vectors = NDArray[np.float32]
TEXTS = corpus.sentences(200)
POISON = pb.Sequence(token_ids=pb.TokenIds(ids=[2, POISON_ID, 3]))
CUT = pb.EncodeOptions(truncation=pb.TRUNCATION_RIGHT)
CUT_PER_INPUT = pb.EncodeOptions(truncation=pb.TRUNCATION_RIGHT, on_error=pb.ON_ERROR_PER_INPUT)
# A call without an answer for so long is lost.
LOST_S = 60.0
_MAX_ERROR = 1e-4
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]


@dataclass
class Load:
    """Calls over one connection; `codes` are what they came to, and `inputs` how many they had in all."""

    channel: grpc.aio.Channel
    expected: dict[str, Vectors]
    tally: Tally
    draw: random.Random
    codes: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    good_answers: int = 0

    @property
    def calls(self) -> int:
        return self.codes.total()

    @property
    def stub(self) -> Any:
        return EncoderServiceStub(self.channel)  # type: ignore[no-untyped-call]

    async def encode(self, count: int, **options: Any) -> str:
        """Of a call with that many texts."""
        texts = self._draw_texts(count)
        response, code = await self.outcome(self.stub.Encode(request_of(texts), **options))
        if response:
            self.check(texts, response)
        return code

    async def cancel(self) -> str:
        call = self.stub.Encode(request_of(self._draw_texts(8)))
        asyncio.get_running_loop().call_later(self.draw.random() / 50, call.cancel)
        return (await self.outcome(call))[1]

    async def expire(self) -> str:
        return await self.encode(8, timeout=self.draw.random() / 50)

    async def send_nothing(self) -> str:
        return (await self.outcome(self.stub.Encode(pb.EncodeRequest())))[1]

    async def poison(self) -> str:
        """Among good ones, which are answered."""
        texts = self._draw_texts(7)
        place = self.draw.randrange(8)
        self.inputs += 1
        inputs = [pb.Sequence(text=text) for text in texts]
        inputs.insert(place, POISON)
        request = pb.EncodeRequest(inputs=inputs, options=CUT_PER_INPUT)
        response, code = await self.outcome(self.stub.Encode(request))
        if response:
            assert response.results[place].status.code == _INTERNAL
            self.check([*texts[:place], None, *texts[place:]], response)
        return code

    async def stream(self) -> str:
        """Of three messages; the code of the whole."""
        sent = [self._draw_texts(4) for _ in range(3)]
        call = self.stub.EncodeStream(iter([request_of(texts) for texts in sent]))
        answers, code = await self.outcome(_read_all(call))
        for texts, answer in zip(sent, answers or (), strict=bool(answers)):
            if answer.WhichOneof("outcome") == "response":
                self.check(texts, answer.response)
        return code

    def check(self, texts: list[str] | list[str | None], response: pb.EncodeResponse) -> None:
        """None, or a status: nothing is said of it."""
        found = vectors_of(response)
        for text, vector, result in zip(texts, found, response.results, strict=True):
            if text is not None and not result.status.code:
                self.good_answers += 1
                self.tally.wrong += not np.allclose(vector, self.expected[text], atol=_MAX_ERROR)

    def _draw_texts(self, count: int) -> list[str]:
        self.inputs += count
        return self.draw.choices(TEXTS, k=count)

    async def outcome(self, call: Awaitable[Any]) -> tuple[Any, str]:
        response, code = None, "OK"
        try:
            response = await asyncio.wait_for(call, LOST_S)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        except TimeoutError:
            code = "LOST"
            self.tally.lost += 1
        except asyncio.CancelledError:
            if current_task_is_cancelled():
                raise
            code = "CANCELLED"
        self.codes[code] += 1
        self.tally.count(code)
        return response, code


def current_task_is_cancelled() -> bool:
    """Rather than only the call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _read_all(stream: Any) -> list[pb.EncodeStreamResponse]:
    return [answer async for answer in stream]


def request_of(texts: list[str]) -> pb.EncodeRequest:
    return pb.EncodeRequest(inputs=[pb.Sequence(text=text) for text in texts], options=CUT)


def vectors_of(response: pb.EncodeResponse) -> Vectors:
    vectors: Vectors = np.frombuffer(response.embeddings.data, np.float32)
    return vectors.reshape(tuple(response.embeddings.shape))


async def vectors_alone(address: str) -> dict[str, Vectors]:
    """Each text's vector in a call of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
        return {text: vectors_of(await stub.Encode(request_of([text])))[0] for text in TEXTS}


Call = Callable[[Load], Awaitable[str]]


async def one_text(load: Load) -> str:
    return await load.encode(1)


async def sixteen_texts(load: Load) -> str:
    return await load.encode(16)


GOOD: tuple[Call, ...] = (one_text, sixteen_texts)
LEAVING: tuple[Call, ...] = (Load.cancel, Load.expire)
PATIENT: tuple[Call, ...] = (*GOOD, Load.send_nothing, Load.poison)
# What calls to a server that ends come to; CANCELLED is gRPC's answer to one that meets the message that the
# connection is closing. Its caller does not come back.
FAREWELLS = {"UNAVAILABLE", "CANCELLED"}


@asynccontextmanager
async def calling(load: Load, kinds: tuple[Call, ...], callers: int) -> AsyncIterator[None]:
    """While inside, each caller makes one call after another; leaving waits for the last answers."""
    stopping = asyncio.Event()

    async def call_on(kind: Call) -> None:
        while not stopping.is_set():
            if await kind(load) in FAREWELLS and kind not in LEAVING:
                return

    async with asyncio.TaskGroup() as tasks:
        for number in range(callers):
            tasks.create_task(call_on(kinds[number % len(kinds)]))
        try:
            yield
        finally:
            stopping.set()
