"""Causes in words, and what helps against each in whose loop."""

from __future__ import annotations

from itertools import product

import pytest
from made.step_rows import exposed_rows

from overlaplab.causes import Cause
from overlaplab.findings import Loop, loop_of
from overlaplab.findings.actions.words import Case, cause_clause, cause_words, general_remedy
from overlaplab.findings.diagnosis.causes import bucket_numbers, what_moved
from overlaplab.manifest import Manifest
from overlaplab.traits import BUCKETS, TRAITS, UNITS, Traits

ENGINE = Loop(traits=Traits(), framework="engine")
DDP = Loop(traits=BUCKETS, framework="ddp")
ZERO2 = Loop(traits=TRAITS["zero2"], framework="engine")
LOCAL_SGD = Loop(traits=TRAITS["local-sgd"], framework="engine")
PIPELINE = Loop(traits=TRAITS["pipeline"], framework="engine")
FSDP2 = Loop(traits=UNITS, framework="fsdp2")
ZERO3 = Loop(traits=UNITS, framework="engine", prefetch=1)
UNKNOWN = Loop()


def remedy(cause: Cause, loop: Loop, what: str | None, kind: str) -> str:
    rows = exposed_rows((0, 1, cause.value, 5, None), what=what, kind=kind)
    return general_remedy(Case(loop=loop, rows=rows, cause=cause))


def test_every_cause_has_words() -> None:
    assert all(cause.label and cause.meaning and "{}" in cause.clause for cause in Cause)
    assert len({cause.label for cause in Cause}) == len(Cause)
    assert cause_words(Cause.STRAGGLER, 3) == "waited for rank 3"
    assert cause_words(Cause.STRAGGLER) == "waited for other ranks"
    assert cause_clause(Cause.STRAGGLER, "2 ms", 3) == "for 2 ms of it, the rank waited for rank 3"
    assert cause_clause(Cause.TAIL, "all") == "for all of it, no computation was left to overlap with"
    assert cause_clause(Cause.GAP, "2 ms", overhead=True).startswith(
        "for 2 ms of it, the host was between two operators"
    )


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([5], "bucket 5"), ([5, 4], "buckets 4 and 5"), ([5, 6, 4], "buckets 4–6"), ([1, 5, 3], "buckets 1, 3 and 5")],
)
def test_buckets_in_a_row_are_a_range(numbers: list[int], words: str) -> None:
    assert bucket_numbers(numbers) == words


@pytest.mark.parametrize(
    ("cause", "loop", "what", "kind", "said"),
    [
        (Cause.TAIL, DDP, "bucket 5", "all_reduce", "a lower bucket_cap_mb"),
        (Cause.TAIL, ZERO3, "layers.0", "reduce_scatter", "a smaller last unit"),
        (Cause.TAIL, ZERO3, "layers.0", "all_gather", "a smaller first unit"),
        (Cause.TAIL, UNKNOWN, None, "all_reduce", "sending the last one earlier"),
        (Cause.LATE, ZERO3, "layers.1", "all_gather", "prefetch 2"),
        (Cause.LATE, FSDP2, "layers.1", "all_gather", "set_modules_to_forward_prefetch"),
        (Cause.BLOCKING, ENGINE, "w", "all_reduce", "strategy bucketed"),
        (Cause.BLOCKING, UNKNOWN, "w", "all_reduce", "torch's DistributedDataParallel"),
        (Cause.BLOCKING, FSDP2, "layers.1", "reduce_scatter", "larger units"),
        (Cause.BLOCKING, UNKNOWN, None, "all_reduce", "something to compute"),
        (Cause.UNHIDEABLE, DDP, "bucket 1", "all_reduce", "fewer bytes (a bf16_compress_hook"),
        (Cause.LINK, FSDP2, "layers.1", "all_gather", "fewer bytes (MixedPrecisionPolicy"),
        (Cause.LINK, LOCAL_SGD, None, "all_reduce", "fewer bytes (accumulation)"),
        (Cause.LINK, PIPELINE, "bucket 0", "all_reduce", "fewer bytes (lower precision)"),
        (Cause.SEND, PIPELINE, "activations of a layer", "send_recv", "more microbatches or a more even split"),
        (Cause.BUBBLE, PIPELINE, "activations of a layer", "send_recv", "more microbatches per step"),
        (Cause.QUEUED, DDP, None, "all_reduce", "sending less while the link is busy"),
        (Cause.TAIL, ZERO2, "parameters of bucket 0", "all_gather", "sending the last one earlier"),
        (Cause.TAIL, DDP, "embedding.weight", "all_reduce", "sending the last one earlier"),
    ],
)
def test_the_remedy_fits_the_loop(cause: Cause, loop: Loop, what: str | None, kind: str, said: str) -> None:
    assert remedy(cause, loop, what, kind).startswith(said)


