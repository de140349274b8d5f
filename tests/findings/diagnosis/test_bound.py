"""How short a step could have been, as a sentence."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from made.diagnoses import diagnosis, share
from msgspec.structs import replace

from overlaplab.causes import Cause
from overlaplab.findings import how_short
from overlaplab.findings.diagnosis.bound import gains_by_buckets, unavoidable_ns

MS = 1_000_000


def row(compute: int, launched: int, any_cap: int | None, *, waits_known: bool = True) -> dict[str, Any]:
    any_cap_ns = pd.NA if any_cap is None else any_cap * MS
    return {
        "compute_ns": compute * MS,
        "transfer_ns": 650 * MS,
        "bound_ns": launched * MS,
        "any_cap_ns": any_cap_ns,
        "waits_known": waits_known,
    }


@pytest.mark.parametrize(
    ("bound", "measured", "sentence"),
    [
        (
            row(600, 700, 669),
            (799, 116),
            "That step takes 799.0 ms: at best 752.0 ms with other buckets and no delays or late ranks, and 683.0 ms"
            " without any communication.",
        ),
        (
            row(600, 700, 669, waits_known=False),
            (799, 116),
            "That step takes 799.0 ms: at best 752.0 ms with other buckets and no delays or late ranks, and 683.0 ms"
            " without any communication, if none of it is waiting for other ranks.",
        ),
        (
            row(600, 716, 710),
            (799, 116),
            "That step takes 799.0 ms: at best 793.0 ms with other buckets and no delays or late ranks, and 683.0 ms"
            " without any communication.",
        ),
        (
            row(600, 650, None),
            (799, 116),
            "That step takes 799.0 ms: at best 733.0 ms with the same launches and no delays or late ranks, and 683.0"
            " ms without any communication.",
        ),
        (
            row(600, 710, None),
            (799, 116),
            "That step takes 799.0 ms, and would take 683.0 ms without any communication.",
        ),
        (row(600, 650, 640), (799, 0), ""),
    ],
)
def test_sentences(bound: dict[str, Any], measured: tuple[int, int], sentence: str) -> None:
    span, exposed = measured
    text = how_short(replace(diagnosis(), bound=bound, span_ns=span * MS, exposed_ns=exposed * MS))
    assert text.replace("\u00a0", " ") == sentence


def test_pauses_of_the_host_stay_in_every_figure() -> None:
    idle = replace(diagnosis(), span_ns=799 * MS, exposed_ns=116 * MS, idle_ns=50 * MS)
    paused = (share(Cause.GAP, 20 * MS), share(Cause.TAIL, 96 * MS))
    assert how_short(replace(idle, bound=row(600, 710, 669), causes=paused)) == (
        "That step takes 799.0 ms: at best 772.0 ms with other buckets and no delays or late ranks, and 703.0 ms"
        " without any communication, 70.0 ms of it idle or paused."
    )


def test_idle_time_stays_in_every_figure() -> None:
    idle = replace(diagnosis(), span_ns=799 * MS, exposed_ns=116 * MS, idle_ns=50 * MS)
    text = how_short(replace(idle, bound=row(600, 710, None)))
    assert text.endswith("would take 683.0 ms without any communication, 50.0 ms of it idle.")


@pytest.mark.parametrize(
    ("bound", "gain"),
    [
        (row(600, 700, 669), 47 * MS),
        (row(600, 700, 720), 0),  # what was recorded was as good
        (row(600, 700, None), None),
    ],
)
def test_what_other_buckets_gain(bound: dict[str, Any], gain: int | None) -> None:
    assert gains_by_buckets(bound, 116 * MS) == gain


@pytest.mark.parametrize(
    ("bound", "least"),
    [(row(600, 700, 669), 69), (row(600, 700, None), 50), (row(700, 700, None), 0)],  # all transfers take 650
)
def test_what_nothing_hides(bound: dict[str, Any], least: int) -> None:
    assert unavoidable_ns(bound, 116 * MS) == least * MS
