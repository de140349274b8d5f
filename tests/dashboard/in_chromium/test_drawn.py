"""The app in a real browser, started as the README says: what it draws. Each page is watched: it asks no other host for
anything and logs no error.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing.browser import choose_row, pick, served, visit, watched
from made.runs import made_runs
from playwright.sync_api import Browser, Page

from overlaplab.charts.theme import DARK, LIGHT, Palette

ROOT = Path(__file__).parents[3]


def drawn(page: Page, tones: Palette = LIGHT, number: int = 0) -> dict[str, int]:
    """How much of each palette colour one of the page's charts shows, in pixels, whether as SVG or on a canvas."""
    found: dict[str, int] = page.evaluate(
        """([names, number]) => {
          const found = Object.fromEntries(Object.keys(names).map((name) => [name, 0]));
          const chart = document.querySelectorAll('[data-testid=stVegaLiteChart]')[number];
          for (const name in names) {
            for (const mark of chart.querySelectorAll(`svg .mark-rect path[fill="${names[name]}"]`)) {
              const {width, height} = mark.getBoundingClientRect();
              found[name] += width * height;
            }
          }
          const canvas = chart.querySelector('canvas');
          if (canvas === null) return found;
          const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          for (let at = 0; at < data.length; at += 4) {
            const hex = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
            for (const name in names) if (parseInt(names[name].slice(1), 16) === hex) found[name] += 1;
          }
          return found;
        }""",
        [{name: getattr(tones, name) for name in ("compute", "hidden", "exposed", "gather", "bound")}, number],
    )
    return found


def test_every_page_draws(page: Page, address: str) -> None:
    visit(page, address, "summary", "bucketed")
    assert page.get_by_text("35\u00a0% of the step is exposed communication (0.35 ms of 1.0 ms)").is_visible()
    pixels = drawn(page, number=1)
    # Of each step, 49.5 % are compute only, 15 % hidden, 35 % exposed communication.
    assert pixels["exposed"] / pixels["hidden"] == pytest.approx(35 / 15, rel=0.05)
    assert pixels["compute"] / pixels["exposed"] == pytest.approx(49.5 / 35, rel=0.05)

    visit(page, address, "timeline", "bucketed")
    assert page.get_by_text("Visible: 0.000 to 1.000 ms").is_visible()  # the step that the verdict is about
    assert int(page.locator(".timeline").get_attribute("data-painted") or 0) > 0  # test_canvas.py tells what

    visit(page, address, "buckets", "bucketed")
    assert page.get_by_text("Bucket 1: body.weight came last, the only one in it").is_visible()
    assert min(drawn(page)[name] for name in ("hidden", "bound")) > 500  # exposed since it takes longer than compute

    visit(page, address, "compare", query="runs=bucketed,broken")
    assert page.get_by_text("Left out, because they cannot be compared").is_visible()
    pixels = drawn(page)
    assert min(pixels[name] for name in ("compute", "hidden", "exposed")) > 500


@pytest.mark.slow
def test_a_row_of_where_the_time_went_is_one_click_from_the_timeline(page: Page, address: str) -> None:
    visit(page, address, "summary", "bucketed")
    page.get_by_text("Every cause and collective").click()
    page.get_by_text("Choose a row to see it on the timeline").wait_for()
    choose_row(page, "exposed_table", 0)
    page.wait_for_url("**/timeline?*")
    query = parse_qs(urlsplit(page.url).query)
    assert query["run"] == ["bucketed"]
    assert query["rank"] == ["0"]
    # The dearest row, body.weight's, is from 0.600 to 0.950 ms; a fifth of that is shown on both sides.
    assert (int(query["from"][0]), int(query["to"][0])) == (530_000, 1_020_000)
    page.get_by_role("heading", name="Timeline").wait_for()


def test_zero3_shows_runs_alone_and_side_by_side(page: Page, address: str) -> None:
    visit(page, address, "zero3", "ahead")
    assert page.get_by_text("7 gathers and 7 frees of 4 layers").is_visible()
    assert page.locator("[data-testid=stVegaLiteChart]").count() == 4  # schedule, memory, waits, reduce-scatters
    alone = drawn(page, number=0)
    # Of 7 gathers of layers, 1.8 ms each, 2.7 ms are waited for; each layer computes 3 ms in its backward pass.
    assert alone["gather"] > alone["exposed"] > 50
    assert alone["compute"] > 500
    pick(page, "against", "serial")
    assert page.get_by_text("Prefetching hides 14.1 ms of gathering per step.").is_visible()
    assert page.locator("[data-testid=stVegaLiteChart]").count() == 6
    ahead, serial = (drawn(page, number=chart) for chart in (0, 1))
    assert serial["exposed"] > 3 * ahead["exposed"]
    for chart in page.locator("[data-testid=stVegaLiteChart]").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 1280


def test_streamlit_run_app_py_shows_the_same_in_the_dark(browser: Browser, tmp_path: Path) -> None:
    line = ("-m", "streamlit", "run", "app.py", "--server.port={port}", "--", str(made_runs(tmp_path / "runs")))
    with served(*line, folder=ROOT) as address, watched(browser, color_scheme="dark") as page:
        visit(page, address, "summary", "bucketed")
        assert page.get_by_text("35\u00a0% of the step is exposed communication (0.35 ms of 1.0 ms)").is_visible()
        found = drawn(page, DARK, number=1)
        assert min(found[name] for name in ("compute", "hidden", "exposed")) > 500
        assert max(drawn(page, LIGHT, number=1).values()) == 0


def test_a_foreign_page_may_not_connect(address: str) -> None:
    """By its origin (cross-site), and by a name of its own for this machine (DNS rebinding)."""
    port = urlsplit(address).port
    for host, origin, allowed in (
        (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", True),
        (f"127.0.0.1:{port}", "http://evil.example", False),
        (f"evil.example:{port}", f"http://evil.example:{port}", False),
        (f"evil.example:{port}", f"http://127.0.0.1:{port}", False),
    ):
        with socket.create_connection(("127.0.0.1", port or 0), timeout=300) as connection:
            connection.sendall(
                f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            answer = connection.recv(1000).decode(errors="replace").splitlines()[0]
        assert ("101" in answer) is allowed, (host, origin, answer)
