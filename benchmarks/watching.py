"""What watching costs, and how near its exposed communication is to a trace's of the same steps.

    python benchmarks/watching.py cost                       watched ÷ not watched, in blocks of 50 steps
    python benchmarks/watching.py cost --strategy torch-fsdp2 --width 512
    python benchmarks/watching.py exposed                    watched exposed time beside the trace's, per strategy
    python benchmarks/watching.py exposed --link 1Gbps,500us

`cost` also prints which share of the training thread's CPU time is spent within the watch. `exposed` compares what was
waited for: a trace counts as exposed also where, while communication is under way, an operator or the host waits for a
core, or the host launches or runs hooks, and the watch counts waits alone. Run them on an idle machine. Layers that
sleep (`--compute sleep:10ms,20ms`) need no core.

[Note: waited for in a trace]
Of exposed time, what lies in waits that the engine has labelled. Of torch's DDP and FSDP2 not all are; there it is
exposed time but for pauses: what ends as the rank computes again and communication goes on, from the last collective
that had ended by then, unless one ends so soon that its thread was only late to end its range. That is rule 3 of
docs/exposed.md, here before rules 1 and 2, which take pauses for their own where collectives wait for a rank or the
step sends more than it computes. In both, time in which an operator waited for a core is left out.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import comb
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _common import BATCH, LAYERS, LINK, SEQ, WIDTH, Side, end_rank, make_side, parse_link, ranks
from _shared import take_turns
from overlaplab_engine import Recorder
from overlaplab_engine.models.times import Sleep
from overlaplab_engine.network.communicator import Communicator, connect
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.watching.bursts import Bursts
from overlaplab_engine.watching.passes import Passes
from overlaplab_engine.watching.waits import Waits
from overlaplab_engine.watching.watch import Watch

import overlaplab
from overlaplab import analyses
from overlaplab.analyses.exposed import STALL_NS
from overlaplab.events import Trace, activity, step_windows, window_bounds
from overlaplab.evidence.host_waits import host_waits
from overlaplab.evidence.moments import GRAIN_NS, NEVER_NS
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.intervals import EMPTY, Intervals, intersect, subtract, total, union
from overlaplab.load.watched import load_watched

app = typer.Typer(add_completion=False, no_args_is_help=True)

COMPARED = ("torch-ddp", "torch-fsdp2", "bucketed", "per-param", "zero2", "zero3")
TOLERANCE = 0.03
"""Watched and traced waits should differ by less than this share of the step."""
MAX_RESUME_NS = 1_000_000
"""Whoever computes again later than this after a collective has ended was held up by something else."""
YARDSTICK_SHARE = 1 / 8
"""How long the fixed computation beside each step takes, of a step."""
_ENTRIES: dict[type, tuple[str, ...]] = {
    Watch: ("step",),
    Passes: ("_before_forward", "_after_forward", "_before_backward", "_after_computing", "_after_backward"),
    Waits: ("_begin", "_end", "_note"),
}
"""Where the training enters the watch."""


@app.command()
def cost(
    strategy: StrategyName = StrategyName.TORCH_DDP,
    blocks: int = 10,
    block: int = 50,
    every: int = 100,
    burst: int = 3,
    layers: LAYERS = 8,
    width: WIDTH = 256,
    seq: SEQ = 64,
    batch: BATCH = 8,
) -> None:
    """Step time in watched blocks ÷ in blocks that are not, each beside its neighbour; bursts are as often as asked.

    A machine's cores are now faster, now slower, by several percent within minutes. So each step has a fixed
    computation beside it, outside the watch: what the pairs' steps differ by, as far as they follow it, is left out.
    """
    in_burst = [Bursts(every, burst).holds(number) for number in range(block)]
    if all(in_burst) or not any(in_burst):
        raise typer.BadParameter("of a block's steps some must lie in a burst, and some not")
    ranks(2)
    comm = connect(torch.device("cpu"))
    side = make_side(strategy, comm, layers, width, seq, batch, bucket_cap_mb=5.0)
    for _ in range(5):
        side()
    yardstick = _make_yardstick(side, comm)
    shares: list[float] = []
    burst_ratios: list[float] = []

    def train_block(*, watched: bool) -> tuple[float, float]:
        """Seconds of the block's steps on the slower rank, and of the computations beside them."""
        with tempfile.TemporaryDirectory() as out, _measure_cpu() as cpu:
            watch = Watch(_model(side), out, every=every, burst=burst)
            comm.barrier()
            if watched:
                watch.start()
            steps_s, beside_s, took_cpu = [], 0.0, 0
            for _ in range(block):
                beside_s += yardstick()
                begun, begun_cpu = time.perf_counter(), time.thread_time_ns()
                side()
                if watched:
                    watch.step()
                steps_s.append(time.perf_counter() - begun)
                took_cpu += time.thread_time_ns() - begun_cpu
            took = max(comm.gather_objects(sum(steps_s)))
            beside = statistics.mean(comm.gather_objects(beside_s))
            watch.close()
            if watched:
                shares.append(sum(cpu) / took_cpu)
                burst_ratios.append(_burst_ratio(np.array(steps_s), np.array(in_burst)))
            return took, beside

    on, off = take_turns([partial(train_block, watched=watched) for watched in (True, False)], blocks)
    if comm.rank == 0:
        as_timed, ratios = _pair_ratios(np.array(on), np.array(off))
        quartile, _, upper_quartile = statistics.quantiles(ratios, n=4)
        low, high = _median_interval(ratios)
        timed_low, timed_high = _median_interval(as_timed)
        burst_low, burst_high = _median_interval(burst_ratios)
        print(
            f"{strategy.value}, {np.median(off, axis=0)[0] / block * 1e3:.0f} ms a step: watched ÷ not"
            f" {statistics.median(ratios):.4f} (95 %: {low:.4f} to {high:.4f}; quartiles {quartile:.3f} to"
            f" {upper_quartile:.3f}; {blocks} pairs of {block} steps); as timed"
            f" {statistics.median(as_timed):.4f} (95 %: {timed_low:.4f} to {timed_high:.4f}); CPU time within the watch"
            f" {statistics.median(shares):.3%} of the training thread's; steps of a burst ÷ the others of their block"
            f" {statistics.median(burst_ratios):.4f} (95 %: {burst_low:.4f} to {burst_high:.4f})"
        )
    end_rank(comm)


