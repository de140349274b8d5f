"""What a step is predicted to take with another setting, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from msgspec.structs import asdict

from overlaplab.costs import Algorithm
from overlaplab.findings.actions.words import SCHEDULES
from overlaplab.findings.predictions import extrapolation, gain_finding, gain_line, interval_line
from overlaplab.findings.thresholds import CAP_TIE
from overlaplab.simulate.predictions.error import Interval
from overlaplab.simulate.programs.setting import Setting
from overlaplab.words import cap_digits, count, doubt_clause, join_names, ms, percent

BEST_FOUND = "best buckets found"
"""The name of the line at `cpu_answers.best_found_ns`."""
BEST_POSSIBLE = "best buckets possible"
"""The name of the line at `device_answers.device_least_ns`."""
_ALGORITHMS: dict[Algorithm, str] = {
    "ring": "Collectives go around a ring",
    "auto": "Each collective takes the faster of a ring and trees, as NCCL chooses",
}


_WITH_WAITING = "Collectives take as long as recorded, waiting for the missing ranks included"
SMALLER_MICROBATCHES = "The page Pipeline says what smaller microbatches of the same samples gain."
_BY_RANK = "Collectives and messages take as long as recorded, unless another link is asked for"
_RECORDED = "Collectives take as long as those of their size did, measured from when the last rank arrived"


def setting_words(setting: Setting) -> str:
    """What the setting changes; empty where it changes nothing."""
    microbatches = _microbatches(setting)
    parts = [
        f"strategy {setting.strategy}" if setting.strategy else "",
        f"bucket_cap_mb {cap_digits(setting.bucket_cap_mb)}" if setting.bucket_cap_mb is not None else "",
        f"a first bucket of {cap_digits(setting.first_bucket_mb)} MiB" if setting.first_bucket_mb is not None else "",
        f"prefetch {setting.prefetch}" if setting.prefetch is not None else "",
        f"{count(microbatches, 'microbatch')} per step" if microbatches is not None else "",
        f"the schedule {SCHEDULES.get(setting.schedule, setting.schedule)}" if setting.schedule else "",
        f"link {setting.link}" if setting.link else "",
        count(setting.ranks, "rank") if setting.ranks is not None else "",
        "no straggler" if not setting.straggler else "",
        *(f"the edit {name if value is None else f'{name}={value}'}" for name, value in setting.edits),
    ]
    changes = [*filter(None, parts)]
    return join_names(changes) if changes else ""


def _microbatches(setting: Setting) -> int | None:
    """How many microbatches per step the setting asks for, of a pipeline or by accumulation."""
    return setting.accumulate if setting.microbatches is None else setting.microbatches


def question_words(setting: Setting, algorithm: Algorithm) -> str:
    """What is changed; empty where nothing is."""
    trees = "" if algorithm == "ring" else "collectives over rings or trees"
    return " and ".join(filter(None, (setting_words(setting), trees)))


def what_if_headline(
    setting: Setting,
    step_ns: int,
    measured_ns: int,
    half_ns: int,
    doubt_ns: int,
    microbatches: int = 1,
    algorithm: Algorithm = "ring",
) -> str:
    """The predicted step with its interval beside the measured one; `doubt_ns`: what a certain gain exceeds.

    `microbatches`: how many a recorded step has.
    """
    words = question_words(setting, algorithm)
    if not words:
        return f"As recorded, an undisturbed step took {ms(measured_ns)} on average. Replayed, it takes {ms(step_ns)}."
    changed = _microbatches(setting)
    if changed is not None and changed != microbatches:
        gained = gain_finding(measured_ns, step_ns, doubt_ns, (microbatches, changed))
        return (
            f"With {words} a step is predicted to take {ms(step_ns)} ± {ms(half_ns)}"
            f" ({ms(measured_ns)} measured). {gained}"
        )
    less = abs(measured_ns - step_ns)
    change = f"{'Gain' if step_ns <= measured_ns else 'Loss'}: {ms(less)} ({percent(less, measured_ns)})"
    return (
        f"With {words} a step is predicted to take {ms(step_ns)} ± {ms(half_ns)} ({ms(measured_ns)}"
        f" measured). {change}{doubt_clause(less, doubt_ns)}."
    )


def what_if_notes(
    sure: Interval,
    doubt_ns: int,
    far: Mapping[str, float],
    algorithm: Algorithm | None,
    *,
    all_ranks: bool = True,
    alike: bool = True,
) -> list[str]:
    """Where the interval comes from, how collectives are modelled (None: as recorded, with the waiting for ranks that
    are missing), and what is extrapolated: see `Answer`. `alike`: all ranks launch the same.
    """
    as_recorded = _WITH_WAITING if not all_ranks else _RECORDED if alike else _BY_RANK
    modelled = _ALGORITHMS[algorithm] if algorithm else as_recorded
    notes = [interval_line(sure.half_ns, asdict(sure)), gain_line(doubt_ns), f"{modelled}."]
    return [*notes, extrapolation(far)] if far else notes


def not_told(why: str) -> str:
    """Why a curve is missing; `why` is an error's text."""
    return f"Not all curves can be drawn: {why.rstrip('.')}."


