"""One rank's step: its causes, its advice, and why it speaks for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.step_rows import BOUND, MS, exposed_rows, gains, summary_rows
from made.traces import launched, run_of

from overlaplab.analyses import worst_step
from overlaplab.analyses.worst import outlier_steps
from overlaplab.causes import Cause
from overlaplab.findings import Diagnosis, Loop, diagnose, what_to_do
from overlaplab.findings.diagnosis.bound import DeeperPrefetch
from overlaplab.findings.diagnosis.diagnose import outliers_finding, why_chosen
from overlaplab.findings.diagnosis.unseen import Unseen
from overlaplab.findings.diagnosis.verdict import how_short
from overlaplab.findings.first_screen import step_marks
from overlaplab.sections.run_tables import RunTables
from overlaplab.traits import TRAITS, UNITS

WAIT = Cause.STRAGGLER
STEP = summary_rows((0, 1, 100, 30))


def diagnosed(causes: pd.DataFrame, **known: Any) -> Diagnosis:
    return diagnose(STEP, worst_step(STEP), causes, STEP, **known)


def shares(found: Diagnosis) -> list[tuple[str, int]]:
    return [(share.label, share.exposed_ns // MS) for share in found.causes]


def test_causes_add_up_most_expensive_first() -> None:
    causes = exposed_rows(
        (0, 1, "queued", 6, None),
        (0, 1, "straggler wait", 7, 3),
        (0, 1, "straggler wait", 8, 2),
        (0, 1, "queued", 9, None),
    )
    found = diagnosed(causes)
    assert shares(found) == [("link busy (queued)", 15), ("waited for rank 2", 8), ("waited for rank 3", 7)]
    assert found.causes[0].rows["exposed_ns"].tolist() == [9 * MS, 6 * MS]
    assert (found.late_rank, found.waited_ns) == (2, 8 * MS)
    assert found.headline.replace("\u00a0", " ") == (
        "30 % of the step is exposed communication (30.0 ms of 100.0 ms). For 15.0 ms of it, what was sent had"
        " waited for a busy link (buckets 0 and 3)."
    )


@pytest.mark.parametrize(
    ("any_cap", "transfer", "told", "lower_cap"),
    [
        (
            64,
            50,
            [
                ("nothing left to overlap (tail)", 21),
                ("host paused (compute gap)", 5),
                ("cannot be hidden by any bucketing", 4),
            ],
            True,
        ),
        (85, 50, [("cannot be hidden by any bucketing", 25), ("host paused (compute gap)", 5)], False),
        (None, 50, [("nothing left to overlap (tail)", 25), ("host paused (compute gap)", 5)], True),
        (
            None,
            80,
            [
                ("longer than compute (link-bound)", 20),
                ("nothing left to overlap (tail)", 5),
                ("host paused (compute gap)", 5),
            ],
            False,
        ),
    ],
)
def test_what_no_bucketing_hides_is_a_cause_of_its_own(
    any_cap: int | None, transfer: int, told: list[tuple[str, int]], lower_cap: bool
) -> None:
    bound = BOUND | {"any_cap_ns": pd.NA if any_cap is None else any_cap * MS, "transfer_ns": transfer * MS}
    found = diagnosed(exposed_rows((0, 1, "tail", 25, None), (0, 1, "compute gap", 5, None)), bound=bound)
    assert shares(found) == told
    assert sum(share.exposed_ns for share in found.causes) == found.exposed_ns
    assert found.gain_ns is None, "no play tells"
    assert ("bucket_cap_mb" in found.advice) is lower_cap
    rows = pd.concat([share.rows for share in found.causes])
    assert ((rows["end_ns"] - rows["start_ns"]) <= 25 * MS).all()


def first_words(*played: Any, causes: pd.DataFrame | None = None, **known: Any) -> str:
    rows = exposed_rows((0, 1, "tail", 30, None)) if causes is None else causes
    return diagnosed(rows, gains=gains(*played), **known).advice.split(". ")[0].removeprefix("Try ")


def test_the_action_that_gains_most_is_advised() -> None:
    assert first_words(("cap", 2.0, 9), ("balance", 1.0, 20)).startswith("making rank 1 as fast")
    assert first_words(("cap", 2.0, 21), ("balance", 1.0, 18)) == "bucket_cap_mb 2"
    assert first_words(("first_bucket", 0.1, 14), ("cap", 2.0, 15)) == "a first bucket of 0.1 MiB", "it changes less"
    assert first_words(("first_bucket", 0.1, 4), ("cap", 2.0, 15)) == "bucket_cap_mb 2"


def test_what_costs_numerics_or_a_search_comes_first_only_for_twice_the_gain() -> None:
    for costly, words in (("half_the_bytes", "half the bytes"), ("no_pause", "finding what blocks the host")):
        assert first_words(("cap", 2.0, 10), (costly, None, 17)) == "bucket_cap_mb 2"
        assert first_words(("cap", 2.0, 10), (costly, None, 25)).startswith(words)


def test_the_range_in_which_the_host_pauses_is_named() -> None:
    rows = exposed_rows((0, 1, "tail", 30, None))
    inside = diagnosed(rows, gains=gains(("no_pause", None, 30)).assign(what="Optimizer.step#SlowSGD.step"))
    words = "Try finding what blocks the host in “Optimizer.step#SlowSGD.step”: the timeline shows it."
    assert inside.advice.startswith(words)
    outside = diagnosed(rows, gains=gains(("no_pause", None, 30)))
    assert outside.advice.startswith("Try finding what blocks the host: the timeline shows it.")


def test_what_cannot_be_told_from_nothing_comes_last() -> None:
    assert first_words(("cap", 2.0, 12, 13), ("balance", 1.0, 5, 4)).startswith("making rank 1")
    found = diagnosed(exposed_rows((0, 1, "tail", 30, None)), gains=gains(("cap", 2.0, 12, 13)))
    assert found.advice == (
        "No gain is certain. First to try: bucket_cap_mb 2. Predicted gain: 12.0 ms per step (12\u00a0%"
        " of the mean, 100.0 ms) ± 13.0 ms, so perhaps none."
    )


def test_no_action_names_what_was_recorded() -> None:
    loop = Loop(traits=TRAITS["bucketed"], framework="ddp", bucket_cap_mb=2.0)
    assert first_words(("cap", 2.0, 9), ("half_the_bytes", 0.5, 6), loop=loop).startswith("half the bytes")
    words = first_words(("half_the_bytes", 0.5, 6), loop=Loop(framework="ddp", accumulates=True))
    assert words == "half the bytes (a bf16_compress_hook) or a link twice as fast"


@pytest.mark.parametrize("cause", ["tail", "blocking"])
def test_no_cap_is_advised_where_a_server_averages(cause: str) -> None:
    found = diagnosed(exposed_rows((0, 1, cause, 30, None)), loop=Loop(traits=TRAITS["parameter-server"]))
    assert found.advice.startswith("Try an all-reduce in place of a server (strategy bucketed)")


def test_averages_of_parameters_are_advised_to_be_made_in_the_background() -> None:
    loop = Loop(traits=TRAITS["local-sgd"], framework="engine")
    words = "averaging in the background (--background), waited for a step later"
    averages = exposed_rows((0, 1, "blocking", 30, None)).assign(what="parameters of bucket 0", kind="all_reduce")
    assert first_words(("background", None, 9), loop=loop, causes=averages) == words
    assert diagnosed(averages, loop=loop).advice.startswith(f"Try {words}")
    gradients = averages.assign(what="layers.0.weight")
    assert "not predicted" in diagnosed(gradients, gains=gains(("background", None, 9))).advice


def test_short_pauses_of_the_host_are_not_the_aim() -> None:
    pauses = exposed_rows(*[(0, 1, "compute gap", 5, None)] * 4, (0, 1, "tail", 10, None))
    found = diagnosed(pauses)
    assert found.causes[0].cause is Cause.GAP
    assert found.headline.endswith(
        " For 10.0 ms of it, no computation was left to overlap with (bucket 4). Another 20.0 ms of it passed in"
        " many pauses of the host, which communication did not cause."
    )
    assert found.advice.startswith("Try a lower")
    one = diagnosed(exposed_rows((0, 1, "compute gap", 20, None), (0, 1, "tail", 10, None)))
    assert one.advice.startswith("Try finding what blocks the host")


def test_pauses_between_operators_are_framework_overhead() -> None:
    """Compute gaps of under 100 µs are apart from the others, and what ends pauses of the host is not against them."""
    gaps = [(0, 1, "compute gap", 0.09, None)] * 200 + [(0, 1, "compute gap", 5, None), (0, 1, "tail", 10, None)]
    found = diagnosed(exposed_rows(*gaps), gains=gains(("no_pause", None, 9), ("cap", 5, 7)))
    label = "short pauses between operators (framework overhead)"
    assert [(share.label, share.remedy != "") for share in found.causes] == [
        (label, False),
        ("nothing left to overlap (tail)", True),
        ("host paused (compute gap)", True),
    ]
    assert found.headline.endswith(f" 18.0 ms of it passed in {label}, which communication did not cause.")


def test_where_communication_is_not_the_problem_what_gains_is_advised_all_the_same() -> None:
    """Of 30 exposed ms, 28 are a pause's."""
    causes = exposed_rows((0, 1, "compute gap", 28, None), (0, 1, "tail", 2, None))
    found = diagnosed(causes, gains=gains(("no_pause", None, 40)))
    assert found.headline.startswith("Communication is not the problem")
    assert found.headline.endswith(". For 28.0 ms of exposed communication, the host paused (bucket 0).")
    assert found.advice.startswith("Try finding what blocks the host")
    assert found.advice.endswith("Predicted gain: 40.0 ms per step (40\u00a0% of the mean, 100.0 ms).")
    assert (found.gain_ns, found.is_problem) == (40 * MS, False)
    assert diagnosed(causes, gains=gains(("no_pause", None, 2))).gain_ns is None


