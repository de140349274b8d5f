"""Notebooks, docs and examples import what is public: names of a package's `__all__`, never a module's."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import overlaplab

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "overlaplab",
    "overlaplab.analyses",
    "overlaplab.charts",
    "overlaplab.costs",
    "overlaplab.integrations",
    "overlaplab.simulate.predictions",
    "overlaplab_engine",
}
MODULES = {"overlaplab.hta", "overlaplab.intervals"}
"""Modules that a page of the documentation is about."""
FROM_ENGINE = {"Recorder", "trace_handler", "watch"}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DESIGN = ROOT / "docs" / "design"
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if DESIGN not in path.parents]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]


def sources(path: Path) -> Iterator[str]:
    """The Python in a notebook, a page or a script."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    elif path.suffix == ".md":
        yield from (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    else:
        yield text


def private_names(source: str) -> Iterator[str]:
    """What it imports of overlaplab, or asks `overlaplab`, `charts` and the like for, and no `__all__` has."""
    packages: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in ("overlaplab", "overlaplab_engine"):
                    packages[alias.asname or alias.name.split(".")[0]] = (alias.asname and alias.name) or "overlaplab"
                    if alias.name not in PACKAGES | MODULES:
                        yield alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in PACKAGES | MODULES:
                    packages[alias.asname or alias.name] = whole
                elif not is_public(str(node.module), alias.name):
                    yield whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            package = packages[node.value.id]
            if f"{package}.{node.attr}" not in PACKAGES | MODULES and not is_public(package, node.attr):
                yield f"{package}.{node.attr}"


def is_public(package: str, name: str) -> bool:
    if package in MODULES:
        return not name.startswith("_") and hasattr(import_module(package), name)
    if package not in PACKAGES:
        return False
    module = import_module(package)
    return name in getattr(module, "__all__", dir(module)) or (package == "overlaplab" and name in FROM_ENGINE)


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES, *READMES], ids=lambda path: path.name)
def test_readers_are_shown_public_names_alone(path: Path) -> None:
    for source in sources(path):
        try:
            ast.parse(source)
        except SyntaxError:
            continue  # a part of a script, with … in it
        assert [*private_names(source)] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from overlaplab import charts, findings", ["overlaplab.findings"]),
        ("from overlaplab.sections.run_tables import RunTables", ["overlaplab.sections.run_tables.RunTables"]),
        ("import overlaplab\noverlaplab.findings.verdict", ["overlaplab.findings"]),
        ("from overlaplab import charts\ncharts.theme", ["overlaplab.charts.theme"]),
        ("from overlaplab import charts, load_run\nfrom overlaplab.analyses import hops\ncharts.summary", []),
    ],
)
def test_what_is_private(source: str, names: list[str]) -> None:
    assert [*private_names(source)] == names


def test_the_packages_names_are_what_users_may_call() -> None:
    shown = {name for name in dir(overlaplab) if not name.startswith("__")}
    assert shown == {*overlaplab.__all__, *FROM_ENGINE}
