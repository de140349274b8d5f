"""Chromium and the app's server for tests: started once, watched all the time, waited for without sleeping.

Fixtures made of this stand in tests/conftest.py: `browser` (one Chromium per session), `page` (a fresh, watched page).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, WebSocket, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from overlaplab.ports import free_port

WAIT_MS = 200_000
"""How long anything on a page may take."""
PWNED = "window.pwned&&pwned(document.URL)"
"""What injected script would run; `watched` fails the test where it does."""

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_SETTLED = """() => {
  const app = document.querySelector('[data-testid=stApp]');
  if (app === null || app.dataset.testScriptState !== 'notRunning') return false;
  if (document.querySelector('[data-testid=stSkeleton], [data-stale=true]') !== null) return false;
  if (document.querySelector('h1, h2, h3') === null) return false;
  const charts = [...document.querySelectorAll('[data-testid=stVegaLiteChart]')];
  return charts.every((chart) => chart.querySelector('canvas, svg.marks') !== null);
}"""
_UNSETTLED = """() => ({
  state: {...document.querySelector('[data-testid=stApp]')?.dataset},
  stale: [...document.querySelectorAll('[data-testid=stSkeleton], [data-stale=true]')].map((one) => one.outerHTML),
  undrawn: [...document.querySelectorAll('[data-testid=stVegaLiteChart]')]
    .filter((chart) => chart.querySelector('canvas, svg.marks') === null).map((chart) => chart.outerHTML),
  text: document.body.innerText,
})"""
"""What keeps a page from being settled."""
_DRAWN = """() => new Promise((done) => setTimeout(
  () => requestAnimationFrame(() => requestAnimationFrame(done)), 100))"""
"""Once the page has taken in what has arrived: Streamlit gathers messages for 10 ms before it draws."""


@contextmanager
def chromium(*, gpu: bool = False) -> Iterator[Browser]:
    """A headless Chromium that finds no host but 127.0.0.1; with `gpu` it may draw by one."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("Chromium is missing. Install it with: sudo apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        arguments = _ARGUMENTS if gpu else [*_ARGUMENTS, "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            _IDLE.clear()
            browser.close()


@dataclass
class Watch:
    """What a page did that no page may do; a line each."""

    foreign: list[str] = field(default_factory=list)
    """Requests and sockets that would leave 127.0.0.1, and files that an opened file asks for."""
    errors: list[str] = field(default_factory=list)
    """The console's errors and uncaught exceptions."""
    executed: list[str] = field(default_factory=list)
    """Injected script that ran, and dialogs that opened."""
    stream: WebSocket | None = None
    """What the app's server talks through to the page."""

    def check(self) -> None:
        """Fail on anything that was seen."""
        assert (self.foreign, self.executed, self.errors) == ([], [], [])


@contextmanager
def watched(browser: Browser, *, color_scheme: str = "light", fresh: bool = False, **size: int) -> Iterator[Page]:
    """A page in this theme, 1280 wide and 1400 high, or of this `width` and `height`; on leaving, the test fails on
    what its `Watch` (`watch_of`) has seen.

    It may be one that another test has left, without its cookies and storage: a new one takes seconds for the app's
    scripts. A `fresh` one has no history either.
    """
    page = _new_page(browser) if fresh or not _IDLE else _IDLE.pop()
    watch = _WATCHES[page] = Watch()
    page.set_viewport_size({"width": size.get("width", 1280), "height": size.get("height", 1400)})
    page.emulate_media(media="null", color_scheme=color_scheme)  # type: ignore[arg-type]
    try:
        yield page
        watch.check()
        _leave(page)
    except BaseException:
        page.context.close()
        raise
    _IDLE.append(page)


_WATCHES: dict[Page, Watch] = {}
_IDLE: list[Page] = []
"""Pages that no test uses now."""


def _new_page(browser: Browser) -> Page:
    """Of a browser context of its own."""
    context = browser.new_context()
    context.expose_function("pwned", lambda where: _WATCHES[page].executed.append(f"script on {where}"))
    context.on("request", lambda request: _note_request(_WATCHES[page], request))
    context.on("console", lambda message: _note_message(_WATCHES[page], message))
    context.on("weberror", lambda error: _WATCHES[page].errors.append(str(error.error)))
    context.on("dialog", lambda dialog: (_WATCHES[page].executed.append(f"dialog {dialog.message}"), dialog.dismiss()))
    context.on("page", lambda opened: opened.on("websocket", lambda socket: _note_socket(_WATCHES[page], socket)))
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    return page


def _leave(page: Page) -> None:
    """Nothing stays of what was open."""
    page.mouse.move(0, 0)
    page.evaluate("() => { try { localStorage.clear(); sessionStorage.clear(); } catch {} }")
    page.goto("about:blank")
    page.context.clear_cookies()


def watch_of(page: Page) -> Watch:
    """What a watched page has done so far; a test that provokes an error clears it."""
    return _WATCHES[page]


def _note_request(watch: Watch, request: Request) -> None:
    url = urlsplit(request.url)
    inside = url.scheme in ("data", "blob", "about") or url.hostname == "127.0.0.1"
    opened = url.scheme == "file" and request.is_navigation_request()
    if not (inside or opened):
        watch.foreign.append(request.url[:300])


def _note_socket(watch: Watch, socket: WebSocket) -> None:
    if urlsplit(socket.url).path.endswith("/_stcore/stream"):
        watch.stream = socket
    if urlsplit(socket.url).hostname != "127.0.0.1":
        watch.foreign.append(socket.url[:300])


def _note_message(watch: Watch, message: ConsoleMessage) -> None:
    """Keep the browser's complaints, except of Streamlit, which first looks for its service below the page's path."""
    if message.type == "error" and "/_stcore/" not in message.location["url"]:
        watch.errors.append(message.text)


@contextmanager
def served(*arguments: str, folder: Path) -> Iterator[str]:
    """The address of an app started in a folder with these arguments to Python (`{port}` in them), until the
    block ends.
    """
    with serving(*arguments, folder=folder) as (address, _):
        yield address


@contextmanager
def serving(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """As `served`, with the process, which gets these variables too."""
    port = free_port()
    line = [sys.executable, *(argument.format(port=port) for argument in arguments)]
    with tempfile.TemporaryFile() as log:
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=variables)
        try:
            _wait_until_healthy(process, port, log)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(timeout=300)


def app_on(folder: Path) -> Any:
    """The dashboard on a folder, as `overlaplab app` starts it: a context manager of its address."""
    return served("-m", "overlaplab", "app", str(folder), "--port", "{port}", folder=folder)


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            pytest.fail(f"the app ended with exit code {process.returncode}: {log.read().decode(errors='replace')}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health"):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("the app did not start within 600 s")


def wait_until(page: Page, done: Callable[[], bool]) -> None:
    """Let the page go on until what it does not show itself is true; after `WAIT_MS` the test goes on all the same."""
    end = time.monotonic() + WAIT_MS / 1000
    while not done() and time.monotonic() < end:
        page.wait_for_timeout(50)


def settle(page: Page) -> None:
    """Wait until the app's script has finished and its charts are drawn; fail where it shows an exception."""
    try:
        page.wait_for_function(_SETTLED, timeout=WAIT_MS)
    except PlaywrightTimeout:
        shown = {name: str(of)[:2000] for name, of in page.evaluate(_UNSETTLED).items()}
        pytest.fail(f"{page.url} did not settle within {WAIT_MS / 1000:.0f} s: {shown}")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    failed = page.locator("[data-testid=stException]")
    assert failed.count() == 0, failed.first.inner_text()


@contextmanager
def rerun(page: Page) -> Iterator[None]:
    """Wait until what the block does (a click, a choice) has made the script run and finish.

    The server says when; the page may draw a short run's beginning and end at once, and never show that it ran.
    """
    stream = watch_of(page).stream
    assert stream is not None, "the page shows no app"
    began = False

    def ends_a_run(frame: bytes | str) -> bool:
        nonlocal began  # an earlier run may end meanwhile
        message = ForwardMsg.FromString(frame if isinstance(frame, bytes) else frame.encode())
        kind = message.WhichOneof("type")
        began = began or kind == "new_session"
        return began and kind == "script_finished" and message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN

    with stream.expect_event("framereceived", ends_a_run, timeout=WAIT_MS):
        yield
    page.evaluate(_DRAWN)
    settle(page)


def choose_row(page: Page, table: str, row: int) -> None:
    """Tick a row, from 0 on, of the table with this key: its box stands under the header, 35 pixels each."""
    grid = page.locator(f"[class*=st-key-{table}] canvas").first
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 20, box["y"] + 35 * (row + 1.5))


def visit(page: Page, address: str, name: str = "summary", run: str | None = None, query: str = "") -> None:
    """Show a page of the app, on the run whose name holds `run`: by the side bar where the app is open already and
    no query is given, else by its address.
    """
    link = page.locator(f'[class*=st-key-pages] a[href="{"" if name == "summary" else name}"]')
    if page.url.startswith(address) and not query and link.count():
        if not link.is_visible():  # the run has nothing for that page
            page.locator("[class*=st-key-pages] summary").click()
        with rerun(page):
            link.click()
    else:
        page.goto(f"{address}/{'' if name == 'summary' else name}{'?' if query else ''}{query}")
        settle(page)
    if run is not None:
        pick(page, "run_picker", run)


def pick(page: Page, key: str, text: str) -> None:
    """Choose the first option that holds a text in the select box of this key, unless it is chosen."""
    box = page.locator(f".st-key-{key} input")
    if text == (box.input_value() or box.evaluate("(box) => box.closest('[data-baseweb=select]').innerText")):
        return
    box.click()
    with rerun(page):
        page.locator("[role=option]").filter(has_text=text).first.click()
