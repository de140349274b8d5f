"""What helps against each cause of exposed communication, in whose loop, and how much that would gain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from overlaplab.analyses.exposed import Cause
from overlaplab.evidence.host_work import DATA_LOADING
from overlaplab.evidence.purposes import ACTIVATIONS_OF
from overlaplab.findings.diagnosis.causes import Loop
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY
from overlaplab.words import count, kind_word, shorten

__all__ = [
    "FIND_PAUSE",
    "OPEN_ALL",
    "SCHEDULES",
    "Remedy",
    "cap_words",
    "first_bucket_words",
    "pipeline_words",
    "remedy_for",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to try against one cause."""

    text: str
    """In a few words that fit `Try …`."""
    untold: bool = False
    """Whether how much is waiting cannot be told, although all traces are here."""
    gain_ns: int | None = None
    """How much shorter the step would be; None where unknown."""
    replayed: bool = False
    """Whether a replay with the remedy tells the gain; else it is no more than the cause's exposed time."""


def remedy_for(
    cause: Cause,
    late_rank: int | None,
    rows: pd.DataFrame,
    loop: Loop,
    *,
    span_ns: int,
    replays: pd.DataFrame,
    pipelines: pd.DataFrame | None = None,
    bytes_explain: bool = True,
    half_bytes_ns: int | None = None,
    all_here: bool = False,
) -> Remedy:
    """What helps against rows of `overlaplab.exposed` of one cause, in a step that takes `span_ns`.

    Its text is empty where nothing that is known gains more than `LITTLE_GAIN` of the step. `half_bytes_ns`: what half
    the bytes gain at most, where no replay tells. `replays`: rows of `simulate.remedies` of the same rank and step;
    there may be none. `pipelines`: those of `simulate.pipeline_remedies`. `bytes_explain`: as in `simulate.bound`.
    `all_here`: the traces of all ranks are here, so that no other tells how much is waiting.
    """
    if pipelines is not None and cause in _OF_PIPELINES:
        own = pipelines[pipelines["remedy"].isin(_OF_PIPELINES[cause])].sort_values("gain_ns", ascending=False)
        if len(own) and int(own["gain_ns"].iloc[0]) > LITTLE_GAIN * span_ns:
            row = own.iloc[0].to_dict()
            return Remedy(text=pipeline_words(row), gain_ns=int(row["gain_ns"]), replayed=True)
        if len(own) and cause in _BEYOND_PIPELINES:
            return Remedy(text=_BEYOND_PIPELINES[cause])
    if cause is Cause.SEND and pipelines is None:
        return Remedy(text=_UNTOLD_PIPELINE)
    exposed_ns = int(rows["exposed_ns"].sum())
    if all_here and (cause is Cause.UNKNOWN or (cause is Cause.LINK and not bytes_explain)):
        return Remedy(text="", untold=exposed_ns > LITTLE_GAIN * span_ns)
    if cause is Cause.LINK and not bytes_explain:
        return Remedy(text=OPEN_ALL)
    if cause not in (Cause.STRAGGLER, Cause.GAP) and _moved_most(rows) == "activations":
        return Remedy(text=_FEWER_TENSOR_RANKS)
    about_others = (replays["remedy"] == "balance") & (replays["setting"] != (late_rank or 0))
    told = replays if late_rank is None else replays[~about_others]
    best = _best(cause, told, LITTLE_GAIN * span_ns, exposed_ns)
    if best is not None:
        enough = int(best["gain_ns"]) > LITTLE_GAIN * span_ns
        text = _replayed(best, cause, late_rank, rows, loop) if enough else ""
        return Remedy(text=text, gain_ns=int(best["gain_ns"]), replayed=True)
    if best is None and cause in (Cause.TAIL, Cause.QUEUED) and _caps_played(replays) and _moved_most(rows) == "bucket":
        if (replays["remedy"] == "half_the_bytes").any():  # caps and fewer bytes were played, and none gains
            return Remedy(text="", gain_ns=0, replayed=True)
        return Remedy(text=_fewer_bytes(loop), gain_ns=exposed_ns)
    if cause in (Cause.UNHIDEABLE, Cause.LINK) and half_bytes_ns is not None:
        text = _half_the_bytes(loop) if half_bytes_ns > LITTLE_GAIN * span_ns else ""
        return Remedy(text=text, gain_ns=half_bytes_ns)
    degree = cause in (Cause.UNHIDEABLE, Cause.LINK, Cause.UNKNOWN, Cause.BUBBLE)
    text = _in_general(cause, late_rank, rows, loop) if exposed_ns > LITTLE_GAIN * span_ns else ""
    return Remedy(text=text, gain_ns=None if degree and text else exposed_ns)


