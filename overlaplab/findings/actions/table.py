"""Every action that is played: which causes it answers, how far it is from an option that one sets, and its words.

To add one: a row here, and an edit in `simulate.programs.edits` that names it as its remedy.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd
from msgspec import Struct

from overlaplab.causes import Cause
from overlaplab.evidence.purposes import BUFFERS
from overlaplab.findings.actions import words
from overlaplab.findings.actions.words import Words
from overlaplab.findings.thresholds import MAJORITY


class Action(Struct, frozen=True):
    """Something that can be done to make steps shorter."""

    name: str
    """What `simulate.remedies` calls it."""
    causes: tuple[Cause, ...]
    """The causes of exposed communication that it answers."""
    words: str | Words
    """What `fill_words` makes a few words of that fit `Try …`; empty where it does not apply."""
    costs: Literal["nothing", "numerics or hardware", "a search"] = "nothing"
    """What it costs beside a changed line or option: numerics or a faster link, or that one has to find out what to
    change. Such an action comes first only where it gains more than twice as much as all others.
    """
    fills_idle_time: bool = False
    """Whether it answers idle time as well."""
    condition: str = ""
    """The clause `if …` under which its gain is predicted, which then is a limit; empty where it is a setting."""
    shortens_overhead: bool = False
    """Whether it answers `overhead`, the short gaps of compute between any two operators, too."""
    subject: Literal["", "gradients", "gathers", "buffers", "barriers", "others"] = ""
    """The only collectives that it is about; empty: all. `others` move neither gradients nor parameters (but averages
    of parameters), and are no barriers.
    """
    of_transfers: bool = False
    """Whether it shortens every transfer, also where the loop waits by design."""

    def answers(self, cause: Cause, rows: pd.DataFrame, *, overhead: bool, named: bool) -> bool:
        """Whether it is against most of the exposed time of these rows of one cause; see `concerns`."""
        if cause not in self.causes or (overhead and not self.shortens_overhead):
            return False
        concerned_ns = rows.loc[self.concerns(rows, named=named), "exposed_ns"].sum()
        return bool(concerned_ns > MAJORITY * rows["exposed_ns"].sum())

    def concerns(self, rows: pd.DataFrame, *, named: bool) -> pd.Series:
        """Mark those of these rows that it is about; `named`: whether gradients have names in their step."""
        has_name, barriers = rows["what"].notna(), rows["kind"] == "barrier"
        match self.subject:
            case "gradients" if named:
                others = ~rows["what"].map(words.is_activations).astype(bool)
                return others & (has_name | (rows["cause"] != Cause.BLOCKING))
            case "gathers":
                return rows["kind"] == "all_gather"
            case "buffers":
                return rows["what"] == BUFFERS
            case "barriers":
                return barriers
            case "others":
                averages = rows["what"].astype(str).str.startswith("parameters ") & (rows["kind"] == "all_reduce")
                return (~has_name | averages) & ~barriers
        return pd.Series(True, index=rows.index)


_CAUSES_OF_OTHERS = (Cause.BLOCKING, Cause.QUEUED, Cause.LINK, Cause.TAIL)
"""Why what moves neither gradients nor parameters is exposed."""

ACTIONS = [
    Action("host_work", (Cause.STRAGGLER, Cause.GAP), words.host_work, fills_idle_time=True),
    Action("device_waits", (Cause.GAP,), words.DEVICE_WAITS, costs="a search", fills_idle_time=True),
    Action("last_all_reduce", (Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED), words.last_all_reduce),
    Action("last_pass", (Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED), words.last_pass),
    Action(
        "arrival_order",
        (Cause.TAIL, Cause.QUEUED, Cause.LATE, Cause.LINK, Cause.UNHIDEABLE),
        words.ARRIVAL_ORDER,
    ),
    Action("prefetch", (Cause.LATE,), words.prefetch),
    Action(
        "keep_gathered",
        (Cause.BLOCKING, Cause.LATE, Cause.QUEUED, Cause.LINK),
        words.keep_gathered,
        subject="gathers",
    ),
    Action(
        "larger_units",
        (Cause.BLOCKING, Cause.LATE, Cause.QUEUED, Cause.TAIL, Cause.LINK, Cause.GAP),
        "larger units: fully_shard on {units} of the present ones together",
        shortens_overhead=True,
    ),
    Action("first_bucket", (Cause.TAIL, Cause.QUEUED), words.first_bucket, subject="gradients"),
    Action("cap", (Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE, Cause.LINK), words.cap, subject="gradients"),
    Action("strategy", (Cause.BLOCKING,), words.DURING_BACKWARD.format(" (strategy {what})")),
    Action(
        "library_collectives",
        (Cause.BLOCKING, Cause.TAIL, Cause.QUEUED, Cause.LATE, Cause.LINK, Cause.UNHIDEABLE),
        words.all_reduces,
    ),
    Action(
        "unused_parameters",
        (Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED),
        "requires_grad_(False) on what gets no gradient, but is sent: {what}",
    ),
    Action("asynchronous_hook", (Cause.BLOCKING, Cause.GAP), words.asynchronous_hook),
    Action(
        "whole_optimizer",
        (Cause.BLOCKING, Cause.QUEUED, Cause.LINK),
        "a whole optimizer on each rank in place of ZeroRedundancyOptimizer: then nothing is sent within its step",
        condition="if updating all parameters took no longer",
    ),
    Action("barriers", (Cause.BLOCKING, Cause.QUEUED), words.barriers, subject="barriers"),
    Action("asynchronous", _CAUSES_OF_OTHERS, words.asynchronous_launch, subject="others"),
    Action("background", _CAUSES_OF_OTHERS, words.background, subject="others"),
    Action("merge", _CAUSES_OF_OTHERS, "one collective in place of the {what}, on stacked tensors", subject="others"),
    Action("split", (Cause.IMBALANCE,), lambda case: words.pipeline_words("split", case.what)),
    Action("schedule", (Cause.BUBBLE, Cause.SEND), lambda case: words.pipeline_words("schedule", case.what)),
    Action("microbatches", (Cause.BUBBLE,), lambda case: words.pipeline_words("microbatches", case.what)),
    Action("balance", (Cause.STRAGGLER,), words.balance),
    Action("even_work", (Cause.STRAGGLER,), words.even_work),
    Action("earlier", (Cause.QUEUED,), words.earlier_launch),
    Action("no_pause", (Cause.GAP,), words.find_pause, costs="a search", fills_idle_time=True),
    Action(
        "launch_overhead",
        (Cause.GAP,),
        words.launch_overhead,
        costs="a search",
        fills_idle_time=True,
        shortens_overhead=True,
        condition="if launches took no time",
    ),
    Action(
        "buffers", (Cause.BLOCKING, Cause.QUEUED), words.BUFFERS_STAY, costs="numerics or hardware", subject="buffers"
    ),
    Action("leave_out", _CAUSES_OF_OTHERS, words.leave_out, costs="numerics or hardware", subject="others"),
    Action("one_gradient_less", (Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL), words.ONE_GRADIENT_LESS),
    Action(
        "half_the_bytes",
        (Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED),
        "half the bytes{fewer} or a link twice as fast",
        costs="numerics or hardware",
        of_transfers=True,
    ),
]
"""Every action, those first that change least: the first of those that gain as much is advised."""
