"""Every action that is played: which causes it answers, how far it is from an option that one sets, and its words.

To add one: a row here, and an edit in `simulate.programs.edits` that names it as its remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overlaplab.causes import Cause
from overlaplab.findings.actions import words
from overlaplab.findings.actions.words import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that can be done to make steps shorter."""

    name: str
    """What `simulate.remedies` calls it."""
    causes: tuple[Cause, ...]
    """The causes of exposed communication that it answers."""
    costs: Literal["nothing", "numerics or hardware", "a search"] = "nothing"
    """What it costs beside a changed line or option: numerics or a faster link, or that one has to find out what to
    change. Such an action comes first only where it gains more than twice as much as all others.
    """
    fills_idle_time: bool = False
    """Whether it answers idle time as well."""
    condition: str = ""
    """Under which its gain is predicted, where it is a limit and no setting."""
    shortens_overhead: bool = False
    """Whether it answers the compute gaps between any two operators, too."""
    words: Words

    def answers(self, cause: Cause, *, overhead: bool) -> bool:
        """Whether it is against such exposed time."""
        return cause in self.causes and (self.shortens_overhead or not overhead)


ACTIONS = [
    Action(name="host_work", causes=(Cause.STRAGGLER, Cause.GAP), fills_idle_time=True, words=words.host_work),
    Action(name="device_waits", causes=(Cause.GAP,), costs="a search", fills_idle_time=True, words=words.device_waits),
    Action(name="last_pass", causes=(Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED), words=words.last_pass),
    Action(
        name="arrival_order",
        causes=(Cause.TAIL, Cause.QUEUED, Cause.LATE, Cause.LINK, Cause.UNHIDEABLE),
        words=words.same_words(words.ARRIVAL_ORDER),
    ),
    Action(name="prefetch", causes=(Cause.LATE,), words=words.prefetch),
    Action(
        name="larger_units",
        causes=(Cause.BLOCKING, Cause.LATE, Cause.QUEUED, Cause.TAIL, Cause.LINK, Cause.GAP),
        shortens_overhead=True,
        words=words.larger_units,
    ),
    Action(name="first_bucket", causes=(Cause.TAIL, Cause.QUEUED), words=words.first_bucket),
    Action(name="cap", causes=(Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE, Cause.LINK), words=words.cap),
    Action(name="strategy", causes=(Cause.BLOCKING,), words=words.strategy),
    Action(name="asynchronous", causes=(Cause.BLOCKING, Cause.QUEUED), words=words.asynchronous_launch),
    Action(name="background", causes=(Cause.BLOCKING, Cause.LINK, Cause.TAIL), words=words.background),
    Action(name="merge", causes=(Cause.BLOCKING, Cause.QUEUED), words=words.merge),
    Action(name="split", causes=(Cause.IMBALANCE,), words=words.pipeline_action_words("split")),
    Action(name="schedule", causes=(Cause.BUBBLE, Cause.SEND), words=words.pipeline_action_words("schedule")),
    Action(name="microbatches", causes=(Cause.BUBBLE,), words=words.pipeline_action_words("microbatches")),
    Action(name="balance", causes=(Cause.STRAGGLER,), words=words.balance),
    Action(name="even_work", causes=(Cause.STRAGGLER,), words=words.same_words(words.EVEN_WORK)),
    Action(name="earlier", causes=(Cause.QUEUED,), words=words.earlier_launch),
    Action(
        name="no_pause",
        causes=(Cause.GAP,),
        costs="a search",
        fills_idle_time=True,
        words=words.same_words(words.FIND_PAUSE),
    ),
    Action(
        name="launch_overhead",
        causes=(Cause.GAP,),
        costs="a search",
        fills_idle_time=True,
        shortens_overhead=True,
        condition="if launching, and recording that, took no time",
        words=words.launch_overhead,
    ),
    Action(
        name="leave_out", causes=(Cause.BLOCKING, Cause.QUEUED), costs="numerics or hardware", words=words.leave_out
    ),
    Action(name="one_gradient_less", causes=(Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL), words=words.one_gradient_less),
    Action(
        name="half_the_bytes",
        causes=(Cause.LINK, Cause.UNHIDEABLE, Cause.TAIL, Cause.QUEUED),
        costs="numerics or hardware",
        words=words.half_the_bytes,
    ),
]
"""Every action, those first that change least: the first of those that gain as much is advised."""
