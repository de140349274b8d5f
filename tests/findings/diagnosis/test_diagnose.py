"""One rank's step: its causes, its advice, and why it speaks for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.step_rows import BOUND, MS, exposed_rows, replays, summary_rows
from made.traces import launched, run_of

from overlaplab.analyses import worst_step
from overlaplab.analyses.exposed import Cause
from overlaplab.analyses.worst import outlier_steps
from overlaplab.findings import Diagnosis, Loop, Unseen, diagnose, what_to_do
from overlaplab.findings.diagnosis.diagnose import outliers_finding, where_chosen
from overlaplab.findings.diagnosis.verdict import how_short
from overlaplab.findings.first_screen import step_marks
from overlaplab.sections.run_tables import RunTables
from overlaplab.traits import TRAITS

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
        "30 % of the step is exposed communication (30.0 ms of 100.0 ms), 15.0 ms of it link busy (queued), in bucket"
        " 3 and bucket 0."
    )


@pytest.mark.parametrize(
    ("any_cap", "transfer", "told", "gain"),
    [
        (
            64,
            50,
            [
                ("nothing left to overlap (tail)", 21),
                ("host paused (compute gap)", 5),
                ("cannot be hidden by any bucketing", 4),
            ],
            21,
        ),
        (85, 50, [("cannot be hidden by any bucketing", 25), ("host paused (compute gap)", 5)], None),
        (None, 50, [("nothing left to overlap (tail)", 25), ("host paused (compute gap)", 5)], 25),
        (
            None,
            80,
            [
                ("longer than compute (link-bound)", 20),
                ("nothing left to overlap (tail)", 5),
                ("host paused (compute gap)", 5),
            ],
            None,
        ),
    ],
)
def test_what_no_bucketing_hides_is_a_cause_of_its_own(
    any_cap: int | None, transfer: int, told: list[tuple[str, int]], gain: int | None
) -> None:
    bound = BOUND | {"any_cap_ns": pd.NA if any_cap is None else any_cap * MS, "transfer_ns": transfer * MS}
    found = diagnosed(exposed_rows((0, 1, "tail", 25, None), (0, 1, "compute gap", 5, None)), bound=bound)
    assert shares(found) == told
    assert sum(share.exposed_ns for share in found.causes) == found.exposed_ns
    assert found.gain_ns == (None if gain is None else gain * MS)
    assert ("bucket_cap_mb" in found.advice) is (gain is not None)
    rows = pd.concat([share.rows for share in found.causes])
    assert ((rows["end_ns"] - rows["start_ns"]) <= 25 * MS).all()


@pytest.mark.parametrize(("gain", "also"), [(9, " Also try bucket_cap_mb 2. Replayed, the step is 9.0 ms"), (1, "")])
def test_beside_sending_less_an_option_is_named_if_it_gains(gain: int, also: str) -> None:
    """The bound leaves 25 of 30 ms that no buckets hide."""
    played = replays(("half_the_bytes", Cause.LINK, 0.5, 12), ("cap", Cause.TAIL, 2.0, gain))
    rows = exposed_rows((0, 1, "tail", 30, None))
    found = diagnosed(rows, bound=BOUND | {"any_cap_ns": 85 * MS}, replays=played)
    first, _, rest = found.advice.partition(" Also")
    assert "half the bytes" in first
    assert f" Also{rest}".startswith(also) if also else not rest
    assert found.gain_ns == 12 * MS


@pytest.mark.parametrize("cause", ["tail", "blocking"])
def test_no_cap_is_advised_where_a_server_averages(cause: str) -> None:
    found = diagnosed(exposed_rows((0, 1, cause, 30, None)), loop=Loop(traits=TRAITS["parameter-server"]))
    assert found.advice.startswith("Try an all-reduce in place of a server (strategy bucketed)")


def test_short_pauses_of_the_host_are_not_the_aim() -> None:
    pauses = exposed_rows(*[(0, 1, "compute gap", 5, None)] * 4, (0, 1, "tail", 10, None))
    found = diagnosed(pauses)
    assert found.causes[0].cause is Cause.GAP
    assert found.headline.endswith(
        "10.0 ms of it nothing left to overlap (tail), in bucket 4; 20.0 ms are short pauses of the host, which"
        " communication does not cause."
    )
    assert found.advice.startswith("Try a lower")
    one = diagnosed(exposed_rows((0, 1, "compute gap", 20, None), (0, 1, "tail", 10, None)))
    assert one.advice.startswith("Try finding what holds up the host")


def test_a_pause_of_the_host_is_its_own_problem() -> None:
    """Communication is none: of 30 exposed ms, 28 are the pause's."""
    causes = exposed_rows((0, 1, "compute gap", 28, None), (0, 1, "tail", 2, None))
    found = diagnosed(causes, replays=replays(("no_pause", Cause.GAP, None, 40)))
    assert (found.headline, found.is_problem) == ("Host paused (compute gap): 40.0 ms (40\u00a0% of the step).", False)
    assert found.advice.startswith("Try finding what holds up the host")
    assert found.advice.endswith("Replayed, the step is 40.0 ms (40\u00a0% of the step) shorter.")
    assert found.gain_ns == 40 * MS
    assert "not the problem" in diagnosed(causes, replays=replays(("no_pause", Cause.GAP, None, 2))).headline


