"""Recorded steps played again: how short they could have been, what remedies gain."""

from overlaplab.simulate.advice.advise import advise, best_cap_mb, can_try_buckets
from overlaplab.simulate.advice.pipelines import pipeline_remedies
from overlaplab.simulate.advice.remedies import gains, remedies
from overlaplab.simulate.bound import best_buckets, bound
from overlaplab.simulate.undisturbed import undisturbed_spans_ns
