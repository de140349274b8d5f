"""The app in a real browser, started as the README says: what it draws, and that it asks no other host for anything."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from made_traces import event, run_of
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from overlaplab.charts.theme import DARK, LIGHT, Palette

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
HOSTILE = "![x](http://evil.example/md.png)</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("Chromium is missing. Install it with: sudo apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    """The app on the folder of runs, with one more whose every string is hostile."""
    quoted = "%21%5Bx%5D%28http%3A%2F%2Fevil.example%2Fp.png%29%3C%2Fscript%3E"
    label = {"cat": "user_annotation"}
    run_of(
        runs / "![x](http:evil.example)<img src=x onerror=window.hacked=1>",
        [
            event(f"aten::{HOSTILE}", 0, 100),
            event("engine::backward microbatch=0 sync=1", 0, 130, **label),
            event(f"engine::gradient_ready parameter={quoted}", 110, 111, **label),
            event(f"engine::bucket_ready bucket=0 bytes=4 parameters={quoted}", 112, 113, **label),
            event("engine::bucket_launch bucket=0", 114, 118, **label),
            event("engine::launch seq=0", 115, 116, **label),
            event("engine::comm seq=0 kind=all_reduce", 150, 300, tid=7, **label),
            event(f"engine::gather_launch unit={quoted} phase=forward microbatch=0 bytes=4", 301, 305, **label),
            event("engine::launch seq=1", 302, 303, **label),
            event("engine::comm seq=1 kind=all_gather bytes=4", 305, 350, tid=7, **label),
            event(f"engine::gather_wait unit={quoted} phase=forward microbatch=0", 310, 350, **label),
            event(f"engine::free unit={quoted} phase=forward microbatch=0 bytes=4", 390, 391, **label),
        ],
        manifest={"strategy": HOSTILE, "device": HOSTILE},
    )
    with served("-m", "overlaplab", "app", str(runs), "--port", "{port}", folder=runs) as found:
        yield found


@contextmanager
def served(*arguments: str, folder: Path) -> Iterator[str]:
    """The address of an app started in a folder with these arguments to Python, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, *(argument.format(port=port) for argument in arguments)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)
    try:
        wait_until_healthy(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=20)


def wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        assert process.poll() is None, f"the app ended: {process.communicate()[0].decode()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health"):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the app did not start within a minute")


def visit(page: Page, address: str, name: str, run: str) -> None:
    """Open a page and choose a run by the start of its name."""
    page.goto(f"{address}/{'' if name == 'summary' else name}")
    page.wait_for_selector("h1", timeout=60_000)
    page.locator(".st-key-run_picker input").click()
    page.locator("[role=option]").filter(has_text=run).first.click()
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
    page.wait_for_timeout(1500)
    assert page.locator("[data-testid=stException]").count() == 0


def is_error(message: ConsoleMessage) -> bool:
    """Whether the browser complains: not of Streamlit, which first looks for its own service below the page's path."""
    return message.type == "error" and "/_stcore/" not in message.location["url"]


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
        [{"compute": tones.compute, "hidden": tones.gather, "exposed": tones.exposed}, number],
    )
    return found


