"""One measurement of `load.py`, in a process of its own: what a side takes from files to the overlap, as JSON.

python benchmarks/_sides.py ours|hta|open FILE…
python benchmarks/_sides.py alone FILE ROUNDS
python benchmarks/_sides.py one PROCESSORS FILE
"""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from _shared import resident_bytes, take_turns
from msgspec.structs import replace

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"


def ours(files: list[str]) -> dict[str, Any]:
    """From files to the table of `overlaplab summary`, as that command does it."""
    import overlaplab

    def work(files: list[str]) -> overlaplab.Run:
        folder = Path(files[0]).parent
        run = (
            overlaplab.load_run(files[0], cache=False)
            if len(files) == 1
            else overlaplab.load_ranks(folder, cache=False)
        )
        overlaplab.summary(run)
        return run

    run, figures = _measure(work, files)
    start = time.perf_counter()
    overlaplab.exposed(run)
    exposed = time.perf_counter() - start
    return figures | {"exposed": exposed, "overlaps": [100 * _overlap(trace) for trace in run.traces]}


def hta(files: list[str]) -> dict[str, Any]:
    """From files to HTA's temporal breakdown and overlap, which together tell what `overlaplab summary` does."""
    analysis, trace = _hta_types()

    def work(files: list[str]) -> Any:
        loaded = analysis.__new__(analysis)
        loaded.t = trace(trace_files=dict(enumerate(files)), trace_dir="")
        loaded.t.load_traces(include_last_profiler_step=True, use_multiprocessing=len(files) > 1)
        loaded.get_temporal_breakdown(visualize=False)
        return loaded.get_comm_comp_overlap(visualize=False)

    table, figures = _measure(work, files)
    return figures | {"overlaps": table["comp_comm_overlap_pctg"].tolist()}


def open_cached(files: list[str]) -> dict[str, Any]:
    """Opening alone, with the cache."""
    import overlaplab

    run, figures = _measure(lambda files: overlaplab.load_run(files[0]), files)
    return figures | {"overlaps": [100 * _overlap(trace) for trace in run.traces]}


def open_one_file(files: list[str]) -> dict[str, Any]:
    """Opening one file, with so many processors; CPU time from the process's start."""
    import overlaplab
    from overlaplab.load import reading

    reading._processors = lambda: int(files[0])
    overlaplab.load_run(files[1], cache=False)
    return {"cpu": sum(os.times()[:4])}


def overlap_alone(files: list[str]) -> dict[str, Any]:
    """The overlap of loaded tables: seconds of both sides, in turns."""
    import overlaplab

    rounds, file = int(files[0]), files[1]
    (trace,) = overlaplab.load_run(file, cache=False).traces
    analysis, hta_trace = _hta_types()
    loaded = analysis.__new__(analysis)
    loaded.t = hta_trace(trace_files={0: file}, trace_dir="")
    loaded.t.load_traces(include_last_profiler_step=True)
    sides: tuple[Callable[[], Any], ...] = (
        lambda: _overlap(replace(trace)),  # of a copy, as what was found is kept with the trace
        lambda: loaded.get_comm_comp_overlap(visualize=False),
    )
    mine, its = take_turns([partial(_seconds, side) for side in sides], rounds, warmup=1)
    return {"ours": mine, "hta": its}


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _hta_types() -> tuple[Any, Any]:
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    logging.getLogger("hta").setLevel(logging.ERROR)
    return TraceAnalysis, Trace


def _overlap(trace: Any) -> float:
    from overlaplab.events import activity
    from overlaplab.intervals import intersect, total

    times = activity(trace)
    return total(intersect(times.compute, times.communication)) / total(times.communication)


def _measure(work: Callable[[list[str]], Any], files: list[str]) -> tuple[Any, dict[str, Any]]:
    """What the work gives; its seconds, by the clock and of CPU; and by how much the memory it held grew at most."""
    small, *files = files
    work([small])
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
    before = resident_bytes("VmRSS")
    start, cpu = time.perf_counter(), sum(os.times()[:4])
    result = work(files)
    seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - cpu  # of ended children, too
    children = getrusage(RUSAGE_CHILDREN).ru_maxrss << 10
    return result, {"seconds": seconds, "cpu": cpu, "peak_bytes": resident_bytes("VmHWM") - before + children}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # HTA's, of what pandas will drop
    side = {"ours": ours, "hta": hta, "open": open_cached, "alone": overlap_alone, "one": open_one_file}[sys.argv[1]]
    print(json.dumps(side(sys.argv[2:])))
