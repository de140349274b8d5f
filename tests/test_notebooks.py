"""The notebooks: executed anew, they give the committed outputs, and these can be displayed."""

from __future__ import annotations

import base64
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from loaded_script import script
from ranks.warm_ranks import run_launcher
from samples import TRACES, sample_run

import overlaplab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


SCRIPT = script("scripts/notebooks.py")


def test_there_are_six() -> None:
    names = ["bucket_cap_mb", "course", "ddp_lessons", "what_if", "your_own_trace", "zero3_schedule"]
    assert [path.stem for path in NOTEBOOKS] == names


FIRST = [path for path in NOTEBOOKS if path.stem in ("bucket_cap_mb", "zero3_schedule")]
"""Those that `make test` executes."""
OTHERS = [path for path in NOTEBOOKS if path not in FIRST]


@cache
def executed(*paths: Path) -> dict[Path, nbformat.NotebookNode]:
    """All of them in one kernel."""
    return dict(zip(paths, SCRIPT.execute(paths, one_kernel=True), strict=True))


@pytest.mark.parametrize(
    ("paths", "path"),
    [
        *(pytest.param(FIRST, path, id=path.stem) for path in FIRST),
        *(pytest.param(OTHERS, path, id=path.stem, marks=pytest.mark.slow) for path in OTHERS),
    ],
)
def test_outputs_are_those_of_this_code(paths: list[Path], path: Path) -> None:
    """If this fails, run `make notebooks`, look at what has changed, and commit it."""
    assert SCRIPT.outputs(executed(*paths)[path]) == SCRIPT.outputs(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_pictures_that_show_anywhere(path: Path) -> None:
    """A viewer draws no Vega-Lite, and loads nothing: each chart is a PNG, too, with words for who does not see it."""
    text = path.read_text()
    assert SCRIPT.what_is_wrong(text) is None
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    pictures = 0
    for output in (output for cell in book.cells for output in cell.get("outputs", [])):
        assert output.output_type != "error"
        data = output.get("data", {})
        assert set(data) <= {"text/plain", "text/html", "image/png", "application/vnd.vegalite.v6+json"}
        assert "<script" not in str(data.get("text/html", ""))
        if "application/vnd.vegalite.v6+json" in data:
            assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
            assert output.metadata["image/png"]["alt"] == data["text/plain"]
            pictures += 1
    assert pictures >= 2
    assert "http://" not in text
    assert text.count("https://") == text.count('"$schema": "https://vega.github.io/schema/')


def test_what_must_not_be_committed(tmp_path: Path) -> None:
    assert "a folder of this machine" in (SCRIPT.what_is_wrong(f"saw {ROOT}/traces") or "")
    assert "bytes" in (SCRIPT.what_is_wrong("x" * 1_500_001) or "")


def test_a_change_of_figures_is_seen() -> None:
    book = nbformat.read(NOTEBOOKS[0], as_version=4)
    before = SCRIPT.outputs(book)
    chart = next(
        output.data["application/vnd.vegalite.v6+json"]
        for cell in book.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    row = next(row for row in max(chart["datasets"].values(), key=len) if row["begin"] > 1)
    row["begin"] += 1e-9
    assert SCRIPT.outputs(book) == before
    row["begin"] += 1
    assert SCRIPT.outputs(book) != before


def test_the_lessons_runs_are_those_of_their_script(tmp_path: Path) -> None:
    """Recorded anew they send the same, behind a link whose thread is none of the loop's."""
    done = run_launcher(str(ROOT / "notebooks" / "ddp_mistakes.py"), "--record", str(tmp_path), limit_s=300)
    assert done.code == 0, done.stderr
    columns = ["rank", "step", "kind", "count", "bytes"]
    folders = sorted((TRACES / "ddp-lessons").iterdir())
    assert [path.name for path in folders] == sorted(path.name for path in tmp_path.iterdir())
    for folder in folders:
        anew, kept = overlaplab.load_run(tmp_path / folder.name), sample_run(f"ddp-lessons/{folder.name}")
        sent = overlaplab.volume(anew)[columns]
        assert len(sent) >= 2
        assert sent.equals(overlaplab.volume(kept)[columns]), folder.name


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_show_in_a_browser_without_a_network(browser: Browser, tmp_path: Path, path: Path) -> None:
    """As nbconvert makes a page of it, whose own frame asks for MathJax in vain."""
    line = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--output-dir", str(tmp_path), str(path)]
    subprocess.run(line, check=True, capture_output=True)
    page = browser.new_page()
    page.goto((tmp_path / f"{path.stem}.html").as_uri(), wait_until="domcontentloaded")
    sizes = page.evaluate("[...document.images].map((image) => [image.complete, image.naturalWidth, image.alt])")
    page.close()
    assert len(sizes) == path.read_text().count('"image/png": "')
    assert all(complete and width > 400 and words for complete, width, words in sizes)