def caps_predicted_title(table: pd.DataFrame, advised_mb: float | None = None) -> str:
    """Rows of `what_if.steps_by_cap`: which cap is predicted to be best; `advised_mb`: see `what_if_advice`."""
    best = _best_row(table, advised_mb)
    cap = cap_digits(best["bucket_cap_mb"])
    return f"Predicted step by cap: {_closeness(best, table)} with {cap} MiB, {ms(best['step_ns'])}"


def best_buckets_reading(*, is_found: bool, possible: bool) -> str | None:
    """What the line at the best buckets means, if there is one."""
    if is_found:
        return f"{BEST_FOUND.capitalize()}: the shortest of all caps and lists of caps that were tried."
    if possible:
        return f"{BEST_POSSIBLE.capitalize()}: no buckets give a shorter step, even without delays or late ranks."
    return None


def depths_predicted_title(table: pd.DataFrame) -> str:
    """Rows of `what_if.steps_by_depth`: which depth is predicted to be best."""
    best = _best_row(table)
    return f"Predicted step by prefetch: {_closeness(best, table)} with {best['prefetch']}, {ms(best['step_ns'])}"


def _closeness(best: Mapping[Any, Any], table: pd.DataFrame) -> str:
    """Whether the row's step is the shortest of all."""
    return "shortest" if best["step_ns"] == table["step_ns"].min() else f"within {percent(CAP_TIE, 1)} of the shortest"


def _best_row(table: pd.DataFrame, advised_mb: float | None = None) -> dict[Any, Any]:
    """The row to name of those within `CAP_TIE` of the shortest step: of caps the advised one, else the largest, since
    each bucket costs host time; of depths the smallest, which holds least memory.
    """
    rows: list[dict[Any, Any]] = table[table["step_ns"] <= table["step_ns"].min() * (1 + CAP_TIE)].to_dict("records")
    if "prefetch" in table:
        return min(rows, key=lambda row: row["prefetch"])
    return max(rows, key=lambda row: (row["bucket_cap_mb"] == advised_mb, row["bucket_cap_mb"]))


def ranks_predicted_title(table: pd.DataFrame) -> str:
    """Rows of `what_if.steps_by_ranks`: the step with the fewest and with the most ranks."""
    first, last = table.iloc[0], table.iloc[-1]
    ends = f"{ms(first['step_ns'])} with {count(int(first['ranks']), 'rank')}, {ms(last['step_ns'])} with"
    return f"Predicted step by ranks: {ends} {int(last['ranks']):,}"


def throughput_predicted_title(table: pd.DataFrame) -> str:
    """Rows of `what_if.steps_by_ranks`: what is left of a rank's throughput."""
    first, last = table.iloc[0], table.iloc[-1]
    left = percent(float(last["throughput"]), 1)
    return f"Predicted throughput per rank: {left} with {int(last['ranks']):,} ranks of that with {int(first['ranks'])}"


def held_predicted_title(table: pd.DataFrame) -> str:
    """Rows of `what_if.steps_by_ranks`: whether each rank holds less as there are more."""
    held = table["held_bytes"]
    return f"Memory per rank by formula: {'the same' if held.nunique() == 1 else 'less'} with more ranks"


def lanes_title(step_ns: int, measured_ns: int) -> str:
    """One step, measured and predicted."""
    return f"The step of median length: {ms(measured_ns)} measured, {ms(step_ns)} predicted"


