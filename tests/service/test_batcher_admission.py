"""Which calls the batcher lets into its queue, which it refuses, and which wait for room."""

from __future__ import annotations

import asyncio

import pytest

from batcher_bench import assert_right, done, leave, open_bench, turn_of_the_loop
from fake_runner import (
    sequence_of,
)
from service.errors import DeadlineExceededError, QueueFullError


class TestAdmission:
    async def test_a_call_that_does_not_fit_is_refused_whole(self) -> None:
        async with open_bench(gated=True, max_inputs=5) as bench:
            await bench.occupy()
            bench.send([sequence_of(1, 1)] * 4)
            await turn_of_the_loop()
            with pytest.raises(QueueFullError) as refusal:
                await done(bench.send([sequence_of(2, 2, 2)] * 2))
            assert str(refusal.value) == (
                "the queue holds 4 of 5 inputs and 8 of 100000 tokens; this call of 2 inputs and 6 tokens "
                "does not fit: send it again after the given delay"
            )
            assert refusal.value.retry_after_s == 1
            assert bench.queued == (4, 8)
            bench.send([sequence_of(3)])
            await turn_of_the_loop()
            assert bench.queued == (5, 9)

    async def test_tokens_are_counted_too(self) -> None:
        async with open_bench(gated=True, max_tokens=10) as bench:
            await bench.occupy()
            bench.send([sequence_of(1, 1, 1, 1)] * 2)
            await turn_of_the_loop()
            with pytest.raises(QueueFullError):
                await done(bench.send([sequence_of(2, 2, 2)]))
            bench.send([sequence_of(2, 2)])
            await turn_of_the_loop()
            assert bench.queued == (3, 10)

    async def test_an_empty_queue_takes_any_call(self) -> None:
        async with open_bench(max_inputs=2, max_tokens=2) as bench:
            sequences = [sequence_of(first, 1, 1) for first in range(1, 6)]
            assert_right(await done(bench.send(sequences)), sequences)

    async def test_what_runs_does_not_count(self) -> None:
        async with open_bench(gated=True, max_inputs=1) as bench:
            await bench.occupy()
            assert bench.queued == (0, 0)
            bench.send([sequence_of(2)])
            await turn_of_the_loop()
            assert bench.queued == (1, 1)

    async def test_one_and_a_list_of_one_are_counted_alike(self) -> None:
        async with open_bench(gated=True, max_inputs=5) as bench:
            await bench.occupy()
            calls = [bench.send([sequence_of(2)]) for _ in range(25)]
            await turn_of_the_loop()
            assert sum(call.done() for call in calls) == 20
            for call in calls[5:]:
                with pytest.raises(QueueFullError):
                    await call

    async def test_the_delay_follows_the_speed_of_the_lanes(self) -> None:
        async with open_bench(gated=True, max_inputs=1) as bench:
            (occupying,) = await bench.occupy()
            bench.runner.release()
            await done(occupying)
            await bench.occupy()
            bench.send([sequence_of(2)])
            await turn_of_the_loop()
            with pytest.raises(QueueFullError) as refusal:
                await done(bench.send([sequence_of(3)]))
            assert 0.05 <= refusal.value.retry_after_s <= 30

    async def test_waiting_calls_enter_first_come_first_served(self) -> None:
        async with open_bench(gated=True, max_inputs=2, max_batch_tokens=1) as bench:
            occupying = await bench.occupy()
            filling = bench.send([sequence_of(2)] * 2)
            await turn_of_the_loop()
            waiting = [
                bench.send([sequence_of(first)] * count, wait_for_room=True)
                for first, count in ((3, 2), (4, 1), (5, 1))
            ]
            await turn_of_the_loop()
            assert bench.queued == (2, 2)
            bench.runner.release()
            await bench.runner.begun()
            await turn_of_the_loop()
            assert bench.queued == (1, 1)
            bench.runner.open()
            await asyncio.gather(*map(done, [*occupying, filling, *waiting]))
            assert [first for batch in bench.runner.batches for first in batch.first_ids] == [
                1, 2, 2, 3, 3, 4, 5,
            ]  # fmt: skip

    async def test_a_waiting_call_that_leaves_lets_the_next_one_in(self) -> None:
        async with open_bench(gated=True, max_inputs=2, max_batch_tokens=1) as bench:
            await bench.occupy()
            bench.send([sequence_of(2)])
            await turn_of_the_loop()
            large = bench.send([sequence_of(3)] * 2, wait_for_room=True)
            small = bench.send([sequence_of(4)], wait_for_room=True)
            await turn_of_the_loop()
            assert bench.queued == (1, 1)
            await leave(large)
            await turn_of_the_loop()
            assert bench.queued == (2, 2)
            bench.runner.open()
            assert_right(await done(small), [sequence_of(4)])
            assert 3 not in bench.runner.seen

    async def test_room_made_by_a_call_that_leaves_is_used_at_once(self) -> None:
        async with open_bench(gated=True, max_inputs=1) as bench:
            await bench.occupy()
            queued = bench.send([sequence_of(2)])
            await turn_of_the_loop()
            waiting = bench.send([sequence_of(3)], wait_for_room=True)
            await turn_of_the_loop()
            await leave(queued)
            await turn_of_the_loop()
            assert bench.queued == (1, 1)
            bench.runner.open()
            assert_right(await done(waiting), [sequence_of(3)])

    async def test_a_call_may_expire_while_it_waits_for_room(self) -> None:
        async with open_bench(gated=True, max_inputs=1) as bench:
            await bench.occupy()
            bench.send([sequence_of(2)])
            await turn_of_the_loop()
            soon = asyncio.get_running_loop().time() + 0.01
            with pytest.raises(DeadlineExceededError):
                await done(bench.send([sequence_of(3)], wait_for_room=True, deadline=soon))
            bench.runner.open()
            assert_right(await done(bench.send([sequence_of(4)], wait_for_room=True)), [sequence_of(4)])
            assert 3 not in bench.runner.seen