def test_every_page_draws_and_nothing_leaves_this_machine(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1400}, color_scheme="light")
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or ""))
    page.on("websocket", lambda socket: hosts.add(urlsplit(socket.url).hostname or ""))

    visit(page, address, "summary", "bucketed")
    assert page.get_by_text("Worst rank 0: 0.35 ms of 0.50 ms of communication per step is exposed").is_visible()
    pixels = drawn(page)
    # Of each step, 49.5 % are compute only, 15 % hidden, 35 % exposed communication.
    assert pixels["exposed"] / pixels["hidden"] == pytest.approx(35 / 15, rel=0.05)
    assert pixels["compute"] / pixels["exposed"] == pytest.approx(49.5 / 35, rel=0.05)

    visit(page, address, "timeline", "bucketed")
    assert page.get_by_text("Visible: 0.000 to 2.000 ms").is_visible()
    whole = drawn(page)
    assert min(whole.values()) > 500
    box = page.locator("[data-testid=stVegaLiteChart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 150)
    page.mouse.wheel(0, -400)
    page.wait_for_selector("h3:not(:has-text('0.000 to 2.000'))")
    page.wait_for_timeout(800)
    assert drawn(page) != whole
    page.locator("h1").click()  # the select box still has the keyboard
    page.keyboard.press("f")
    page.get_by_text("Visible: 0.000 to 2.000 ms").wait_for()

    visit(page, address, "buckets", "bucketed")
    assert page.get_by_text("its last gradient was body.weight").is_visible()
    assert min(drawn(page)[name] for name in ("hidden", "exposed")) > 500

    visit(page, address, "compare", "bucketed")
    assert page.get_by_text("Left out, because they cannot be read").is_visible()
    assert min(drawn(page).values()) > 500

    for name, chart in (("summary", 0), ("timeline", 0), ("zero3", 1), ("buckets", 0)):
        visit(page, address, name, "evil")
        assert sum(drawn(page, number=chart).values()) > 500
    assert page.evaluate("window.hacked") is None
    assert page.get_by_text("![x](http://evil.example/p.png)</script>").first.is_visible()
    assert hosts == {"127.0.0.1"}
    page.close()


def test_zero3_shows_runs_alone_and_side_by_side(browser: Browser, gathering: Path) -> None:
    with served("-m", "overlaplab", "app", str(gathering), "--port", "{port}", folder=gathering) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1400}, color_scheme="light")
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if is_error(message) else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        visit(page, address, "zero3", "ahead")
        assert page.get_by_text("7 gathers and 7 frees of 4 layers").is_visible()
        assert page.locator("[data-testid=stVegaLiteChart]").count() == 2
        alone = drawn(page, number=1)
        # Of 7 gathers of layers, 1.8 ms each, 2.7 ms are waited for; each layer computes 3 ms in its backward pass.
        assert alone["hidden"] > alone["exposed"] > 50
        assert alone["compute"] > 500
        page.locator(".st-key-against input").click()
        page.locator("[role=option]").filter(has_text="serial").first.click()
        page.get_by_text("Prefetching hides 14.1 ms of gathering per step.").wait_for()
        page.wait_for_timeout(1500)
        assert page.locator("[data-testid=stVegaLiteChart]").count() == 4
        ahead, serial = (drawn(page, number=chart) for chart in (2, 3))
        assert serial["exposed"] > 3 * ahead["exposed"]
        for chart in page.locator("[data-testid=stVegaLiteChart]").all():
            box = chart.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 1280
        assert errors == []
        page.close()


def test_streamlit_run_app_py_shows_the_same_in_the_dark(browser: Browser, runs: Path) -> None:
    with served("-m", "streamlit", "run", "app.py", "--server.port={port}", "--", str(runs), folder=ROOT) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
        visit(page, address, "summary", "bucketed")
        assert page.get_by_text("30\u00a0% of communication time is hidden behind compute").is_visible()
        assert min(drawn(page, DARK).values()) > 500
        assert max(drawn(page, LIGHT).values()) == 0
        page.close()


def test_a_foreign_page_may_not_connect(address: str) -> None:
    """By its origin (cross-site), and by a name of its own for this machine (DNS rebinding)."""
    port = urlsplit(address).port
    for host, origin, allowed in (
        (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", True),
        (f"127.0.0.1:{port}", "http://evil.example", False),
        (f"evil.example:{port}", f"http://evil.example:{port}", False),
        (f"evil.example:{port}", f"http://127.0.0.1:{port}", False),
    ):
        with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as connection:
            connection.sendall(
                f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            answer = connection.recv(1000).decode(errors="replace").splitlines()[0]
        assert ("101" in answer) is allowed, (host, origin, answer)
