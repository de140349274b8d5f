"""The words of each action, for the run's framework: a few that fit `Try …`; empty where the action does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
from msgspec import Struct

from overlaplab.causes import OVERHEAD, OVERHEAD_CLAUSE, Cause
from overlaplab.evidence.purposes import ACTIVATIONS_PREFIX, ALL_RANKS_ACTIVATIONS, LOOP_GRADIENTS
from overlaplab.findings.loops import Loop
from overlaplab.findings.thresholds import MAJORITY
from overlaplab.vocabulary import DATA_LOADING
from overlaplab.words import cap_digits, count, rank_word, shorten


class Case(Struct, frozen=True, kw_only=True):
    """What an action's words depend on."""

    loop: Loop
    rows: pd.DataFrame
    """Rows of `overlaplab.exposed` of the causes that it answers, the longest first."""
    setting: float | None = None
    """The number that it is about."""
    what: str | None = None
    """The name that it is about."""
    cause: Cause | None = None
    """The one cause that the words are against, where no play tells what it gains."""
    late_rank: int | None = None
    played: frozenset[str] = frozenset()
    """The actions that were played."""


Words = Callable[[Case], str]


def cause_words(cause: Cause, late_rank: int | None = None, *, overhead: bool = False) -> str:
    """A cause in words: `waited for rank 3`; `overhead`: of compute gaps those between any two operators."""
    if overhead:
        return OVERHEAD
    if cause is Cause.STRAGGLER and late_rank is not None:
        return f"waited for rank {rank_word(late_rank)}"
    return cause.label


def cause_clause(cause: Cause, time: str, late_rank: int | None = None, *, overhead: bool = False) -> str:
    """A cause of so much exposed time: `for 2.0 ms of it, the rank waited for rank 3`; see `cause_words`."""
    clause = (OVERHEAD_CLAUSE if overhead else cause.clause).format(time)
    return clause if late_rank is None else clause.replace("other ranks", f"rank {rank_word(late_rank)}")


def fill_words(words: str | Words, case: Case) -> str:
    """The words in this case; a text may have the fields `what`, `units`, and `fewer` (options that send less)."""
    if not isinstance(words, str):
        return words(case)
    what, units = shorten(str(case.what), 80), int(case.setting or 0)
    return words.format(what=what, units=units, fewer=_how_fewer(case.loop))


def cap_words(cap_mb: float) -> str:
    """A cap as its option is called."""
    return f"bucket_cap_mb {cap_digits(cap_mb)}"


def first_bucket_words(cap_mb: float) -> str:
    """Another cap for the first bucket."""
    return f"a first bucket of {cap_digits(cap_mb)} MiB"


SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "interleaved 1F1B", "zbv": "ZB-V"}
"""What pipelines' schedules are called."""


def pipeline_words(remedy: str, setting: str | None) -> str:
    """What a row of `simulate.pipeline_remedies` changes."""
    match remedy:
        case "microbatches":
            return f"{setting} smaller microbatches"
        case "split":
            return f"another split, --stages {setting}"
    return f"the schedule {SCHEDULES[str(setting)]}"


def cap(case: Case) -> str:
    """Another cap; for a strategy without buckets one that has them."""
    if case.setting is None or (case.setting == case.loop.bucket_cap_mb and not case.what):
        return ""
    words, traits = cap_words(case.setting), case.loop.traits
    if case.what:
        return f"{words} for {shorten(case.what, 40)}"
    if traits is None or traits.buckets:
        return words + _present_cap(case.loop)
    is_blocking = case.rows.empty or case.rows["cause"].iloc[0] == Cause.BLOCKING
    why = "buckets leave during the backward pass" if is_blocking else "fewer, larger messages"
    return f"{_BUCKETED[case.loop.framework]} with {words}: {why}"


def _present_cap(loop: Loop) -> str:
    """The run's own cap, behind another one; empty where it has none."""
    return "" if loop.bucket_cap_mb is None else f" (now {cap_digits(loop.bucket_cap_mb)})"


def first_bucket(case: Case) -> str:
    """Another cap for the first bucket alone."""
    of_model = f" for {shorten(case.what, 40)}" if case.what else ""
    return "" if case.setting is None else first_bucket_words(case.setting) + of_model


def host_work(case: Case) -> str:
    """Less of what the host does between the passes."""
    if case.what == DATA_LOADING and case.loop.loads_in_workers:
        return "loading data faster: more num_workers of its DataLoader, or less work per sample"
    if case.what == DATA_LOADING:
        return "loading data in the background (num_workers of its DataLoader)"
    return f"doing “{shorten(str(case.what), 40)}” less often, or in the background"


def find_pause(case: Case) -> str:
    """Finding the host's pause; `what`: the range in which it is, where that is known."""
    where = f" in “{shorten(case.what.strip('# '), 40)}”" if case.what else ""
    return f"finding what blocks the host{where}: the timeline shows it"