def test_where_nothing_gains_no_cause_gets_a_remedy() -> None:
    found = diagnosed(exposed_rows((0, 1, "tail", 30, None)), gains=gains(("cap", 2.0, 1), ("half_the_bytes", 0.5, -1)))
    assert found.advice == "Nothing that was tried gains more than 2\u00a0% of the step."
    assert [share.remedy for share in found.causes] == [""]


def test_the_headline_is_about_the_cause_that_the_advice_answers() -> None:
    rows = exposed_rows((0, 1, "tail", 18, None), (0, 1, "straggler wait", 12, 1))
    found = diagnosed(rows, gains=gains(("cap", 2.0, 1), ("balance", 1.0, 9)))
    assert found.advice.startswith("Try making rank 1")
    assert "For 12.0 ms of it, the rank waited for rank 1 (" in found.headline


def test_what_answers_a_whole_cause_is_not_said_to_answer_a_part() -> None:
    """Waits for an unknown rank are a cause beside those for rank 1."""
    rows = exposed_rows((0, 1, "straggler wait", 20, None), (0, 1, "straggler wait", 10, 1))
    (action,) = diagnosed(rows, gains=gains(("even_work", None, 9))).actions
    assert action.why == "waited for other ranks, 20.0 ms"


def test_what_no_play_answers_comes_first_where_more_is_exposed_than_is_to_gain() -> None:
    rows = exposed_rows((0, 1, "late launch", 20, None), (0, 1, "straggler wait", 10, 1), kind="all_gather")
    found = diagnosed(rows, gains=gains(("balance", 1.0, 9)), loop=Loop(traits=TRAITS["zero3"], prefetch=1))
    assert found.advice.startswith(
        "Try prefetch 2: it holds one more unit at a time. The cause: launched late (late launch), 20.0 ms (20"
    )
    assert "Its gain is not predicted here. Or try making rank 1" in found.advice
    assert (found.gain_ns, found.causes[0].replayed) == (None, False)
    more = diagnosed(rows, gains=gains(("balance", 1.0, 25)), loop=Loop(traits=TRAITS["zero3"], prefetch=1))
    assert more.advice.startswith("Try making rank 1")


