"""What a reader of any figure must know: what a run lacks, what was corrected, what could not be matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import numpy as np
import pandas as pd

from overlaplab.analyses import delays
from overlaplab.analyses.delays import busy_rows, busy_steps, without_busy_steps
from overlaplab.analyses.summary import summary
from overlaplab.events import (
    Run,
    Sign,
    Trace,
    activity,
    device_sign,
    early_kernels,
    extent,
    found_windows,
    longest_names,
    only_ends_recorded,
    rule_of,
    said_to_communicate,
    step_windows,
    unknown_communication,
    unmarked_iterations,
)
from overlaplab.evidence.clocks import clocks
from overlaplab.evidence.group_pairing import DOUBTFUL_NS, UNLIKE
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.purposes import purposes
from overlaplab.evidence.stream_waits import missing_wait_fields
from overlaplab.findings.predictions import prediction_lead
from overlaplab.findings.runs import PREDICTED, link_missed, links_note, steps_named
from overlaplab.findings.thresholds import APART_NS, MOST_KERNELS, MOST_REASONS
from overlaplab.selection import Selection
from overlaplab.vocabulary import Rule
from overlaplab.words import count, join_names, ms, numbers_named, percent, sentence, shorten, to_ms, unit_name

_NAME_CHARACTERS = 60  # characters of a kernel's name
_CHECK_PROFILER = "see with `overlaplab doctor` whether the profiler sees the device"
_REMEDY = f"record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and {_CHECK_PROFILER}"
_ENDS_ONLY = (
    "only the kernels that send and that receive were recorded: the data move in between without a kernel, so how long"
    " that takes, and what of it is hidden, is not seen"
)
_NO_WAIT_FIELDS = (
    "do not say what streams waited for, as CUDA 12.9 and later lose it (pytorch #195068): whether anything waited for"
    " exposed communication is not known"
)


def run_warnings(run: Run) -> tuple[str, ...]:
    """What a reader of any figure of this run must know, a line each."""
    missed = link_missed(run.manifest) if run.manifest else None
    missing = unrecorded_activity(run, run.manifest.device_activity_missing if run.manifest else None)
    recorded = [trace for trace in run.traces if rule_of(trace) is not Rule.UNRECORDED]
    silent = [trace for trace in recorded if activity(trace).extent == (0, 0)]
    warnings = [*_predicted_warnings(run), *run.warnings, *filter(None, [missed])]
    warnings += [*_busy_warnings(run), *_damaged_warnings(run), *_clock_warnings(run), *_contradictions(run)]
    warnings += [*filter(None, [missing]), *_nothing_counts(run, silent), *_communication_warnings(run)]
    warnings += [*_hook_warnings(run), *_overlap_warnings(run), *_unmarked_warnings(run)]
    missing_fields = [trace for trace in run.traces if missing_wait_fields(trace)]
    if missing_fields and run.manifest is None:  # the Recorder asks for the events by itself, in case they have them
        warnings.append(f"cuda_sync events{_rank_words(run, missing_fields)} {_NO_WAIT_FIELDS}")
    for trace in recorded:
        where = "" if trace.rank is None else f"rank {trace.rank}: "
        if trace in silent:
            continue
        warnings += [where + warning for warning in found_windows(trace)[1]]
        ranks = max(len(run.traces), trace.world_size or 1)
        if ranks > 1 and not len(activity(trace).communication):
            warnings.append(f"{where}no communication recognised among {ranks} ranks; {_longest_kernels(trace)}")
    return tuple(warnings)


def _contradictions(run: Run) -> Iterator[str]:
    """That ranks' traces cannot be of one recording, and what shows that; at most one line."""
    reasons = {trace.rank: _contradiction(run, place) for place, trace in enumerate(run.traces) if place}
    others = [rank for rank, reason in reasons.items() if reason]
    if others:
        ranks = [rank for rank in (run.traces[0].rank, *others) if rank is not None]
        yield (
            f"the traces of ranks {numbers_named(ranks, last=' and ')} are not of one recording: {reasons[others[0]]}."
            " What is compared or matched across them has no meaning; give each recording a folder of its own"
        )


