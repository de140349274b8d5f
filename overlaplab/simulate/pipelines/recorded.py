"""A recorded pipeline as shapes to be played, one for each step: what its actions, its hosts and its messages took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.analyses.systems.pipeline import pipeline
from overlaplab.costs.pipeline import BACKWARD, FORWARD, INPUT, WEIGHT
from overlaplab.events import Run, Trace, Window, activity, once_per_run, rule_of, step_windows
from overlaplab.evidence.call_metadata import group_axes
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.evidence.pipelines import find_plan, pipelines
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import Intervals, clip, lengths_within, subtract, total, union
from overlaplab.manifest import Pipeline
from overlaplab.simulate.pipelines.moves import bare_moves, follow_moves
from overlaplab.simulate.pipelines.shape import PLAYED_SCHEDULES, UPDATE, Host, Labelled, Shape
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Launch, Move
from overlaplab.vocabulary import Rule


@once_per_run
def recorded_shapes(run: Run) -> tuple[tuple[Shape, ...], ...]:
    """The shape of each recorded step, for each pipeline. Raises `OverlaplabError` where it cannot be played."""
    plan, manifest = find_plan(run), run.manifest
    if plan is None:
        raise refusal(run, "no run.json names its stages, and its order of actions is of no known schedule")
    if any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        raise refusal(run, "only pipelines on CPUs are played")
    if plan.schedule not in PLAYED_SCHEDULES:
        raise refusal(run, f"{plan.schedule} is not predicted")
    ranks = 1 + max(stage.rank for stage in plan.stages)
    pipeline_places = pipelines(run)
    for places in pipeline_places or [[]]:
        if len(places) != ranks:
            number, noun = (len(plan.stages), "stages") if len(plan.stages) == ranks else (ranks, "ranks")
            raise refusal(run, f"the traces of {len(places)} of {number} {noun} are there")
    if sum(map(len, pipeline_places)) != len(run.traces):
        raise refusal(run, "some of its ranks belong to no pipeline whose stages are all there")
    if pipeline(run)["wait_ns"].isna().any():
        what = "its traces do not show when messages were on their way"
        raise refusal(run, what, "Record it behind an emulated link (--link 1Gbps,200us)")
    rows = arrivals(run)
    hops = rows[rows["message"] & (rows["wait_ns"] != UNKNOWN_NS) & (rows["start_ns"] != UNKNOWN_NS)]
    if hops.empty:
        raise refusal(run, "its traces hold no messages")
    hop_ns, size = _hop_ns(hops), int(hops["bytes"].max())
    replicas = len(pipeline_places)
    emulated = manifest.emulated_link if manifest else None
    link = emulated and replace(emulated, world_size=replicas)
    averages = _averages(run, pipeline_places) if replicas > 1 else ()
    counts = tuple(sum(map(is_layer, stage.units)) for stage in plan.stages)
    shapes = []
    for number, places in enumerate(pipeline_places):
        table = pipeline(run)
        table = table[table["pipeline"] == number]
        every = [list(_steps(run, places, table, plan, rank)) for rank in range(ranks)]
        bare = (
            _shape(plan, steps, counts, hidden=bool(manifest and manifest.hides_host))
            for steps in zip(*every, strict=False)
        )
        shapes.append(tuple(replace(shape, hop_ns=hop_ns, bytes=size, link=link, buckets=averages) for shape in bare))
    return tuple(shapes)


def _hop_ns(hops: pd.DataFrame) -> int:
    """How long messages occupy the link in the mean: each from when both ends had called and both links were free."""
    once = hops.groupby("match").agg(last=("last_ns", "max"), end=("end_ns", "max"), group=("group", "first"))
    once = once.sort_values("end", kind="stable")
    names = once["group"].str.extract(r"^(?P<group>.*):(?P<sender>\d+)-(?P<receiver>\d+)")
    end = once["end"] - once["end"].min()  # so that floats hold it to the ns
    ready = (once["last"] - once["end"].min()).astype(float)
    for way in ("sender", "receiver"):
        ready = np.fmax(ready, end.groupby([names["group"], names[way]]).shift())
    return round(float((end - ready).mean()))


class _RankStep(Struct, frozen=True):
    took_ns: dict[int, dict[str, int]]
    """What the actions and updates of each of its stages take."""
    idle_ns: dict[int, dict[str, int]]
    """What of the actions is without computation."""
    layers: Labelled | None
    """What its layers take, as far as it is labelled."""
    host: Host
    around_ns: tuple[int, int]
    """Before the first post or action, and beside updates and averages at the end."""


def _shape(plan: Pipeline, steps: Sequence[_RankStep], counts: tuple[int, ...], *, hidden: bool) -> Shape:
    """The shape of one step, without its messages."""
    holders = [steps[stage.rank] for stage in plan.stages]
    shape = Shape(
        schedule=plan.schedule,
        microbatches=plan.microbatches,
        took_ns=tuple(holder.took_ns[stage] for stage, holder in enumerate(holders)),
        idle_ns=tuple(holder.idle_ns[stage] for stage, holder in enumerate(holders)),
        hosts=tuple(step.host for step in steps),
        around_ns=tuple(step.around_ns for step in steps),
        hides_host=hidden,
    )
    layers = [holder.layers for holder in holders if holder.layers is not None]
    if not all(counts) or len(layers) < len(holders):
        return shape
    outer = [(is_layer(stage.units[0]), is_layer(stage.units[-1])) for stage in plan.stages]
    return shape.with_labelled_layers(counts, layers, outer)


def _averages(run: Run, pipeline_places: Sequence[Sequence[int]]) -> tuple[tuple[Launch, ...], ...]:
    """The buckets that each rank along the pipeline averages with its replicas, in order of launch."""
    rows = arrivals(run)
    axes = group_axes(rows["group_description"].to_numpy())
    averages = rows[(axes == "dp") & (rows["kind"] == "all_reduce") & (rows["last_ns"] != UNKNOWN_NS)]
    buckets = []
    for members in zip(*pipeline_places, strict=True):
        by_step = [
            launched[["bytes", "took_ns"]].to_numpy()
            for place in members
            for window in step_windows(run.traces[place])
            if len(launched := _rows_in_step(averages, place, window, int(corrections(run)[place])))
        ]
        if not by_step or len({len(each) for each in by_step}) > 1:
            raise refusal(run, "its traces do not show all averages of its replicas")
        means = enumerate(np.mean(by_step, axis=0).round().astype(int).tolist())
        launches = (Launch(None, ns, "all_reduce", size, "bucket", str(number)) for number, (size, ns) in means)
        buckets.append(tuple(launches))
    return tuple(buckets)


def _rows_in_step(rows: pd.DataFrame, place: int, window: Window, offset: int) -> pd.DataFrame:
    """The rows of a trace that began in a step, with `took_ns`."""
    begun = rows["start_ns"] + offset
    in_step = rows[(rows["trace"] == place) & (begun >= window.start_ns) & (begun < window.end_ns)]
    return in_step.assign(took_ns=in_step["end_ns"] - in_step["last_ns"]).sort_values("start_ns")


def _steps(run: Run, places: Sequence[int], table: pd.DataFrame, plan: Pipeline, rank: int) -> Iterator[_RankStep]:
    """A rank's steps, in which all actions have to be there."""
    place = places[rank]
    trace, rows, offset = run.traces[place], arrivals(run), int(corrections(run)[place])
    messages = rows[(rows["trace"] == place) & rows["message"] & (rows["start_ns"] != UNKNOWN_NS)]
    averaging = [label for label in engine_labels(trace) if label.word == "wait"] if len(pipelines(run)) > 1 else []
    blocked = union(
        [*(messages["start_ns"] + offset), *(label.start_ns for label in averaging)],
        [*(messages["end_ns"] + offset), *(label.end_ns for label in averaging)],
    )
    stages = [number for number, stage in enumerate(plan.stages) if stage.rank == rank]
    unit_of = {unit: number for number in stages for unit in plan.stages[number].units}
    bare = _bare_moves(plan, rank)
    for window in step_windows(trace):
        step = table[table["stage"].isin(stages) & (table["step"] == window.step)].sort_values("start_ns")
        starts = step["begun_ns"].to_numpy(np.int64) + run.traces[0].origin_ns + offset
        ends = starts + step["took_ns"].to_numpy(np.int64)
        idle = ends - starts - lengths_within(activity(trace).compute, starts, ends)
        took, idles = _stage_times(run, plan, stages, step.assign(took_ns=ends - starts, idle_ns=idle))
        updates = _labels_within(trace, window, "update")
        for label in updates:
            took[unit_of.get(label.fields["unit"], stages[0])][UPDATE] += label.end_ns - label.start_ns
        actions = list(zip(starts.tolist(), ends.tolist(), strict=True))
        host_times = _follow_host(bare, window, messages, offset, places, actions)
        if host_times is None:
            between = step["overhead_ns"].iloc[1:].mean() if len(step) > 1 else 0
            begun_ns = _free(blocked, window.start_ns, int(starts[0]))
            host_times = Host(begin_ns=round(between)), begun_ns, int(ends[-1])
        host, before_ns, last_ns = host_times
        updated_ns = sum(label.end_ns - label.start_ns for label in updates)
        after = max(_free(blocked, last_ns, window.end_ns) - updated_ns, 0)
        layers = _labelled_layers(trace, window, plan, took)
        yield _RankStep(took, idles, layers, host, (before_ns, after))