def test_another_rank_and_step_is_advised_what_the_run_is() -> None:
    run = diagnosed(exposed_rows((0, 1, "tail", 30, None)), gains=gains(("cap", 2.0, 9)))
    other = diagnosed(exposed_rows((0, 1, "queued", 30, None)), gains=gains(("cap", 2.0, 9)), actions=run.actions)
    assert other.advice == run.advice


def test_a_prefetch_that_was_played_is_among_the_bounds() -> None:
    gathers = exposed_rows((0, 1, "late launch", 30, None), kind="all_gather", what="layers.1")
    bound = BOUND | {"any_cap_ns": pd.NA}
    diagnosis = diagnosed(gathers, bound=bound, ahead=DeeperPrefetch(depth=1, step_ns=80 * MS))
    assert how_short(diagnosis) == (
        "That step takes 100.0 ms: at best 80.0 ms with prefetch 1, and 70.0 ms without any communication."
    )
    assert dict(step_marks(diagnosis).to_numpy().tolist())["prefetch 1"] == 80 * MS


def test_where_nothing_is_exposed_there_is_nothing_to_do() -> None:
    quiet = summary_rows((0, 1, 100, 0))
    found = diagnose(quiet, worst_step(quiet), exposed_rows(), quiet)
    assert (found.causes, found.is_problem) == ((), False)
    assert "not the problem" in found.headline


