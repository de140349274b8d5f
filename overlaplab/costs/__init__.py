"""Formulas of model, strategy, ranks and link, independent of any run."""

from overlaplab.costs.attained import ENOUGH_STEPS, Attained, attained_steps, link_attained
from overlaplab.costs.batch import planned_batch
from overlaplab.costs.collectives import Algorithm, collective_ns, collective_times, tree_ns, two_level_ns
from overlaplab.costs.link import (
    fit_line,
    hop_count,
    hops_ns,
    message_ns,
    parse_link,
    ring_factor,
    server_ns,
    students_t,
    transfer_ns,
    tree_until,
)
from overlaplab.costs.pipeline import bubble
from overlaplab.costs.plan import Plan
from overlaplab.costs.transformer import Transformer
from overlaplab.costs.volume import Theory

__all__ = [
    "ENOUGH_STEPS",
    "Algorithm",
    "Attained",
    "Plan",
    "Theory",
    "Transformer",
    "attained_steps",
    "bubble",
    "collective_ns",
    "collective_times",
    "fit_line",
    "hop_count",
    "hops_ns",
    "link_attained",
    "message_ns",
    "parse_link",
    "planned_batch",
    "ring_factor",
    "server_ns",
    "students_t",
    "transfer_ns",
    "tree_ns",
    "tree_until",
    "two_level_ns",
]
