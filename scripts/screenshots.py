"""Take PNGs of every page of the real dashboard, light and dark.

python scripts/screenshots.py runs out/            # all pages of the first run
python scripts/screenshots.py runs out/ --run bucketed --width 1600
python scripts/screenshots.py runs out/ --run zero3 --pages zero3 --themes light --against zero3-serial
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from overlaplab.dashboard.server import command

PAGES = ("summary", "timeline", "buckets", "zero3", "collectives", "compare")
THEMES = ("light", "dark")
CHROMIUM = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def main() -> None:
    """Read the arguments, start the app, take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of runs")
    parser.add_argument("out", type=Path, help="where the PNGs go")
    parser.add_argument("--run", help="the run to choose, by its name in the side bar")
    parser.add_argument("--pages", nargs="*", default=PAGES, choices=PAGES)
    parser.add_argument("--themes", nargs="*", default=THEMES, choices=THEMES)
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels")
    parser.add_argument("--against", metavar="RUN", help="the run to show beside it on the page zero3")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is missing. Install it with: sudo apt-get install chromium")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with served(arguments.folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        for theme in arguments.themes:
            context = browser.new_context(color_scheme=theme, viewport={"width": arguments.width, "height": 900})
            page = context.new_page()
            for name in arguments.pages:
                page.goto(f"{address}/{'' if name == 'summary' else name}")
                settle(page)
                if arguments.run is not None:
                    choose(page, arguments.run, "run_picker")
                if arguments.against is not None and name == "zero3":
                    choose(page, arguments.against, "against")
                file = arguments.out / f"{name}-{theme}.png"
                fit(page, arguments.width)
                page.screenshot(path=file)
                print(file)
            context.close()
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the app, serving this folder until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(command(folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health"):
                    break
            except OSError:
                if process.poll() is not None:
                    sys.exit(f"the app ended at once with exit code {process.returncode}")
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)


def settle(page: Page) -> None:
    """Wait until the app has run and drawn."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
    page.wait_for_selector("h1", timeout=60_000)
    page.wait_for_timeout(1500)


def choose(page: Page, run: str, key: str) -> None:
    """Choose a run in the select box of this key."""
    box = page.locator(f".st-key-{key} input")
    box.click()
    box.fill(run)
    page.get_by_role("option", name=run, exact=True).first.click()
    settle(page)


def fit(page: Page, width: int) -> None:
    """Make the window as tall as the page, so that nothing needs to be scrolled."""
    page.set_viewport_size({"width": width, "height": 900})
    heights = [0]
    while len(heights) < 20 and (len(heights) < 3 or heights[-1] != heights[-2]):
        page.wait_for_timeout(500)  # charts draw one after the other
        found = page.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
        heights.append(int(found))
    page.set_viewport_size({"width": width, "height": max(600, min(heights[-1], 4000))})
    page.wait_for_timeout(800)


if __name__ == "__main__":
    main()