def test_advice_where_communication_is_not_the_problem(tmp_path: Path) -> None:
    copies = launched("Memcpy HtoD", 0, 0, 60, cat="gpu_memcpy", correlation=1) + launched(
        "gemm", 1, 60, 100, correlation=2
    )
    found = RunTables(run=run_of(tmp_path / "copies", copies)).diagnosis
    assert found is not None
    assert "Copies are the larger part" in found.advice
    assert found.headline.endswith("60\u00a0% of the trace only copies run.")
    waits = launched("gemm", 0, 0, 10, correlation=1) + launched("gemm", 5, 90, 100, correlation=2)
    found = RunTables(run=run_of(tmp_path / "waits", waits)).diagnosis
    assert found is not None
    assert found.advice.endswith(
        "Look at the timeline for what the idle device waits for: another stream, or an event."
    )


STEPS = [(0, 1, 100, 6), (0, 2, 280, 174), (0, 3, 104, 7), (0, 4, 101, 6)]


def test_that_the_last_step_is_shorter_is_not_named() -> None:
    assert outlier_steps(summary_rows(*STEPS, (0, 5, 50, 6))) == (2, 5)
    assert outliers_finding(summary_rows(STEPS[0], *STEPS[2:], (0, 5, 50, 6))) is None


def test_outliers_are_named_and_do_not_speak_for_the_run() -> None:
    table = summary_rows(*STEPS)
    assert outlier_steps(table) == (2,)
    assert outliers_finding(table) == "Step 2 differs: 174.0 ms exposed, against 6.0 ms in the others."
    assert (
        worst_step(summary_rows(STEPS[1], *[(1, step, span, 9) for _, step, span, _ in STEPS[2:]], *STEPS[2:]))["rank"]
        == 1
    )
    assert worst_step(table, step=2)["step"] == 2, "a step that is asked for is taken"


