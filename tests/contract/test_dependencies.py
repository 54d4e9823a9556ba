"""What is imported is declared: whoever installs a part with its extras can run it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = {"model", "service", "seqenc", "seqenc_process"}
EVERY_EXTRA = ("cpu", "openvino", "export", "job", "ray", "otel", "dev")
# Run in environments with requirements of their own.
ELSEWHERE = {"bench", "tritonclient_probe.py"}
# What the users of each folder leave out of the root's extras; the client has a pyproject.toml of its own.
LEFT_OUT = {
    "client": set[str](),
    "model": {"gpu", "openvino", "job", "ray", "otel", "dev"},
    "service": {"export", "dev"},
    "tests": set[str](),
}


@pytest.mark.parametrize("folder", LEFT_OUT)
def test_imports_are_declared(folder: str) -> None:
    declared = set(_declared(folder))
    owners = packages_distributions()
    assert {
        name
        for name in _imported(ROOT / folder)
        if declared.isdisjoint(map(_normal, owners.get(name, []))) and not _is_named_after(name, declared)
    } == set()


def _declared(folder: str) -> Iterator[str]:
    """Normalised names of the distributions that the folder's users install."""
    pyproject = ROOT / ("client" if folder == "client" else "") / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = {"": project["dependencies"], **project.get("optional-dependencies", {})}
    for extra in groups.keys() - LEFT_OUT[folder]:
        yield from (_normal(re.split(r"[\[<>=;! ]", line)[0]) for line in groups[extra])


def _is_named_after(module: str, distributions: set[str]) -> bool:
    """For what is not installed here, so that nothing else tells which distribution has the module."""
    return any(f"{name}-".startswith(f"{_normal(module)}-") for name in distributions)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(folder: Path) -> Iterator[str]:
    """Top-level names that the folder's modules import from elsewhere."""
    own = OWN | {path.stem for path in (ROOT / "tests").iterdir()} | {"tests"}
    for path in folder.rglob("*.py"):
        if ELSEWHERE.intersection(path.relative_to(folder).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _names(node):
                if name not in own | sys.stdlib_module_names:
                    yield name


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.split(".")[0]