@app.command(name="exposed")
def compare_exposed(
    link: LINK = "none",
    compute: Annotated[str, typer.Option(help="real, or sleep:FORWARD,BACKWARD per layer.")] = "real",
    repeats: int = 3,
    layers: LAYERS = 8,
    width: WIDTH = 256,
    seq: SEQ = 64,
    batch: BATCH = 8,
) -> None:
    """Exposed communication as watched, beside what a trace of the same steps says; all steps are in a burst."""
    ranks(2)
    comm = connect(torch.device("cpu"), parse_link(link))
    sleep = None if compute == "real" else Sleep.parse(compute)
    hits: list[bool] = []
    for name in COMPARED:
        side = make_side(StrategyName(name), comm, layers, width, seq, batch, bucket_cap_mb=5.0, compute=sleep)
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(comm.broadcast_object(folder))
                _record(side, out)
                comm.barrier()
                if comm.rank == 0:
                    hits += _compare(name, out)
                comm.barrier()
    if comm.rank == 0:
        print(f"{sum(hits)} of {len(hits)} recorded ranks within {TOLERANCE:.0%} of the step")
    end_rank(comm)


def _make_yardstick(side: Side, comm: Communicator) -> Callable[[], float]:
    """A computation that is always the same, for about `YARDSTICK_SHARE` of a step; it returns its seconds."""
    factor = torch.randn(512, 512)

    def compute(times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            torch.tanh(factor @ factor)
        return time.perf_counter() - begun

    begun = time.perf_counter()
    side()
    step_s = time.perf_counter() - begun
    times = comm.broadcast_object(max(1, round(YARDSTICK_SHARE * step_s / (compute(20) / 20))))
    return partial(compute, times)


def _pair_ratios(on: Any, off: Any) -> tuple[list[float], list[float]]:
    """Watched ÷ not of each pair, as timed and without what follows the yardsticks beside its steps.

    `on` and `off` have a row of (steps, yardsticks) per pair, in seconds. Through the logarithms of both
    ratios goes a line of least squares. Pairs that begin watched and pairs that do not take turns, so that the
    yardsticks' own ratio is 1 on average.
    """
    steps, yardsticks = np.log(on / off).T
    slope = np.polyfit(yardsticks, steps, 1)[0]
    return np.exp(steps).tolist(), np.exp(steps - slope * yardsticks).tolist()


def _burst_ratio(steps_s: Any, in_burst: Any) -> float:
    """The median step of the block's bursts ÷ that of its other steps."""
    return float(np.median(steps_s[in_burst]) / np.median(steps_s[~in_burst]))


def _median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median by order statistics, which assumes no distribution; of under 9 values, all."""
    ordered, n, place = sorted(values), len(values), 0
    while sum(comb(n, below) for below in range(place + 2)) <= 0.025 * 2**n:
        place += 1
    return ordered[place], ordered[-1 - place]


def _model(side: Side) -> Any:
    """The module that the loop calls: of `torch-ddp`, DDP."""
    wrapper = getattr(side.strategy, "_ddp", None)
    return side.strategy.model if wrapper is None else wrapper


@contextmanager
def _measure_cpu() -> Iterator[list[int]]:
    """The CPU time of each entry into the watch, while this lasts; entries within entries count once."""
    spent: list[int] = []
    inside: list[None] = []

    def time_method(original: Callable[..., Any]) -> Callable[..., Any]:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if inside:
                return original(*args, **kwargs)
            inside.append(None)
            start = time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent.append(time.thread_time_ns() - start)
                inside.pop()

        return entry

    originals = {(cls, name): vars(cls)[name] for cls, names in _ENTRIES.items() for name in names}
    for (cls, name), original in originals.items():
        setattr(cls, name, time_method(original))
    try:
        yield spent
    finally:
        for (cls, name), original in originals.items():
            setattr(cls, name, original)


def _record(side: Side, out: Path) -> None:
    watch = Watch(_model(side), out / "watch", every=3, burst=3)
    with Recorder(out, _model(side), warmup=2, steps=3) as recorder, watch:
        for _ in range(7):
            side()
            recorder.step()
            watch.step()


def _compare(name: str, out: Path) -> list[bool]:
    """Print the sums over the recorded steps of each rank; whether they agree."""
    training = load_watched(out / "watch")
    watched = analyses.watched_bursts(training, analyses.watched_steps(training))
    hits = []
    for trace in overlaplab.load_run(out).traces:
        windows = step_windows(trace)
        numbers = [window.step for window in windows]
        same = watched[(watched["rank"] == trace.rank) & watched["step"].isin(numbers)]
        if same["exposed_comm_ns"].isna().any() or len(same) != len(windows):
            print(f"{name} rank {trace.rank}: watched unknown")
            hits.append(False)
            continue
        steps = union(*window_bounds(windows))
        exposed, core_waits, waited = (
            intersect(times, steps) for times in _exposed_parts(trace, is_labelled=not name.startswith("torch-"))
        )
        ms = 1e6 * len(windows)
        by_watch = int(same["exposed_comm_ns"].sum())
        off = (by_watch - total(waited)) / total(steps)
        hits.append(abs(off) < TOLERANCE)
        pauses_ns = total(exposed) - total(waited) - total(core_waits)
        print(
            f"{name} rank {trace.rank}: step {total(steps) / ms:.1f} ms, exposed {by_watch / ms:.2f} ms watched,"
            f" {total(exposed) / ms:.2f} traced: {total(waited) / ms:.2f} waited, {total(core_waits) / ms:.2f} for a"
            f" core, {pauses_ns / ms:.2f} launches and pauses; watched {off:+.1%} of the step"
        )
    return hits


def _exposed_parts(trace: Trace, *, is_labelled: bool) -> tuple[Intervals, Intervals, Intervals]:
    """A trace's exposed time; when in it an operator waited for a core; and when it was waited for.

    See [Note: waited for in a trace].
    """
    active = activity(trace)
    exposed = subtract(active.communication, active.compute)
    core_waits = EMPTY if active.preempted is None else intersect(exposed, active.preempted)
    on_core = subtract(exposed, core_waits)
    if is_labelled:
        return exposed, core_waits, intersect(on_core, host_waits(trace))
    begin, end = exposed.T
    ends = np.sort(recorded_collectives(trace)["end_ns"].to_numpy(np.int64))
    following = np.append(ends, NEVER_NS)[np.searchsorted(ends, end)]
    is_late = following - end <= np.minimum(STALL_NS, end - begin)
    last = np.append(ends, 0)[np.searchsorted(ends, end + GRAIN_NS, side="right") - 1]
    resumes = np.isin(end, active.compute[:, 0])
    has_end = last >= begin - GRAIN_NS
    pauses = resumes & ~is_late & (~has_end | (end - last > MAX_RESUME_NS))
    return (
        exposed,
        core_waits,
        subtract(on_core, union(np.where(has_end, np.maximum(last, begin), begin)[pauses], end[pauses])),
    )


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        app()
    sys.stdout.flush()
