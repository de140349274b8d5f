"""The Timeline page in real Chromium: how long until it shows a run, and how long each zoom step takes.

    python benchmarks/dashboard.py     8 ranks, a million drawn events in all

The traces are made here (`_kineto.py`), once, in a temporary folder: kernels and copies on two streams, launches and
steps, so that the run has a million events to draw, and twice as many in its files. Printed are medians and the worst:

first picture   from the navigation's start to the first painted frame that holds the run's events, in a browser that
                has opened the app before. "warm": the app runs, the traces' tables are in the cache on disk, but nobody
                has opened the run since the app started. "again": somebody has.
zoom step       from the wheel's or key's event to the end of the frame painted for it, from the whole run to a
                thousandth of it, and back; and the drawing alone
on the server   the query of a level of detail (at most 1500 marks, as notebooks and reports draw them), and of a
                window's statistics, along the same windows

Run it on an idle machine.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import _kineto
import typer
from playwright.sync_api import Browser, BrowserContext, ElementHandle, Page

import overlaplab
from overlaplab.timeline.timeline import timeline_events, timeline_view
from overlaplab.timeline.window_statistics import timeline_window

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from browsing.browser import app_on, chromium

FOLDER = Path(tempfile.gettempdir()) / "overlaplab-benchmarks" / "dashboard"
SMALL = "a-small-run"
ZOOMS = 24
"""Steps from the whole run inwards."""

WATCH = """(root, events) => new Promise((done) => {
  const look = () => {
    if (Number(root.dataset.events) < events || Number(root.dataset.painted) < 1) return;
    observer.disconnect();
    requestAnimationFrame(() => done(performance.now()));
  };
  const observer = new MutationObserver(look);
  observer.observe(root, { attributes: true });
  look();
})"""
"""Resolves to the ms since the navigation's start, when the frame with the events has been painted."""

FRAMES = """(root) => {
  const told = (globalThis.benchmarkFrames = { began: 0, frames: [] });
  for (const kind of ["wheel", "keydown"]) {
    window.addEventListener(kind, (event) => { told.began = event.timeStamp; }, { capture: true, passive: true });
  }
  new MutationObserver(() => {
    const drawn = Number(root.dataset.frameMs);
    told.frames.push([performance.now() - told.began, drawn]);
  }).observe(root, { attributes: true, attributeFilter: ["data-painted"] });
}"""
"""Notes for every painted frame the ms since the last input, and the ms of drawing alone."""


