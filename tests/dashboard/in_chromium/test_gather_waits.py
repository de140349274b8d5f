"""The strip of waits on the ZeRO-3 page, in a real browser: a click on a cell chooses its rank and step."""

from __future__ import annotations

from browsing.browser import rerun, visit
from playwright.sync_api import Page


def test_a_cell_chooses_its_rank_and_step(page: Page, address: str) -> None:
    visit(page, address, "zero3", query="run=ahead&rank=0&step=3")
    page.get_by_text("Rank 0, step 3:").wait_for()
    cells = page.locator(".st-key-gather_waits .mark-rect path")
    assert cells.count() == 4  # two ranks, two steps
    with rerun(page):
        cells.nth(3).click()
    page.get_by_text("Rank 1, step 4:").wait_for()
    assert "rank=1&step=4" in page.url