def test_a_gain_within_what_predictions_miss_is_not_called_certain() -> None:
    cap = replays(("cap", Cause.TAIL, 2.0, 10))
    tail = exposed_rows((0, 1, "tail", 30, None))
    sure, unsure = (diagnosed(tail, replays=cap, doubt_ns=doubt * MS).advice for doubt in (9, 11))
    assert sure == "Try bucket_cap_mb 2. Replayed, the step is 10.0 ms (10\u00a0% of the step) shorter."
    assert unsure == sure.replace("shorter.", "shorter, which is not certain: a predicted gain may be off by 11.0 ms.")


def test_where_nothing_gains_no_cause_gets_a_remedy() -> None:
    cap = replays(("cap", Cause.TAIL, 2.0, 1), ("half_the_bytes", Cause.TAIL, 0.5, 1))
    found = diagnosed(exposed_rows((0, 1, "tail", 30, None)), replays=cap)
    assert found.advice == "Nothing that is known to help gains more than 2\u00a0% of the step."
    assert [part.remedy for share in found.causes for part in share.parts] == [""]


def test_the_advice_is_about_the_next_cause_where_the_first_has_no_remedy() -> None:
    played = replays(("cap", Cause.TAIL, 2.0, 1), ("half_the_bytes", Cause.TAIL, 0.5, 1), ("balance", WAIT, 1, 9))
    found = diagnosed(exposed_rows((0, 1, "tail", 18, None), (0, 1, "straggler wait", 12, 1)), replays=played)
    assert found.advice.startswith("Try making rank")
    assert "12.0 ms of it waited for rank 1" in found.headline


def test_other_buckets_are_offered_where_the_bound_says_that_they_gain() -> None:
    best = pd.DataFrame({"rank": 0, "step": 1, "bytes": pd.array([23 << 20], dtype="Int64")})
    tail = exposed_rows((0, 1, "tail", 30, None))
    bound = BOUND | {
        "any_cap_ns": 85 * MS,
        "transfer_ns": 80 * MS,
        "half_bound_ns": 65 * MS,
        "half_transfer_ns": 40 * MS,
    }
    advice = diagnosed(tail, bound=bound, best_buckets=best).advice
    assert advice == (
        "Try half the bytes (lower precision, accumulation) or a link twice as fast, to gain at most 25.0 ms (25\u00a0%"
        " of the step). Also try one bucket (bucket_cap_mb 23), to gain at most 5.0 ms (5\u00a0% of the step)."
    )
    assert "Also" not in diagnosed(tail, bound=bound | {"any_cap_ns": 89 * MS}, best_buckets=best).advice


def test_a_prefetch_that_was_played_is_among_the_bounds() -> None:
    gathers = exposed_rows((0, 1, "late launch", 30, None), kind="all_gather", what="layers.1")
    bound = BOUND | {"any_cap_ns": pd.NA}
    found = diagnosed(gathers, bound=bound, replays=replays(("prefetch", Cause.LATE, 1, 20)))
    assert how_short(found) == (
        "That step takes 100.0 ms: at best 80.0 ms with prefetch 1, and 70.0 ms without any communication."
    )
    assert dict(step_marks(found).to_numpy().tolist())["prefetch 1"] == 80 * MS


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
    assert found.headline.endswith("60\u00a0% of the step time only copies run.")
    waits = launched("gemm", 0, 0, 10, correlation=1) + launched("gemm", 5, 90, 100, correlation=2)
    found = RunTables(run=run_of(tmp_path / "waits", waits)).diagnosis
    assert found is not None
    assert found.advice.endswith(
        "Look at the timeline for what the idle device waits for: another stream, or an event."
    )


STEPS = [(0, 1, 100, 6), (0, 2, 280, 174), (0, 3, 104, 7), (0, 4, 101, 6)]


def test_outliers_are_named_and_do_not_speak_for_the_run() -> None:
    table = summary_rows(*STEPS)
    assert outlier_steps(table) == (2,)
    assert outliers_finding(table) == "Step 2 differs: 174.0 ms exposed, 6.0 ms in others."
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
        ((None, None), "the most exposed rank's median step by exposed time"),
        ((0, None), "its median step by exposed time"),
        ((None, 2), "the most exposed rank"),
        ((0, 2), "as chosen"),
    ],
)
def test_why_this_step(asked: tuple[int | None, int | None], why: str) -> None:
    table = summary_rows(*STEPS, *[(1, *step[1:]) for step in STEPS])
    assert where_chosen(table, *asked) == why
    assert where_chosen(STEP, None, None) == "the only one"
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


def test_where_operators_waited_for_cores_the_machine_is_blamed() -> None:
    """And not the host for pausing, as a replay without them would have it."""
    table = summary_rows((0, 1, 100, 4)).assign(idle_ns=50 * MS, preempted_ns=40 * MS, host_wait_ns=10 * MS)
    pauses = replays(("no_pause", Cause.GAP, None, 40))
    found = diagnose(table, worst_step(table), exposed_rows((0, 1, "tail", 4, None)), table, replays=pauses)
    assert found.headline.endswith("50\u00a0% of the step time is idle, as operators waited for a core.")
    assert found.advice.startswith("Leave the cores to the ranks")
