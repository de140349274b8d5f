"""Every number that decides what a finding says: nowhere else is one written.

But for the limits beyond which a step is an outlier: they lie in `analyses.worst`, which leaves it out of means.
"""

from __future__ import annotations

from overlaplab import causes
from overlaplab.analyses.across_runs import tiers

FEWEST_STEPS = tiers.FEWEST
"""Steps: with fewer there is no spread, which is why the analysis defines the number."""

# LITTLE_EXPOSED and LITTLE_GAIN mean almost the same. They stay apart because several steps of the sample runs lie
# between them: with one number, what is said of those would change.
LITTLE_EXPOSED = 0.03
"""Share of the step time: with less exposed communication than this, communication is not what makes a run slow."""
ALIKE_KINDS = 0.04
"""Kinds of steps whose means differ by no larger share of a step are not told apart."""
SECOND_CAUSE = 0.1
"""Share of the step: a second cause of as much exposed time is in the headline. Also of a bucket's exposed time: it is
listed with its name."""
LITTLE_GAIN = 0.02
"""Share of the step time (on the timeline: of the window): a gain of at most this is not worth an effort."""
IDLE_PROBLEM_SHARE = 0.1
"""Share of the step time: more idle time or more copying than this is named as the problem."""
IDLE_OVER_EXPOSED = 2
"""Times the exposed communication: if the device is idle for longer than this, idle time is the first problem."""
MAJORITY = 0.5
"""Share of a whole: a part as large accounts for it, such as host waits for the idle time."""

LARGE_COLLECTIVE = 0.5
"""Share of the bytes of the largest collective: collectives from this size on count among the largest."""
SHORT_PAUSE_NS = causes.SHORT_PAUSE_NS
"""Shortest gap of compute in which the host paused, which is why the table of causes defines the number."""
PROMPT_LAUNCH_NS = 50_000
"""From a bucket's readiness to its launch: the hook itself takes up to this long."""
HELD_NS = 1_000_000
"""How much earlier a bucket would be launched without its last gradient: from here on, that one held it."""
LISTED_SHARE = 0.05
"""Share of a step's exposed time: what has no more is not listed."""

APART_NS = 1_000_000_000
"""Between two ranks' recordings: clocks of one job's machines differ by less."""
CLOSE_TO_THEORY = 0.02
"""Share of what theory says: a measured size that differs by no more agrees with it, as padding explains the rest."""
FEWEST_RECORDINGS = tiers.FEWEST_RECORDINGS
"""Recordings of each setting: fewer cannot tell two settings apart, whatever they say (see `across_runs.tiers`)."""
AVOID_SHARE = 0.05
"""Share of the fastest's step time: a setting that is told apart and slower by more than this is to be avoided."""
SMALL_CAUSE = 0.05
"""Share of the exposed time of a step: a cause of less is not worth a bar."""

CAP_TIE = 0.01
"""Share of the step: settings whose predicted steps differ by no more are equally good, as in `simulate.advise`."""

# How many of a kind are named before the rest is summed up.
MOST_CAUSES = 3
"""Causes of exposed communication."""
MOST_COLLECTIVES_LISTED = 3
"""Collectives that a cause lists by name."""
MOST_ACTIONS = 6
"""Actions that a first screen lists."""
MOST_BARS = 5
"""Causes of exposed communication that get a bar each: with more the first screen of a laptop is full."""
MOST_RANKS_DRAWN = 8
"""Ranks that get a bar on the first screen: those with most exposed time."""
MOST_LATE_BUCKETS = 8
"""Late buckets that get a sentence each."""
MOST_BUCKETS_LISTED = 6
"""Buckets that a sentence lists by number."""
MOST_UNITS_LISTED = 4
"""Units that a sentence lists by name."""
MOST_REASONS = 5
"""Reasons why collectives have no counterpart."""
MOST_BEATEN = 3
"""Slower settings that a comparison names with their differences."""
MOST_RUNS_LISTED = 3
"""Runs that a sentence lists by name."""
MOST_STEPS_NAMED = 8
"""Steps that a remedy names as options of a command."""
MOST_STEPS = 4
"""Steps that missed the emulated link, or are of one kind."""
MOST_CLOCKS = 4
"""Corrected clocks under a timeline."""
MOST_KERNELS = 3
"""Kernels that are named where no communication was recognised."""

PIPELINE_PART = 0.01
"""Share of the stages' time: a part of a pipeline's bubble that is smaller is not named."""
UNEVEN_STAGES = 0.02
"""Share of the median stage's time: a stage that is slower by less is not called the slowest."""
