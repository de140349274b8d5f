"""The browser's way back, in a real browser: one press per page, whatever was chosen on it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing.browser import choose_row, pick, rerun, settle, visit, watched
from playwright.sync_api import Browser, Page


def shown(page: Page) -> tuple[str, dict[str, str]]:
    """The page that the address names, and its query."""
    parts = urlsplit(page.url)
    return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}


def back(page: Page, title: str) -> None:
    page.go_back()
    page.get_by_role("heading", name=title, exact=True).wait_for()
    settle(page)


@pytest.fixture
def fresh(browser: Browser) -> Iterator[Page]:
    with watched(browser, fresh=True) as page:
        yield page


@pytest.mark.slow
def test_back_goes_back_one_page_per_press(fresh: Page, address: str) -> None:
    page = fresh
    before = page.evaluate("history.length")
    visit(page, address)
    visit(page, address, "buckets", "bucketed")
    pick(page, "one_rank_picker", "1")
    visit(page, address, "collectives")
    with rerun(page):
        choose_row(page, "collectives_table", 1)
    page.wait_for_url("**/timeline?**")
    settle(page)
    assert page.evaluate("history.length") == before + 4
    back(page, "Collectives")
    assert shown(page)[1]["run"] == "bucketed"
    back(page, "Buckets")
    assert shown(page) == ("/buckets", {"run": "bucketed", "rank": "1"})
    page.get_by_text("2 buckets of rank 1").wait_for()
    back(page, "Summary")
    page.go_forward()
    page.get_by_text("2 buckets of rank 1").wait_for()
    settle(page)
    for _ in range(2):
        page.go_back()
    page.wait_for_url("about:blank")