@pytest.mark.parametrize(
    ("steps", "outliers"),
    [
        ([(0, 1, 100, 6), (0, 2, 280, 174)], ()),  # nobody knows which of two is the exception
        ([(0, 1, 100, 6), (0, 2, 119, 6), (0, 3, 100, 6)], ()),  # 19 % longer
        ([(0, 1, 100, 6), (0, 2, 121, 6), (0, 3, 100, 6)], (2,)),
        ([(0, 1, 100, 10), (0, 2, 120, 30), (0, 3, 140, 50)], ()),  # spread out
        ([(0, 1, 100, 40), (0, 2, 100, 10), (0, 3, 100, 41)], (2,)),  # less exposed than the others
        ([(None, None, 100, 6)] * 3, ()),
    ],
)
def test_what_an_outlier_is(steps: list[tuple[int, int, int, int]], outliers: tuple[int, ...]) -> None:
    assert outlier_steps(summary_rows(*steps)) == outliers


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ((None, None), "the most exposed rank, its median step by exposed time"),
        ((0, None), "its median step by exposed time"),
        ((None, 2), "the most exposed rank"),
        ((0, 2), "as chosen"),
    ],
)
def test_why_this_step(asked: tuple[int | None, int | None], why: str) -> None:
    table = summary_rows(*STEPS, *[(1, *step[1:]) for step in STEPS])
    assert why_chosen(table, *asked) == why
    assert why_chosen(STEP, None, None) == "the only one"
    assert why_chosen(summary_rows(STEPS[0], STEPS[2]), None, None) == "the more exposed of its two steps"
    damaged = summary_rows(STEPS[0], STEPS[2]).assign(damaged=[True, False])
    assert why_chosen(damaged, None, None, 0, int(STEPS[2][1])) == "its only whole step"
    others = summary_rows((1, *STEPS[0][1:]), (1, *STEPS[2][1:])).assign(damaged=False)  # damaged on one rank alone
    assert why_chosen(pd.concat([damaged, others]), None, None, 1, int(STEPS[2][1])) == (
        "the most exposed rank, its only whole step"
    )
    unmarked = pd.concat([table[table["rank"] == 1], table[table["rank"] == 0].iloc[:1].assign(step=pd.NA)])
    assert why_chosen(unmarked, None, None, 0, None) == "the most exposed rank"
    assert why_chosen(unmarked, None, None, 1, 2) == "the most exposed rank, its median step by exposed time"
    found = diagnose(table, worst_step(table, *asked), exposed_rows(), table, chosen=why)
    assert what_to_do(found).startswith(f"Rank 0, step {found.step} ({why}): ")


def test_where_times_do_not_follow_bytes_fewer_are_not_advised() -> None:
    """As in a trace of DDP over gloo, where 1.3 MB took 180 ms and 8.3 MB, sent meanwhile, 5 ms more."""
    bound = BOUND | {"any_cap_ns": pd.NA, "transfer_ns": 80 * MS}
    rows = exposed_rows((0, 1, "tail", 30, None))
    assert diagnosed(rows, bound=bound).advice.startswith("Try fewer bytes")
    found = diagnosed(rows, bound=bound | {"waits_known": False, "bytes_explain": False})
    assert (found.causes[0].cause, found.gain_ns) == (Cause.LINK, None)
    assert found.advice.startswith("Try opening all ranks' traces together: how long these collectives took")


UNEXPLAINED = BOUND | {"any_cap_ns": pd.NA, "transfer_ns": 95 * MS, "waits_known": False, "bytes_explain": False}


@pytest.mark.parametrize(("cause", "bound"), [("unknown", None), ("tail", UNEXPLAINED)])
def test_who_has_all_traces_is_told_why_they_do_not_tell(cause: str, bound: Any) -> None:
    """In the advice, and no cause asks for more traces."""
    rows = exposed_rows((0, 1, cause, 30, None))
    lacking, having = (diagnosed(rows, bound=bound, unseen=Unseen(waits=waits)) for waits in (None, "no two agree"))
    assert "opening all ranks' traces" in lacking.causes[0].remedy
    assert [share.remedy for share in having.causes] == [""]
    assert having.advice == "How much of it is waiting for other ranks is unknown: no two agree."


def test_without_steps_idle_time_is_a_share_of_the_trace() -> None:
    table = summary_rows((0, None, 100, 4)).assign(idle_ns=50 * MS, host_wait_ns=50 * MS)
    headline = diagnose(table, worst_step(table), exposed_rows((0, None, "tail", 4, None)), table).headline
    assert "50\u00a0% of the trace is idle" in headline


