"""Sphinx's settings. `make docs` builds the site into site/, without a network.

Its pages are the repository's Markdown files where they lie, so their links hold in a checkout and on the site alike.
"""

from __future__ import annotations

import gc
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = html_title = "overlaplab"
release = importlib.metadata.version("overlaplab")
copyright = "the authors of overlaplab"
extensions = ["myst_parser", "sphinx.ext.autodoc"]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "traces/README.md", "benchmarks/README.md"]
exclude_patterns = [".*", "build", "dist", "results", "runs", "site", "traces/[!R]*"]

html_theme = "furo"  # it has no fonts to load
html_extra_path = ["site_root"]
html_copy_source = False

smartquotes = False  # "--json" is two hyphens
default_role = "code"  # docstrings put names into single backticks
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
nitpick_ignore = [("myst", folder) for folder in ("examples", "../engine/overlaplab_engine/strategies")]
"""Links to folders of the repository: on the site, which has files alone, they are text."""

COMMANDS = {"overlaplab": "overlaplab.cli", "overlaplab record": "overlaplab_engine.cli"}
"""The command line: by the name that users type, the module of its typer app."""


def _help(name: str, module: str) -> str:
    line = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
    text = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return re.sub("^#", "##", text, flags=re.MULTILINE)


def _add_commands(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append what the commands say of themselves to the page about them."""
    if docname == "docs/reference/commands":
        source[0] = "\n".join([source[0], *(_help(name, module) for name, module in COMMANDS.items())])


def setup(app: Sphinx) -> None:
    """Register what Sphinx has no setting for."""
    gc.disable()  # a build keeps its pages until it ends; looking for garbage among them took a fifth of its time
    app.connect("source-read", _add_commands)
