"""What the first screen says beside the diagnosis, from diagnoses made by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
from made.diagnoses import MS, diagnosis, share
from msgspec.structs import replace

from overlaplab import findings
from overlaplab.causes import Cause
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS

STEPS = pd.DataFrame(
    {
        "step": pd.array([3, 4, 5], dtype="Int64"),
        "span_ns": [90 * MS, 100 * MS, 110 * MS],
        "exposed_wait_ns": pd.array([0, 0, 0], dtype="Int64"),
    }
)


def bound(**others: Any) -> dict[str, Any]:
    return {"compute_ns": 60 * MS, "bound_ns": 80 * MS, "any_cap_ns": 65 * MS, "waits_known": True} | others


def test_five_figures_with_one_denominator() -> None:
    found = findings.tiles(diagnosis(), STEPS)
    assert [(tile.label, tile.value, tile.note) for tile in found] == [
        ("step", "100.0 ms", "median of 3 steps of rank 0: 100.0 ms"),
        ("communication", "40.0 ms", "40\u00a0% of the step"),
        ("hidden", "10.0 ms", "10\u00a0% of the step"),
        ("exposed", "30.0 ms", "30\u00a0% of the step"),
        ("late rank", "none", "no wait for a rank"),
    ]
    waited = findings.tiles(replace(diagnosis(), late_rank=3, waited_ns=5 * MS), STEPS)[-1]
    assert (waited.value, waited.note) == ("3", "waited 5.0 ms for it")


def test_waits_that_no_late_rank_causes_are_not_denied() -> None:
    """In a pipeline ranks wait because its schedule has them do so."""
    found = replace(diagnosis(), step=4)
    for waits, said in (([0, 1, 0], "waits have other causes"), ([1, 0, 1], "no wait for a rank")):
        tile = findings.tiles(found, STEPS.assign(exposed_wait_ns=pd.array(waits, dtype="Int64")))[-1]
        assert (tile.value, tile.note) == ("none", said)


def test_what_is_unknown_is_said_to_be() -> None:
    absent = STEPS.assign(exposed_wait_ns=pd.array([None] * 3, dtype="Int64"))
    assert findings.tiles(diagnosis(), absent)[-1].value == "unknown"
    of_another_step = STEPS.assign(exposed_wait_ns=pd.array([None, 0, None], dtype="Int64"))
    assert findings.tiles(replace(diagnosis(), step=4), of_another_step)[-1].value == "none"
    assert findings.tiles(diagnosis(), STEPS, replace(OTHER_RANKS, only_ends=True))[2].value == "unknown"
    whole = findings.tiles(replace(diagnosis(), step=None), STEPS.head(1))
    assert (whole[0].note, whole[1].note) == ("the only one", "40\u00a0% of the trace")


def marks(**others: Any) -> dict[str, int]:
    table = findings.step_marks(replace(diagnosis(), **others))
    return {word: ns // MS for word, ns in zip(table["word"], table["ns"], strict=True)}


def test_marks_keep_the_hosts_pauses() -> None:
    """The host paused for 12 of 30 ms of exposed communication: neither buckets nor no communication gain these."""
    causes = (share(Cause.TAIL, 18 * MS), share(Cause.GAP, 12 * MS))
    shown = marks(bound=bound(), causes=causes)
    assert (shown["no communication"], shown["best buckets possible"]) == (82, 87)
    note = findings.marks_note(replace(diagnosis(), causes=causes, idle_ns=3 * MS))
    assert note == "15.0 ms of idle time and pauses of the host stay in each"


def test_marks_keep_the_recorded_idle_time() -> None:
    """Of 100 ms 30 are exposed; computation takes 60, and 10 are idle."""
    assert marks(bound=bound()) == {
        "no communication": 70,
        "best buckets possible": 75,
        "these buckets, no delays or late ranks": 90,
        "measured": 100,
    }
    assert marks(bound=bound(any_cap_ns=pd.NA)) == {
        "no communication": 70,
        "no delays or late ranks": 90,
        "measured": 100,
    }
    assert marks(bound=bound(bound_ns=91 * MS)) == {
        "no communication": 70,
        "best buckets possible": 75,
        "measured": 100,
    }
    assert marks(bound=None) == {"no communication": 70, "measured": 100}
    assert marks(exposed_ns=0, bound=bound()) == {}
    assert findings.marks_note(replace(diagnosis(), bound=bound(waits_known=False))) is not None


def test_what_has_no_bar_is_summed_up() -> None:
    causes = (share(Cause.TAIL, 9 * MS), share(Cause.GAP, 20 * MS), share(Cause.QUEUED, MS))
    assert findings.rest_line((causes[0], causes[2])) == "10.0 ms more of smaller causes: tail, queued."
    assert findings.rest_line([]) == ""
