"""What a remedy would gain: the recorded programs, edited as the remedy would change them, and played again.

[Note: remedies]
docs/actions.md says what each is. `setting` is the rank of `balance` and, where it computes longer, of `even_work`, the
units ahead of `prefetch`, those as one of `larger_units`, the cap in MiB of `cap` and `first_bucket`, and the part of
the bytes of `half_the_bytes`. `what` is the name of the work of `host_work`, the operator in which the host waited for
longest of `device_waits`, the range in which it pauses of `no_pause` (None where no range tells), the other strategy of
`strategy` and `library_collectives`, the parameter of `one_gradient_less`, the parameters of `unused_parameters`, the
collectives of `asynchronous`, `merge`, `background` and `leave_out`, and the model of `cap` and `first_bucket`, where
there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import hypot
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.costs.memory import joined_units_bytes, prefetched_bytes, whole_gradients_bytes, whole_parameters_bytes
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run, step_windows
from overlaplab.evidence.dependencies import longest_wait
from overlaplab.evidence.host_work import pauses_within
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.simulate.advice.edit_remedies import edit_remedies
from overlaplab.simulate.advice.pipelines import pipeline_gain_half_ns, pipeline_remedies
from overlaplab.simulate.advice.tried import (
    SettingPlayed,
    best_setting,
    count_stretches,
    depths_played,
    device_settings,
    playable_programs,
    played_gain_half_ns,
    scattered_caps,
    units_played,
)
from overlaplab.simulate.buckets.least import Times
from overlaplab.simulate.buckets.search import bucket_searches
from overlaplab.simulate.edits.hosts import host_works
from overlaplab.simulate.player import Program, StuckError, play
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.programs import all_programs, is_served
from overlaplab.simulate.programs.buckets import recuttings
from overlaplab.simulate.programs.edits import EDITS, apply_edits
from overlaplab.simulate.programs.models import model_name
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import transfers_miss_ns
from overlaplab.simulate.recorded import Recorded, editable_programs
from overlaplab.simulate.undisturbed import mean_step_after_ns, mean_step_ns, recorded_spans_ns
from overlaplab.traits import Traits

_SHARED_COLUMNS = {"remedy": "object", "setting": "float64", "what": "object", "gain_ns": "int64", "step_ns": "int64"}
_COLUMNS = {"rank": "Int64", "step": "Int64"} | _SHARED_COLUMNS
_GAIN_COLUMNS = _SHARED_COLUMNS | {"half_ns": "Int64", "memory_bytes": "Int64"}
_INTO_THE_NEXT = [edit.remedy for edit in EDITS.values() if edit.into_the_next]
_MEMORY: Mapping[str, Callable[[Manifest, Traits, Any], int | None]] = {
    "prefetch": lambda manifest, _, ahead: prefetched_bytes(manifest, int(ahead) - (manifest.prefetch or 0)),
    "larger_units": lambda manifest, _, together: joined_units_bytes(manifest, int(together)),
    "keep_gathered": lambda manifest, *_: whole_parameters_bytes(manifest),
    "last_pass": lambda manifest, traits, _: whole_gradients_bytes(manifest) if "gradients" in traits.sharded else 0,
    "whole_optimizer": lambda *_: None,
    "background": lambda *_: None,
    "strategy": lambda *_: None,
    "library_collectives": lambda *_: None,
}
"""What each rank would hold more at most, by the manifest, its traits and the remedy's setting; of others nothing."""
_MIN_HOST_WORK_SHARE = 0.02
"""What the host does between the passes for a smaller share of a step's work is no remedy of its own."""
_MIN_PAUSE_SHARE = 0.02
"""Where pauses take a smaller share of a step, the range of the host in which they lie is not looked up."""
_MIN_LARGEST_SHARE = 0.5
"""Where one gradient has a larger share of all gradients' bytes, doing without it is tried."""
_MAX_STRETCHES_WITH_SETTINGS = 4_000
"""Stretches of computation where caps or prefetch depths are played for the first screen as well: some seconds."""


class PlayedRemedy(Struct, frozen=True, kw_only=True):
    """A remedy of a run, played."""

    name: str
    about: dict[str, Any]
    """Its `setting` or `what`, and `half_ns` where it has one of its own: see `gains`."""
    before_ns: Times
    """How long the steps take without it, of shape (ranks, steps)."""
    after_ns: Times
    transfers_ns: int = 0
    """How much the mean step may be off because T of other sizes is."""


