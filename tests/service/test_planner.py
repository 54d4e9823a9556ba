"""The planner by tables and by properties; nothing here runs a model."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.core.planner import ADVANCE, HEAD_START, MAX_PADDING, Entry, Flow, Planner

UNLIMITED = 1 << 40


def build_planner(
    *, tokens: int = UNLIMITED, cells: int = UNLIMITED, length_multiple: int = 1
) -> Planner[str]:
    return Planner(max_batch_tokens=tokens, max_batch_cells=cells, length_multiple=length_multiple)


def entries_of(name: str, lengths: Iterable[int], **fields: Any) -> list[Entry[str]]:
    return [Entry(length, f"{name}{index}", **fields) for index, length in enumerate(lengths)]


def submit(planner: Planner[str], name: str, lengths: Iterable[int], priority: int = 0) -> list[Entry[str]]:
    entries = entries_of(name, lengths)
    planner.add(Flow(priority), entries)
    return entries


def names(batch: Sequence[Entry[str]]) -> list[str]:
    return [entry.payload for entry in batch]


def lengths(batch: Sequence[Entry[Any]]) -> list[int]:
    return [entry.length for entry in batch]


def drain(planner: Planner[str], idle_lanes: int = 1) -> list[list[Entry[str]]]:
    batches = []
    while batch := planner.next_batch(idle_lanes):
        batches.append(batch)
    return batches


def rounded(length: int, multiple: int) -> int:
    return ceil(length / multiple) * multiple


def padded_tokens(batch: Sequence[Entry[Any]], multiple: int = 1) -> int:
    return len(batch) * rounded(max(lengths(batch)), multiple)


class TestTables:
    def test_nothing_waits(self) -> None:
        assert build_planner().next_batch(1) == []

    def test_what_fits_runs_together_in_order_of_arrival(self) -> None:
        planner = build_planner(tokens=40)
        submit(planner, "a", [10, 10])
        submit(planner, "b", [10, 10])
        assert names(planner.next_batch(1)) == ["a0", "b0", "a1", "b1"]

    @pytest.mark.parametrize(
        ("waiting", "budget", "expected"),
        [
            ([10, 10, 10, 10], 40, [[10, 10, 10, 10]]),
            ([10, 10, 10, 10], 39, [[10, 10, 10], [10]]),
            ([10, 10, 10, 10], 10, [[10], [10], [10], [10]]),
            ([10, 10, 10, 10], 9, [[10], [10], [10], [10]]),
        ],
    )
    def test_budget(self, waiting: list[int], budget: int, expected: list[list[int]]) -> None:
        planner = build_planner(tokens=budget)
        submit(planner, "a", waiting)
        assert [lengths(batch) for batch in drain(planner)] == expected

    def test_an_entry_over_the_budget_runs_alone(self) -> None:
        planner = build_planner(tokens=64)
        submit(planner, "long", [100])
        submit(planner, "short", [100, 10, 10])
        assert [lengths(batch) for batch in drain(planner)] == [[100], [100], [10, 10]]

    @pytest.mark.parametrize(
        ("idle_lanes", "waiting", "expected"),
        [
            (1, [10] * 6, [6]),
            (2, [10] * 6, [3, 3]),
            (3, [10] * 6, [2, 2, 2]),
            (4, [10] * 6, [1, 1, 2, 2]),  # a share of 15 tokens holds one entry, of 20 two
            (1, [10, 11, 10, 10], [4]),
            (2, [10, 11, 10, 10], [2, 2]),
            (6, [10] * 6, [1] * 6),
            (8, [10] * 6, [1] * 6),
        ],
    )
    def test_idle_lanes_share_what_waits(
        self, idle_lanes: int, waiting: list[int], expected: list[int]
    ) -> None:
        planner = build_planner()
        submit(planner, "a", waiting)
        sizes = []
        while batch := planner.next_batch(idle_lanes):
            sizes.append(len(batch))
            idle_lanes = max(1, idle_lanes - 1)
        assert sizes == expected

    def test_idle_lanes_do_not_raise_the_budget(self) -> None:
        planner = build_planner(tokens=20)
        submit(planner, "a", [10] * 100)
        assert len(planner.next_batch(2)) == 2

    @pytest.mark.parametrize(
        ("shortest", "joins"),
        [(91, True), (82, True), (80, False), (79, False)],  # of 200 padded tokens, 20 may not be padding
    )
    def test_padding_stays_under_a_tenth(self, shortest: int, joins: bool) -> None:
        planner = build_planner()
        submit(planner, "a", [100, shortest])
        assert (len(planner.next_batch(1)) == 2) is joins

    @pytest.mark.parametrize(
        ("waiting", "budget", "joins"),
        [
            pytest.param([100, 95, 99, 101], 303, ["a2", "a3"], id="the nearest length first"),
            pytest.param([100, 101, 99], 220, ["a1"], id="of two equally near ones the first in order"),
            pytest.param([100, 101, 98], 200, ["a2"], id="one further off where the nearest does not fit"),
        ],
    )
    def test_who_joins(self, waiting: list[int], budget: int, joins: list[str]) -> None:
        planner = build_planner(tokens=budget)
        submit(planner, "a", waiting)
        assert names(planner.next_batch(1)) == ["a0", *joins]

    def test_a_call_is_split_over_batches(self) -> None:
        planner = build_planner(tokens=30)
        submit(planner, "a", [10] * 7)
        assert [names(batch) for batch in drain(planner)] == [
            ["a0", "a1", "a2"],
            ["a3", "a4", "a5"],
            ["a6"],
        ]


class TestRounding:
    def test_rounded_lengths_count_against_the_budget(self) -> None:
        planner = build_planner(tokens=32, length_multiple=8)
        submit(planner, "a", [9, 9, 9])
        assert [lengths(batch) for batch in drain(planner)] == [[9, 9], [9]]

    def test_lengths_of_one_multiple_run_together_whatever_their_padding(self) -> None:
        planner = build_planner(length_multiple=8)
        submit(planner, "a", [9, 16, 10])
        assert len(planner.next_batch(1)) == 3

    def test_lengths_of_two_multiples_keep_the_padding_under_a_tenth(self) -> None:
        planner = build_planner(length_multiple=8)
        submit(planner, "a", [16, 17])
        assert [lengths(batch) for batch in drain(planner)] == [[16], [17]]
        submit(planner, "b", [128, 129])
        assert [lengths(batch) for batch in drain(planner)] == [[128, 129]]


class TestPowersOfTwo:
    @pytest.mark.parametrize(
        ("waiting", "sizes"),
        [(1, [1]), (2, [2]), (3, [2, 1]), (7, [4, 2, 1]), (20, [8, 8, 4])],
    )
    def test_batches_have_a_power_of_two_of_entries(self, waiting: int, sizes: list[int]) -> None:
        planner: Planner[str] = Planner(max_batch_tokens=100, max_batch_cells=1, powers_of_two=True)
        entries = submit(planner, "a", [10] * waiting)
        batches = drain(planner)
        assert [len(batch) for batch in batches] == sizes
        assert [entry for batch in batches for entry in batch] == entries

    def test_who_stays_behind_keeps_his_place(self) -> None:
        planner: Planner[str] = Planner(max_batch_tokens=100, max_batch_cells=1, powers_of_two=True)
        submit(planner, "a", [10])
        submit(planner, "b", [10])
        submit(planner, "c", [10])
        assert names(planner.next_batch(1)) == ["a0", "b0"]
        submit(planner, "d", [10])
        assert (planner.waiting_inputs, planner.waiting_tokens) == (2, 20)
        assert names(planner.next_batch(1)) == ["c0", "d0"]


class TestGroups:
    def test_groups_are_never_mixed(self) -> None:
        planner = build_planner()
        planner.add(Flow(), entries_of("plain", [10]))
        planner.add(Flow(), entries_of("first", [10], group=(0,), cells_per_square_token=2))
        planner.add(Flow(), entries_of("both", [10], group=(0, 1), cells_per_square_token=4))
        planner.add(Flow(), entries_of("more", [10], group=(0,), cells_per_square_token=2))
        assert [names(batch) for batch in drain(planner)] == [["plain0"], ["first0", "more0"], ["both0"]]

    def test_cells_budget(self) -> None:
        planner = build_planner(cells=3 * 12 * 10 * 10)
        planner.add(Flow(), entries_of("a", [10] * 7, group=(5,), cells_per_square_token=12))
        assert [len(batch) for batch in drain(planner)] == [3, 3, 1]

    def test_an_entry_over_the_cells_budget_runs_alone(self) -> None:
        planner = build_planner(cells=100)
        planner.add(Flow(), entries_of("a", [100, 100], group=(0,), cells_per_square_token=12))
        assert [len(batch) for batch in drain(planner)] == [1, 1]

    def test_a_longer_entry_that_would_pass_the_cells_budget_stays(self) -> None:
        planner = build_planner(cells=2 * 100 * 100)
        planner.add(Flow(), entries_of("a", [100, 101], group=(0,), cells_per_square_token=1))
        assert [lengths(batch) for batch in drain(planner)] == [[100], [101]]


class TestFairness:
    def test_a_single_text_overtakes_a_huge_call(self) -> None:
        planner = build_planner(tokens=100)
        submit(planner, "huge", [20] * 1000)
        planner.next_batch(1)
        submit(planner, "single", [50])
        assert names(planner.next_batch(1)) == ["single0"]

    def test_calls_that_wait_together_take_turns(self) -> None:
        planner = build_planner(tokens=10)
        submit(planner, "a", [10] * 3)
        submit(planner, "b", [10] * 3)
        assert [names(batch)[0] for batch in drain(planner)] == ["a0", "b0", "a1", "b1", "a2", "b2"]

    def test_shares_are_counted_in_tokens(self) -> None:
        planner = build_planner(tokens=40)
        submit(planner, "long", [40] * 50)
        submit(planner, "short", [20] * 100)
        first = [entry for batch in drain(planner)[:30] for entry in batch]
        tokens: Counter[str] = Counter()
        for entry in first:
            tokens[entry.payload.rstrip("0123456789")] += entry.length
        assert tokens["long"] == pytest.approx(tokens["short"], abs=40)

    @pytest.mark.parametrize("priority", [-3, -1, 0, 1, 2, 3])
    def test_each_step_of_priority_doubles_the_share(self, priority: int) -> None:
        planner = build_planner(tokens=16)
        submit(planner, "other", [16] * 400)
        submit(planner, "mine", [16] * 400, priority)
        taken = Counter(batch[0].payload.rstrip("0123456789") for batch in drain(planner)[:360])
        assert taken["mine"] / taken["other"] == pytest.approx(2.0**priority, rel=0.05)

    def test_a_call_that_waited_for_nothing_gets_no_credit(self) -> None:
        planner = build_planner(tokens=10)
        submit(planner, "a", [10] * 100)
        for _ in range(50):
            planner.next_batch(1)
        submit(planner, "b", [10] * 20)
        next_ten = Counter(planner.next_batch(1)[0].payload[0] for _ in range(10))
        assert abs(next_ten["a"] - next_ten["b"]) <= 2

    def test_a_lone_text_does_not_wait_until_every_long_call_had_its_turn(self) -> None:
        planner = build_planner(tokens=100)
        for number in range(10):
            submit(planner, f"long{number}", range(20, 100))
        planner.next_batch(1)
        submit(planner, "lone", [100])
        assert names(planner.next_batch(1)) == ["lone0"]

    def test_entries_added_later_to_the_same_flow_continue_its_share(self) -> None:
        planner, flow = build_planner(tokens=10), Flow()
        planner.add(flow, entries_of("early", [10] * 2))
        planner.add(flow, entries_of("late", [10] * 2))
        submit(planner, "other", [10] * 2)
        assert [names(batch)[0] for batch in drain(planner)] == [
            "early0",
            "other0",
            "early1",
            "other1",
            "late0",
            "late1",
        ]

    def test_a_steady_stream_of_fresh_calls_starves_nobody(self) -> None:
        """One call arrives for each that leaves: the lanes are saturated for ever."""
        planner = build_planner(tokens=10)
        submit(planner, "patient", [10] * 5)
        left = []
        for turn in range(500):
            submit(planner, "fresh", [10])
            left += [turn for entry in planner.next_batch(1) if entry.payload.startswith("patient")]
        assert len(left) == 5
        assert left[-1] < 100


class TestRemoval:
    def test_a_removed_entry_never_leaves_in_a_batch(self) -> None:
        planner = build_planner()
        _, second, _ = submit(planner, "a", [10, 10, 10])
        planner.remove(second)
        assert [names(batch) for batch in drain(planner)] == [["a0", "a2"]]

    def test_a_removed_entry_of_another_length_is_passed_over(self) -> None:
        planner = build_planner()
        first, _, third = submit(planner, "a", [10, 30, 20])
        planner.remove(first)
        planner.remove(third)
        assert [names(batch) for batch in drain(planner)] == [["a1"]]

    def test_removal_twice_or_after_leaving_changes_nothing(self) -> None:
        planner = build_planner(tokens=10)
        first, second = submit(planner, "a", [10, 10])
        planner.next_batch(1)
        planner.remove(first)
        planner.remove(second)
        planner.remove(second)
        assert (planner.waiting_inputs, planner.waiting_tokens) == (0, 0)
        assert planner.next_batch(1) == []

    def test_an_entry_that_was_never_added_is_not_counted(self) -> None:
        planner = build_planner()
        planner.remove(Entry(10, "stranger"))
        assert (planner.waiting_inputs, planner.waiting_tokens) == (0, 0)

    def test_a_removed_entry_gives_its_tokens_back_to_the_lanes(self) -> None:
        planner = build_planner()
        entries = submit(planner, "a", [10] * 8)
        for entry in entries[4:]:
            planner.remove(entry)
        assert len(planner.next_batch(2)) == 2

    def test_memory_is_bounded_by_what_waits(self) -> None:
        """Calls come and are cancelled behind one that waits; what they carried must not stay."""
        planner: Planner[object] = Planner(max_batch_tokens=10, max_batch_cells=1)
        planner.add(Flow(), [Entry(10, object())])
        alive: weakref.WeakSet[Entry[object]] = weakref.WeakSet()
        for _ in range(200):
            entries = [_TracedEntry(10, object()) for _ in range(5)]
            alive.update(entries)
            planner.add(Flow(), entries)
            for entry in entries:
                planner.remove(entry)
        del entries, entry
        gc.collect()
        assert len(alive) <= 10


class _TracedEntry(Entry[object]):
    """An entry that can be referred to weakly."""

    __slots__ = ("__weakref__",)


LENGTHS = st.integers(1, 64)
GROUPS = st.sampled_from([(), (0,), (0, 1)])


@dataclass(frozen=True)
class Limits:
    tokens: int
    cells: int
    multiple: int
    powers_of_two: bool

    def build(self) -> Planner[int]:
        return Planner(
            max_batch_tokens=self.tokens,
            max_batch_cells=self.cells,
            length_multiple=self.multiple,
            powers_of_two=self.powers_of_two,
        )

    def check(self, batch: Sequence[Entry[int]], waiting: Sequence[Entry[int]], idle_lanes: int) -> None:
        """What holds for every batch cut from `waiting`."""
        anchor = min(waiting, key=lambda entry: entry.order)
        assert batch[0] is anchor
        assert {entry.group for entry in batch} == {anchor.group}
        assert not self.powers_of_two or len(batch).bit_count() == 1
        if len(batch) == 1:
            return
        padded = padded_tokens(batch, self.multiple)
        assert padded <= self.tokens
        assert sum(lengths(batch)) <= ceil(sum(lengths(waiting)) / idle_lanes)
        longest = rounded(max(lengths(batch)), self.multiple)
        assert padded * longest * anchor.cells_per_square_token <= self.cells
        mixed = sum(longest - rounded(entry.length, self.multiple) for entry in batch)
        assert mixed < MAX_PADDING * padded or mixed == 0


LIMITS = st.builds(
    Limits,
    tokens=st.integers(1, 400),
    cells=st.integers(1, 200_000),
    multiple=st.sampled_from([1, 8]),
    powers_of_two=st.booleans(),
)


class PlannerMachine(RuleBasedStateMachine):
    """Calls arrive, entries are removed and batches are cut in any order."""

    @initialize(limits=LIMITS)
    def start(self, limits: Limits) -> None:
        self.limits = limits
        self.planner = limits.build()
        self.waiting: dict[int, Entry[int]] = {}
        self.flows: list[Flow] = []
        self.count = 0

    @rule(lengths=st.lists(LENGTHS, max_size=8), group=GROUPS, priority=st.integers(-3, 3))
    def arrive(self, lengths: list[int], group: tuple[int, ...], priority: int) -> None:
        flow = Flow(priority)
        self.flows.append(flow)
        self._add(flow, lengths, group)

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), lengths=st.lists(LENGTHS, max_size=4), group=GROUPS)
    def arrive_later(self, data: st.DataObject, lengths: list[int], group: tuple[int, ...]) -> None:
        self._add(data.draw(st.sampled_from(self.flows)), lengths, group)

    def _add(self, flow: Flow, lengths: list[int], group: tuple[int, ...]) -> None:
        entries = [Entry(length, self.count + i, group, 2 * len(group)) for i, length in enumerate(lengths)]
        self.count += len(entries)
        self.planner.add(flow, entries)
        self.waiting.update({entry.payload: entry for entry in entries})

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.planner.remove(self.waiting.pop(key))

    @rule(idle_lanes=st.integers(1, 4))
    def cut(self, idle_lanes: int) -> None:
        batch = self.planner.next_batch(idle_lanes)
        assert bool(batch) == bool(self.waiting)
        if batch:
            self.limits.check(batch, list(self.waiting.values()), idle_lanes)
        for entry in batch:
            assert self.waiting.pop(entry.payload) is entry

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.planner.waiting_inputs == len(self.waiting)
        assert self.planner.waiting_tokens == sum(entry.length for entry in self.waiting.values())
        assert all(entry.waiting for entry in self.waiting.values())

    def teardown(self) -> None:
        while self.waiting:
            self.cut(1)


TestPlannerMachine = PlannerMachine.TestCase
TestPlannerMachine.settings = settings(max_examples=80, stateful_step_count=25)


class TestProperties:
    @settings(max_examples=80)
    @given(calls=st.lists(st.lists(LENGTHS, max_size=6), max_size=10), limits=LIMITS, lanes=st.integers(1, 4))
    def test_every_entry_leaves_exactly_once(
        self, calls: list[list[int]], limits: Limits, lanes: int
    ) -> None:
        planner = limits.build()
        added = [[Entry(length, 0) for length in call] for call in calls]
        for entries in added:
            planner.add(Flow(), entries)
        left = []
        while batch := planner.next_batch(lanes):
            left += batch
        assert Counter(map(id, left)) == Counter(id(entry) for entries in added for entry in entries)

    @settings(max_examples=60)
    @given(
        mine=st.lists(LENGTHS, min_size=1, max_size=4),
        priority=st.integers(-3, 3),
        others=st.lists(LENGTHS, min_size=1, max_size=6),
        per_turn=st.integers(1, 2),
        tokens=st.integers(1, 200),
    )
    def test_overtaking_is_bounded(
        self, mine: list[int], priority: int, others: list[int], per_turn: int, tokens: int
    ) -> None:
        """Fresh calls arrive before every batch, as fast as they are served, up to a queue of 16."""
        queue = 16
        planner: Planner[str] = Planner(max_batch_tokens=tokens, max_batch_cells=1)
        planner.add(Flow(priority), entries_of("mine", mine))
        until_due = ceil((sum(mine) / 2.0**priority + HEAD_START) / ADVANCE)
        bound = until_due + queue + len(mine)
        arrival, left = 0, 0
        for _ in range(bound):
            for _ in range(per_turn):
                if planner.waiting_inputs < queue:
                    planner.add(Flow(), entries_of("other", [others[arrival % len(others)]]))
                    arrival += 1
            left += sum(entry.payload.startswith("mine") for entry in planner.next_batch(1))
            if left == len(mine):
                return
        pytest.fail(f"{len(mine) - left} of {len(mine)} entries still wait after {bound} batches")