def _contradiction(run: Run, place: int) -> str | None:
    """Why this trace cannot be of the first one's recording; None if it may be."""
    first, other = run.traces[0], run.traces[place]
    if first.world_size and other.world_size and first.world_size != other.world_size:
        return f"rank {first.rank} is one of {first.world_size}, and rank {other.rank} one of {other.world_size}"
    windows = (step_windows(trace) for trace in (first, other))
    steps, other_steps = ({window.step for window in each if window.step is not None} for each in windows)
    if steps and other_steps and not steps & other_steps:
        return f"rank {first.rank} recorded {_range(steps)}, and rank {other.rank} {_range(other_steps)}"
    rows = match_collectives(run)
    reasons = rows.loc[rows["trace"] == place, "reason"]
    if reasons.empty or reasons.isna().any():
        return None
    spans = [extent(trace) or (0, 0) for trace in (first, other)]
    apart = max(start for start, _ in spans) - min(end for _, end in spans)
    if apart > APART_NS:
        when = "after" if spans[0] < spans[1] else "before"
        return f"rank {other.rank} was recorded {apart / 1e9:,.0f} s {when} rank {first.rank}"
    if reasons.str.contains(UNLIKE).all():
        return f"none of rank {other.rank}'s {count(len(reasons), 'collective')} is like one of the others'"
    return None


def _range(steps: set[int]) -> str:
    """`step 3`, or `steps 3 to 5`."""
    return f"step {min(steps)}" if len(steps) == 1 else f"steps {min(steps)} to {max(steps)}"


def _predicted_warnings(run: Run) -> Iterator[str]:
    """Say that a run was predicted, whether or not its run.json is there."""
    if run.manifest is not None and run.manifest.predicted is not None:
        yield f"{prediction_lead(run.manifest)}; nobody recorded it"
    elif any(trace.backend == PREDICTED for trace in run.traces):
        yield "its traces say that they were predicted; nobody recorded them"


def _communication_warnings(run: Run) -> Iterator[str]:
    """What the user's own rule did, which kernels may need one, and which collectives are seen in part."""
    if run.traces and (pattern := run.traces[0].communication) is not None:
        events = sum(map(said_to_communicate, run.traces))
        matched = f"{count(events, 'event')} of kernels and copies" if events else "no kernel and no copy"
        so = ": they count as communication" if events else ""
        yield f"--communication '{shorten(pattern)}' matches {matched}{so}"
    unknown: Counter[str] = Counter()
    for trace in run.traces:
        unknown.update(unknown_communication(trace))
    if unknown:
        pattern = "|".join(word for word, _ in unknown.most_common(MOST_KERNELS))
        yield (
            f"kernels whose names read like communication count as compute ({ms(sum(unknown.values()))}). If they"
            f" communicate, say so: --communication '{pattern}' (in Python: load_run(…, communication=…))"
        )
    if ends := [trace for trace in run.traces if only_ends_recorded(trace)]:
        yield f"of low-latency DeepEP{_rank_words(run, ends)} {_ENDS_ONLY}"


def _unmarked_warnings(run: Run) -> Iterator[str]:
    """That iterations were recorded, but not where each begins, so that no figure is a step's."""
    unmarked = [(trace, repeats) for trace in run.traces if (repeats := unmarked_iterations(trace)) is not None]
    if unmarked:
        name, times = unmarked[0][1]
        where, named = _rank_words(run, [trace for trace, _ in unmarked]), shorten(name, _NAME_CHARACTERS)
        yield (
            f"the trace has no ProfilerStep{where}, so all of it is one window, although {named} ran {times:,} times:"
            " prof.step() after each iteration, with schedule=torch.profiler.schedule(…), writes them"
        )


def _hook_warnings(run: Run) -> Iterator[str]:
    """How many collectives of gradients a communication hook of DDP compresses on hosts."""
    number = sum(int(purposes(trace)["compressed"].sum()) for trace in run.traces if rule_of(trace) is Rule.CPU)
    if number:
        yield (
            f"{count(number, 'collective')} of gradients send fewer bytes than the gradients have, since a"
            " communication hook compresses them: torch's own range around a collective may contain what the hook"
            " computes afterwards, so that transfer and bandwidth are not the link's alone"
        )


def not_recorded(run: Run) -> str | None:
    """Why there is nothing to show, and what to do, if device activity was not recorded; None if it was."""
    missing = unrecorded_activity(run)
    return None if missing is None else sentence(missing)