def remedies(run: Run) -> pd.DataFrame:
    """What each remedy that can be played would gain, for every rank and step; without those that change nothing.

    Columns: `rank`, `step` (Int64), `remedy` (see [Note: remedies]), `setting` (float64: the number that it is about),
    `what` (the name that it is about; None without one), `gain_ns` (how much shorter the rank's step would be),
    `step_ns` (how long it would take; both int64).
    """
    rows: list[dict[str, Any]] = []
    for each in _played_remedies(run):
        for trace, *spans in zip(run.traces, each.before_ns.tolist(), each.after_ns.tolist(), strict=True):
            for window, recorded_ns, changed_ns in zip(step_windows(trace), *spans, strict=True):
                row = {"rank": trace.rank, "step": window.step, "remedy": each.name, "setting": np.nan, "what": None}
                row |= {key: value for key, value in each.about.items() if key in row}
                row |= {"gain_ns": recorded_ns - changed_ns, "step_ns": changed_ns}
                rows.append(row)
    return _table(rows, _COLUMNS)


@once_per_run
def gains(run: Run) -> pd.DataFrame:
    """What each remedy would gain per step of a training, the mean over all ranks (see `undisturbed.mean_step_ns`).

    One row per remedy, also those of `pipeline_remedies`. Columns: `remedy`, `setting`, `what` (as of `remedies`; the
    setting of a pipeline's is its `what`), `gain_ns`, `step_ns` (both int64), `half_ns` (Int64: by how much a recorded
    gain may differ with 95 % certainty), `memory_bytes` (Int64: what each rank would hold more at most, if known).
    """
    rows: list[dict[str, Any]] = []
    for each in _played_remedies(run):
        name, half_ns = each.name, played_gain_half_ns(run)
        recorded_ns = mean_step_ns(run, recorded_spans_ns(run))
        changed_ns = mean_step_after_ns(run, each.after_ns, into_the_next=name in _INTO_THE_NEXT)
        row: dict[str, Any] = {"remedy": name, "setting": np.nan, "what": None, "half_ns": half_ns} | each.about
        row |= {"gain_ns": round(recorded_ns - changed_ns), "step_ns": round(changed_ns)}
        if row["half_ns"] is not None:
            row["half_ns"] = round(hypot(row["half_ns"], each.transfers_ns))
        if name == "no_pause" and row["gain_ns"] > _MIN_PAUSE_SHARE * recorded_ns:  # it looks at all events
            row["what"] = pauses_within(run)
        rows.append(row | {"memory_bytes": _more_memory_bytes(run.manifest, name, row["setting"])})
    for remedy in pipeline_remedies(run).to_dict("records"):
        row = {name: remedy[name] for name in ("remedy", "gain_ns", "step_ns")}
        rows.append(row | {"what": remedy["setting"], "half_ns": pipeline_gain_half_ns(run)})
    return _table(rows, _GAIN_COLUMNS)


def _more_memory_bytes(manifest: Manifest | None, remedy: str, setting: Any) -> int | None:
    """See `memory_bytes` of `gains`."""
    if remedy not in _MEMORY:
        return 0
    traits = strategy_traits(manifest)
    return None if manifest is None or traits is None else _MEMORY[remedy](manifest, traits, setting)


@once_per_run
def _played_remedies(run: Run) -> list[PlayedRemedy]:
    return [*_cpu_remedies(run), *device_remedies(run)]


def _cpu_remedies(run: Run) -> Iterator[PlayedRemedy]:
    """Each remedy of a run on CPUs."""
    recorded = editable_programs(run)
    if recorded is None and not is_served(run, Setting()):
        return
    with suppress(StuckError):  # collectives of several groups, for instance
        before_ns = recorded_spans_ns(run) if recorded is None else play(recorded.programs).all_spans_ns()
        changed = () if recorded is None else _changed_programs(run, recorded, before_ns)
        for name, about, programs in chain(changed, _other_strategies(run)):
            with suppress(StuckError):
                after_ns = play(programs).all_spans_ns()
                miss_ns = transfers_miss_ns(run, [("half-bytes", None)], None) if name == "half_the_bytes" else 0
                yield PlayedRemedy(name=name, about=about, before_ns=before_ns, after_ns=after_ns, transfers_ns=miss_ns)
        for played in (scattered_caps(run), depths_played(run), units_played(run)):
            if (best := best_setting(run, played)) is not None:
                yield _setting_remedy(best, before_ns)


