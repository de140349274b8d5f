"""Take PNGs of every page of the real dashboard, light and dark, narrow and wide.

python scripts/screenshots.py runs out/            # all pages of the first run
python scripts/screenshots.py runs out/ --run bucketed --width 1280 1920
python scripts/screenshots.py runs out/ --run zero3 --pages zero3 --themes light --against zero3-serial
python scripts/screenshots.py traces docs --docs   # the pictures of the README and docs/ (make screenshots)
python scripts/screenshots.py runs . --pages live --themes light --run mine/watch  # docs/live.png, of the tutorial
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from browsing.browser import app_on, chromium, pick, settle, visit, watched

PAGES = ("summary", "timeline", "buckets", "zero3", "collectives", "what_if", "compare", "pipeline", "plan", "live")
THEMES = ("light", "dark")
TALLEST = 4000  # pixels of a picture; a page may be longer


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture of a page."""

    page: str
    theme: str = "light"
    width: int = 1280
    run: str | None = None
    against: str | None = None
    """The run to show beside it on the page zero3."""
    setting: str | None = None
    """What the page What if changes, as its link has it."""
    tallest: int = TALLEST


DOCS = {
    "summary": Shot(page="summary", run="bucketed"),
    "timeline": Shot(page="timeline", run="bucketed"),
    "buckets": Shot(page="buckets", run="bucketed"),
    "zero3": Shot(page="zero3", run="zero3", against="zero3-serial", width=1440, tallest=1300),
    "collectives": Shot(page="collectives", run="zero2", tallest=1500),
    "what_if": Shot(page="what_if", run="sweep/cap-25", setting="bucket_cap_mb:4", tallest=1300),
    "compare": Shot(page="compare", run="sweep/cap-1", theme="dark", tallest=1300),
}
"""The pictures of README and docs/, of the sample runs: file name → what it shows."""


def main() -> None:
    """Read the arguments, start the app, take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of runs")
    parser.add_argument("out", type=Path, help="where the PNGs go")
    parser.add_argument("--run", help="the run to choose, by its name in the side bar")
    parser.add_argument("--pages", nargs="*", default=PAGES, choices=PAGES)
    parser.add_argument("--themes", nargs="*", default=THEMES, choices=THEMES)
    parser.add_argument("--width", type=int, nargs="*", default=[1280], help="of the window, in pixels")
    parser.add_argument("--against", metavar="RUN", help="the run to show beside it on the page zero3")
    parser.add_argument("--docs", action="store_true", help="the pictures of README and docs/, of the sample runs")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with app_on(arguments.folder.resolve()) as address, chromium() as browser:
        for name, shot in (DOCS if arguments.docs else requested_shots(arguments)).items():
            file = arguments.out / f"{name}.png"
            take(browser, address, shot, file)
            print(file)


def requested_shots(arguments: argparse.Namespace) -> dict[str, Shot]:
    """What the arguments ask for: file name → what it shows; the width is in the name where there are several."""
    shots = {}
    for page in arguments.pages:
        for theme in arguments.themes:
            for width in arguments.width:
                name = f"{page}-{theme}" + (f"-{width}" if len(arguments.width) > 1 else "")
                against = arguments.against if page == "zero3" else None
                shots[name] = Shot(page=page, theme=theme, width=width, run=arguments.run, against=against)
    return shots


def take(browser: Browser, address: str, shot: Shot, file: Path) -> None:
    """Take one picture."""
    query = {name: value for name, value in (("run", shot.run), ("setting", shot.setting)) if value is not None}
    with watched(browser, color_scheme=shot.theme, width=shot.width, height=900) as page:
        visit(page, address, shot.page, query=urlencode(query))
        if shot.against is not None:
            pick(page, "against", shot.against)
        fit(page, shot)
        settle(page)
        page.screenshot(path=file)


def fit(page: Page, shot: Shot) -> None:
    """Make the window as tall as the page, so that nothing needs to be scrolled."""
    heights = [0]
    while len(heights) < 20 and (len(heights) < 3 or heights[-1] != heights[-2]):
        page.wait_for_timeout(500)  # charts draw one after the other
        height = page.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
        heights.append(int(height))
    page.set_viewport_size({"width": shot.width, "height": max(600, min(heights[-1], shot.tallest))})
    page.wait_for_timeout(800)


if __name__ == "__main__":
    main()
