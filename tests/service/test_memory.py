"""The worst load's memory, and the limits it must fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_artifact import build_artifact
from service.core.artifact import Graph
from service.core.memory import MemoryPlan, check_memory, plan_memory, read_memory_limit
from service.errors import StartError

MIB = 1 << 20
PLAN = MemoryPlan(weights=100 * MIB, lanes=20 * MIB, queue=3 * MIB, messages=4 * MIB)


@pytest.fixture
def graphs(tmp_path: Path) -> list[Graph]:
    (tmp_path / "encoder.onnx").write_bytes(b"e" * 100)
    (tmp_path / "attention.onnx").write_bytes(b"a" * 10)
    (tmp_path / "weights.bin").write_bytes(b"w" * 1000)
    return [
        Graph(tmp_path / "encoder.onnx", "fp32", "fused", 1.0, ("weights.bin",)),
        Graph(tmp_path / "attention.onnx", "fp32", "attention", 1.0, ("weights.bin",)),
    ]


def plan(graphs: list[Graph], **changes: Any) -> MemoryPlan:
    limits: dict[str, Any] = {
        "lanes": 2,
        "max_batch_tokens": 512,
        "max_batch_cells": 1 << 16,
        "max_queued_tokens": 1 << 20,
        "max_message_bytes": MIB,
        **changes,
    }
    return plan_memory(build_artifact(), graphs, **limits)


class TestPlan:
    def test_weights_that_graphs_share_count_once(self, graphs: list[Graph]) -> None:
        one, both = plan(graphs[:1]).weights, plan(graphs).weights
        assert one % 1100 == 0
        assert both - one == one // 1100 * 10

    def test_a_missing_file_is_left_to_who_loads_it(self, graphs: list[Graph]) -> None:
        graphs[0].path.unlink()
        assert plan(graphs[:1]).weights % 1000 == 0

    @pytest.mark.parametrize(
        ("setting", "part"),
        [("max_batch_tokens", "lanes"), ("max_queued_tokens", "queue"), ("max_message_bytes", "messages")],
    )
    def test_each_limit_has_its_part(self, graphs: list[Graph], setting: str, part: str) -> None:
        small, large = (plan(graphs[:1], **{setting: size}) for size in (1 << 12, 1 << 13))
        assert getattr(large, part) == 2 * getattr(small, part)
        assert replace(large, **{part: 0}) == replace(small, **{part: 0})

    def test_lanes_multiply(self, graphs: list[Graph]) -> None:
        assert plan(graphs, lanes=4).lanes == 2 * plan(graphs, lanes=2).lanes

    def test_a_lane_holds_at_least_its_arrays(self, graphs: list[Graph]) -> None:
        """512 tokens in rows of 64: activations and the scores of 2 heads, in float32."""
        assert plan(graphs[:1], lanes=1).lanes >= 4 * (512 * 16 + 512 * 64 * 2)

    def test_a_lone_text_of_full_length_counts_when_the_budget_is_smaller(self, graphs: list[Graph]) -> None:
        assert plan(graphs[:1], max_batch_tokens=1).lanes == plan(graphs[:1], max_batch_tokens=64).lanes

    def test_maps_count_only_where_they_are_served(self, graphs: list[Graph]) -> None:
        assert plan(graphs).lanes > plan(graphs[:1]).lanes
        assert plan(graphs, max_batch_cells=1 << 20).lanes > plan(graphs).lanes

    def test_a_gpus_batches_are_not_in_this_memory(self, graphs: list[Graph]) -> None:
        assert plan(graphs, on_gpu=True).lanes == 0

    def test_the_total_is_more_than_its_parts(self) -> None:
        assert PLAN.total > 127 * MIB


class TestCheck:
    def test_what_fits(self) -> None:
        check_memory(PLAN, PLAN.total)
        check_memory(PLAN, None)

    def test_what_does_not_fit_is_refused_with_its_parts(self) -> None:
        with pytest.raises(StartError) as error:
            check_memory(PLAN, PLAN.total - 1)
        for number in (PLAN.total, PLAN.total - 1, PLAN.weights, PLAN.lanes, PLAN.queue, PLAN.messages):
            assert str(number) in str(error.value)


class TestLimit:
    def read(self, root: Path, own: str = "0::/\n") -> int | None:
        (root / "own").write_text(own)
        return read_memory_limit(root, root / "own")

    @pytest.mark.parametrize(
        ("name", "content", "limit"),
        [
            ("memory.max", "max\n", None),
            ("memory.max", "2147483648\n", 2 << 30),
            ("memory/memory.limit_in_bytes", "1073741824\n", 1 << 30),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
            ("memory.max", "much", None),
        ],
    )
    def test_of_either_version(self, tmp_path: Path, name: str, content: str, limit: int | None) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        assert self.read(tmp_path) == limit

    def test_none(self, tmp_path: Path) -> None:
        assert self.read(tmp_path) is None

    def test_the_smallest_on_the_way_up(self, tmp_path: Path) -> None:
        pod = tmp_path / "kubepods" / "pod"
        pod.mkdir(parents=True)
        (pod / "memory.max").write_text("3000")
        (pod.parent / "memory.max").write_text("2000")
        (tmp_path / "memory.max").write_text("max")
        assert self.read(tmp_path, "0::/kubepods/pod\n") == 2000