_OF_PIPELINES = {
    Cause.BUBBLE: ("microbatches", "schedule"),
    Cause.IMBALANCE: ("split",),
    Cause.SEND: ("schedule",),
}
"""Which of `simulate.pipeline_remedies` answer a cause."""
_BEYOND_PIPELINES = {
    Cause.BUBBLE: "a schedule with several stages on each rank: neither more microbatches nor the other schedule gains",
    Cause.IMBALANCE: "less work in the slowest stage: no other split of whole layers gains",
}
"""What is left to try where those that answer a cause were played, and none gains."""
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "interleaved 1F1B", "zbv": "ZB-V"}
"""What pipelines' schedules are called."""


def pipeline_words(row: Mapping[Any, Any]) -> str:
    """What a row of `simulate.pipeline_remedies` changes."""
    match row["remedy"]:
        case "microbatches":
            return f"{row['setting']} smaller microbatches"
        case "split":
            return f"another split, --stages {row['setting']}"
    return f"the schedule {SCHEDULES[row['setting']]}"


_ORDER = (
    *("host_work", "balance", "no_pause", "last_pass", "prefetch", "earlier", "merge", "asynchronous"),
    *("first_bucket", "cap", "strategy", "leave_out", "one_gradient_less", "half_the_bytes"),
)
"""Remedies of `simulate.remedies`: of those that gain as much the first is advised, which changes least."""


def _best(cause: Cause, replays: pd.DataFrame, little_ns: float, exposed_ns: int) -> Mapping[Any, Any] | None:
    """The replay that gains most, as far as that can be told; fewer bytes only where nothing else helps.

    Nor where most of what fewer bytes gain is other causes' time.
    """
    answers = Cause.LINK if cause is Cause.UNHIDEABLE else cause
    own = replays[(replays["cause"] == answers.value) & (replays["gain_ns"] > 0)]
    halved = own["remedy"] == "half_the_bytes"
    others = own[~halved]
    if answers is not Cause.LINK:
        own = own[~halved | (own["gain_ns"] <= 2 * exposed_ns)]
    scarce = answers is Cause.LINK or (_caps_played(replays) and not (others["gain_ns"] > little_ns).any())
    own = own if scarce else others
    if (own["gain_ns"] > little_ns).any():
        own = own[own["gain_ns"] > little_ns]
    if own.empty:
        return None
    enough = own[own["gain_ns"] >= own["gain_ns"].max() - little_ns]
    found: Mapping[Any, Any] = min(enough.to_dict("records"), key=lambda row: _ORDER.index(row["remedy"]))
    return found


def _caps_played(replays: pd.DataFrame) -> bool:
    return bool((replays["remedy"] == "cap").any())