def launch_overhead(case: Case) -> str:
    """A host that launches in no time; CUDA graphs that leave gaps do so already."""
    if case.loop.host == "launches graphs":
        return ""
    return "fewer launches: CUDA graphs, torch.compile or larger batches"


def balance(case: Case) -> str:
    """The late rank as fast as the others."""
    late = case.late_rank if case.setting is None else int(case.setting)
    who = "the late rank" if late is None else f"rank {late}"
    return f"making {who} as fast as the others: see on the timeline what it does while they wait"


def even_work(case: Case) -> str:
    """The same work on each rank; `setting`: the rank that always has more, None where that changes."""
    if case.setting is None:
        return "inputs of equal length on all ranks: the late rank changes from step to step"
    return f"inputs of equal length on all ranks, if those of rank {int(case.setting)} are longer"


def all_reduces(case: Case) -> str:
    """The library's all-reduces in place of a server, or of messages by hand."""
    served = case.loop.traits is not None and case.loop.traits.gradients == "server"
    return _ALL_REDUCE if served else "the library's all-reduces (strategy bucketed) in place of messages by hand"


def asynchronous_launch(case: Case) -> str:
    """Asynchronous collectives between the passes; broadcasts and scatters a step ahead: forward passes need them."""
    launched = f"async_op=True for the {case.what}"
    if not case.rows.empty and case.rows["kind"].isin(["broadcast", "scatter"]).all():
        return f"{launched}, a step before its data are needed"
    return f"{launched}, waited for when the step ends, if nothing needs the results sooner"


def background(case: Case) -> str:
    """Sending what follows the optimizer step beside the next step."""
    if case.loop.traits is not None and case.loop.traits.averages_parameters:
        return IN_THE_BACKGROUND
    return f"async_op=True for the {case.what}, waited for a step later"


def earlier_launch(case: Case) -> str:
    """Launching what is ahead in the link's queue at the start of the step."""
    if case.rows.empty:
        return ""
    first = case.rows["what"].dropna()
    what = f"what {shorten(str(first.iloc[0]), 40)} queues behind" if len(first) else "what is ahead of it"
    return f"launching {what} at the start of the step, before it holds up the link"


def leave_out(case: Case) -> str:
    """Doing without what moves neither gradients nor parameters."""
    return f"doing without the {case.what}, or doing so less often"


def asynchronous_hook(case: Case) -> str:
    """Buckets that are not waited for where they are launched; the engine has other strategies for that."""
    if case.loop.framework == "ddp":
        return "a communication hook that returns its all-reduce's future (async_op=True) and does not wait for it"
    return "async_op=True in the hooks, and waiting after the backward pass" if case.loop.by_hand else ""


def barriers(case: Case) -> str:
    """No barriers: nothing is computed with them."""
    number = case.rows.loc[case.rows["kind"] == "barrier", "collective"].nunique()
    which = f"the {number} barriers" if number > 1 else "the barrier"
    return f"doing without {which}: collectives synchronise the ranks by themselves"


def last_pass(case: Case) -> str:
    """Gradients sent once per step; the engine's strategies that scatter them in each pass have no option for it."""
    loop = case.loop
    if loop.framework == "fsdp2":
        return "set_requires_gradient_sync(False) in every backward pass but the last: gradients stay whole until then"
    if loop.framework == "engine" and loop.traits is not None and loop.traits.gradients == "reduce_scatter":
        return ""
    return "no_sync() in every backward pass but the last of a step"


def last_all_reduce(case: Case) -> str:
    """Scattered gradients averaged between HSDP's replicas once per step; no option of the engine does so."""
    if case.loop.framework != "fsdp2":
        return ""
    return "set_requires_all_reduce(False) in every backward pass but the last: gradients stay scattered until then"


def keep_gathered(case: Case) -> str:
    """Units of FSDP2 that stay gathered from their forward to their backward pass."""
    of_engine = case.loop.framework == "engine"
    option = "--no-reshard-after-forward" if of_engine else "reshard_after_forward=False in fully_shard"
    return f"{option}: units stay gathered until their backward pass"


def prefetch(case: Case) -> str:
    """Units gathered further ahead."""
    units = None if case.setting is None else int(case.setting)
    if units is None and case.loop.prefetch is not None:
        units = case.loop.prefetch + 1
    if case.loop.framework == "fsdp2" and case.loop.roots > 1:
        return "fully_shard on the module that contains all units: FSDP2 gathers ahead only within one root"
    if case.loop.framework == "fsdp2" and units is not None:
        ahead = count(units, "unit")
        return f"prefetch {units}: {ahead} in set_modules_to_forward_prefetch and set_modules_to_backward_prefetch"
    if case.loop.framework == "fsdp2":
        return "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, one unit further ahead"
    if units is not None:
        return f"prefetch {units}: it holds one more unit at a time"
    return "gathering one unit further ahead: it holds one more at a time"


