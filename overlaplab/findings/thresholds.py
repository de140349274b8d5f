"""Every number that decides what a finding says: nowhere else is one written."""

from __future__ import annotations

from overlaplab.analyses import spread

FEWEST_STEPS = spread.FEWEST
"""Steps: with fewer there is no spread, which is why the analysis defines the number."""

# LITTLE_EXPOSED and LITTLE_GAIN mean almost the same. They stay apart because several steps of the sample runs lie
# between them: with one number, what is said of those would change.
LITTLE_EXPOSED = 0.03
"""Of the step time: with less exposed communication than this, communication is not what makes a run slow."""
LITTLE_GAIN = 0.02
"""Of the step time (on the timeline: of the window): a gain of at most this is not worth an effort."""
MUCH = 0.1
"""Of the step time: more idle time or more copying than this is named as the problem."""
IDLE_OVER_EXPOSED = 2
"""Times the exposed communication: if the device is idle for longer than this, idle time is the first problem."""
MAJORITY = 0.5
"""Of a whole: a part of this share accounts for it, such as host waits for the idle time."""

LITTLE_WAIT = 0.1
"""Of all transfer time: if ranks on average wait for less than this, no rank makes the others wait much."""
STANDS_OUT = 1.5
"""Times the mean over all ranks: a rank that costs the others at least this much is slow by itself."""
LARGE_COLLECTIVE = 0.5
"""Of the bytes of the largest collective: collectives from this size on count among the largest."""
PROMPT_LAUNCH_NS = 50_000
"""From a bucket's readiness to its launch: the hook itself takes up to this long."""

CLOSE_TO_THEORY = 0.02
"""Of what theory says: a measured size that differs by no more agrees with it, since padding explains the rest."""
ENOUGH_RECORDINGS = 3
"""Recordings of each cap: from this many on, their order says something (see `overlaplab.analyses.spread`)."""

# How many of a kind are named before the rest is summed up.
MOST_RANKS = 3
"""Ranks that the verdict names as waited for."""
MOST_CAUSES = 3
"""Causes of exposed communication."""
MOST_LATE_BUCKETS = 8
"""Late buckets that get a sentence each."""
MOST_BUCKETS_LISTED = 6
"""Buckets that a sentence lists by number."""
MOST_UNITS_LISTED = 4
"""Units that a sentence lists by name."""
MOST_REASONS = 5
"""Reasons why collectives have no counterpart."""
MOST_STEPS = 4
"""Steps that missed the emulated link."""
MOST_CLOCKS = 4
"""Corrected clocks under a timeline."""
MOST_KERNELS = 3
"""Kernels that are named where no communication was recognised."""

MUCH_DELAY = 0.05
"""Of a step: if its computation waited longer for a core, the machine was busy."""
