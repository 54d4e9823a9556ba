"""What a benchmark has to say, as Markdown and JSON: tables and checks. Knows nothing of measuring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.measure import Sample

Cell = str | float | Sample


@dataclass(frozen=True)
class Plot:
    """How a table is drawn: columns by their names."""

    kind: Literal["bar", "line"]
    x: str
    y: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    notes: tuple[str, ...] = ()
    plot: Plot | None = None

    def column(self, name: str) -> list[Cell]:
        place = self.columns.index(name)
        return [row[place] for row in self.rows]


@dataclass(frozen=True)
class Check:
    """A figure that must be reached."""

    what: str
    value: float
    limit: float
    sense: Literal["at least", "at most"]
    unit: str = ""

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit


@dataclass
class Section:
    name: str
    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    machine: dict[str, str]
    sections: list[Section]

    def write(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(self.markdown())
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    def markdown(self) -> str:
        parts = ["| machine | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in self.machine.items())]
        parts += [section_markdown(section) for section in self.sections]
        return "\n\n".join(parts) + "\n"


def section_markdown(section: Section) -> str:
    parts = [f"## {section.name}", *map(_table_markdown, section.tables)]
    if section.checks:
        parts.append(_checks_markdown(section.checks))
    return "\n\n".join(parts)


def _table_markdown(table: Table) -> str:
    head = [f"### {table.title}", "", _row(table.columns), _row(["---"] * len(table.columns))]
    rows = [_row([_cell(value) for value in row]) for row in table.rows]
    notes = ["", *table.notes] if table.notes else []
    return "\n".join([*head, *rows, *notes])


def _checks_markdown(checks: Sequence[Check]) -> str:
    rows = [
        _row([check.what, f"{check.sense} {_number(check.limit)}{check.unit}", _outcome(check)])
        for check in checks
    ]
    return "\n".join([_row(["to reach", "limit", "measured"]), _row(["---"] * 3), *rows])


def _outcome(check: Check) -> str:
    return f"{_number(check.value)}{check.unit} ({'reached' if check.reached else 'missed'})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if isinstance(value, Sample):
        return f"{_number(value.median)} ± {100 * value.spread:.0f} %"
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    """Three digits, and all digits before the point."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{max(0, 2 if abs(value) >= 1 else 3)}f}" if abs(value) < 10 else f"{value:.1f}"
