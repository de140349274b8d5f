"""The documentation's site: it builds without a warning, says what the code says, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import overlaplab
from overlaplab import charts

ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"""(?:src=|<link\b[^>]*?href=|@import |url\()["']?((?:https?:)?//[^"')\s]+)""")
"""What a browser fetches as it opens a page, if it is on another host."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds."""
    out = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "sphinx", "-c", "docs", "--fail-on-warning", "--quiet", ".", str(out)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_its_pages_load_nothing_from_elsewhere(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css")]
    assert len(files) > 20
    assert {file.name: found for file in files if (found := LOADED.findall(file.read_text()))} == {}


def test_its_first_page_leads_on(site: Path) -> None:
    (target,) = re.findall(r"url=([^\"]+)", (site / "index.html").read_text())
    assert (site / target).exists()


def test_the_reference_has_every_command_and_name(site: Path) -> None:
    commands = (site / "docs" / "reference" / "commands.html").read_text()
    for name in ("summary", "sweep", "record", "app"):
        assert f'id="overlaplab-{name}"' in commands, name
    assert "--bucket-cap-mb" in commands
    python = (site / "docs" / "reference" / "python.html").read_text()
    names = [
        *(f"overlaplab.{name}" for name in overlaplab.__all__),
        *(f"overlaplab.charts.{n}" for n in charts.__all__),
    ]
    assert [name for name in ["overlaplab.Recorder", *names] if f'id="{name}"' not in python] == []
