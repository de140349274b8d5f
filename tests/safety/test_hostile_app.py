"""A stranger's strings in the app, in a real browser: they appear as text on every page, and nothing runs,
is fetched or becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from browsing.app_page import PAGES
from browsing.browser import rerun, settle, visit, wait_until, watch_of, watched
from hostile.traces import EVIL, FOLDERS, PAYLOADS, markup_of
from playwright.sync_api import Browser, Page

from overlaplab import load_run

HITS = "document.querySelector('[data-testid^=stBidiComponent]').shadowRoot.querySelector('.hits').textContent"
GUTTER = 150  # of timeline.js: where the lanes begin, in pixels


@pytest.fixture(scope="module")
def shown(browser: Browser, app_address: str) -> Iterator[Page]:
    """One page of the app for all tests here."""
    with watched(browser) as page:
        page.goto(app_address)
        settle(page)
        yield page


def choose(page: Page, kind: str) -> None:
    """Choose a run in the side bar by its place in the list, which is sorted: its name is hostile."""
    page.locator(".st-key-run_picker input").click()
    page.wait_for_selector("[role=option]")
    assert markup_of(page) == []
    option = page.locator("[role=option]").nth(sorted(FOLDERS.values()).index(FOLDERS[kind]))
    if option.get_attribute("aria-selected") == "true":
        page.keyboard.press("Escape")
        return
    with rerun(page):
        option.click()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in FOLDERS for name in PAGES if name != "compare" or kind == "engine"],  # that shows all
)
def test_strings_are_text_on_every_page(shown: Page, app_address: str, kind: str, name: str) -> None:
    visit(shown, app_address, name)
    if name != "compare":
        choose(shown, kind)
    assert markup_of(shown) == []
    watch_of(shown).check()


def test_the_manifests_words_stand_there_as_they_are(shown: Page, app_address: str) -> None:
    visit(shown, app_address, "summary")
    choose(shown, "engine")
    assert shown.get_by_text("![md](http://").first.is_visible()


def test_tooltips_of_charts_are_text(shown: Page, app_address: str) -> None:
    """Hover over marks of each chart."""
    seen: set[str] = set()
    for name in ("summary", "buckets", "zero3", "collectives"):
        visit(shown, app_address, name)
        choose(shown, "engine")
        marks = shown.locator("[data-testid=stVegaLiteChart] svg").locator(".mark-rect path, .mark-symbol path").all()
        for mark in marks[:: max(1, len(marks) // 15)]:
            box = mark.bounding_box()
            if box is None or box["y"] > 1390:
                continue
            shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            tip = shown.locator("#vg-tooltip-element.visible")
            if tip.count():
                seen.add(tip.inner_text())
        assert markup_of(shown) == []
    watch_of(shown).check()
    assert any("md.png" in text or "pwned" in text for text in seen), seen


def test_the_timeline_s_canvas_tells_names_as_text(shown: Page, app_address: str, strangers: Path) -> None:
    """In hits of its search, in what stands beside the mouse, and in what is told of a clicked event."""
    visit(shown, app_address, "timeline")
    choose(shown, "gpu")
    shown.wait_for_selector(".timeline:not([data-painted='0'])")
    box = shown.locator(".stage").bounding_box()
    assert box is not None
    search = shown.locator(".search input")
    told = ""
    for text in ("script", "img", "javascript", "hot"):
        search.fill(text)
        search.press("Enter")
        shown.wait_for_function(f"{HITS}.length > 0")
        assert markup_of(shown) == []
        start, end = (int(edge) for edge in (shown.locator(".timeline").get_attribute("data-window") or "").split(","))
        share = (300_000 * list(PAYLOADS).index("directive") + 55_000 - start) / (end - start)  # amid that kernel
        across = box["x"] + GUTTER + share * (box["width"] - GUTTER)
        for row in range(12):
            shown.mouse.move(across, box["y"] + 30 + row * (box["height"] - 40) / 12)
            told += shown.locator(".tip").inner_text()
    assert ":material/bug_report: $e^{x}$" in told
    assert "\u202e" not in told
    events = load_run(strangers / FOLDERS["gpu"]).traces[0].events
    kernel = events["name"].astype(str).str.startswith("sgemm<img").to_numpy().argmax()
    visit(shown, app_address, "timeline", query=f"run={quote(FOLDERS['gpu'])}&event=0-{kernel}")
    shown.wait_for_selector(".timeline:not([data-painted='0'])")
    shown.get_by_text("sgemm<img").first.wait_for(state="attached")  # a table's cell, for screen readers
    assert markup_of(shown) == []
    watch_of(shown).check()


def test_what_would_happen_is_noticed(browser: Browser) -> None:
    """The same attacks in a page that falls for them."""
    with watched(browser) as page:
        page.set_content("".join(PAYLOADS[kind] for kind in ("image", "frame", "script", "entity")))
        page.wait_for_function("document.querySelector('img') && document.images[0].complete")
        watch = watch_of(page)
        wait_until(page, lambda: len(watch.executed) >= 3 and f"http://{EVIL}/i.png" in watch.foreign)
        assert len(watch.executed) >= 3
        assert f"http://{EVIL}/i.png" in watch.foreign
        markup = " ".join(markup_of(page))
        assert all(word in markup for word in ("onerror=", "onload=", "srcdoc=", "B of markup", "href=//evil"))
        for seen in (watch.executed, watch.foreign, watch.errors):
            seen.clear()