def _stage_times(
    run: Run, plan: Pipeline, stages: Sequence[int], step: pd.DataFrame
) -> tuple[dict[int, dict[str, int]], dict[int, dict[str, int]]]:
    """What each stage's actions take in the mean, by kind, and what of it is idle; updates are 0."""
    kinds = (FORWARD, INPUT, WEIGHT) if plan.schedule == "zbv" else (FORWARD, BACKWARD)
    took: dict[int, dict[str, int]] = {}
    idles: dict[int, dict[str, int]] = {}
    for stage in stages:
        of_stage = step[step["stage"] == stage]
        number = len(kinds) * plan.microbatches
        if len(of_stage) != number:
            raise refusal(run, f"stage {stage} has {len(of_stage)} of {number} actions in a step")
        rows_of = {kind: of_stage[of_stage["action"] == kind] for kind in kinds}
        took[stage] = {kind: round(rows["took_ns"].mean()) for kind, rows in rows_of.items()} | {UPDATE: 0}
        idles[stage] = {kind: round(rows["idle_ns"].mean()) for kind, rows in rows_of.items()}
    return took, idles


def _bare_moves(plan: Pipeline, rank: int) -> list[Move]:
    """What the rank does in a step, in the schedule's order."""
    kinds = (FORWARD, INPUT, WEIGHT) if plan.schedule == "zbv" else (FORWARD, BACKWARD)
    nothing = (dict.fromkeys((*kinds, UPDATE), 0),) * len(plan.stages)
    ranks = 1 + max(stage.rank for stage in plan.stages)
    shape = Shape(
        schedule=plan.schedule,
        microbatches=plan.microbatches,
        took_ns=nothing,
        idle_ns=nothing,
        hosts=(Host(),) * ranks,
        around_ns=((0, 0),) * ranks,
    )
    return bare_moves(shape, rank)


