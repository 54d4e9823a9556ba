"""Usable cores from affinity and from cgroup files of either version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.core.cores import count_usable_cores

AFFINITY = 8


@pytest.fixture(autouse=True)
def _affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(AFFINITY)))


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def write_v1(folder: Path, quota: int, period: int = 100_000) -> None:
    write(folder / "cpu.cfs_quota_us", f"{quota}\n")
    write(folder / "cpu.cfs_period_us", f"{period}\n")


class Machine:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.process_cgroups = folder / "proc_self_cgroup"
        write(self.process_cgroups, "0::/\n")

    @property
    def cores(self) -> int:
        return count_usable_cores(self.root, self.process_cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("150000 100000", 1),
        ("400000 100000", 4),
        ("50000 100000", 1),
        ("399999 100000", 3),
        ("2400000 100000", AFFINITY),
        ("max 100000", AFFINITY),
        ("200000 50000", 4),
    ],
)
def test_quota_of_version_2_is_rounded_down(machine: Machine, cpu_max: str, cores: int) -> None:
    write(machine.root / "cpu.max", f"{cpu_max}\n")
    assert machine.cores == cores


@pytest.mark.parametrize(
    ("quota", "cores"), [(-1, AFFINITY), (0, AFFINITY), (50_000, 1), (250_000, 2), (1_600_000, AFFINITY)]
)
@pytest.mark.parametrize("controller", ["cpu", "cpu,cpuacct"])
def test_quota_of_version_1(machine: Machine, controller: str, quota: int, cores: int) -> None:
    write_v1(machine.root / controller, quota)
    assert machine.cores == cores


def test_without_any_file_affinity_decides(machine: Machine) -> None:
    machine.process_cgroups.unlink()
    assert machine.cores == AFFINITY


@pytest.mark.parametrize("allowed", [1, 2])
def test_affinity_smaller_than_the_quota_decides(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    write(machine.root / "cpu.max", "400000 100000")
    assert machine.cores == allowed


@pytest.mark.parametrize(
    ("own", "parent", "cores"),
    [("max 100000", "300000 100000", 3), ("200000 100000", "600000 100000", 2), ("500000 100000", "max", 5)],
)
def test_the_smallest_quota_on_the_way_up_binds(machine: Machine, own: str, parent: str, cores: int) -> None:
    write(machine.process_cgroups, "0::/kubepods.slice/pod1\n")
    write(machine.root / "kubepods.slice" / "pod1" / "cpu.max", own)
    write(machine.root / "kubepods.slice" / "cpu.max", parent)
    assert machine.cores == cores


def test_the_process_own_group_in_version_1(machine: Machine) -> None:
    write(machine.process_cgroups, "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n")
    write_v1(machine.root / "cpu,cpuacct" / "docker" / "abc", 300_000)
    write_v1(machine.root / "memory" / "docker" / "abc", 100_000)
    assert machine.cores == 3


def test_a_neighbours_quota_does_not_bind(machine: Machine) -> None:
    write(machine.process_cgroups, "0::/mine\n")
    write(machine.root / "other" / "cpu.max", "100000 100000")
    assert machine.cores == AFFINITY


@pytest.mark.parametrize("content", ["", "max", "many 100000", "100000 0", "\xff"])
def test_a_file_that_makes_no_sense_sets_no_limit(machine: Machine, content: str) -> None:
    write(machine.root / "cpu.max", content)
    assert machine.cores == AFFINITY


def test_of_this_machine() -> None:
    assert 1 <= count_usable_cores() <= AFFINITY
