"""What edits make of programs: literals in, literals out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from overlaplab_engine.strategies.gradients.buckets import assign as engine_assign

from overlaplab.simulate.edits.collectives import (
    launch_early,
    left_out,
    merge_collectives,
    name_collectives,
    other_collectives,
    wait_a_step_later,
    wait_at_step_end,
    without_launches,
)
from overlaplab.simulate.edits.hosts import balance_rank, even_out_work, without_host_work, without_pauses
from overlaplab.simulate.edits.model import (
    halve_bytes,
    keep_gathered,
    last_pass_only,
    unused_parameters,
    update_whole,
    wait_at_pass_end,
    without_unused,
)
from overlaplab.simulate.fill_buckets import assign
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work, find_launches, play
from overlaplab.simulate.programs.larger_units import larger_units, unit_order


def spans(programs: Sequence[Sequence[Move]]) -> list[list[int]]:
    played = play(programs)
    return [played.spans_ns(rank) for rank in range(len(programs))]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 20), st.integers(1, 20))
def test_buckets_close_as_the_engines(sizes: list[int], first: int, cap: int) -> None:
    names = [str(number) for number in range(len(sizes))]
    expected = engine_assign(range(len(sizes)), sizes, [0] * len(sizes), [first, cap])
    got = assign(names, dict(zip(names, sizes, strict=True)), [first, cap])
    assert got == [[names[number] for number in bucket] for bucket in expected]


def test_a_gather_that_others_queue_behind_goes_first() -> None:
    passes = [Mark("forward"), Mark("forward_end")]
    program = [
        *(End(), *passes, Work(30), Launch("flags", 1), Launch("features", 40)),
        *(Work(10), Launch("w", 10, role="bucket"), Work(10), Wait("w"), Wait("features"), End()),
    ]
    moves = launch_early([program])
    assert moves is not None
    assert moves[0][:5] == [End(), Launch("features", 40), *passes, Work(30)]
    assert (spans([program]), spans(moves)) == ([[81]], [[51]])
    assert launch_early([[End(), *passes, Work(30), Launch("flags", 0), End()]]) is None
    within = [End(), passes[0], Launch("activations", 40), Wait("activations"), passes[1], End()]
    assert launch_early([within]) is None


def test_all_ranks_launch_early_what_takes_long_for_the_slowest() -> None:
    """4 ns are more than 2 % of a step of 100 ns, and not of one of 400."""

    def rank(work_ns: int, flags_ns: int) -> list[Move]:
        bucket, flags = Launch("b", 1, role="bucket"), Launch("f", flags_ns)
        return [End(), Mark("forward"), Mark("forward_end"), Work(work_ns), bucket, flags, Wait("f"), End()]

    assert launch_early([rank(100, 4), rank(400, 4)]) is None
    changed = launch_early([rank(100, 9), rank(400, 9)])
    assert changed is not None
    assert spans(changed) == [[100], [400]]


def test_a_late_rank_works_as_long_as_the_others() -> None:
    """Their median. Where its moves differ from theirs, by whole steps: its 40 and 2 become 12 and 0."""
    ranks: list[list[Move]] = [[End(), Work(ns), Launch("a", 5), Wait("a"), Work(2), End()] for ns in (10, 40, 12)]
    assert spans(ranks) == [[47]] * 3
    assert spans(balance_rank(ranks, 1)) == [[19]] * 3
    ranks[1][1:1] = [Mark("gradient", "w")]
    assert [move.ns for move in balance_rank(ranks, 1)[1] if isinstance(move, Work) and move.ns] == [12]


def test_without_pauses() -> None:
    assert without_pauses([Work(10, 7), End()]) == [Work(3), End()]


def test_shorter_work_pauses_and_idles_no_longer_than_it_takes() -> None:
    pausing: list[Move] = [Launch("a", 1, host_ns=1), Work(10, 10, 10)]
    assert without_launches(pausing, {"a"}) == [Work(8, 8, 8)]
    assert without_pauses(without_launches(pausing, {"a"})) == [Work(0)]
    slow, fast = even_out_work([[End(), Work(90, 80), End()], [End(), Work(10), End()]])
    assert (slow, fast) == ([End(), Work(50, 50), End()], [End(), Work(50), End()])


def test_without_the_hosts_work_of_a_name() -> None:
    """The waits that it holds stay."""
    load = [Mark("host", "loading"), Work(40), Wait("a"), Work(1), Mark("host_end", "loading")]
    save = [Mark("host", "saving"), Work(7), Mark("host_end", "saving")]
    program: list[Move] = [End(), Launch("a", 5), *load, Work(20), *save, End()]
    assert spans([program]) == [[68]]
    assert spans([without_host_work(program, "loading")]) == [[5 + 20 + 7]]
    assert without_host_work(program, "logging") == program


FLAGS, BUCKET = Launch("flags", 4, "all_reduce", 8), Launch("w", 10, "all_reduce", 100, role="bucket", host_ns=2)
METRICS = [Launch(f"metric {number}", 6, "all_reduce", 4) for number in range(3)]


def metrics(*launches: Launch) -> list[Move]:
    """Each waited for at once, with work between them."""
    return [move for launch in launches for move in (launch, Wait(launch.key, 1), Work(2))]


STEP: list[Move] = [
    *(End(), Mark("forward"), Work(30), FLAGS, Wait("flags", 1), Mark("forward_end")),
    *metrics(*METRICS),
    *(Mark("backward"), Work(50), BUCKET, Work(5), Mark("backward_end"), Wait("w", 1), Work(8), End()),
]
"""It takes 30 + 5 + 3 × 9 + 50 + 11 + 8."""


def test_other_collectives_are_those_without_a_role() -> None:
    assert other_collectives(STEP) == [FLAGS, *METRICS]
    assert other_collectives(STEP, between_passes=True) == METRICS


def test_collectives_left_out() -> None:
    assert spans([STEP]) == [[131]]
    left = left_out([STEP])
    assert left is not None
    assert spans(left) == [[131 - 5 - 3 * 7]]
    assert left_out([STEP], "broadcast") is None


def test_barriers_are_left_out_by_name_alone() -> None:
    """They carry nothing: they are not merged with others, nor waited for later."""
    program = [
        *(End(), Mark("forward"), Work(9), Mark("forward_end"), Launch("a", 5, "barrier"), Wait("a")),
        *(Launch("b", 4, "barrier"), Wait("b"), Mark("optimizer"), Mark("optimizer_end")),
        *(Launch("c", 3, "barrier"), Wait("c"), End()),
    ]
    assert spans([program]) == [[21]]
    assert not any((left_out([program]), wait_at_step_end([program]), wait_a_step_later([program])))
    assert merge_collectives([program], lambda _kind, _bytes: 1) is None
    without = left_out([program], "barrier")
    assert without is not None
    assert spans(without) == [[9]]


def test_messages_are_needed_by_their_receivers() -> None:
    """As those of a ring, a tree or a server, which carry gradients though no label may say so."""
    program = [
        *(End(), Mark("forward"), Work(9), Mark("forward_end"), Launch("a", 5, "send_recv"), Wait("a")),
        *(Mark("optimizer"), Mark("optimizer_end"), Launch("b", 3, "send_recv"), Wait("b"), End()),
    ]
    assert other_collectives(program) == []
    assert not any((left_out([program]), wait_at_step_end([program]), wait_a_step_later([program])))


def test_parameters_sent_within_an_update_are_needed() -> None:
    update = [
        Mark("optimizer"),
        Work(2),
        Launch("a", 5, "broadcast", carries="parameters"),
        Wait("a"),
        Mark("optimizer_end"),
    ]
    program = [End(), Mark("forward"), Work(9), Mark("forward_end"), *update, End()]
    assert not any((left_out([program]), wait_at_step_end([program]), wait_a_step_later([program])))
    whole = update_whole([program])
    assert whole is not None
    assert (spans([program]), spans(whole)) == ([[16]], [[11]])
    assert update_whole(whole) is None
    assert update_whole([[*program, Launch("b", 5, "reduce_scatter", carries="gradients")]]) is None


def test_buckets_that_a_hook_waits_for_are_waited_for_at_the_end() -> None:
    def bucket(key: str) -> Launch:
        return Launch(key, 30, role="bucket")

    head, tail = [End(), Mark("backward"), Work(10)], [Mark("backward_end"), End()]
    waiting = [*head, bucket("a"), Wait("a"), Work(20), bucket("b"), Work(1), Wait("b"), *tail]
    changed = wait_at_pass_end([waiting])
    assert changed == [[*head, bucket("a"), Work(20), bucket("b"), Work(1), Wait("b"), Wait("a"), *tail]]
    assert (spans([waiting]), spans(changed or [])) == ([[90]], [[70]])
    assert wait_at_pass_end(changed or []) is None
    assert wait_at_pass_end([[*head, bucket("a"), Wait("a"), *tail]]) is None, "it is waited for at the end"
    after = [Mark("backward_end"), bucket("a"), Wait("a"), Work(1), bucket("b"), Wait("b"), End()]
    assert wait_at_pass_end([[*head, *after]]) is None, "nothing is left to hide them"


def test_parameters_without_a_gradient_are_not_sent() -> None:
    """A bucket of such alone is gone, another one is smaller; without marks of gradients nothing is known."""
    sizes = dict.fromkeys("abcd", (40, 40))

    def bucket(key: int, *names: str) -> Launch:
        return Launch(key, 10 * len(names), "all_reduce", 40 * len(names), role="bucket", parameters=names)

    arrives = [Mark("gradient", "a"), Mark("gradient", "b")]
    head, waits = [End(), Mark("backward")], [Wait(0), Wait(1), Mark("backward_end"), End()]
    program = [*head, bucket(0, "c"), *arrives, bucket(1, "a", "b", "d"), *waits]
    assert unused_parameters([program]) == ["c", "d"]
    left = without_unused([program], sizes, lambda _kind, size: size // 4)
    assert left is not None
    assert [(move.key, move.bytes) for move in left[0] if isinstance(move, Launch)] == [(1, 80)]
    assert (spans([program]), spans(left)) == ([[40]], [[20]])
    assert without_unused([program], sizes, lambda _kind, _size: None) is None
    assert without_unused([program], dict.fromkeys("abc", (40, 40)), lambda _kind, size: size // 4) is None
    assert unused_parameters([[move for move in program if move not in arrives]]) == []


def test_units_stay_gathered_for_their_backward_pass() -> None:
    """Each of two microbatches gathers its units once; the root, gathered once per microbatch, stays as it is."""

    def gathered(key: int, unit: str) -> list[Move]:
        return [Launch(key, 5, role="gather", what=unit), Wait(key), Work(1)]

    def sent(key: int, unit: str) -> list[Move]:
        return [Launch(key, 3, role="scatter", what=unit), Wait(key)]

    step: list[Move] = []
    for first in (0, 10):
        step += gathered(first, "root") + gathered(first + 1, "a") + gathered(first + 2, "b")
        step += gathered(first + 3, "b") + sent(first + 4, "b") + gathered(first + 5, "a") + sent(first + 6, "a")
        step += sent(first + 7, "root")
    kept = keep_gathered([[End(), *step, End()]])
    assert kept is not None
    left = [move.key for move in kept[0] if isinstance(move, Launch) and move.role == "gather"]
    assert left == [0, 1, 2, 10, 11, 12]
    assert keep_gathered(kept) is None


def test_what_each_forward_pass_gathers_stays() -> None:
    """Without a reduce-scatter the root is gathered before each of two microbatches, and freed after it."""
    gathers = ("root 0 forward", "a 0 forward", "a 0 backward", "root 1 forward", "a 1 forward", "a 1 backward")
    moves = [Launch(key, 5, role="gather", what=what) for key, what in enumerate(gathers)]
    changed = keep_gathered([[End(), *moves, End()]])
    assert changed is not None
    left = [move.what for move in changed[0] if isinstance(move, Launch)]
    assert left == ["root 0 forward", "a 0 forward", "root 1 forward", "a 1 forward"]


def test_other_collectives_are_named_by_number_size_and_place() -> None:
    keys = {launch.key for launch in METRICS}
    step = STEP[1:-1]
    assert name_collectives([[End()], STEP], keys) == "3 all-reduces of 4 B after the forward pass"
    assert name_collectives([STEP], {"metric 1"}) == "all-reduce of 4 B after the forward pass"
    assert name_collectives([STEP], {"flags", *keys}) == "4 all-reduces"
    assert name_collectives([[End(), *step, End(), Work(9), End()]], {"w"}) == (
        "all-reduce of 100 B within the backward pass in 1 of 2 steps"
    )
    gather = Launch("batch", 5, "broadcast", 2000)
    assert (
        name_collectives([[End(), gather, *step, End()]], {"batch"}) == "broadcast of 2.00 kB before the forward pass"
    )
    assert name_collectives([[End(), gather, *step, End()]], {"batch", "w"}) == "2 collectives"
    assert name_collectives([STEP], set()) == ""


def test_collectives_merged_with_their_neighbours() -> None:
    """One of 12 bytes, and a wake-up, in place of three."""
    changed = merge_collectives([STEP], lambda kind, size: {"all_reduce": 5 + size // 4}[kind])
    assert changed is not None
    assert [move for move in changed[0] if isinstance(move, Launch)] == [
        *(FLAGS, Launch("metric 2", 8, "all_reduce", 12), BUCKET)
    ]
    assert spans(changed) == [[131 - 3 * 7 + 9]]
    longest = merge_collectives([STEP], lambda _kind, _size: None)
    assert longest is not None
    assert spans(longest) == [[131 - 2 * 7 + 1]]  # of 8 further bytes, which take what the bucket's do
    alone = [*STEP[:6], *STEP[9:]]
    sent = [
        [launch.key for launch in find_launches(each)] for each in merge_collectives([STEP, alone], lambda *_: 8) or ()
    ]
    assert sent == [["flags", "metric 0", "metric 2", "w"], ["flags", "metric 2", "w"]], "one rank sends no metric 0"
    apart = [*STEP[:9], Mark("use", "a"), *STEP[9:12], Mark("use", "b"), *STEP[12:]]
    assert merge_collectives([apart], lambda _kind, _size: None) is None


@pytest.mark.parametrize(
    ("moves", "took"),
    [
        ("a wait-a b wait-b work", (180, 140)),
        ("a b wait-a work", (140, 140)),
        ("a wait-a b work wait-b", (140, 140)),
        ("a wait-a work b", (140, 140)),
    ],
)
def test_what_is_merged_is_waited_for_as_soon_as_any_of_it(moves: str, took: tuple[int, int]) -> None:
    """Each takes 40, and so does the merged one; the computation takes 100."""
    by_word = {
        **{key: Launch(key, 40, "all_reduce", 4) for key in "ab"},
        **{f"wait-{key}": Wait(key) for key in "ab"},
        "work": Work(100),
    }
    program = [
        End(),
        Mark("forward"),
        Mark("forward_end"),
        *(by_word[word] for word in moves.split()),
        End(),
    ]
    changed = merge_collectives([program], lambda *_: 40)
    assert changed is not None
    assert (spans([program]), spans(changed)) == ([[took[0]]], [[took[1]]])


def test_collectives_waited_for_when_the_step_ends() -> None:
    changed = wait_at_step_end([STEP])
    assert changed is not None
    assert changed[0][-4:] == [*(Wait(metric.key, 1) for metric in METRICS), End()]
    assert spans(changed) == [[131 - 3 * 7]]
    assert wait_at_step_end([STEP[:6]]) is None


def test_gradients_sent_in_the_last_pass_alone() -> None:
    """The first launch also saves what it cost the host: 2 before it and 2 after it."""

    def backward(key: str, num_bytes: int = 8) -> list[Move]:
        bucket = Launch(key, 20, "all_reduce", num_bytes, role="bucket", what="0", host_ns=2)
        return [Mark("backward"), Work(10), bucket, Work(5), Mark("backward_end"), Wait(key)]

    program = [End(), *backward("a"), Work(3), *backward("b"), End()]
    assert spans([program]) == [[10 + 20 + 3 + 10 + 20]]
    changed = last_pass_only([program])
    assert changed is not None
    assert spans(changed) == [[10 + 5 - 4 + 3 + 10 + 20]]
    assert last_pass_only([[End(), *backward("a"), End()]]) is None
    assert last_pass_only([[End(), *backward("a"), End(), *backward("b"), End()]]) is None
    assert last_pass_only([[End(), *backward("a"), *backward("of another model", 9), End()]]) is None
    assert (
        last_pass_only([[End(), *backward("a"), Mark("optimizer"), *backward("b"), Mark("optimizer"), End()]]) is None
    )


def test_gradients_averaged_between_replicas_in_the_last_pass_alone() -> None:
    """Each pass of HSDP scatters."""

    def backward(number: int) -> list[Move]:
        scatter = Launch(("scatter", number), 20, "reduce_scatter", 8, role="scatter", what="0")
        average = Launch(("average", number), 30, "all_reduce", 4, role="replicas", what="0")
        passes = Mark("backward"), Mark("backward_end")
        return [passes[0], Work(10), scatter, average, passes[1], Wait(scatter.key), Wait(average.key)]

    changed = last_pass_only([[End(), *backward(0), *backward(1), End()]], ("replicas",))
    assert changed is not None
    assert spans(changed) == [[10 + 20 + 10 + 20 + 30]]


def test_half_the_bytes() -> None:
    changed = halve_bytes([STEP], {"all_reduce": lambda size: 2 * size // 25}.get)
    assert changed is not None
    assert [move for move in changed[0] if isinstance(move, Launch) and move.role] == [
        replace(BUCKET, transfer_ns=6, bytes=50)
    ]
    assert halve_bytes([STEP], lambda kind: None) is None


def test_what_is_no_longer_launched_saves_its_cost() -> None:
    """A rank that waits at once for what it launched loses the second part of the cost while it waits."""
    at_once = [Work(9), BUCKET, Work(1), Wait("w"), Work(9)]
    assert without_launches(at_once, {"w"}) == [Work(9), Work(0), Work(8)]
    later = [Work(9), BUCKET, Work(1), Mark("use"), Wait("w"), Work(9)]
    assert without_launches(later, {"w"}) == [Work(9), Work(0), Mark("use"), Work(6)]


def test_averages_after_the_update_are_waited_for_a_step_later() -> None:
    average = [Launch("average", 50), Wait("average", 2)]
    step = [Work(100), Mark("optimizer"), Work(10), Mark("optimizer_end")]
    metric = [Launch("metric", 5), Wait("metric")]
    program: list[Move] = [End(), *metric, *step, *average, End(), *step, End(), *step, End()]
    later = wait_a_step_later([program])
    assert later == [[End(), *metric, *step, average[0], End(), *step, average[1], End(), *step, End()]]
    assert (spans([program]), spans(later)) == ([[167, 110, 110]], [[115, 110, 110]])
    means = [Launch("mean", 50, role="parameters", kind="all_reduce"), Wait("mean")]
    assert wait_a_step_later([[End(), *step, *means, End(), *step, End()]]) == [
        [End(), *step, means[0], End(), *step, means[1], End()]
    ]
    assert wait_a_step_later([[End(), *step, means[0], End(), means[1], *step, End()]]) is None, "it is later already"
    parts = [Launch("part", 50, role="parameters", kind="all_gather"), Wait("part")]
    assert wait_a_step_later([[End(), *step, *parts, End(), *step, End()]]) is None, "the next pass needs them"
    assert wait_a_step_later([[End(), *metric, *step, End()]]) is None
    assert wait_a_step_later([[End(), *step, Mark("forward"), *average, End()]]) is None, "the pass needs it"


def sharded(*units: str) -> list[Move]:
    """A step that gathers each unit, uses it, and reduces it; of 10 ns the host computes 4."""
    moves: list[Move] = [End()]
    for unit in units:
        moves += [Work(10, idle_ns=6), Launch(("g", unit), 20, "all_gather", 8, "gather", unit), Wait(("g", unit))]
        moves += [Work(10, idle_ns=6)]
    for unit in reversed(units):
        moves += [Work(10, idle_ns=6), Launch(("s", unit), 20, "reduce_scatter", 8, "scatter", unit), Wait(("s", unit))]
    return [*moves, Work(7, idle_ns=7), End()]


def test_units_that_follow_each_other_are_one() -> None:
    """Two of four: half of the collectives, each of twice the bytes, and half of what the host does around them."""
    program = sharded("a", "b", "c", "d")
    assert unit_order(program) == ["a", "b", "c", "d"]
    (larger,) = larger_units([program], 2, lambda _kind, size: 12 + size) or [[]]
    sent = [(move.what, move.bytes, move.transfer_ns) for move in larger if isinstance(move, Launch)]
    assert sent == [("a", 16, 28), ("c", 16, 28), ("c", 16, 28), ("a", 16, 28)]
    (middle,) = larger_units([program], 2, lambda _kind, _size: None) or [[]]
    assert {move.transfer_ns for move in middle if isinstance(move, Launch)} == {30}, "between 20 and both"
    (unknown,) = larger_units([program], 2, lambda _kind, _size: None, unknown=1.0) or [[]]
    assert {move.transfer_ns for move in unknown if isinstance(move, Launch)} == {40}, "no longer than both"
    recorded, longest, likely = (spans([each])[0][0] for each in (program, unknown, larger))
    assert recorded == 8 * 20 + 12 * 10 + 7
    assert longest < recorded
    assert likely == longest - 4 * 12
    assert larger_units([program], 4, lambda _kind, size: size) is None


def test_all_ranks_work_as_long_in_each_step_as_in_the_mean() -> None:
    """What is before the first step, is idle, or is no work stays."""
    meet = [Launch("a", 10), Wait("a")]
    programs: list[list[Move]] = [
        [Work(5), End(), Work(100, idle_ns=40), *meet, End(), Work(300), End()],
        [Work(5), End(), Work(200), *meet, End(), Work(100), End()],
    ]
    even = even_out_work(programs)
    assert even[0] == [Work(5), End(), Work(170, idle_ns=40), *meet, End(), Work(200), End()]
    assert even[1] == [Work(5), End(), Work(130), *meet, End(), Work(200), End()]
    assert (spans(programs), spans(even)) == ([[210, 300], [210, 100]], [[180, 200]] * 2)


def test_work_that_no_steps_part_is_as_long_on_all_ranks() -> None:
    """As of hosts and streams of GPUs."""
    assert even_out_work([[Work(100)], [Work(300)]]) == [[Work(200)], [Work(200)]]
