"""How long the page What if takes to answer, and 10,000 ranks to play: `python benchmarks/what_if.py [RUN]`.

CPU time of the server: predicting, and making the charts that are sent to the browser. The first answer makes the
programs of all caps; a slider's move afterwards makes at most those of one setting.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import process_time

from msgspec.structs import replace

import overlaplab
from overlaplab.dashboard.heap import rest_modules
from overlaplab.manifest import strategy_traits
from overlaplab.sections.what_if import what_if_parts
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.cpu_answers import play_question
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.setting import Setting

SAMPLE = Path(__file__).parents[1] / "traces" / "bucketed"


def main(path: str) -> None:
    """Print medians in ms."""
    rest_modules()  # as the dashboard does, which then makes charts twice as fast
    run = overlaplab.load_run(path)
    manifest = run.manifest
    assert manifest is not None
    recorded = recorded_caps(manifest, [manifest])
    assert manifest.link is not None
    links = [replace(manifest.link, bandwidth_gbps=gbps) for gbps in (0.5, 2.0, 5.0, 10.0, 25.0, 50.0)]
    moves = {
        "first answer": [Setting()],
        "bandwidth moved": [Setting(link=link) for link in links],
        "ranks moved": [Setting(ranks=ranks) for ranks in (4, 8, 64, 512, 10_000)],
    }
    if (traits := strategy_traits(manifest)) is not None and traits.buckets:
        moves["cap moved"] = [Setting(bucket_cap_mb=cap) for cap in (0.25, 0.5, 1.0, 2.0, 8.0)]
    for name, settings in moves.items():
        took = []
        for setting in settings:
            begun = process_time()
            parts = what_if_parts(run, Question(setting=setting), recorded, None)
            for chart in (*parts.option_charts, parts.lanes, *parts.growth_charts):
                chart.draw(dark=False, note=None).to_dict()
            took.append(1e3 * (process_time() - begun))
        print(f"{name:16s} median {median(took):6.1f} ms, most {max(took):6.1f} ms")
    begun = process_time()
    play_question(run, Question(setting=Setting(ranks=10_000)))
    print(f"10,000 ranks     {1e3 * (process_time() - begun):6.1f} ms for {manifest.raw['steps']} steps")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(SAMPLE))
