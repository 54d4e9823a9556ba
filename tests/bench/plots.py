"""Draws the tables that say how, all in one figure."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from bench.measure import Sample
from bench.report import Cell, Section, Table

_PANEL_INCHES = (8.0, 4.5)
_LABEL_CHARACTERS = 28


def draw(sections: list[Section], path: Path) -> None:
    tables = [table for section in sections for table in section.tables if table.plot]
    if not tables:
        return
    width, height = _PANEL_INCHES
    figure, panels = plt.subplots(len(tables), figsize=(width, height * len(tables)), squeeze=False)
    for table, axes in zip(tables, panels[:, 0], strict=True):
        _draw_table(table, axes)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _draw_table(table: Table, axes: Any) -> None:
    plot = table.plot
    assert plot is not None
    labels = [fill(str(value), _LABEL_CHARACTERS) for value in table.column(plot.x)]
    for name in plot.y:
        cells = table.column(name)
        values, errors = [_value(cell) for cell in cells], [_error(cell) for cell in cells]
        if plot.kind == "bar":
            axes.barh(labels, values, xerr=errors, label=name)
        else:
            axes.errorbar(labels, values, yerr=errors, marker="o", capsize=3, label=name)
    if plot.kind == "bar":
        axes.invert_yaxis()
        axes.set_xlabel(", ".join(plot.y))
    else:
        axes.set_xlabel(plot.x)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    axes.set_title(table.title, fontsize="medium")


def _value(cell: Cell) -> float:
    return cell.median if isinstance(cell, Sample) else float(cell)


def _error(cell: Cell) -> float:
    return cell.median * cell.spread if isinstance(cell, Sample) else 0.0
