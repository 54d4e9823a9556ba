"""Writes the README's tables of settings and metrics from the code, or checks that they are up to date."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from service.config import ServeSettings, flag_of
from service.metrics import Metrics

README = Path(__file__).parents[2] / "README.md"


def settings_table() -> str:
    rows = (
        (f"`{flag_of(name)}`", _default(field), _description(field))
        for name, field in ServeSettings.model_fields.items()
    )
    return _table(("flag", "default", "what it sets"), rows)


def metrics_table() -> str:
    rows = (_metric_row(name, metric) for name, metric in vars(Metrics()).items() if name != "registry")
    return _table(("metric", "type", "labels", "what it counts"), rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def _description(field: FieldInfo) -> str:
    choices = " ".join(f"`{choice}`" for choice in _choices(field.annotation))
    return f"{field.description}; one of {choices}" if choices else str(field.description)


def _choices(annotation: Any) -> tuple[str, ...]:
    values = get_args(annotation) if get_origin(annotation) is Literal else ()
    return values if len(values) > 1 else ()


def _metric_row(name: str, metric: MetricWrapperBase) -> tuple[str, ...]:
    (family,) = metric.describe()
    return f"`seqenc_{name}`", family.type, ", ".join(metric._labelnames), family.documentation


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES = {"settings": settings_table, "metrics": metrics_table}


def with_tables(readme: str) -> str:
    """The text with the part between each `<!-- name -->` and `<!-- /name -->` made anew."""
    for name, build in TABLES.items():
        part = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not part.search(readme):
            raise SystemExit(f"README.md has no <!-- {name} --> ... <!-- /{name} -->")
        readme = part.sub(rf"\g<1>{build()}\n\g<2>", readme)
    return readme


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    committed = README.read_text()
    if parser.parse_args().write:
        README.write_text(with_tables(committed))
        return 0
    if committed != with_tables(committed):
        print("README.md's tables are not what the code says; run `make docs` and commit it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