def unrecorded_activity(run: Run, why: str | None = None) -> str | None:
    """On which ranks device activity was not recorded, and what to do about it; None if it was on all.

    `why`, if it is known why the profiler saw nothing, replaces the general remedy.
    """
    traces = [trace for trace in run.traces if rule_of(trace) is Rule.UNRECORDED]
    sign = device_sign(traces[0]) if traces else None
    if sign is None:
        return None
    kind, names = sign
    where = _rank_words(run, traces)
    if kind is Sign.UNKNOWN:
        named = join_names(list(names[:MOST_KERNELS]))
        return (
            f"this device is not known{where}, so there is no breakdown: the trace holds {named}, and no kernel or copy"
            " in a category that Kineto writes (kernel, gpu_memcpy, gpu_memset)"
        )
    return f"{Rule.UNRECORDED}{where}, so there is no breakdown: {why or _remedy(kind, names)}"


def _remedy(sign: Sign, names: Sequence[str]) -> str:
    """What to do about device activity that was not recorded, by the sign that there is a device, and its names."""
    if sign is Sign.CALLS:
        return (
            f"the trace holds the calls to the device ({', '.join(names)}) without its kernels, so these were asked for"
            f" and lost; end other profilers of the device, and {_CHECK_PROFILER}"
        )
    if sign is Sign.BACKEND and "nccl" not in names[0]:
        return f"the backend {names[0]} needs a device; record with activities=torch.profiler.supported_activities()"
    if sign is Sign.PROPERTIES:
        return (
            f"the process could see {join_names(list(names[:MOST_KERNELS]))}; {_REMEDY}. If it trained on the CPU, hide"
            " the GPUs from it (CUDA_VISIBLE_DEVICES=)"
        )
    return _REMEDY


def _rank_words(run: Run, traces: Sequence[Trace]) -> str:
    """` on ranks 1, 2`; empty where these are all the run's traces."""
    if len(traces) == len(run.traces):
        return ""
    ranks = [-1 if trace.rank is None else trace.rank for trace in traces]
    return f" on {'rank' if len(traces) == 1 else 'ranks'} {numbers_named(ranks)}"


def _nothing_counts(run: Run, silent: Sequence[Trace]) -> Iterator[str]:
    """Why tables show nothing of the ranks of these `silent` traces; nothing without such traces."""
    if not silent:
        return
    start = f"nothing that was recorded{_rank_words(run, silent)} counts as compute, communication or memory: "
    events = sum(len(trace.events) for trace in silent)
    if not events:
        yield f"{start}there are no events with a time and a duration"
        return
    categories: Counter[str] = Counter()
    for trace in silent:
        categories.update(map(str, trace.events["category"]))
    named = [shorten(category or "(none)", _NAME_CHARACTERS) for category, _ in categories.most_common(MOST_KERNELS)]
    more = ", …" if len(categories) > len(named) else ""
    yield (
        f"{start}of {count(events, 'event')} none is a kernel, a copy or an operator that computes"
        f" ({'category' if len(named) == 1 else 'categories'}: {', '.join(named)}{more})"
    )


def _overlap_warnings(run: Run) -> Iterator[str]:
    """That kernels of one stream ran at once, which a stream does not do."""
    early = [trace for trace in run.traces if early_kernels(trace)[0]]
    if early:
        numbers, longest = zip(*map(early_kernels, early), strict=True)
        begin = "kernel begins" if sum(numbers) == 1 else "kernels begin"
        yield (
            f"{sum(numbers):,} {begin} before the one before on the same stream has ended{_rank_words(run, early)}, by"
            f" up to {ms(max(longest))}: their times, or their streams, may be wrong"
        )


def unmatched_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """How many rows of `overlaplab.collectives` have no counterpart on other ranks, a line per reason; and how many
    collectives are matched with doubt.
    """
    reasons = Counter(table["unmatched"].dropna()).most_common(MOST_REASONS)
    notes = [
        f"{count(number, 'time')} a collective of one rank has no counterpart on the others: {reason}"
        for reason, number in reasons
    ]
    if doubtful := int(table.loc[table["doubtful"], "index"].nunique()):
        notes.append(
            f"{count(doubtful, 'collective')} matched in doubt, as their ends lie more than {ms(DOUBTFUL_NS)} apart on"
            " the ranks: left out of bandwidths and waits"
        )
    return tuple(notes)


