"""Sentences about runs side by side."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from overlaplab.findings import compare_advice, compare_finding, compare_notes, no_fastest


def compared(*runs: tuple[str, float | None, int], **columns: Any) -> pd.DataFrame:
    """Runs as path, median step in ms and tier; of the same path but for `-2` and so on are one setting."""
    first = [path.partition("-")[0] for path, *_ in runs]
    tiers = [tier for *_, tier in runs]
    alone = len({*tiers}) > 1 and len({name for name, tier in zip(first, tiers, strict=True) if tier == 1}) == 1
    table = {
        "path": [path for path, *_ in runs],
        "strategy": first,
        "bucket_cap_mb": None,
        "ranks": 2,
        "steps": 5,
        "emulated": False,
        "predicted": False,
        "step_ms_median": [step for _, step, _ in runs],
        "spread_ms": 2.0,
        "model": None,
        "recording_of": [first.index(name) for name in first],
        "tier": tiers,
        "fastest": [alone and tier == 1 for tier in tiers],
    }
    return pd.DataFrame(table | columns)


def several(**settings: tuple[int, float]) -> pd.DataFrame:
    """Four recordings of each setting, given as tier and median step."""
    return compared(
        *((f"{name}-{number}", step, tier) for name, (tier, step) in settings.items() for number in range(4))
    )


@pytest.mark.parametrize(
    ("table", "finding"),
    [
        (
            compared(("naive", 1086.0, 2), ("bucketed", 782.0, 1)),
            "bucketed beats naive by 304.0 ms (28\u00a0% of the step of naive) in one recording of each",
        ),
        (
            several(naive=(2, 1086.0), bucketed=(1, 782.0)),
            "bucketed-0 beats naive-0 by 304.0 ms (28\u00a0% of the step of naive-0)",
        ),
        (
            compared(("a", 100.0, 1), ("b", 101.0, 1), ("c", 200.0, 2), ("d", 300.0, 3)),
            "a beats c by 100.0 ms (50\u00a0% of the step of c) and d by 200.0 ms (67\u00a0%) in one recording of each;"
            " it ties with b",
        ),
        (
            compared(*((name, 100.0 * place, place) for place, name in enumerate("abcdef", 1))),
            "a beats b by 100.0 ms (50\u00a0% of the step of b), c by 200.0 ms (67\u00a0%), d by 300.0 ms (75\u00a0%)"
            " and 2 slower ones by more in one recording of each",
        ),
        (
            compared(("a", 100.0, 1), ("b", 101.0, 1)),
            "No clear difference: a has the shortest median step, 100.0 ms; the next, b, has 101.0 ms",
        ),
        (
            compared(("a", 100.0, 1), ("b", 101.0, 1), ("c", 102.0, 1)),  # b and c may differ: nothing is said of that
            "All tie with the shortest: a has the shortest median step, 100.0 ms; the next, b, has 101.0 ms",
        ),
        (
            several(a=(1, 100.0), b=(1, 101.0)),
            "Recordings show no clear difference: a-0 has the shortest median step, 100.0 ms;"
            " the next, b-0, has 101.0 ms",
        ),
        (
            compared(("a", 9.0, 1), ("b", 10.0, 1), model=['{"layers": 2, "seq": 8}', '{"layers": 4, "seq": 8}']),
            "Different models, not comparable: layers 2 and 4",
        ),
        (
            compared(("a", 9.0, 1), ("b", None, 1), ("c", None, 1)),
            "Nothing to compare: no step was measured in b and c",
        ),
        (compared(("a", 9.0, 1)), "One run: nothing is compared"),
    ],
)
def test_who_beats_whom_and_by_how_much(table: pd.DataFrame, finding: str) -> None:
    assert compare_finding(table) == finding


def test_a_tie_of_the_fastest_is_named() -> None:
    table = compared(("a", 100.0, 1), ("b", 101.0, 1), ("c", 200.0, 2))
    assert no_fastest(table) == "a and b tie"
    of_three = compared(("a", 100.0, 1), ("b", 101.0, 1), ("c", 102.0, 1), ("d", 200.0, 2))
    assert no_fastest(of_three) == "a ties with b and c"
    assert compare_advice(table) == "Keep one of a and b, or record each 4 times and more to tell them apart."


def test_too_few_recordings_are_said() -> None:
    pair = compared(("a-1", 1.0, 1), ("a-2", 1.0, 1), ("b-1", 2.0, 1), ("b-2", 2.0, 1))
    assert compare_notes(pair)[0].startswith("2 recordings of each cannot tell two settings apart")
    assert compare_notes(several(a=(1, 1.0), b=(2, 2.0))) == ()
    assert compare_notes(compared(("a", 1.0, 1), ("b", 2.0, 2))) == ()
    assert "more often" in compare_advice(pair)


def test_too_few_steps_are_said() -> None:
    """Three steps of each that do not overlap tie, if one of them is an outlier."""
    (said,) = compare_notes(compared(("metrics2", 59.7, 1), ("loader", 133.0, 1), steps=3))
    assert said == (
        "3 steps of each tell two settings apart only by a gap wider than their range: all of one are shorter than all"
        " of the other by chance in 10\u00a0% of cases; 4 steps can"
    )
    assert compare_notes(compared(("a", 1.0, 1), ("b", 2.0, 1), steps=4)) == ()
    assert compare_notes(compared(("a", 1.0, 1), ("b", 2.0, 2), steps=3)) == ()
    assert compare_notes(compared(("a", 1.0, 1), ("b", 2.0, 1), steps=2)) == ()  # the finding says it
