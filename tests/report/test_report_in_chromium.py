"""The report in a real browser, opened from disk: it draws, asks nobody for anything, runs no script but its own."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from browsing.browser import PWNED, watch_of, watched
from PIL import Image, ImageColor
from playwright.sync_api import Browser, Page

from overlaplab.charts.theme import DARK, LIGHT, Palette

_AREAS = """(tones) => {
  const names = Object.fromEntries(Object.entries(tones).map(([name, hex]) => {
    const number = parseInt(hex.slice(1), 16);
    return [`rgb(${number >> 16}, ${(number >> 8) & 255}, ${number & 255})`, name];
  }));
  return [...document.querySelectorAll('.chart')].map((chart) => {
    const found = {};
    for (const mark of chart.querySelectorAll('svg :is(.mark-rect, .mark-area, .mark-symbol) path')) {
      const {fill, stroke} = getComputedStyle(mark);
      const name = names[fill] || names[stroke];
      const {width, height} = mark.getBoundingClientRect();
      if (name !== undefined) found[name] = (found[name] || 0) + width * height;
    }
    return found;
  });
}"""
_DRAWN = """() => {
  const charts = [...document.querySelectorAll('.chart')];
  return charts.length > 0 && charts.every((chart) => chart.querySelector('svg.marks path') !== null);
}"""


@pytest.fixture(scope="module")
def light(browser: Browser, report: Path) -> Iterator[Page]:
    with watched(browser, height=900) as page:
        yield opened(page, report)


def opened(page: Page, report: Path) -> Page:
    page.goto(report.as_uri())
    page.wait_for_function(_DRAWN)
    return page


def areas(page: Page, tones: Palette) -> list[dict[str, float]]:
    """Per chart the area of its bars in each of the palette's colours."""
    found: list[dict[str, float]] = page.evaluate(_AREAS, asdict(tones))
    return found


def test_all_charts_are_drawn_as_the_figures_say(light: Page) -> None:
    found = areas(light, LIGHT)
    assert len(found) == 17
    assert all(sum(chart.values()) > 100 for chart in found)
    summary = found[light.evaluate("[...document.querySelectorAll('.chart')].findIndex((e) => e.id === 'run-1-1-4')")]
    # Of each step, 49.5 % are compute only, 15 % hidden, 35 % exposed communication.
    assert summary["compute"] / summary["hidden"] == pytest.approx(49.5 / 15, rel=0.05)
    assert light.locator("[role=graphics-document][aria-label*='.']").count() == 17
    assert light.locator(".chart").filter(has_text="could not be drawn").count() == 0


def test_a_strangers_names_are_text(light: Page) -> None:
    assert light.locator("h2", has_text="<img src=x onerror=window.pwned&&pwned(1)>").is_visible()
    assert light.locator(".verdict, .note").filter(has_text="![x](http://evil.exa").count() > 0
    assert light.locator("main img, main script, main iframe").count() == 0
    mark = light.locator("#run-3 svg .mark-rect path").last
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    light.locator("#vg-tooltip-element.visible").wait_for()
    assert light.locator("#vg-tooltip-element img, #vg-tooltip-element script").count() == 0


def test_the_wheel_scrolls_and_with_ctrl_zooms(light: Page) -> None:
    chart = light.locator("figure", has_text="Ctrl + wheel zooms").first.locator("svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    light.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    before, at = chart.locator(".role-axis-label").first.text_content(), light.evaluate("scrollY")
    light.mouse.wheel(0, 200)
    light.wait_for_function("(at) => scrollY !== at", arg=at)
    assert chart.locator(".role-axis-label").first.text_content() == before
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    light.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    light.keyboard.down("Control")
    light.mouse.wheel(0, -300)
    light.keyboard.up("Control")
    light.wait_for_function(
        "([chart, before]) => chart.querySelector('.role-axis-label').textContent !== before",
        arg=[chart.element_handle(), before],
    )


def test_the_contents_lead_to_each_part(light: Page) -> None:
    link = light.locator("nav a", has_text="Gathered parameters")
    anchor = link.get_attribute("href")
    link.click()
    light.wait_for_function("(anchor) => location.hash === anchor", arg=anchor)
    assert light.locator(f"{anchor} h3").inner_text() == "Gathered parameters (ZeRO-3, FSDP)"


def test_what_a_stranger_would_add_does_not_run(browser: Browser, report: Path) -> None:
    """As if something had come through the escaping: the page's policy lets it neither run nor load."""
    with watched(browser) as page:
        opened(page, report)
        page.evaluate(
            """(pwn) => {
              const script = document.createElement('script');
              script.textContent = pwn;
              document.body.append(script);
              document.body.insertAdjacentHTML('beforeend', `<b onclick="${pwn}" id=b>b</b><img src=http://127.0.0.1:9/x>`);
              document.getElementById('b').click();
              return fetch('http://127.0.0.1:9/').catch(() => null);
            }""",
            PWNED,
        )
        watch = watch_of(page)
        assert watch.executed == []
        assert len([error for error in watch.errors if "Content Security Policy" in error]) >= 4
        watch.errors.clear()


def test_dark_narrow_and_on_paper(browser: Browser, report: Path) -> None:
    with watched(browser, color_scheme="dark", width=400, height=800) as page:
        opened(page, report)
        assert all(sum(chart.values()) > 100 for chart in areas(page, DARK))
        assert sum(sum(chart.values()) for chart in areas(page, LIGHT)) == 0
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 23)"
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.emulate_media(media="print", color_scheme="dark")
        assert all(sum(chart.values()) > 100 for chart in areas(page, LIGHT))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator(".save:visible").count() == 0
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0


def test_charts_and_tables_can_be_saved(light: Page, tmp_path: Path) -> None:
    figure = light.locator("#run-1-1 figure").last
    with light.expect_download() as saved:
        figure.locator(".save").click()
    saved.value.save_as(tmp_path / "chart.png")
    picture = Image.open(tmp_path / "chart.png").convert("RGB")
    assert saved.value.suggested_filename == "run-1-1-4.png"
    shown = {pixel for _, pixel in picture.getcolors(1 << 20)}
    assert {ImageColor.getrgb(tone) for tone in (LIGHT.compute, LIGHT.hidden, LIGHT.exposed)} <= shown
    box = figure.locator("svg").bounding_box()
    assert box is not None
    assert picture.width == pytest.approx(2 * (box["width"] + 28), abs=2)
    light.locator("#run-1-1 summary", has_text="Every rank and step").click()
    table = light.locator("#run-1-1-5-1")
    with light.expect_download() as saved:
        table.locator(".save").click()
    saved.value.save_as(tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert saved.value.suggested_filename == "run-1-1-5-1.csv"
    assert [(row["rank"], row["step"], row["exposed (ms)"]) for row in rows] == [
        ("0", "0", "0.350"),
        ("0", "1", "0.350"),
        ("1", "0", "0.350"),
        ("1", "1", "0.350"),
    ]