def _replayed(best: Mapping[Any, Any], cause: Cause, late_rank: int | None, rows: pd.DataFrame, loop: Loop) -> str:
    """The words for a row of `simulate.remedies`."""
    match best["remedy"]:
        case "cap":
            cap = cap_words(best["setting"])
            if cause is Cause.BLOCKING and loop.traits is not None and not loop.traits.buckets:
                return f"{_BUCKETED[loop.framework]} with {cap}: buckets leave during the backward pass"
            return cap
        case "first_bucket":
            return first_bucket_words(best["setting"])
        case "prefetch":
            return _prefetch(int(best["setting"]), loop)
        case "earlier":
            what = _ahead_of(rows)
            return f"launching {what} at the start of the step, before it holds up the link"
        case "half_the_bytes":
            return _half_the_bytes(loop)
        case "host_work" if best["what"] == DATA_LOADING:
            return "loading data in the background (num_workers of its DataLoader)"
        case "host_work":
            return f"less of {shorten(str(best['what']), 40)} between the passes"
        case "one_gradient_less":
            return f"freezing {shorten(str(best['what']), 40)} or making its gradient sparse: it has most of the bytes"
        case "strategy":
            return _DURING_BACKWARD.format(f" (strategy {best['what']})")
        case "leave_out" if loop.framework == "ddp" and set(rows["kind"]) == {"broadcast"}:
            return "broadcast_buffers=False: DistributedDataParallel broadcasts its buffers before each forward pass"
        case "leave_out":
            return f"doing without {_which(rows)}, or seldom"
        case "asynchronous":
            return f"launching {_which(rows)} with async_op=True, and waiting when the step ends"
        case "merge":
            return f"one collective in place of {_which(rows)}, on stacked tensors"
        case "last_pass":
            return "no_sync() in every backward pass but the last of a step"
    return _in_general(cause, late_rank, rows, loop)


def _which(rows: pd.DataFrame) -> str:
    """Which collectives are meant that move neither gradients nor parameters: these have no name."""
    others = rows[rows["what"].isna()]
    kinds = {kind_word(kind) for kind in others["kind"].dropna()}
    word = kinds.pop() if len(kinds) == 1 else "collective"
    return f"the {count(others['collective'].nunique(), word)} that wait"


def cap_words(cap_mb: float) -> str:
    """A cap as its option is called."""
    return f"bucket_cap_mb {cap_mb:g}"


def first_bucket_words(cap_mb: float) -> str:
    """Another cap for the first bucket."""
    return f"a first bucket of {cap_mb:g} MiB"


def _ahead_of(rows: pd.DataFrame) -> str:
    first = rows["what"].dropna()
    return f"what {shorten(str(first.iloc[0]), 40)} queues behind" if len(first) else "what is ahead of it"


def _in_general(cause: Cause, late_rank: int | None, rows: pd.DataFrame, loop: Loop) -> str:
    """What helps, where no replay tells by how much."""
    moved = _moved_most(rows)
    if loop.traits is not None and loop.traits.gradients == "server" and cause in _SENT_TO_A_SERVER:
        return _ALL_REDUCE
    match cause:
        case Cause.BUBBLE:
            return "more microbatches per step, or a schedule with several stages on each rank"
        case Cause.IMBALANCE:
            return "another split: fewer layers in the slowest stage"
        case Cause.SEND:
            return "larger microbatches, a faster link, or a schedule that receives ahead"
        case Cause.STRAGGLER:
            who = "the late rank" if late_rank is None else f"rank {late_rank}"
            return f"making {who} as fast as the others: see on the timeline what it does while they wait"
        case Cause.GAP:
            return FIND_PAUSE
        case Cause.UNKNOWN:
            return "opening all ranks' traces together, to tell waiting from transfer"
        case Cause.UNHIDEABLE | Cause.LINK:
            return _fewer_bytes(loop)
        case Cause.QUEUED:
            return _SEND_LESS if moved == "bucket" else "gathering ahead of reductions, or sending less at that time"
        case Cause.LATE:
            if moved == "gather" and (loop.traits is None or loop.traits.gathers != "updated_parameters"):
                return _gather_ahead(loop)
            return "launching it as soon as it is ready: see what held it"
        case Cause.TAIL:
            return _TAILS[moved]
        case Cause.BLOCKING:
            return _unblock(moved, loop)


