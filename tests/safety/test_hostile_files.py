"""A stranger's strings in files that people mail and publish: the report, opened from disk, a notebook converted to
HTML, and charts that Altair saves. What a browser shows of them is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import altair as alt
import nbformat
import pandas as pd
import pytest
from browsing.browser import Watch, watch_of, watched
from hostile.traces import FOLDERS, PAYLOADS, TEXTS, markup_of
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page

from overlaplab import analyses, charts, load_run
from overlaplab.report.page import report_page
from overlaplab.selection import Selection

CELLS = [
    "import overlaplab, pathlib\nfrom overlaplab import charts\n"
    "runs = {run: overlaplab.load_run(pathlib.Path(FOLDER) / run) for run in RUNS}\nfirst = runs[RUNS[0]]",
    "charts.draw_offline()",
    "overlaplab.buckets(first)",
    "overlaplab.schedule(first)",
    "overlaplab.collectives(runs[RUNS[1]])",
    "overlaplab.exposed(runs[RUNS[1]])",
    "overlaplab.compare(list(runs.values()))",
    "charts.buckets(overlaplab.buckets(first, overlaplab.Selection(ranks=[0])))",
    "charts.schedule(overlaplab.schedule(first, overlaplab.Selection(ranks=[0])))",
    "first.manifest",
    "first.traces[0].events.tail(60)",
]
"""What people look at in a notebook."""
CDN = "https://cdn.jsdelivr.net/"
"""Where Altair's own HTML looks for Vega, unless it is told otherwise."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A watched page, in the dark for a change."""
    with watched(browser, color_scheme="dark") as found:
        yield found


@pytest.fixture(scope="module")
def report(strangers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page([load_run(strangers / FOLDERS[kind]) for kind in ("engine", "gpu")]))
    return file


def test_the_report_shows_text(page: Page, report: Path) -> None:
    page.goto(report.as_uri())
    page.locator("canvas, svg.marks").nth(3).wait_for()
    assert markup_of(page) == []
    words = page.locator("body").inner_text()
    assert "![md](http:" in words
    assert "\u202e" not in words
    for chart in page.locator("svg.marks").all()[:12]:
        chart.scroll_into_view_if_needed()
        for mark in chart.locator(".mark-rect path, .mark-symbol path").all()[:6]:
            if mark.is_visible():
                mark.hover(force=True)
    assert markup_of(page) == []


def test_the_report_s_policy_stops_script_that_gets_in_all_the_same(page: Page, report: Path, tmp_path: Path) -> None:
    text = report.read_text()
    before, end, after = text.rpartition("</body>")
    broken = f"{before}{PAYLOADS['script']}{PAYLOADS['image']}{end}{after}"
    file = tmp_path / "broken.html"
    file.write_text(broken)
    page.goto(file.as_uri())
    page.locator("canvas, svg.marks").nth(3).wait_for()
    watch = watch_of(page)
    assert watch.executed == []
    assert all("Content Security Policy" in error for error in watch.errors)
    assert watch.errors
    watch.errors.clear()
    watch.foreign.clear()


@pytest.fixture(scope="module")
def notebook(strangers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook on these runs, executed from a fresh kernel and converted to HTML."""
    names = [FOLDERS["engine"], FOLDERS["gpu"]]
    start = f"FOLDER, RUNS = {str(strangers)!r}, {json.dumps(names)}"
    told = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (start, *CELLS)])
    NotebookClient(told, timeout=600).execute()
    # Converted pages of any notebook fetch MathJax and RequireJS: not these.
    body, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(told)
    file = tmp_path_factory.mktemp("notebook") / "notebook.html"
    file.write_text(body)
    return file


@pytest.mark.slow
def test_the_notebook_shows_text(page: Page, notebook: Path) -> None:
    page.goto(notebook.as_uri())
    assert page.locator("table").count() >= 5
    assert page.locator("img").count() == 2
    assert markup_of(page) == []
    assert "![md](http:" in page.locator("body").inner_text()


@pytest.mark.parametrize("drawn", ["saved", "shown"])
def test_altairs_own_html_shows_text(page: Page, strangers: Path, tmp_path: Path, drawn: str) -> None:
    """Also where nobody has called `draw_offline`: in a file, and as a notebook's output."""
    chart = charts.buckets(analyses.buckets(load_run(strangers / FOLDERS["engine"]), Selection(ranks=[0])))
    found = fallen_for(page, tmp_path, chart, drawn)
    assert found.executed == []
    assert all(url.startswith(CDN) for url in found.foreign)  # it asks for Vega, in vain


def test_the_payloads_would_run_in_altairs_html(page: Page, tmp_path: Path) -> None:
    """What the test above tests against: Altair alone falls for it."""
    names = pd.DataFrame({"name": [text for text in TEXTS if text != PAYLOADS["surrogate"]]})
    found = fallen_for(page, tmp_path, alt.Chart(names).mark_bar().encode(y="name"), "saved")
    assert found.executed


def fallen_for(page: Page, folder: Path, chart: alt.LayerChart | alt.Chart, drawn: str) -> Watch:
    """What a chart's HTML does in the browser, and nothing is held against it."""
    file = folder / "chart.html"
    if drawn == "saved":
        chart.save(file)
    else:
        file.write_text(f"<!doctype html><body>{chart._repr_mimebundle_()['text/html']}")
    page.goto(file.as_uri())
    watch = watch_of(page)
    found = deepcopy(watch)
    for seen in (watch.executed, watch.foreign, watch.errors):
        seen.clear()
    if not found.executed:
        assert markup_of(page) == []
    return found
