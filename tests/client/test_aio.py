"""What only the asyncio client does."""

import asyncio
import threading
from queue import SimpleQueue

import numpy as np
import pytest

from seqenc import AsyncClient


async def test_calls_of_one_client_run_side_by_side(server):
    together = threading.Barrier(4)
    server.before = lambda *_: together.wait(timeout=30)
    async with AsyncClient(server.address) as client:
        results = await asyncio.gather(*(client.encode(text) for text in "abcd"))
    for text, result in zip("abcd", results, strict=True):
        np.testing.assert_array_equal(result.embeddings, server.rows([text]))


async def test_cancelling_the_task_cancels_its_calls(server):
    server.model.max_input_count = 1
    arrived = threading.Barrier(3)
    cancelled = SimpleQueue()

    def before(_, context):
        gone = threading.Event()
        context.add_callback(gone.set)
        arrived.wait(timeout=30)
        cancelled.put(gone.wait(timeout=30))

    server.before = before
    async with AsyncClient(server.address) as client:
        task = asyncio.create_task(client.encode(["0", "1"]))
        await asyncio.to_thread(arrived.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [await asyncio.to_thread(cancelled.get, timeout=60) for _ in range(2)] == [True, True]


async def test_a_stream_takes_an_async_iterable(server):
    texts = [f"text {i}" for i in range(200)]

    async def source():
        for text in texts:
            await asyncio.sleep(0)
            yield text

    async with AsyncClient(server.address) as client:
        encodings = [encoding async for encoding in client.encode_stream(source(), batch_size=7)]
    np.testing.assert_array_equal(np.stack([e.embedding for e in encodings]), server.rows(texts))


def test_a_client_may_be_made_outside_of_the_loop(server):
    client = AsyncClient(server.address)

    async def use():
        async with client:
            return await client.encode("a")

    assert asyncio.run(use()).embeddings.shape == (1, 4)
