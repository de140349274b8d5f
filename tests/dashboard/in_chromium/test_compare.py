"""The Compare page of a sweep in a real browser."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from browsing.browser import choose_row, rerun, settle, visit
from playwright.sync_api import Page, expect

from overlaplab.charts.theme import LIGHT

ROWS = """([number, colour]) => {
  const chart = document.querySelectorAll('[data-testid=stVegaLiteChart]')[number];
  const top = chart.getBoundingClientRect().top;
  const canvas = chart.querySelector('canvas');
  if (canvas === null) {
    const marks = [...chart.querySelectorAll(`svg .mark-rect path[fill="${colour}"]`)];
    return marks.map((mark) => mark.getBoundingClientRect()).filter((box) => box.height > 12)
      .map((box) => Math.round(box.top - top + box.height / 2));
  }
  const scale = canvas.height / canvas.clientHeight;
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const wanted = parseInt(colour.slice(1), 16), rows = [];
  let run = 0;
  for (let y = 0; y < canvas.height; y += 1) {
    let seen = false;
    for (let x = 0; x < canvas.width && !seen; x += 1) {
      const at = 4 * (y * canvas.width + x);
      seen = ((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]) === wanted;
    }
    if (seen) run += 1;
    if (!seen && run > 12 * scale) rows.push(Math.round((y - run / 2) / scale));
    if (!seen) run = 0;
  }
  return rows;
}"""


def test_a_sweep_stands_side_by_side_in_rows_of_the_same_height(page: Page, address: str) -> None:
    visit(page, address, "compare", "sweep/cap-5")
    expect(page.get_by_text("No clear difference: bucket_cap_mb 5 has")).to_be_visible()
    expect(page.get_by_text("emulated link 1Gbps,200us").first).to_be_visible()
    charts = page.get_by_test_id("stVegaLiteChart")
    expect(charts).to_have_count(2)
    left, right = (charts.nth(number).bounding_box() for number in (0, 1))
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == pytest.approx(right["y"], abs=1)
    by_cap, on_link = (sorted(set(page.evaluate(ROWS, [number, LIGHT.exposed]))) for number in (0, 1))
    assert len(by_cap) == len(on_link) == 2
    assert by_cap == pytest.approx(on_link, abs=2)


def test_without_a_second_cap_it_is_no_sweep(page: Page, address: str) -> None:
    visit(page, address, "compare", "sweep/cap-5")
    with rerun(page):
        page.locator(".st-key-compared").get_by_role("button", name="Remove sweep/cap-25").or_(
            page.locator(".st-key-compared [data-baseweb=tag]", has_text="sweep/cap-25").locator("[role=presentation]")
        ).first.click()
    expect(page.get_by_text("Record more steps or repeat the runs before choosing")).to_be_visible()
    expect(page.get_by_role("heading", name="Medians over all ranks' steps")).to_be_visible()
    expect(page.get_by_role("heading", name="By bucket_cap_mb")).to_have_count(0)


@pytest.mark.slow
def test_a_cap_leads_to_its_step_on_the_timeline(page: Page, address: str) -> None:
    visit(page, address, "compare", query="run=sweep/cap-5")
    with rerun(page):
        choose_row(page, "caps_table", 1)
    page.wait_for_url("**/timeline?**")
    settle(page)
    found = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    wanted = {"run": "sweep/cap-25", "from": "0", "to": "1000000"}  # all steps take 1000 µs: the first one
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("width", [800, pytest.param(1280, marks=pytest.mark.slow)])
def test_no_chart_of_a_sweep_is_cut(page: Page, address: str, width: int) -> None:
    """Where two have no room side by side, one stands above the other."""
    page.set_viewport_size({"width": width, "height": 900})
    visit(page, address, "compare", query="run=sweep/cap-5")
    boxes = [chart.bounding_box() for chart in page.get_by_test_id("stVegaLiteChart").all()]
    first, second = (box for box in boxes if box is not None)
    assert (first["y"] < second["y"]) is (width == 800)
    assert min(first["width"], second["width"]) >= 380
    assert max(box["x"] + box["width"] for box in (first, second)) <= width