OF_ANY_DATA = (Cause.STRAGGLER, Cause.GAP, Cause.BUBBLE, Cause.IMBALANCE, Cause.SEND)
"""Causes whose remedy is the same whatever is moved."""


def general_remedy(case: Case) -> str:
    """What helps against one cause, where no play tells by how much."""
    loop, moved = case.loop, moved_most(case.rows)
    has_units = loop.may_gather_units
    if case.cause not in OF_ANY_DATA and moved == "activations":
        kinds = set(case.rows["kind"].dropna())
        if (case.rows["what"] == ALL_RANKS_ACTIVATIONS).any():
            return _FEWER_FEATURES
        return next((words for kind, words in _AGAINST_ACTIVATIONS.items() if kind in kinds), _FEWER_TENSOR_RANKS)
    if loop.traits is not None and loop.traits.gradients == "server" and case.cause in _SENT_TO_A_SERVER:
        return _ALL_REDUCE
    if is_undivided(loop, case.cause):
        return _UNITS
    if moved == LOOP_GRADIENTS and not loop.by_hand and case.cause not in (Cause.GAP, Cause.UNKNOWN):
        return _DURING_PASS.format(_BUCKETED[loop.framework])
    match case.cause:
        case Cause.BUBBLE if "microbatches" in case.played:
            return (
                "a schedule with several stages on each rank: neither smaller microbatches nor the other schedule gains"
            )
        case Cause.BUBBLE:
            stages = "" if loop.has_many_stages else ", or a schedule with several stages on each rank"
            return f"more microbatches per step{stages}"
        case Cause.IMBALANCE if "split" in case.played:
            return "less work in the slowest stage: no other split of whole layers gains"
        case Cause.IMBALANCE:
            return "another split: fewer layers in the slowest stage"
        case Cause.SEND if case.played:
            return "larger microbatches, a faster link, or a schedule that receives ahead"
        case Cause.SEND:
            return _UNTOLD_PIPELINE
        case Cause.STRAGGLER:
            return balance(case)
        case Cause.GAP:
            return "" if case.played else find_pause(case)  # it was tried, and there is no pause
        case Cause.UNKNOWN:
            return "opening all ranks' traces together, to tell waiting from transfer"
        case Cause.UNHIDEABLE | Cause.LINK:
            return f"fewer bytes{_how_fewer(loop)} or a faster link"
        case Cause.QUEUED:
            busy = f"{_SEND_LESS}{_how_fewer(loop)}"
            ahead = "gathering ahead of reductions, or sending less at that time"
            return ahead if has_units and moved != "bucket" else busy
        case Cause.LATE:
            if moved == "gather" and has_units:
                return prefetch(case)
            return "launching it as soon as it is ready: see what held it"
        case Cause.TAIL:
            is_of_units = moved in ("gather", "unit")
            return _AGAINST_TAILS["unknown" if is_of_units and not has_units else moved].format(_present_cap(loop))
        case Cause.BLOCKING:
            return _unblock(moved, case)
    return ""


def is_undivided(loop: Loop, cause: Cause | None) -> bool:
    """Whether FSDP2 has one unit for the whole model, and the cause is no wait for other ranks."""
    return loop.framework == "fsdp2" and loop.units == 1 and cause not in (Cause.STRAGGLER, Cause.UNKNOWN)


def _unblock(moved: str, case: Case) -> str:
    """What helps against waiting by design."""
    loop = case.loop
    if moved == "gather":
        return prefetch(case) if loop.may_gather_units else _COMPUTE_FIRST
    if loop.traits is not None and loop.traits.gathers == "units":
        return "larger units, so that reductions are fewer and each has more to hide behind"
    if loop.traits is not None and loop.traits.averages_parameters:
        return IN_THE_BACKGROUND
    if moved == "unknown":
        return _COMPUTE_FIRST
    if loop.traits is not None and loop.traits.buckets and tuple(loop.traits.sharded) == ("optimizer",):
        return DURING_BACKWARD.format(" (strategy zero2)" if loop.framework == "engine" else "")
    if loop.traits is not None and loop.traits.buckets:
        return "waiting for buckets at the end of the backward pass, not within it"
    return _DURING_PASS.format(_BUCKETED[loop.framework])


def _how_fewer(loop: Loop) -> str:
    """By which options fewer bytes are sent, in brackets; without those that the run has."""
    # An option for fewer bytes each, then for fewer passes that send, where not each microbatch sends.
    traits = loop.traits
    sends_each = traits is not None and (traits.sends_every_microbatch or traits.stages)
    sends_halves = loop.sends_halves or (traits is not None and traits.averages_parameters)
    done = zip(_HOW_FEWER[loop.framework], (sends_halves, loop.accumulates or sends_each), strict=False)
    options = ", ".join(text for text, is_done in done if not is_done)
    return options and f" ({options})"