def depths_advice(
    table: pd.DataFrame,
    baseline_ns: int,
    doubt_ns: int,
    *,
    recorded: int | None = None,
    by_engine: bool = False,
    others: str = "",
) -> str:
    """What to do about the depths that were tried; rows of `what_if.steps_by_depth`; see `what_if_advice`."""
    best = _best_row(table)
    gain_ns = baseline_ns - best["step_ns"]
    beside = f" with {others}" if others else ""
    if gain_ns <= 0 or _is_as_good(table, "prefetch", recorded, best):
        return f"No prefetch depth is predicted to make the step{beside} shorter."
    words = f"Prefetch {best['prefetch']}{beside}: predicted gain {ms(gain_ns)}{doubt_clause(gain_ns, doubt_ns)}."
    if gain_ns <= doubt_ns:
        return words
    if by_engine:
        return f"{words} Record with --prefetch {best['prefetch']}."
    units = count(int(best["prefetch"]), "unit")
    return (
        f"{words} Name the next {units} in set_modules_to_forward_prefetch, the {units} before in"
        " set_modules_to_backward_prefetch."
    )


def device_folded(option: str | None, why: str, *, first: bool, link: bool, ranks: bool) -> list[str]:
    """What this page does not predict of a run on GPUs, and why.

    `option`: the one that it predicts; None if it predicts neither, for the reason `why`. `first`, `link`, `ranks`:
    whether `overlaplab predict` takes another cap of the first bucket, another link, other numbers of ranks.
    """
    folded = {
        None: f"bucket_cap_mb, prefetch: {why}",
        "bucket_cap_mb": "Prefetch: DDP gathers nothing.",
        "prefetch": "bucket_cap_mb: FSDP2 sends no buckets.",
    }
    notes = [folded[option]]
    if first and option == "bucket_cap_mb":
        notes.append("First bucket: overlaplab predict RUN --bucket-cap-mb 25 --first-bucket-mb 1 predicts it.")
    if link:
        notes.append("Link: overlaplab predict RUN --link 100Gbps,20us predicts another one.")
    if ranks:
        notes.append("Ranks: overlaplab predict RUN --ranks 64 --link 100Gbps,20us predicts others, behind that link.")
    unknown = "Strategy, microbatches" if ranks else "Strategy, ranks, microbatches"
    return [*notes, f"{unknown}: a trace does not show what the training loop would do then."]


def what_if_advice(
    table: pd.DataFrame,
    baseline_ns: int,
    doubt_ns: int,
    advised_mb: float | None = None,
    *,
    recorded: float | None = None,
    by_engine: bool = True,
    others: str = "",
) -> str:
    """What to do about the caps that were tried; rows of `what_if.steps_by_cap`, empty where caps do nothing.

    `baseline_ns`: the step that they shorten, as measured, or as predicted with `others`, the words for what is changed
    beside the cap. `doubt_ns`: what such a gain must exceed. `advised_mb`: the cap that `advise` finds best, which is
    named here, too, where it is as good as the others. `recorded`: the run's own cap, which is not advised.
    `by_engine`: whether the engine records the run, by an option.
    """
    if table.empty:
        return "Change the setting and look whether the step gets shorter by more than the model's error."
    best = _best_row(table, advised_mb)
    cap, gain_ns = f"bucket_cap_mb {cap_digits(best['bucket_cap_mb'])}", baseline_ns - best["step_ns"]
    beside = f" with {others}" if others else ""
    if gain_ns <= 0 or _is_as_good(table, "bucket_cap_mb", recorded, best):
        shortest = f"the shortest is {ms(best['step_ns'])}, with {cap}"
        return f"No cap is predicted to make the step{beside} shorter: {shortest}."
    gain = f"{ms(gain_ns)}{doubt_clause(gain_ns, doubt_ns)}"
    if gain_ns <= doubt_ns:
        return f"{cap}{beside}: predicted gain {gain}. Record both settings several times to know."
    script = f"DistributedDataParallel(model, bucket_cap_mb={cap_digits(best['bucket_cap_mb'])})"
    if not by_engine:
        return f"Try {script}. Predicted gain{beside}: {gain}."
    option = f"--bucket-cap-mb {cap_digits(best['bucket_cap_mb'])}"
    return f"Record with {option}; in a script: {script}. Predicted gain{beside}: {gain}."


def _is_as_good(table: pd.DataFrame, option: str, recorded: float | None, best: Mapping[Any, Any]) -> bool:
    """Whether the recorded value, played, gives as short a step as the best one."""
    return recorded is not None and bool((table.loc[table[option] == recorded, "step_ns"] <= best["step_ns"]).any())
