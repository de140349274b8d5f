"""How every page looks, in a real browser: narrow windows cut nothing, text reads in both themes, charts have words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browsing.browser import app_on, settle, visit, wait_until, watched
from colours import contrast
from made.watched import eventful, with_recording
from playwright.sync_api import Browser, Page
from samples import TRACES

PAGES = (
    ("summary", "bucketed"),
    ("timeline", "bucketed"),
    ("buckets", "bucketed"),
    ("zero3", "ahead"),
    ("collectives", "bucketed"),
    ("compare", "sweep/cap-5"),
    ("compare", "ahead"),
    ("plan", "bucketed"),
)
"""Pages, and the run that each is shown of."""

CUT = """() => {
  const main = document.querySelector('[data-testid=stMain]');
  const found = main.scrollWidth > main.clientWidth + 1 ? ['the page scrolls sideways'] : [];
  const right = main.getBoundingClientRect().right;
  const table = '[data-testid=stDataFrame], [data-testid=stElementToolbar]';  // scrolls; floats
  for (const one of main.querySelectorAll('p, h1, h2, h3, button, a, canvas, img, svg, [data-testid=stText], dd, dt')) {
    if (one.closest(table) || !one.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const {left, right: end, width} = one.getBoundingClientRect();
    const name = `${one.tagName} ${(one.innerText ?? '').slice(0, 60)}`;
    if (width > 0 && (end > right + 1 || left < -1)) found.push(`${name}: beside the page`);
    if (one.innerText && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'visible') {
      found.push(`${name}: cut`);
    }
  }
  for (const chart of main.querySelectorAll('[data-testid=stVegaLiteChart]')) {
    const {left, right: end, top} = chart.getBoundingClientRect();
    for (const word of chart.querySelectorAll('svg text')) {
      const place = word.getBoundingClientRect();
      const text = word.textContent;
      if (place.width > 0 && (place.right > end + 1 || place.left < left - 2)) found.push(`${text}: beside its chart`);
      if (place.width > 0 && place.top < top - place.height / 2) found.push(`${text}: above its chart`);
    }
  }
  return found;
}"""

TEXTS = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, ground, share) => ground.map((value, at) => value + (top[at] - value) * top[3] * share);
  const hex = (tone) => '#' + tone.map((value) => Math.round(value).toString(16).padStart(2, '0')).join('');
  const found = {};
  const walk = document.createTreeWalker(document.querySelector('[data-testid=stApp]'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    const text = walk.currentNode.data.trim();
    if (!text || one.closest('style, script, [disabled]')) continue;
    if (!one.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;  // such as ticks left out
    let chain = [];
    for (let at = one; at !== null; at = at.parentElement) chain.push(getComputedStyle(at));
    let ground = [255, 255, 255];
    for (const style of chain.toReversed()) ground = over(rgba(style.backgroundColor), ground.slice(0, 3), 1);
    const opacity = chain.reduce((share, style) => share * Number(style.opacity), 1);
    const size = parseFloat(chain[0].fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(chain[0].fontWeight) >= 700);
    const pair = `${hex(over(rgba(chain[0].color), ground, opacity))} ${hex(ground)} ${large ? 3 : 4.5}`;
    found[pair] ??= text.slice(0, 60);
  }
  return found;
}"""


SAID = """() => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].map((one) =>
  (one.closest('[aria-label]') ?? one.querySelector('[aria-label]'))?.getAttribute('aria-label') ?? '')"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_page(browser: Browser, address: str, theme: str) -> None:
    weak, cut, unsaid = {}, {}, {}
    with watched(browser, color_scheme=theme) as page:
        for name, run in PAGES:
            visit(page, address, name, query=f"run={run}")
            assert page.locator(".st-key-link_names").count() == 0
            for pair, text in page.evaluate(TEXTS).items():
                ink, ground, least = pair.split()
                if contrast(ink, ground) < float(least):
                    weak[f"{name} of {run}: {text}"] = (ink, ground, round(contrast(ink, ground), 2))
            unsaid[name, run] = [text for text in page.evaluate(SAID) if len(text) < 40 or not text.endswith(".")]
            for width in (1280, 800) if theme == "light" else ():
                cut[name, run, width] = cut_at(page, width)
    assert weak == {}
    assert [found for found in cut.items() if found[1]] == []
    assert [found for found in unsaid.items() if found[1]] == []


def test_charts_side_by_side_begin_and_end_alike(browser: Browser, tmp_path: Path) -> None:
    """Though one's subtitle takes more lines than the other's."""
    shutil.copytree(TRACES / "bucketed", tmp_path / "bucketed")
    with app_on(tmp_path) as address, watched(browser, width=1440, height=900) as page:
        visit(page, address, "what_if", query="run=bucketed")
        edges = page.evaluate("""() => [...document.querySelectorAll('[class*=st-key-side_by_side]')].map((row) =>
          [[...row.querySelectorAll('[class*=st-key-title_]')].map((one) =>
             Math.round(one.getBoundingClientRect().top)),
           [...row.querySelectorAll('[data-testid=stVegaLiteChart]')].map((one) =>
             Math.round(one.getBoundingClientRect().bottom))])""")
        rows = [row for row in edges if len(row[0]) > 1]
        assert rows
        assert [row for row in rows if any(max(each) - min(each) > 1 for each in row)] == []


def test_labels_of_bars_keep_off_their_heading(browser: Browser, address: str) -> None:
    with watched(browser, width=1440, height=900) as page:
        visit(page, address, query="run=bucketed")
        gap = page.evaluate("""() => {
          const heading = [...document.querySelectorAll('h3')].find((one) => one.innerText.startsWith('Where the '));
          const label = document.querySelector('[class*="st-key-causes_"][class*="_label"]');
          return label.getBoundingClientRect().top - heading.getBoundingClientRect().bottom;
        }""")
        assert gap >= 4


def test_a_table_of_seven_columns_is_whole_in_a_narrow_window(browser: Browser, address: str) -> None:
    with watched(browser, width=1024, height=1600) as page:
        visit(page, address, "plan", query="run=bucketed")
        scrolls = page.locator("[data-testid=stDataFrame] .dvn-scroller").first
        assert scrolls.evaluate("one => one.scrollWidth - one.clientWidth") <= 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_live_page(browser: Browser, tmp_path: Path, theme: str) -> None:
    with_recording(eventful(tmp_path / "live", steps=1300), "runs/elsewhere/step-1203")
    with app_on(tmp_path) as address, watched(browser, color_scheme=theme) as page:
        visit(page, address)
        assert page.get_by_role("heading", name="Live").is_visible()
        pairs = [(text, *pair.split()) for pair, text in page.evaluate(TEXTS).items()]
        assert [text for text, ink, ground, least in pairs if contrast(ink, ground) < float(least)] == []
        said = page.evaluate(SAID)
        assert [len(text) > 40 and text.endswith(".") for text in said] == [True] * 3
        assert [cut_at(page, width) for width in (1440, 1024)] == [[], []]


def cut_at(page: Page, width: int) -> list[str]:
    """What is cut in a window of this width, once the charts have taken it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(
        """() => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every((chart) =>
             chart.querySelector('canvas, svg.marks').getBoundingClientRect().width <= chart.clientWidth + 1)"""
    )
    settle(page)
    wait_until(page, lambda: not page.evaluate(CUT))  # one more layout may come after the charts'
    found: list[str] = page.evaluate(CUT)
    return found