def moved_most(rows: pd.DataFrame) -> str:
    """What most of the exposed time moved: `gather`, `bucket`, `unit` (or a parameter), `activations`, `gradients` of
    no bucket, or something `unknown`.
    """
    if rows.empty:
        return "unknown"
    gathers = (rows["kind"] == "all_gather").fillna(False) & ~rows["what"].map(is_activations)
    if int(rows.loc[gathers, "exposed_ns"].sum()) > MAJORITY * int(rows["exposed_ns"].sum()):
        return "gather"
    moved = rows["what"].map(lambda name: "unknown" if pd.isna(name) else _moved_by_name(str(name)))
    return str(rows["exposed_ns"].groupby(moved.to_numpy()).sum().idxmax())


def is_activations(name: object) -> bool:
    """Whether a collective of this name moves activations."""
    return str(name).startswith(ACTIVATIONS_PREFIX)


def _moved_by_name(name: str) -> str:
    if is_activations(name):
        return "activations"
    if name == LOOP_GRADIENTS:
        return LOOP_GRADIENTS
    return "bucket" if _BUCKET.match(name) else "unit"


OPEN_ALL = (
    "opening all ranks' traces together: how long these collectives took does not follow from their bytes, so"
    " part of it may be waiting for other ranks"
)
DEVICE_WAITS = "no synchronisation within the step: the host waits for its device in {what}"
BUFFERS_STAY = "broadcast_buffers=False (forward_sync_buffers since torch 2.13): DDP sends them before forward passes"
ONE_GRADIENT_LESS = "freezing {what} or making its gradient sparse: it has most of the bytes"
IN_THE_BACKGROUND = "averaging in the background (--background), waited for a step later"
ARRIVAL_ORDER = (
    "find_unused_parameters=False, or static_graph=True: then DDP puts gradients into buckets in the order in which"
    " they arrive, which it did not here"
)
_UNTOLD_PIPELINE = (
    "more microbatches or a more even split of the layers if the stage waits for others' work, a faster link if it"
    " waits for messages"
)
_FEWER_TENSOR_RANKS = (
    "fewer ranks per tensor-parallel group, or a faster link within it: the layer's next operation needs these results,"
    " so nothing can hide them"
)
_FEWER_TOKENS = (
    "fewer or smaller tokens for other ranks' experts, or a faster link: the layer's next operation needs them, so"
    " nothing of the same layer can hide them"
)
_FEWER_FEATURES = (
    "fewer bytes of what all ranks gather for their loss (lower precision, smaller features), or a faster link: the"
    " loss needs it, so nothing can hide it"
)
_NEXT_BLOCK = (
    "sending and receiving the next block while this one is computed, as ring attention can, or a faster link: what it"
    " gains depends on how long a block is computed"
)
_AGAINST_ACTIVATIONS = {"all_to_all": _FEWER_TOKENS, "send_recv": _NEXT_BLOCK}
"""Against time exposed for activations, by how they are sent."""
_UNITS = (
    "fully_shard on each block, not on the root alone: a single unit is gathered before all computation and reduced"
    " after it"
)
_BUCKET = re.compile(r"bucket \d+$")
_SEND_LESS = "sending less while the link is busy"
_HOW_FEWER = {
    **dict.fromkeys((None, "engine"), ("lower precision", "accumulation")),
    "ddp": ("a bf16_compress_hook", "accumulation under no_sync"),
    "fsdp2": ("MixedPrecisionPolicy",),
}
_BUCKETED = {"engine": "strategy bucketed", **dict.fromkeys((None, "ddp", "fsdp2"), "torch's DistributedDataParallel")}
"""What sends gradients in buckets."""
_DURING_PASS = "{}: it launches during the backward pass, and waits at its end"
_AGAINST_TAILS = {
    "bucket": "a lower bucket_cap_mb{}: a smaller last bucket",
    "gather": "a smaller first unit, or gathering it before the step begins",
    "unit": "a smaller last unit, or something to compute until it is sent",
    "unknown": "sending the last one earlier, or making it smaller",
}
"""Against a tail, by what it moves."""
_COMPUTE_FIRST = "something to compute before its result is needed"
DURING_BACKWARD = "sending buckets during the backward pass{}, not after it"
_SENT_TO_A_SERVER = (Cause.BLOCKING, Cause.TAIL, Cause.QUEUED, Cause.LATE)
_ALL_REDUCE = "an all-reduce in place of a server (strategy bucketed): then no link carries what all ranks send"
