"""What a step of a run on GPUs would take with another cap of DDP, or prefetch depth of FSDP2.

docs/design/plays.md, The page What if.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from overlaplab.analyses.exposed import exposed_pauses
from overlaplab.analyses.summary import summary
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run, rule_of
from overlaplab.simulate.bound import bound
from overlaplab.simulate.fill_buckets import CAP_MB, MIB
from overlaplab.simulate.gpus.buckets import gradient_sizes, is_of_one_size, recut
from overlaplab.simulate.gpus.gathers import prefetch_edits
from overlaplab.simulate.predictions.answer import Answer
from overlaplab.simulate.predictions.device import predict_device, require_device
from overlaplab.simulate.programs.setting import Setting
from overlaplab.vocabulary import Rule

Option: TypeAlias = Literal["bucket_cap_mb", "prefetch"]


@once_per_run
def option_or_why(run: Run) -> Option | OverlaplabError:
    """The option that can be changed of a run on GPUs, or why none; edits need no more than `require_device` does."""
    try:
        require_device(run)
    except OverlaplabError as error:
        return error
    try:
        prefetch_edits(run, 1)
    except OverlaplabError:
        pass
    else:
        return "prefetch"
    try:
        if not (is_of_one_size(run) and recut(run, [int(CAP_MB * MIB)]).edits):
            recut(run, [1])  # each gradient for itself: other sizes than were recorded
    except OverlaplabError as error:
        return error
    return "bucket_cap_mb"


def whole_bytes(run: Run) -> int:
    """What a backward pass sends, in bytes. Raises `OverlaplabError` as `recut` does."""
    return sum(gradient_sizes(run))


def least_cap_mb(run: Run) -> float:
    """The least cap to try, in MiB; of GPUs whose all-reduces are of one size DDP's default, see `recut`."""
    on_gpus = all(rule_of(trace) is Rule.GPU for trace in run.traces)
    return CAP_MB if on_gpus and is_of_one_size(run) else 0.25


@once_per_run
def device_answer(run: Run, setting: Setting) -> Answer:
    """The run under the setting. Raises `OverlaplabError` where it cannot be played."""
    return predict_device(run, setting).answer()


@once_per_run
def device_least_ns(run: Run) -> int | None:
    """The mean step with the best buckets of each rank alone, idle time and pauses as recorded; None where unknown."""
    window = ["rank", "step"]
    bounds = bound(run)[[*window, "compute_ns", "any_cap_ns"]].rename(columns={"compute_ns": "alone_ns"})
    rows = summary(run).merge(bounds, on=window, how="left").merge(exposed_pauses(run), on=window, how="left")
    if rows.empty or rows["any_cap_ns"].isna().any():
        return None
    exposed = rows["exposed_comm_ns"] - rows["paused_ns"].fillna(0)
    stays_exposed = (rows["any_cap_ns"] - rows["alone_ns"]).clip(lower=0, upper=exposed)
    return round(float((rows["span_ns"] - exposed + stays_exposed).mean()))