def _follow_host(
    bare: Sequence[Move],
    window: Window,
    rows: pd.DataFrame,
    offset: int,
    places: Sequence[int],
    actions: Sequence[tuple[int, int]],
) -> tuple[Host, int, int] | None:
    """What the host took in the step; None where the rank's messages, `rows`, are not labelled as these moves post."""
    begun = rows["launch_ns"] + offset
    posted_rows = rows[(rows["launch_ns"] != UNKNOWN_NS) & (begun >= window.start_ns) & (begun < window.end_ns)]
    posted_rows = posted_rows.sort_values("launch_ns", kind="stable")
    lanes = [move.lane for move in bare if isinstance(move, Launch) and move.lane is not None]
    named = [{"{}-{}".format(*lane), "{}-{}".format(*(places[end] for end in lane))} for lane in lanes]
    recorded_lanes = posted_rows["group"].str.extract(r":(\d+-\d+)", expand=False)
    pairs = zip(recorded_lanes, named, strict=False)
    if len(recorded_lanes) != len(lanes) or any(name not in either for name, either in pairs):
        return None
    posted = zip((posted_rows["launch_ns"] + offset).tolist(), (posted_rows["end_ns"] + offset).tolist(), strict=True)
    return follow_moves(bare, window.start_ns, list(posted), actions)


def _free(blocked: Intervals, start_ns: int, end_ns: int) -> int:
    """How long the host was not blocked between two times."""
    return total(subtract(union([start_ns], [max(start_ns, end_ns)]), clip(blocked, start_ns, max(start_ns, end_ns))))


def _labelled_layers(
    trace: Trace, window: Window, pipeline: Pipeline, took: Mapping[int, Mapping[str, int]]
) -> Labelled | None:
    """What a layer takes in the mean, by the borders of its uses; None where these are not labelled.

    Without halves of backward passes: one half's gradients do not come in the layers' order.
    """
    times_ns: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], UPDATE: []}
    used_ns = {FORWARD: 0, BACKWARD: 0}
    begun: dict[tuple[str, str, str], int] = {}
    ran = executions(trace)  # on a GPU in device time, as actions
    for label in _labels_within(trace, window, "first_use", "last_use", "update"):
        unit = label.fields["unit"]
        if label.word == "update":
            times_ns[UPDATE] += [label.end_ns - label.start_ns] if is_layer(unit) else []
            continue
        key = (unit, label.fields["phase"], label.fields["microbatch"])
        if label.word == "first_use":
            at = ran.first_begin_ns(label.start_ns)
            begun[key] = label.start_ns if at is None else at
        elif key in begun and key[1] in used_ns:
            use_ns = ran.done_ns(label.start_ns) - begun.pop(key)
            used_ns[key[1]] += use_ns
            times_ns[key[1]] += [use_ns] if is_layer(unit) else []
    if not times_ns[FORWARD]:
        return None
    if pipeline.schedule == "zbv":
        times_ns[BACKWARD].clear()
    beside_ns: dict[str, int] = {}
    for kind, used in used_ns.items():
        if times_ns[kind]:
            whole_ns = fmean(stage_took[kind] for stage_took in took.values())
            beside_ns[kind] = max(round(whole_ns - used / (pipeline.microbatches * len(took))), 0)
    return Labelled({kind: round(fmean(each_ns)) for kind, each_ns in times_ns.items() if each_ns}, beside_ns)


def _labels_within(trace: Trace, window: Window, *words: str) -> list[Label]:
    """The labels of these words that begin in a step."""
    labels = (label for label in engine_labels(trace) if label.word in words)
    return [label for label in labels if window.start_ns <= label.start_ns < window.end_ns]


def is_layer(unit: str) -> bool:
    """Whether it is one of the units that are shared out among the stages."""
    return unit.startswith("layers.")
