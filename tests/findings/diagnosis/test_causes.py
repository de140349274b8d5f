"""Causes in words, and what helps against each in whose loop."""

from __future__ import annotations

from itertools import product

import pytest
from made.step_rows import MS, exposed_rows, replays

from overlaplab.analyses.exposed import Cause
from overlaplab.findings import CAUSE_LABELS, CAUSE_MEANINGS, Loop, cause_words, loop_of
from overlaplab.findings.diagnosis.causes import what_moved
from overlaplab.findings.diagnosis.remedies import remedy_for
from overlaplab.manifest import Manifest
from overlaplab.traits import BUCKETS, UNITS, Traits

ENGINE = Loop(traits=Traits(), framework="engine")
DDP = Loop(traits=BUCKETS, framework="ddp")
FSDP2 = Loop(traits=UNITS, framework="fsdp2")
ZERO3 = Loop(traits=UNITS, framework="engine", prefetch=1)
UNKNOWN = Loop()


def remedy(cause: Cause, loop: Loop, what: str | None, kind: str) -> str:
    rows = exposed_rows((0, 1, cause.value, 5, None), what=what, kind=kind)
    return remedy_for(cause, None, rows, loop, span_ns=100 * MS, replays=replays()).text


def test_every_cause_has_words() -> None:
    assert set(CAUSE_LABELS) == set(CAUSE_MEANINGS) == set(Cause)
    assert len(set(CAUSE_LABELS.values())) == len(Cause)
    assert cause_words(Cause.STRAGGLER, 3) == "waited for rank 3"
    assert cause_words(Cause.STRAGGLER) == "waited for other ranks"


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
    assert what_moved(Cause.QUEUED, queued) == "bucket 0, bucket 1 and bucket 2"
    many = exposed_rows(*[(0, 1, "queued", 5, None)] * 5, kind="all_gather", what="layers.7")
    assert what_moved(Cause.QUEUED, many) == "5 all-gathers, most in layers.7"
    assert what_moved(Cause.UNKNOWN, tail.assign(collective=None)) == "of no collective"


CAP_OF_TAIL = ("cap", Cause.TAIL, 2.0)
CAP, FIRST, HALF, AHEAD = ("cap", 2.0), ("first_bucket", 0.1), ("half_the_bytes", 0.5), ("prefetch", 1.0)


@pytest.mark.parametrize(
    ("cause", "played", "said", "gain"),
    [
        (Cause.TAIL, {CAP: 15, HALF: 30}, "bucket_cap_mb 2", 15),  # fewer bytes only where nothing else helps
        (Cause.TAIL, {CAP: 1, HALF: 30}, "half the bytes", 30),
        (Cause.TAIL, {CAP: 1, HALF: 2}, "", 1),  # 2 % of the step: not worth an effort
        (Cause.TAIL, {CAP: -1, HALF: -1}, "", 0),
        (Cause.QUEUED, {CAP: 2, FIRST: 1, HALF: 1}, "", 1),
        (Cause.QUEUED, {CAP: 15, FIRST: 14}, "a first bucket of 0.1 MiB", 14),  # it changes less
        (Cause.QUEUED, {CAP: 15, FIRST: 4}, "bucket_cap_mb 2", 15),
        (Cause.QUEUED, {("earlier", None): 9}, "launching what bucket 0 queues behind", 9),
        (Cause.UNHIDEABLE, {CAP: 5, HALF: 30}, "half the bytes", 30),
        (Cause.BLOCKING, {CAP: 40}, "strategy bucketed with bucket_cap_mb 2", 40),
        (Cause.LATE, {AHEAD: 9}, "prefetch 1", 9),
        (Cause.GAP, {("no_pause", None): 9}, "finding what holds up the host", 9),
    ],
)
def test_a_replay_tells_what_helps_and_by_how_much(
    cause: Cause, played: dict[tuple[str, float | None], int], said: str, gain: int | None
) -> None:
    answers = Cause.LINK if cause is Cause.UNHIDEABLE else cause
    found = replays(*[(name, answers, setting, ms) for (name, setting), ms in played.items()])
    rows = exposed_rows((0, 1, cause.value, 20, None))
    told = remedy_for(cause, None, rows, ENGINE, span_ns=100 * MS, replays=found)
    assert told.text.startswith(said) if said else told.text == ""
    assert (told.gain_ns, told.replayed) == ((None, False) if gain is None else (gain * MS, True))


def test_fewer_bytes_say_what_they_gain() -> None:
    """By a replay, else at most by the bound, else no more than was exposed."""
    tail, alone = (exposed_rows((0, 1, cause.value, 20, None)) for cause in (Cause.TAIL, Cause.UNHIDEABLE))
    no_cap = remedy_for(Cause.TAIL, None, tail, ENGINE, span_ns=100 * MS, replays=replays((*CAP_OF_TAIL, -1)))
    assert (no_cap.text[:11], no_cap.gain_ns, no_cap.replayed) == ("fewer bytes", 20 * MS, False)
    none = replays()
    bound = remedy_for(Cause.UNHIDEABLE, None, alone, DDP, span_ns=100 * MS, replays=none, half_bytes_ns=12 * MS)
    assert (bound.text[:14], bound.gain_ns, bound.replayed) == ("half the bytes", 12 * MS, False)
    little = remedy_for(Cause.UNHIDEABLE, None, alone, DDP, span_ns=100 * MS, replays=none, half_bytes_ns=MS)
    assert (little.text, little.gain_ns) == ("", MS)


def test_what_costs_little_gets_no_remedy() -> None:
    for cause in (Cause.TAIL, Cause.GAP, Cause.UNKNOWN, Cause.STRAGGLER):
        rows = exposed_rows((0, 1, cause.value, 2, None))
        assert remedy_for(cause, None, rows, ENGINE, span_ns=100 * MS, replays=replays()).text == ""


def test_balancing_another_rank_is_no_remedy() -> None:
    rows = exposed_rows((0, 1, "straggler wait", 20, 3))
    for late, gain in ((3, (12 * MS, True)), (2, (20 * MS, False))):
        found = replays(("balance", Cause.STRAGGLER, float(late), 12))
        told = remedy_for(Cause.STRAGGLER, 3, rows, ENGINE, span_ns=100 * MS, replays=found)
        assert "making rank 3 as fast" in told.text
        assert (told.gain_ns, told.replayed) == gain