def test_where_operators_waited_for_cores_the_machine_is_blamed() -> None:
    """And not the host for pausing, as a replay without them would have it."""
    table = summary_rows((0, 1, 100, 4)).assign(idle_ns=50 * MS, preempted_ns=40 * MS, host_wait_ns=10 * MS)
    pauses = gains(("no_pause", None, 40))
    found = diagnose(table, worst_step(table), exposed_rows((0, 1, "tail", 4, None)), table, gains=pauses)
    assert found.headline.endswith("50\u00a0% of the step time is idle, as operators waited for a core.")
    assert found.advice.startswith("Leave the cores to the ranks")


def test_a_busy_machine_is_no_slow_host() -> None:
    """What its load looks like is not advised, nor listed; and nothing that is uncertain."""
    pause = ("no_pause", None, 20)
    causes = exposed_rows((0, 1, "straggler wait", 20, 3), (0, 1, "compute gap", 10, None))
    found = diagnosed(causes, gains=gains(pause, ("balance", 3.0, 15)), busy=0.2)
    assert found.headline.startswith("The machine was busy in this step")
    assert found.advice.startswith("Try making rank 3 as fast")
    assert [each.action.name for each in found.actions] == ["balance"]
    causes = exposed_rows((0, 1, "compute gap", 30, None))
    found = diagnosed(causes, gains=gains(pause, ("balance", 3.0, 5, 7)), busy=0.2)
    assert found.advice.startswith("Leave the cores to the ranks")
    assert (len(found.actions), found.listed_actions) == (1, ())


def test_where_computation_mostly_waited_for_a_core_nothing_else_is_advised() -> None:
    causes = exposed_rows((0, 1, "straggler wait", 20, 3), (0, 1, "tail", 10, None))
    diagnosis = diagnosed(causes, gains=gains(("balance", 3.0, 15)), busy=0.51)
    assert "waited for a core 51\u00a0% of the time. 30\u00a0% of the step is exposed" in diagnosis.headline
    assert diagnosis.advice.startswith("Leave the cores to the ranks")
    assert (diagnosis.actions, diagnosis.gain_ns) == ((), None)


def test_a_mean_that_one_slow_step_makes_large_gains_nothing() -> None:
    """The step that speaks for the run is idle for 2 ms."""
    row = {**worst_step(STEP), "idle_ns": 2 * MS}
    causes = exposed_rows((0, 1, "tail", 30, None))
    for gain, advised in ((3, ["launch_overhead"]), (9, [])):
        found = diagnose(STEP, row, causes, STEP, gains=gains(("launch_overhead", None, gain)))
        assert [each.action.name for each in found.actions] == advised


def test_a_trace_without_steps_is_told_as_a_whole() -> None:
    table = summary_rows((0, None, 100, 30))
    advice = diagnose(table, worst_step(table), exposed_rows((0, None, "link-bound", 30, None)), table).advice
    assert "longer than compute (link-bound), 30.0 ms (30\u00a0% of the trace)." in advice


def test_a_pipelines_idle_time_always_has_something_left_to_try() -> None:
    causes = exposed_rows((0, 1, "pipeline bubble", 30, None))
    found = diagnosed(causes, gains=gains(("microbatches", None, 1)))
    assert found.advice.replace("\u00a0", " ") == (
        "Nothing that was tried gains more than 2 % of the step. Left to try: a schedule with several stages"
        " on each rank."
    )


def test_what_half_the_bytes_is_against() -> None:
    """It shortens transfers that the loop waits for, too: then that is no single cause."""
    causes = exposed_rows((0, 1, "blocking", 20, None), (0, 1, "queued", 4, None), (0, 1, "straggler wait", 6, 3))
    for gain, why in ((3, "link busy (queued), 4.0 ms"), (11, "the transfers among the causes, 24.0 ms")):
        found = diagnosed(causes, gains=gains(("half_the_bytes", 0.5, gain)))
        assert [each.why for each in found.actions] == [why]


