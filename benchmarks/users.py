"""The dashboard with several users at once: how long a page takes each of them.

    python benchmarks/users.py                   8 users on the sample runs, pages of all kinds, without a pause
    python benchmarks/users.py --pause 2         each looks at a page for 2 s in the mean before the next

A user is a websocket that speaks as Streamlit's own page does, so that browsers, of which each user has a machine's
worth, do not compete with the server. A page's time is from the request to the end of its script, with all that it
sends. Every user turns over the same pages in an order of its own; runs were opened once before. Printed are the
median, the 95th percentile and the worst, over all pages and by page.

Run it on an idle machine.
"""

import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from browsing.browser import app_on  # noqa: E402
from browsing.stream_client import User  # noqa: E402

PAGES = ("summary", "timeline", "buckets", "zero3", "collectives", "compare")
RUNS = ("bucketed", "naive", "zero3", "torch-ddp-gloo")

Spent = list[tuple[str, float]]
"""Pages, and the seconds that each took."""


def main(
    users: Annotated[int, typer.Option(help="At once.")] = 8,
    turns: Annotated[int, typer.Option(help="Pages that each turns to.")] = 30,
    pause: Annotated[float, typer.Option(help="Mean seconds between a user's pages.")] = 0.0,
    folder: Annotated[Path, typer.Option(help="A folder of runs that has the sample runs' names.")] = ROOT / "traces",
) -> None:
    """Start the app, open the runs once, let the users in."""
    with app_on(folder) as address:
        with User(address) as first:
            for run in RUNS:
                for page in PAGES:
                    first.show(page, f"run={run}")
        spent: Spent = []
        start = threading.Barrier(users)
        threads = [
            threading.Thread(target=visit, args=(address, number, turns, pause, start, spent))
            for number in range(users)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = users * turns
    if len(spent) < expected:
        sys.exit(f"only {len(spent)} of {expected} pages came")
    print(f"{users} users, {turns} pages each, {pause:g} s between a user's pages")
    for page in ("all", *PAGES):
        print(line(page, [seconds for name, seconds in spent if page in ("all", name)]))


def visit(address: str, number: int, turns: int, pause: float, start: threading.Barrier, spent: Spent) -> None:
    """One user's pages."""
    order = random.Random(number)
    with User(address) as user:
        start.wait()
        for _ in range(turns):
            page, run = order.choice(PAGES), order.choice(RUNS)
            began = time.perf_counter()
            user.show(page, f"run={run}")
            spent.append((page, time.perf_counter() - began))
            time.sleep(order.uniform(0, 2 * pause))


def line(page: str, seconds: list[float]) -> str:
    """Median, 95th percentile and worst in ms."""
    if len(seconds) < 2:
        return f"{page:12} {len(seconds):4} pages"
    high = statistics.quantiles(seconds, n=20)[-1]
    middle = statistics.median(seconds)
    return (
        f"{page:12} {len(seconds):4} pages   median {middle * 1e3:6.0f} ms   95 % {high * 1e3:6.0f} ms"
        f"   worst {max(seconds) * 1e3:6.0f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
