"""Recorded steps played again: how short they could have been, what remedies gain."""

from overlaplab.simulate.advice.advise import OPTIONS, advise, best_cap_mb, fits
from overlaplab.simulate.advice.pipelines import pipeline_remedies
from overlaplab.simulate.advice.remedies import gains, remedies
from overlaplab.simulate.advice.tried import gains_miss_ns
from overlaplab.simulate.bound import best_buckets, bound
from overlaplab.simulate.predictions.what_if import why_not
from overlaplab.simulate.undisturbed import disturbed, undisturbed_spans_ns

__all__ = [
    "OPTIONS",
    "advise",
    "best_buckets",
    "best_cap_mb",
    "bound",
    "disturbed",
    "fits",
    "gains",
    "gains_miss_ns",
    "pipeline_remedies",
    "remedies",
    "undisturbed_spans_ns",
    "why_not",
]
