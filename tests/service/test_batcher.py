"""The batcher over a fake engine whose batches wait at a gate; no test waits for time to pass."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher_bench import Bench, assert_right, done, leave, open_bench, turn_of_the_loop
from fake_runner import (
    HIDDEN_SIZE,
    TIMEOUT_S,
    Batch,
    sequence_of,
    vector_of,
)
from service.core.batcher import BatchedResult
from service.errors import DeadlineExceededError, DrainingError, InternalError
from service.types import (
    Array,
    AttentionPlan,
    AttentionReduction,
    DataType,
    Outputs,
    Pooling,
    TokenizedSequence,
)

POISON = 666


class TestDispatch:
    async def test_a_call_alone_runs_at_once(self) -> None:
        async with open_bench() as bench:
            sequences = [sequence_of(5, 6, 7)]
            assert_right(await done(bench.send(sequences)), sequences)
            assert [batch.first_ids for batch in bench.runner.batches] == [[5]]

    async def test_what_arrives_together_runs_together(self) -> None:
        async with open_bench() as bench:
            calls = [bench.send([sequence_of(first, 9)]) for first in (1, 2, 3)]
            await asyncio.gather(*map(done, calls))
            assert [batch.first_ids for batch in bench.runner.batches] == [[1, 2, 3]]

    async def test_what_arrives_while_the_lane_works_is_its_next_batch(self) -> None:
        async with open_bench(gated=True) as bench:
            first = bench.send([sequence_of(1)])
            await bench.runner.begun()
            others = [bench.send([sequence_of(first_id)]) for first_id in (2, 3, 4)]
            await turn_of_the_loop()
            bench.runner.release()
            assert (await bench.runner.begun()).first_ids == [2, 3, 4]
            bench.runner.open()
            await asyncio.gather(*map(done, [first, *others]))

    async def test_lanes_run_side_by_side(self) -> None:
        async with open_bench(lanes=2, gated=True) as bench:
            call = bench.send([sequence_of(first) for first in range(1, 7)])
            batches = [await bench.runner.begun(), await bench.runner.begun()]
            assert bench.metric("busy_lanes") == bench.metric("lanes") == 2
            assert [len(batch.first_ids) for batch in batches] == [3, 3]
            bench.runner.open()
            assert_right(await done(call), [sequence_of(first) for first in range(1, 7)])
            assert bench.metric("busy_lanes") == 0

    async def test_a_lane_that_is_done_does_not_wait_for_another(self) -> None:
        async with open_bench(lanes=2, gated=True) as bench:
            await bench.occupy()
            bench.send([sequence_of(3)])
            bench.runner.release()
            assert (await bench.runner.begun()).first_ids == [3]

    async def test_a_call_is_split_over_batches(self) -> None:
        async with open_bench(max_batch_tokens=20) as bench:
            sequences = [sequence_of(first, *range(9)) for first in range(1, 8)]
            assert_right(await done(bench.send(sequences)), sequences)
            assert [len(batch.first_ids) for batch in bench.runner.batches] == [2, 2, 2, 1]

    async def test_rows_keep_the_order_of_their_call_whatever_ran_first(self) -> None:
        async with open_bench(max_batch_tokens=30) as bench:
            lengths = [20, 1, 13, 2, 20, 1, 7, 13]
            sequences = [
                sequence_of(*range(place, place + length)) for place, length in enumerate(lengths, 1)
            ]
            assert_right(await done(bench.send(sequences)), sequences)

    async def test_a_call_with_priority_runs_first(self) -> None:
        async with open_bench(gated=True, max_batch_tokens=1) as bench:
            await bench.occupy()
            calls = [bench.send([sequence_of(2)] * 20), bench.send([sequence_of(3)] * 20, priority=3)]
            await turn_of_the_loop()
            bench.runner.open()
            await asyncio.gather(*map(done, calls))
            order = [batch.first_ids[0] for batch in bench.runner.batches]
            assert order[1:20].count(3) > 15

    async def test_maps_run_in_their_own_batches_and_graph(self) -> None:
        plan = AttentionPlan((1, 0), (0, 1), AttentionReduction.NONE, DataType.FLOAT32)
        async with open_bench() as bench:
            maps = bench.send([sequence_of(5, 6)], Outputs(Pooling.MEAN, attention=plan))
            plain = bench.send([sequence_of(7, 8)])
            result = await done(maps)
            assert_right(await done(plain), [sequence_of(7, 8)])
            by_graph = {batch.graph: batch for batch in bench.runner.batches}
            assert by_graph["encoder"].first_ids == [7]
            assert by_graph["attention"].output_names == ["attentions_0", "attentions_1", "pooled_mean"]
            attention = result.collector.attention[0]
            assert attention is not None
            assert attention.shape == (2, 2, 2, 2)

    async def test_lengths_are_padded_to_the_multiple(self) -> None:
        async with open_bench(length_multiple=8) as bench:
            assert_right(await done(bench.send([sequence_of(5, 6)])), [sequence_of(5, 6)])
            assert bench.runner.batches[0].arrays.input_ids.shape == (1, 8)

    async def test_a_call_without_sequences_is_done_at_once(self) -> None:
        async with open_bench() as bench:
            result = await done(bench.send([]))
            assert result.collector.vectors is not None
            assert result.collector.vectors.shape == (0, HIDDEN_SIZE)
            assert bench.runner.batches == []

    async def test_times_are_of_the_sequence_that_finished_last(self) -> None:
        async with open_bench() as bench:
            loop = asyncio.get_running_loop()
            started = loop.time()
            result = await done(bench.send([sequence_of(1)]))
            assert result.queue_s >= 0
            assert result.inference_s > 0
            assert result.queue_s + result.inference_s <= loop.time() - started


class TestLeaving:
    async def test_a_thousand_cancelled_calls_never_run_and_free_their_places_at_once(self) -> None:
        async with open_bench(gated=True, max_inputs=3) as bench:
            occupying = await bench.occupy()
            for _ in range(1000):
                call = bench.send([sequence_of(2), sequence_of(3, 3), sequence_of(4)])
                await asyncio.sleep(0)
                assert bench.queued == (3, 4)
                await leave(call)
                assert bench.queued == (0, 0)
            bench.runner.open()
            await asyncio.gather(*map(done, occupying))
            assert_right(await done(bench.send([sequence_of(5)])), [sequence_of(5)])
            assert bench.runner.seen == {1, 5}

    async def test_a_thousand_expired_calls_never_run(self) -> None:
        async with open_bench(gated=True, max_inputs=3) as bench:
            occupying = await bench.occupy()
            now = asyncio.get_running_loop().time
            for _ in range(1000):
                with pytest.raises(DeadlineExceededError):
                    await bench.send([sequence_of(2)] * 3, deadline=now())
                assert bench.queued == (0, 0)
            bench.runner.open()
            await asyncio.gather(*map(done, occupying))
            assert bench.runner.seen == {1}

    async def test_a_call_past_its_deadline_never_reaches_an_idle_lane(self) -> None:
        async with open_bench() as bench:
            past = asyncio.get_running_loop().time() - 1
            with pytest.raises(DeadlineExceededError):
                await done(bench.send([sequence_of(2)], deadline=past))
            assert_right(await done(bench.send([sequence_of(3)])), [sequence_of(3)])
            assert bench.runner.seen == {3}

    async def test_a_deadline_that_passes_in_the_queue_ends_the_call(self) -> None:
        async with open_bench(gated=True) as bench:
            await bench.occupy()
            soon = asyncio.get_running_loop().time() + 0.01
            with pytest.raises(DeadlineExceededError, match="deadline passed"):
                await done(bench.send([sequence_of(2)], deadline=soon))
            assert bench.queued == (0, 0)

    async def test_an_entry_that_expires_while_the_loop_is_late_is_dropped_before_its_batch(
        self, put_forward: Callable[[float], None]
    ) -> None:
        """The clock passes the deadline, but its timer has not fired when the batch is cut."""
        async with open_bench() as bench:
            deadline = asyncio.get_running_loop().time() + 1000
            expiring = bench.send([sequence_of(2)], deadline=deadline)
            patient = bench.send([sequence_of(3)])
            await asyncio.sleep(0)
            put_forward(2000)
            assert_right(await patient, [sequence_of(3)])
            with pytest.raises(DeadlineExceededError):
                await expiring
            assert bench.runner.seen == {3}

    async def test_who_leaves_during_the_run_does_not_harm_who_stays(self) -> None:
        async with open_bench(gated=True) as bench:
            leaving, staying = bench.send([sequence_of(2)]), bench.send([sequence_of(3)])
            assert (await bench.runner.begun()).first_ids == [2, 3]
            await leave(leaving)
            bench.runner.open()
            assert_right(await done(staying), [sequence_of(3)])

    async def test_what_is_left_of_a_split_call_leaves_with_it(self) -> None:
        async with open_bench(gated=True, max_batch_tokens=2) as bench:
            call = bench.send([sequence_of(first) for first in range(2, 8)])
            await bench.runner.begun()
            assert bench.queued == (4, 4)
            await leave(call)
            assert bench.queued == (0, 0)
            bench.runner.open()
            assert_right(await done(bench.send([sequence_of(9)])), [sequence_of(9)])
            assert bench.runner.seen == {2, 3, 9}

    async def test_the_arrays_of_a_call_go_with_its_result(self) -> None:
        async with open_bench() as bench:
            gc.disable()
            try:
                result = await done(bench.send([sequence_of(2)]))
                collector = weakref.ref(result.collector)
                del result
                await done(bench.send([sequence_of(3)]))  # the lane's thread has let go of the first batch
                assert collector() is None
            finally:
                gc.enable()


def fail_on_poison(batch: Batch, outputs: dict[str, Array]) -> dict[str, Array]:
    if POISON in batch.first_ids:
        raise RuntimeError("poison")
    return outputs


def fail_once() -> Callable[[Batch, dict[str, Array]], dict[str, Array]]:
    errors = [RuntimeError("out of memory")]

    def fail(_: Batch, outputs: dict[str, Array]) -> dict[str, Array]:
        if errors:
            raise errors.pop()
        return outputs

    return fail


class TestFailure:
    async def test_one_poison_input_among_eight_leaves_seven_answers(self) -> None:
        async with open_bench() as bench:
            bench.runner.failure = fail_on_poison
            sequences = [sequence_of(first, 1) for first in (2, 3, 4, POISON, 5, 6, 7, 8)]
            result = await done(bench.send(sequences))
            assert list(result.errors) == [3]
            assert isinstance(result.errors[3], InternalError)
            assert result.collector.vectors is not None
            expected = [vector_of(sequence) for sequence in sequences]
            expected[3] = [0] * HIDDEN_SIZE
            assert result.collector.vectors.tolist() == expected
            assert [len(batch.first_ids) for batch in bench.runner.batches] == [8] + [1] * 8

    async def test_one_poison_call_among_eight_leaves_seven_right(self) -> None:
        async with open_bench() as bench:
            bench.runner.failure = fail_on_poison
            calls = {first: bench.send([sequence_of(first)]) for first in (2, 3, 4, POISON, 5, 6, 7, 8)}
            poisoned = await done(calls.pop(POISON))
            assert list(poisoned.errors) == [0]
            for first, call in calls.items():
                assert_right(await done(call), [sequence_of(first)])

    async def test_a_failure_that_does_not_come_back_is_nobodys_error(self) -> None:
        async with open_bench(lanes=2) as bench:
            bench.runner.failure = fail_once()
            sequences = [sequence_of(first) for first in (2, 3, 4)]
            assert_right(await done(bench.send(sequences)), sequences)

    async def test_the_next_call_after_a_failure_is_right(self) -> None:
        async with open_bench(lanes=2) as bench:
            bench.runner.failure = fail_on_poison
            for _ in range(5):
                assert (await done(bench.send([sequence_of(POISON)]))).errors
            assert_right(await done(bench.send([sequence_of(2)])), [sequence_of(2)])
            assert bench.metric("busy_lanes") == 0

    @pytest.mark.parametrize(
        "damage",
        [
            lambda outputs: {name: values[:-1] for name, values in outputs.items()},
            lambda outputs: {name: values.repeat(2, axis=0) for name, values in outputs.items()},
            lambda _: {},
        ],
        ids=["too few rows", "too many rows", "no output"],
    )
    async def test_a_wrong_answer_of_the_engine_is_an_error_of_its_inputs(
        self, damage: Callable[[dict[str, Array]], dict[str, Array]]
    ) -> None:
        async with open_bench() as bench:
            bench.runner.failure = lambda _, outputs: damage(outputs)
            result = await done(bench.send([sequence_of(2), sequence_of(3)]))
            assert {type(error) for error in result.errors.values()} == {InternalError}
            assert list(result.errors) == [0, 1]

    async def test_too_few_rows_once_costs_no_answer(self) -> None:
        async with open_bench() as bench:
            bench.runner.failure = lambda batch, outputs: (
                outputs
                if len(batch.first_ids) == 1
                else {name: values[:-1] for name, values in outputs.items()}
            )
            sequences = [sequence_of(2), sequence_of(3)]
            assert_right(await done(bench.send(sequences)), sequences)

    async def test_who_leaves_before_the_second_run_is_not_run_again(self) -> None:
        async with open_bench(gated=True) as bench:
            bench.runner.failure = fail_on_poison
            calls = [bench.send([sequence_of(first)]) for first in (POISON, 2, 3)]
            await bench.runner.begun()
            bench.runner.release()
            assert (await bench.runner.begun()).first_ids == [POISON]
            assert bench.metric("queued_inputs") == 2
            await leave(calls[1])
            assert bench.metric("queued_inputs") == 1
            bench.runner.open()
            assert (await done(calls[0])).errors
            assert_right(await done(calls[2]), [sequence_of(3)])
            assert [batch.first_ids for batch in bench.runner.batches] == [[POISON, 2, 3], [POISON], [3]]

    async def test_a_batch_whose_callers_all_left_may_fail_too(self) -> None:
        async with open_bench(gated=True) as bench:
            bench.runner.failure = fail_on_poison
            call = bench.send([sequence_of(POISON)])
            await bench.runner.begun()
            await leave(call)
            bench.runner.open()
            assert_right(await done(bench.send([sequence_of(2)])), [sequence_of(2)])
            assert [batch.first_ids for batch in bench.runner.batches] == [[POISON], [2]]
            assert bench.queued == (0, 0)


class TestLostLanes:
    async def test_every_call_is_answered_wherever_it_waits(self) -> None:
        async with open_bench(gated=True, max_inputs=1) as bench:
            done_before = await bench.occupy()
            bench.runner.release()
            await asyncio.gather(*map(done, done_before))
            running = await bench.occupy()
            queued = bench.send([sequence_of(2)])
            await turn_of_the_loop()
            waiting = bench.send([sequence_of(3)], wait_for_room=True)
            await turn_of_the_loop()
            bench.batcher.abandon(DrainingError())
            for call in [*running, queued, waiting]:
                with pytest.raises(DrainingError):
                    await done(call)
            assert bench.queued == (0, 0)
            bench.batcher.abandon(DrainingError())

    async def test_a_call_that_was_answered_or_left_is_not_answered_again(self) -> None:
        async with open_bench(gated=True) as bench:
            (running,) = await bench.occupy()
            leaving = bench.send([sequence_of(2)])
            await turn_of_the_loop()
            leaving.cancel()
            bench.batcher.abandon(DrainingError())
            with pytest.raises(asyncio.CancelledError):
                await leaving
            with pytest.raises(DrainingError):
                await done(running)

    async def test_they_are_lost_when_a_run_does_not_end(self, put_forward: Callable[[float], None]) -> None:
        async with open_bench(gated=True, run_timeout_s=1000) as bench:
            await bench.occupy()
            for _ in ("until it is to stop", "until it should have stopped"):
                assert not bench.batcher.lost.is_set()
                put_forward(1000)
                await turn_of_the_loop()
            assert bench.batcher.lost.is_set()

    async def test_a_run_that_was_stopped_is_tried_once_more(self) -> None:
        async with open_bench() as bench:
            bench.runner.failure = fail_once()
            assert_right(await done(bench.send([sequence_of(2)])), [sequence_of(2)])
            assert len(bench.runner.batches) == 2
            assert not bench.batcher.lost.is_set()


class TestMetrics:
    async def test_gauges_rise_while_calls_wait_and_return_to_zero(self) -> None:
        async with open_bench(gated=True) as bench:
            occupying = await bench.occupy()
            calls = [bench.send([sequence_of(2, 2)]) for _ in range(20)]
            await turn_of_the_loop()
            assert bench.queued == (20, 40)
            for call in calls[:10]:
                await leave(call)
            assert bench.queued == (10, 20)
            bench.runner.open()
            await asyncio.gather(*map(done, [*occupying, *calls[10:]]))
            assert bench.queued == (0, 0)
            assert bench.metric("busy_lanes") == 0

    async def test_tokens_and_padding_are_counted(self) -> None:
        async with open_bench(length_multiple=8) as bench:
            await done(bench.send([sequence_of(*range(1, 7)), sequence_of(*range(1, 8))]))
            assert bench.metric("tokens_total") == 13
            assert bench.metric("padding_tokens_total") == 3
            assert bench.metric("batch_inputs_sum") == 2
            assert bench.metric("batch_tokens_sum") == 16
            assert bench.metric("queue_duration_seconds_count") == 2
            assert bench.metric("inference_duration_seconds_count", graph="encoder") == 1
            assert bench.metric("inference_duration_seconds_count", graph="attention") == 0


class TestProperties:
    @settings(max_examples=40)
    @given(
        calls=st.lists(st.lists(st.integers(1, 12), max_size=6), min_size=1, max_size=12),
        lanes=st.integers(1, 3),
        poison=st.booleans(),
        seed=st.integers(0, 1 << 30),
    )
    def test_whoever_stays_gets_his_own_vectors_and_nothing_leaks(
        self, calls: list[list[int]], lanes: int, poison: bool, seed: int
    ) -> None:
        asyncio.run(self._scenario(calls, lanes, poison, random.Random(seed)))

    async def _scenario(
        self, calls: list[list[int]], lanes: int, poison: bool, choices: random.Random
    ) -> None:
        async with open_bench(lanes=lanes, gated=True, max_batch_tokens=24, max_inputs=20) as bench:
            if poison:
                bench.runner.failure = fail_on_poison
            sent = []
            for lengths in calls:
                sequences = [_random_sequence(length, choices) for length in lengths]
                sent.append((sequences, bench.send(sequences, wait_for_room=True)))
                _do_something(bench, [call for _, call in sent], choices)
                await turn_of_the_loop()
            bench.runner.open()
            for sequences, call in sent:
                await _check_outcome(sequences, call, poison)
            await _until_idle(bench)
            assert bench.queued == (0, 0)


def _random_sequence(length: int, choices: random.Random) -> TokenizedSequence:
    first = POISON if choices.random() < 0.1 else choices.randrange(1, 600)
    return sequence_of(first, *(choices.randrange(1, 600) for _ in range(length - 1)))


def _do_something(bench: Bench, calls: list[asyncio.Task[BatchedResult]], choices: random.Random) -> None:
    if choices.random() < 0.4:
        choices.choice(calls).cancel()
    if choices.random() < 0.4:
        bench.runner.release()


async def _check_outcome(
    sequences: list[TokenizedSequence], call: asyncio.Task[BatchedResult], poison: bool
) -> None:
    try:
        result = await done(call)
    except asyncio.CancelledError:
        return
    vectors = result.collector.vectors
    assert vectors is not None
    for index, sequence in enumerate(sequences):
        failed = poison and int(sequence.ids[0]) == POISON
        assert (index in result.errors) is failed
        assert vectors[index].tolist() == ([0] * HIDDEN_SIZE if failed else vector_of(sequence))


async def _until_idle(bench: Bench) -> None:
    """A batch of callers who left may still run when the last who stayed is answered."""
    async with asyncio.timeout(TIMEOUT_S):
        while bench.metric("busy_lanes"):
            await done(bench.send([sequence_of(1)]))