@pytest.mark.parametrize("cause", list(Cause))
def test_nobody_is_told_to_use_what_is_not_theirs(cause: Cause) -> None:
    moves = (("layers.0", "reduce_scatter"), ("layers.0", "all_gather"), (None, "all_reduce"), (None, None))
    for loop, (what, kind) in product((FSDP2, ZERO3), moves):
        said = remedy(cause, loop, what, str(kind))
        assert "bucket" not in said
        assert "DistributedDataParallel" not in said
    for what in ("bucket 0", "w", None):
        assert "prefetch" not in remedy(cause, DDP, what, "all_reduce")
        assert "strategy" not in remedy(cause, DDP, what, "all_reduce")
    assert "cap" not in remedy(Cause.UNHIDEABLE, DDP, "bucket 3", "all_reduce")


@pytest.mark.parametrize(
    ("sources", "loop"),
    [({"fsdp2"}, FSDP2), ({"ddp"}, DDP), ({"engine"}, UNKNOWN), (set(), UNKNOWN)],
)
def test_a_strangers_framework_is_known_by_its_traces(sources: set[str], loop: Loop) -> None:
    assert loop_of(None, frozenset(sources)) == loop


@pytest.mark.parametrize(
    ("strategy", "traits", "command", "framework"),
    [
        ("torch-ddp", BUCKETS, "python train.py", "ddp"),
        ("torch-fsdp2", UNITS, "python train.py", "fsdp2"),
        ("torch-ddp", BUCKETS, "overlaplab record --strategy torch-ddp", "engine"),
        ("bucketed", BUCKETS, None, "engine"),
    ],
)
def test_who_trains_in_a_loop_of_ones_own_is_told_its_own_options(
    strategy: str, traits: Traits, command: str | None, framework: str
) -> None:
    raw = {} if command is None else {"command": command}
    manifest = Manifest(format_version=1, world_size=2, strategy=strategy, traits=traits, raw=raw)
    assert loop_of(manifest, frozenset({"engine"})) == Loop(traits=traits, framework=framework)


def test_what_is_concerned() -> None:
    tail = exposed_rows((0, 1, "tail", 5, None))
    buckets = tail[["collective"]].assign(
        index=0, parameters=[("a", "b")], end_ns=90_000_000, backward_end_ns=52_000_000
    )
    assert what_moved(Cause.TAIL, tail, buckets) == "bucket 0, which ends 38.0 ms after the backward pass"
    assert what_moved(Cause.TAIL, tail) == "bucket 0"
    queued = exposed_rows(*[(0, 1, "queued", 5, None)] * 3)
    assert what_moved(Cause.QUEUED, queued) == "buckets 0–2"
    many = exposed_rows(*[(0, 1, "queued", 5, None)] * 5, kind="all_gather", what="layers.7")
    assert what_moved(Cause.QUEUED, many) == "5 all-gathers, longest in layers.7"
    assert what_moved(Cause.UNKNOWN, tail.assign(collective=None)) == "of no collective"