def test_a_cap_is_not_against_waits_for_what_is_no_gradient() -> None:
    causes = exposed_rows((0, 1, "blocking", 20, None), (0, 1, "tail", 10, None))
    causes.loc[causes["cause"] == "blocking", "what"] = None
    found = diagnosed(causes, gains=gains(("cap", 2.0, 5), ("asynchronous", None, 15)))
    assert [each.why for each in found.actions] == [
        "waited for at once (blocking), 20.0 ms",
        "nothing left to overlap (tail), 10.0 ms",
    ]


def test_the_present_cap_stands_beside_the_advised_one() -> None:
    loop = Loop(traits=TRAITS["bucketed"], framework="engine", bucket_cap_mb=25)
    assert first_words(("cap", 2.0, 9), loop=loop) == "bucket_cap_mb 2 (now 25)"
    assert diagnosed(exposed_rows((0, 1, "tail", 30, None)), loop=loop).advice.startswith(
        "Try a lower bucket_cap_mb (now 25): a smaller last bucket."
    )


def test_a_second_large_cause_is_in_the_headline() -> None:
    for waited, ending in ((12, " For 12.0 ms of it, the rank waited for rank 3 (bucket 1)."), (9, "(bucket 0).")):
        causes = exposed_rows((0, 1, "tail", 30 - waited, None), (0, 1, "straggler wait", waited, 3))
        assert diagnosed(causes).headline.endswith(ending)


@pytest.mark.parametrize(
    ("tail", "sentences"),
    [
        (12, "For 12.0 ms of it, no computation was left to overlap with (bucket 0). For 18.0 ms of it, the rank"),
        (
            6,
            "For 18.0 ms of it, the rank waited for rank 3 (bucket 1). For 6.0 ms of exposed communication, no"
            " computation was left to overlap with (bucket 0).",
        ),
        (1, "For 18.0 ms of it, the rank waited for rank 3 (bucket 1)."),
    ],
)
def test_the_headline_is_about_the_advice_unless_another_cause_is_twice_as_large(tail: int, sentences: str) -> None:
    """Where another is, that of the advice follows, unless it is little."""
    causes = exposed_rows((0, 1, "tail", tail, None), (0, 1, "straggler wait", 18, 3))
    diagnosis = diagnosed(causes, gains=gains(("first_bucket", 1.0, 5), ("even_work", None, 0)))
    assert diagnosis.advice.startswith("Try a first bucket")
    first = diagnosis.headline.partition("100.0 ms). ")[2]
    assert first.startswith(sentences) if tail == 12 else first == sentences


@pytest.mark.parametrize(("half", "verb"), [(1, "would"), (9, "may")])
def test_what_else_gains_is_as_certain_in_the_headline_as_among_the_actions(half: int, verb: str) -> None:
    """The first bucket costs less, so a larger gain of another cause is only named."""
    causes = exposed_rows((0, 1, "tail", 12, None), (0, 1, "straggler wait", 18, 3))
    diagnosis = diagnosed(causes, gains=gains(("first_bucket", 1.0, 7, half), ("balance", 3.0, 8, half)))
    assert f"as fast as the others {verb} gain 8.0 ms" in diagnosis.headline


def test_what_shortens_transfers_is_against_the_largest_of_them() -> None:
    causes = exposed_rows((0, 1, "tail", 10, None), (0, 1, "blocking", 18, None))
    diagnosis = diagnosed(causes, gains=gains(("half_the_bytes", 0.5, 29)))
    assert (
        "For 18.0 ms of it, the rank waited at once instead of computing (bucket 1). For 10.0 ms" in diagnosis.headline
    )
    assert diagnosis.actions[0].why == "the transfers among the causes, 28.0 ms, and what that delays"


def test_units_stay_gathered_against_waits_for_gathers_alone() -> None:
    for kind, remedies in (("all_gather", True), ("reduce_scatter", False)):
        causes = exposed_rows((0, 1, "blocking", 18, None), (0, 1, "tail", 2, None), kind=kind)
        diagnosis = diagnosed(
            causes, gains=gains(("keep_gathered", None, 9)), loop=Loop(traits=UNITS, framework="fsdp2")
        )
        assert any("reshard_after_forward" in share.remedy for share in diagnosis.causes) is remedies