def _busy_warnings(run: Run) -> Iterator[str]:
    """In which steps computation waited long for a core, or that the system does not report it; at most one line."""
    if run.manifest and run.manifest.processor_counts is False:
        unknown = "the operating system did not report how long computation waited for a core"
        yield f"{unknown}: such time counts as computation"
        return
    table = delays(run)
    busy = busy_rows(run)
    if not len(busy):
        return
    worst = busy.to_dict("records")[int((busy["delayed_ns"] / busy["span_ns"]).argmax())]
    unit_rows = table[table["rank"].eq(worst["rank"]) & table["step"].eq(worst["step"]) & table["unit"].ne("")]
    unit_words = cores_words = ""
    if len(unit_rows):
        unit = unit_rows.iloc[unit_rows["delayed_ns"].argmax()]
        took = f"{to_ms(unit['delayed_ns']):.1f} ms"
        unit_words = f", most in the {unit['phase']} pass of {unit_name(unit['unit'])} ({took})"
    if not np.isnan(worst["foreign"]):
        own_share, foreign_share = percent(worst["own"], 1), percent(worst["foreign"], 1)
        cores_words = f", while the ranks used {own_share} of the cores and other processes {foreign_share}"
    counts_as = "that waiting counts as exposed communication or idle time, not as computation"
    if not len(table):  # on a sleeping device, and in other people's loops, the trace has no counts
        counts_as = "figures of these steps include that"
    steps = sorted(busy_steps(run))
    left, left_out = without_busy_steps(run, summary(run))["step"], ""
    if left.notna().any() and not left.isin(steps).any():
        left_out = f". The verdict and the advice leave {'them' if len(steps) > 1 else 'it'} out"
    share = percent(worst["delayed_ns"], worst["span_ns"])
    yield (
        f"the machine was busy in step{'s' * (len(steps) > 1)} {numbers_named(steps)}: in step {worst['step']} the"
        f" computation of rank {worst['rank']} waited for a core {share} of the time{unit_words}{cores_words};"
        f" {counts_as}{left_out}"
    )


def _damaged_warnings(run: Run) -> Iterator[str]:
    """That steps lack events whose times cannot be true, and which."""
    steps = {window.step for trace in run.traces for window in step_windows(trace) if window.damaged}
    numbers = sorted(step for step in steps if step is not None)
    if numbers:
        words = ("step", "is", "its", "it counts") if len(numbers) == 1 else ("steps", "are", "their", "they count")
        noun, verb, whose, they_count = words
        yield (
            f"{noun} {numbers_named(numbers)} {verb} damaged: {whose} figures are without the events whose times cannot"
            f" be true, and {they_count} in no median, verdict or best"
        )
    elif steps:
        yield "the figures are without the events whose times cannot be true"


def busy_note(runs: Sequence[Run], selection: Selection) -> str | None:
    """That some of these steps were recorded on a busy machine, for checks that judge them all the same."""
    steps = selection.steps
    named = _busy_words((run.path, busy_steps(run) if steps is None else busy_steps(run) & set(steps)) for run in runs)
    return f"the machine was busy in {named}: record again before you rely on it" if named else None


def comparison_note(runs: Sequence[Run]) -> str | None:
    """The emulated links of runs side by side, and in which of their steps the machine was busy; None without any."""
    named = _busy_words((shorten(PurePath(run.path).name, 40), busy_steps(run)) for run in runs)
    machine = f"machine busy in {named}" if named else None
    return "; ".join(filter(None, (links_note([run.manifest for run in runs]), machine))) or None


def _busy_words(busy: Iterable[tuple[str, set[int]]]) -> str:
    """`steps 3 and 4 of zero3`, of names of runs and their busy steps; empty where there are none."""
    return join_names([f"{steps_named(sorted(numbers))} of {name}" for name, numbers in busy if numbers])


def _clock_warnings(run: Run) -> Iterator[str]:
    """The clocks that were corrected, a line each."""
    table = clocks(run)
    applied = table[table["applied"]]
    rows = zip(*(applied[name].tolist() for name in ("rank", "offset_ns", "iqr_ns", "collectives")), strict=True)
    for rank, offset, spread, number in rows:
        yield (
            f"rank {rank}'s clock was {to_ms(abs(offset)):.2f} ms {'ahead of' if offset > 0 else 'behind'} "
            f"rank {run.traces[0].rank}'s; corrected (by {number} collectives, ± {to_ms(spread):.3f} ms)"
        )


def _longest_kernels(trace: Trace) -> str:
    """The names with the most time, among which a reader may recognise communication."""
    cut = _NAME_CHARACTERS - 1
    names = [name if len(name) <= cut + 1 else f"{name[:cut]}…" for name in longest_names(trace)[:MOST_KERNELS]]
    return "most time is in " + ", ".join(names) if names else "nothing that counts was recorded"