def device_remedies(run: Run) -> Iterator[PlayedRemedy]:
    """Each remedy of a run on GPUs."""
    if (programs := playable_programs(run)) is None:
        return
    for name, about, edit in edit_remedies(run, host_works(programs.programs), on_devices=True):
        with suppress(OverlaplabError):  # it does not apply
            prediction = predict_device(run, Setting(edits=(edit,)))
            waits = {"what": longest_wait(run)} if name == "device_waits" else {}
            yield PlayedRemedy(
                name=name,
                about=about | waits,
                before_ns=prediction.recorded_ns,
                after_ns=prediction.predicted_ns,
                transfers_ns=prediction.transfers_ns,
            )
    if count_stretches(run) > _MAX_STRETCHES_WITH_SETTINGS:
        return
    if (best := best_setting(run, device_settings(run))) is not None:
        yield _setting_remedy(best, predict_device(run, Setting()).recorded_ns)


def _setting_remedy(best: SettingPlayed, before_ns: Times) -> PlayedRemedy:
    """A setting as a remedy."""
    about = {"setting": best.value, "half_ns": best.half_ns}
    return PlayedRemedy(name=best.option, about=about, before_ns=before_ns, after_ns=best.spans_ns)


def _table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """Columns begin as objects: pandas makes NaN of None beside names."""
    return pd.DataFrame(rows, columns=list(types), dtype=object).astype(types)


def _changed_programs(
    run: Run, recorded: Recorded, before_ns: Times
) -> Iterator[tuple[str, dict[str, Any], Sequence[Program]]]:
    """Each remedy's name, its `setting` or `what`, and its programs; `before_ns`: the steps, (ranks, steps)."""
    programs, link = recorded.programs, run.manifest.link if run.manifest else None
    least_ns = _MIN_HOST_WORK_SHARE * before_ns[0].sum()
    works = [name for name, ns in host_works(programs).items() if ns > least_ns]
    for remedy, about, edit in edit_remedies(run, works, on_devices=False):
        with suppress(OverlaplabError):  # it does not apply
            yield remedy, about, apply_edits(run, programs, [edit], link)
    yield from _cuttings(run)


def _other_strategies(run: Run) -> Iterator[tuple[str, dict[str, Any], Sequence[Program]]]:
    """Zero2, which sends during the backward pass, for zero1; the library's all-reduces for a server, ring or tree."""
    manifest, traits = run.manifest, strategy_traits(run.manifest)
    if manifest is None or traits is None:
        return
    name, other = ("library_collectives", "bucketed") if traits.averages_by_messages else ("strategy", "zero2")
    if traits.averages_by_messages or manifest.strategy == "zero1":
        with suppress(OverlaplabError):
            yield name, {"what": other}, all_programs(run, Setting(strategy=other))


def _cuttings(run: Run) -> Iterator[tuple[str, dict[str, Any], Sequence[Program]]]:
    """For each model: the best cap, that of its first bucket where it has one of its own, and buckets without the
    largest gradient, where it has most of the bytes.
    """
    manifest, models = run.manifest, len(recuttings(run))
    for search in bucket_searches(run, None):
        cut = search.cut
        model = model_name(cut.order) if models > 1 else None
        if (best := search.best_cap) is not None:
            yield "cap", {"setting": best.caps_mb[-1], "what": model}, cut.programs(best.buckets)
        first, cap = (manifest.raw.get("first_bucket_mb"), manifest.bucket_cap_mb) if manifest else (None, None)
        if first is not None and cap is not None and (best := search.best_first_cap(cap, first)) is not None:
            yield "first_bucket", {"setting": best.caps_mb[0], "what": model}, cut.programs(best.buckets)
        largest = max(cut.sizes, key=lambda name: cut.sizes[name])
        if cut.buckets is not None and cut.sizes[largest] > _MIN_LARGEST_SHARE * sum(cut.sizes.values()):
            left = [[name for name in names if name != largest] for names in cut.buckets]
            yield "one_gradient_less", {"what": largest}, cut.programs([names for names in left if names])
