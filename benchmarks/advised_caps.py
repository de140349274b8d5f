"""The cap that `advise` names against the best of twelve recorded ones, in ten settings.

    python benchmarks/advised_caps.py OUT

In each setting one run is recorded and asked for advice; then twelve caps, in random order, and the advised one are
recorded. A line for each: the advised cap's step ÷ that of the best, and whether the gain that was predicted contains
the recorded one in its interval. Run it on an idle machine.
"""

import random
from pathlib import Path
from typing import Annotated

import typer
from _shared import record, recorded_ms, setting_options

import overlaplab
from overlaplab.manifest import Link
from overlaplab.simulate.advice.advise import advise
from overlaplab.simulate.programs.setting import Setting

SMALL = ("--layers", "6", "--width", "64", "--vocab", "320", "--seq", "8", "--batch", "1", "--steps", "5")
WIDE = ("--layers", "4", "--width", "128", "--vocab", "320", "--seq", "8", "--batch", "1", "--steps", "5")
REAL = ("--layers", "2", "--vocab", "500", "--batch", "16", "--steps", "5")
CAPS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 2, 4)
REAL_CAPS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 25)
SETTINGS = (
    *(
        (SMALL, "sleep:20ms,40ms,2ms", gbps, us, 2)
        for gbps, us in ((0.05, 500), (0.02, 500), (0.05, 5000), (0.1, 2000))
    ),
    *((WIDE, "sleep:20ms,40ms,2ms", gbps, us, 2) for gbps, us in ((0.2, 500), (0.1, 500), (0.1, 5000))),
    (SMALL, "sleep:20ms,40ms,2ms", 0.05, 1000, 4),
    *((REAL, None, 1, us, 2) for us in (1000, 5000)),
)
"""Model, times, Gbit/s, µs, ranks."""


def main(out: Path, settings: Annotated[int, typer.Option(help="How many.")] = len(SETTINGS)) -> None:
    """Record, ask, record, compare."""
    for number, (model, compute, gbps, us, ranks) in enumerate(SETTINGS[:settings]):
        link = Link(emulated=True, bandwidth_gbps=gbps, latency_us=us, world_size=ranks)
        more = [*model, *(["--compute", compute] if compute else [])]
        caps = CAPS if compute else REAL_CAPS

        def measure_ms(cap: float, name: str, link: Link = link, ranks: int = ranks, more: list[str] = more) -> float:
            setting = Setting(strategy="bucketed", bucket_cap_mb=cap, link=link, ranks=ranks)
            return recorded_ms(record(out / name, *setting_options(setting), *more))

        present = caps[6]
        before = measure_ms(present, f"{number}-source")
        row = best_cap(overlaplab.load_run(out / f"{number}-source"))
        advised, gain, low, high = row if row else (present, 0.0, 0.0, 0.0)
        order = random.Random(number).sample(caps, len(caps))
        swept = {cap: measure_ms(cap, f"{number}-{cap}") for cap in order}
        after = measure_ms(advised, f"{number}-advised")
        best = min(swept, key=lambda cap: swept[cap])
        print(
            f"{after / swept[best]:.3f}  advised {advised:g} ({after:.1f} ms), best {best:g} ({swept[best]:.1f} ms); "
            f"gain {gain:.1f} ({low:.1f} to {high:.1f}), recorded {before - after:.1f} "
            f"{'inside' if low <= before - after <= high else 'OUTSIDE'}  {link}, {ranks} ranks, {compute or 'real'}",
            flush=True,
        )


def best_cap(run: overlaplab.Run) -> tuple[float, float, float, float] | None:
    """The advised cap, its gain and the gain's range in ms; None where the present one is as good."""
    rows = advise(run)
    best = rows[(rows["option"] == "cap") & rows["best"]]
    if best.empty:
        return None
    row = best.iloc[0]
    return float(row["bucket_cap_mb"]), row["gain_ns"] / 1e6, row["low_ns"] / 1e6, row["high_ns"] / 1e6


if __name__ == "__main__":
    typer.run(main)