def main(
    events: Annotated[int, typer.Option(help="Drawn events, of all ranks.")] = 1_000_000,
    ranks: Annotated[int, typer.Option(help="Ranks.")] = 8,
    rounds: Annotated[int, typer.Option(help="Openings of each kind.")] = 5,
    folder: Annotated[Path, typer.Option(help="Where the made traces are kept.")] = FOLDER,
) -> None:
    """The Timeline page of a big run."""
    name = f"{ranks}x{events // ranks}"
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    make_traces(folder / "runs" / SMALL, 1000, 2)
    make_traces(folder / "runs" / name, events // ranks, ranks)
    os.environ["OVERLAPLAB_CACHE_DIR"] = str(folder / "cache")
    drawn = time_server(folder / "runs" / name)
    with chromium(gpu=True) as browser:
        time_browser(browser, folder / "runs", name, drawn, rounds)


def make_traces(run: Path, events: int, ranks: int) -> None:
    """The run's traces; made where they are not there yet."""
    run.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        file = run / f"rank{rank}.pt.trace.json.gz"
        if not file.exists():
            _kineto.write(file, events=events, rank=rank, ranks=ranks, device_only=True)


def time_server(run: Path) -> int:
    """Loading, and the queries along a zoom; how many marks the timeline has."""
    overlaplab.load_run(run)  # fills the cache
    started = time.perf_counter()
    loaded = overlaplab.load_run(run)
    read = time.perf_counter()
    timeline = timeline_events(loaded)
    ended = time.perf_counter()
    held = sum(len(trace.events) for trace in loaded.traces)
    drawn = int((timeline.events["event"] >= 0).sum())
    print(f"{len(loaded.traces)} ranks, {held:,} events held, {drawn:,} drawn, {len(timeline.lanes)} lanes")
    print(f"tables from the cache: {1e3 * (read - started):.0f} ms; their timeline: {1e3 * (ended - read):.0f} ms")
    windows = list(zoom(*timeline.extent))
    of_view = seconds(lambda start, end: timeline_view(timeline, start_ns=start, end_ns=end), windows)
    of_window = seconds(lambda start, end: timeline_window(timeline, start, end), windows)
    print(line("query, level of detail", of_view))
    print(line("query, a window's statistics", of_window))
    return len(timeline.events)


def zoom(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Windows about the middle, each three quarters of the one before."""
    middle, half = (start + end) // 2, (end - start) / 2
    for step in range(ZOOMS + 1):
        yield middle - int(half * 0.75**step), middle + int(half * 0.75**step) + 1


def seconds(query: Callable[[int, int], Any], windows: Sequence[tuple[int, int]]) -> list[float]:
    """How long the query takes for each window."""
    times = []
    for window in windows:
        started = time.perf_counter()
        query(*window)
        times.append(time.perf_counter() - started)
    return times


def time_browser(browser: Browser, runs: Path, name: str, drawn: int, rounds: int) -> None:
    """First pictures and zoom steps."""
    warm, again, first, whole, alone = ([] for _ in range(5))
    for _ in range(rounds):
        with app_on(runs.resolve()) as address:
            context = browser.new_context(viewport={"width": 1280, "height": 1400})
            open_page(context, f"{address}/timeline?run={SMALL}", 1)[0].close()  # the app has been opened before
            page, _, took = open_page(context, f"{address}/timeline?run={name}", drawn)
            warm.append(took)
            page.close()
            page, root, took = open_page(context, f"{address}/timeline?run={name}", drawn)
            again.append(took)
            for frames in zoom_page(page, root):
                first.append(frames[0][0] / 1e3)
                whole.append(frames[-1][0] / 1e3)
                alone += [drawing / 1e3 for _, drawing in frames]
            context.close()
    print(line("first picture, warm", warm))
    print(line("first picture, again", again))
    print(line("zoom step, to its first frame", first))
    print(line("zoom step, to its last frame", whole))
    print(line("drawing of a frame", alone))


def open_page(context: BrowserContext, url: str, drawn: int) -> tuple[Page, ElementHandle, float]:
    """A page that shows the run, the timeline's element, and the seconds from the navigation's start to the picture."""
    page = context.new_page()
    page.goto(url, wait_until="commit")
    root = page.wait_for_selector(".timeline", state="attached", timeout=300_000)
    assert root is not None
    return page, root, float(root.evaluate(WATCH, drawn)) / 1e3


def zoom_page(page: Page, root: ElementHandle) -> Iterator[list[tuple[float, float]]]:
    """Zoom in by the wheel, and out by the key; for each step the frames painted for it."""
    page.wait_for_timeout(3000)  # the rest of the page has come
    root.evaluate(FRAMES)
    stage = root.wait_for_selector(".stage")
    assert stage is not None
    box = stage.bounding_box()
    assert box is not None
    stage.focus()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
    for step in range(2 * ZOOMS):
        page.evaluate("() => { benchmarkFrames.frames = []; }")
        if step < ZOOMS:
            page.mouse.wheel(0, -100)
        else:
            page.keyboard.press("s")
        page.wait_for_timeout(300)
        frames = json.loads(page.evaluate("() => JSON.stringify(benchmarkFrames.frames)"))
        if frames:  # there is an end to zooming out
            yield frames


def line(what: str, seconds: Sequence[float]) -> str:
    """Median and worst, in ms."""
    return f"{what}: {1e3 * statistics.median(seconds):.0f} ms (worst of {len(seconds)}: {1e3 * max(seconds):.0f} ms)"


if __name__ == "__main__":
    typer.run(main)
