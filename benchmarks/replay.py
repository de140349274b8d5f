"""How far the replay of recorded steps is off: `python benchmarks/replay.py RUN…`.

A line per run: of its steps the mean and the largest error of what `replayed_spans_ns` plays.
"""

import sys

import overlaplab
from overlaplab.analyses import collectives
from overlaplab.simulate.advice.tried import replayed_spans_ns
from overlaplab.simulate.undisturbed import recorded_spans_ns


def main(paths: list[str]) -> None:
    """Print the table."""
    print(f"{'run':44s} ranks  steps  collectives  matched   mean error   worst")
    for path in paths:
        run = overlaplab.load_run(path)
        replayed_ns = replayed_spans_ns(run)
        if not replayed_ns.size:
            print(f"{path[-44:]:44s} its traces do not tell what waited for what")
            continue
        errors = abs(replayed_ns / recorded_spans_ns(run) - 1)
        rows = collectives(run)
        matched = rows[rows["transfer_ns"].notna()]["index"].nunique()
        print(
            f"{path[-44:]:44s} {len(run.traces):5d} {replayed_ns.size:6d} {rows['index'].nunique():12d} {matched:8d}"
            f" {errors.mean():11.2%} {errors.max():8.2%}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
