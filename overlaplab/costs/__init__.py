"""Formulas of model, strategy, ranks and link, independent of any run."""

from overlaplab.costs.attained import ENOUGH_STEPS, attained_steps, link_attained
from overlaplab.costs.batch import planned_batch
from overlaplab.costs.link import (
    Algorithm,
    collective_ns,
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