_UNTOLD_PIPELINE = (
    "more microbatches or a more even split of the layers where the stage waits for others' work, or a faster link"
    " where messages are on their way for long"
)
OPEN_ALL = (
    "opening all ranks' traces together: how long these collectives took does not follow from their bytes, so"
    " part of it may be waiting for other ranks"
)
FIND_PAUSE = "finding what holds up the host: look at what it does in the pause, on the timeline"
_FEWER_TENSOR_RANKS = (
    "fewer ranks per tensor-parallel group, or a faster link within it: the layer's next operation needs these results,"
    " so nothing can hide them"
)
_BUCKET = re.compile(r"bucket \d+$")
_SEND_LESS = "sending less while the link is busy: lower precision, or fewer synchronisations by accumulating"
_HOW_FEWER = {
    **dict.fromkeys((None, "engine"), "lower precision, accumulation"),
    "ddp": "a bf16_compress_hook, accumulation under no_sync",
    "fsdp2": "MixedPrecisionPolicy, reshard_after_forward=False",
}
_BUCKETED = {"engine": "strategy bucketed", **dict.fromkeys((None, "ddp", "fsdp2"), "torch's DistributedDataParallel")}
"""What sends gradients in buckets."""
_TAILS = {
    "bucket": "a lower bucket_cap_mb: a smaller last bucket",
    "gather": "a smaller first unit, or gathering it before the step begins",
    "unit": "a smaller last unit, or something to compute until it is sent",
    "unknown": "sending the last one earlier, or making it smaller",
}
"""The remedy for a tail, by what it moves."""


_COMPUTE_FIRST = "something to compute before its result is needed"
_DURING_BACKWARD = "sending buckets during the backward pass{}, not after it"
_SENT_TO_A_SERVER = (Cause.BLOCKING, Cause.TAIL, Cause.QUEUED, Cause.LATE)
_ALL_REDUCE = "an all-reduce in place of a server (strategy bucketed): then no link carries what all ranks send"


def _fewer_bytes(loop: Loop) -> str:
    return f"fewer bytes ({_HOW_FEWER[loop.framework]}) or a faster link"


def _half_the_bytes(loop: Loop) -> str:
    return f"half the bytes ({_HOW_FEWER[loop.framework]}) or a link twice as fast"


def _gather_ahead(loop: Loop) -> str:
    return _prefetch(None if loop.prefetch is None else loop.prefetch + 1, loop)


def _prefetch(units: int | None, loop: Loop) -> str:
    if loop.framework == "fsdp2" and loop.roots > 1:
        return "fully_shard on the module that contains all units: FSDP2 gathers ahead only within one root"
    if loop.framework == "fsdp2":
        return "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, one unit further ahead"
    if units is not None:
        return f"prefetch {units}: it holds one more unit at a time"
    return "gathering one unit further ahead: it holds one more at a time"


def _unblock(moved: str, loop: Loop) -> str:
    """Against waiting by design."""
    if moved == "gather" and loop.traits is not None and loop.traits.gathers == "updated_parameters":
        return _COMPUTE_FIRST  # these are gathered when they are updated, and no unit is gathered ahead
    if moved == "gather":
        return _gather_ahead(loop)
    if loop.traits is not None and loop.traits.gathers == "units":
        return "larger units, so that reductions are fewer and each has more to hide behind"
    if moved == "unknown":
        return _COMPUTE_FIRST
    if loop.traits is not None and loop.traits.buckets and tuple(loop.traits.sharded) == ("optimizer",):
        return _DURING_BACKWARD.format(" (strategy zero2)" if loop.framework == "engine" else "")
    if loop.traits is not None and loop.traits.buckets:
        return "waiting for buckets at the end of the backward pass, not within it"
    return f"{_BUCKETED[loop.framework]}: it launches during the backward pass, and waits at its end"


def _moved_most(rows: pd.DataFrame) -> str:
    """What most of the exposed time moved: `gather`, `bucket`, `unit` (or a parameter), `activations`, or something
    `unknown`."""
    gathers = (rows["kind"] == "all_gather").fillna(False) & ~rows["what"].map(_is_activations)
    if int(rows.loc[gathers, "exposed_ns"].sum()) > MAJORITY * int(rows["exposed_ns"].sum()):
        return "gather"
    moved = rows["what"].map(lambda name: "unknown" if pd.isna(name) else _word(str(name)))
    return str(rows["exposed_ns"].groupby(moved.to_numpy()).sum().idxmax())


def _is_activations(name: object) -> bool:
    return str(name).startswith(ACTIVATIONS_OF)


def _word(name: str) -> str:
    if _is_activations(name):
        return "activations"
    return "bucket" if _BUCKET.match(name) else "unit"
