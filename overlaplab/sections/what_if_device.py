"""The page What if of runs on GPUs: another cap of torch's DDP, another prefetch depth of its FSDP2, actions."""

from __future__ import annotations

from functools import partial

import pandas as pd

from overlaplab import charts, findings
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, missing_ranks
from overlaplab.formats import as_held
from overlaplab.sections.blocks import Chart
from overlaplab.sections.what_if import Parts, advised_cap_mb, caps_tried
from overlaplab.simulate.predictions import device_what_if, what_if
from overlaplab.simulate.predictions.error import gain_half_ns
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns


def device_parts(run: Run, setting: Setting, recorded: pd.DataFrame, note: str | None) -> Parts:
    """What the page consists of; `recorded`: rows of `recorded_caps`. Raises `OverlaplabError` where it cannot be."""
    answer = device_what_if.answer(run, setting)
    sure = device_what_if.interval(run, answer, recorded)
    step_ns, measured_ns = round(answer.mean_ns), round(mean_step_ns(run, recorded_spans_ns(run)))
    doubt_ns = gain_half_ns(measured_ns, sure)
    over: list[Chart] = []
    option = device_what_if.option_or_why(run)
    if isinstance(option, OverlaplabError):
        advice = findings.what_if_advice(pd.DataFrame(), measured_ns, doubt_ns)
    elif option == "prefetch":
        table = device_what_if.steps_by_depth(run, setting)
        draw = partial(
            charts.depths_predicted, table, chosen=setting.prefetch, measured_ns=measured_ns, half_ns=sure.half_ns
        )
        over.append(Chart(key="depths_predicted", draw=draw, note=note, table=as_held(table, "by_depth")))
        advice = findings.depths_advice(table, measured_ns, doubt_ns)
    else:
        advised_mb = advised_cap_mb(run, setting)
        table = device_what_if.steps_by_cap(run, setting, sorted({*caps_tried(run), *filter(None, [advised_mb])}))
        over.append(_over_caps(run, setting, table, recorded, (measured_ns, sure.half_ns), advised_mb, note))
        by_engine = run.manifest is not None and not run.manifest.by_recorder
        advice = findings.what_if_advice(table, measured_ns, doubt_ns, advised_mb, by_engine=by_engine)
    return Parts(
        headline=findings.what_if_headline(setting, step_ns, measured_ns, sure.half_ns, doubt_ns),
        notes=findings.what_if_notes(sure, doubt_ns, answer.far, None, all_ranks=not missing_ranks(run)),
        over=over,
        lanes=_lanes(run, setting, note),
        growing=[],
        advice=advice,
    )


def _over_caps(
    run: Run,
    setting: Setting,
    table: pd.DataFrame,
    recorded: pd.DataFrame,
    step_ns: tuple[int, int],
    advised_mb: float | None,
    note: str | None,
) -> Chart:
    """`step_ns`: as measured, and half of the interval."""
    recorded_cap = run.manifest.bucket_cap_mb if run.manifest else None
    draw = partial(
        charts.caps_predicted,
        table,
        recorded.dropna(),
        recorded_cap if setting.bucket_cap_mb is None else setting.bucket_cap_mb,
        step_ns[1],
        advised_mb,
        measured_ns=step_ns[0] if recorded_cap is None else None,
        least_ns=device_what_if.least_ns(run),
    )
    return Chart(key="caps_predicted", draw=draw, note=note, table=as_held(table, "by_cap"))


def _lanes(run: Run, setting: Setting, note: str | None) -> Chart:
    before, after = (device_what_if.answer(run, choice) for choice in (Setting(), setting))
    both = pd.concat([before.lanes.assign(which="measured"), after.lanes.assign(which="predicted")])
    draw = partial(charts.step_lanes, before.lanes, after.lanes, (what_if.measured_step(run).span_ns, after.span_ns))
    return Chart(key="step_lanes", draw=draw, note=note, table=as_held(both, "lanes"))
