"""A cause's exposed time by kind of unit."""

from __future__ import annotations

import pytest
from made.step_rows import MS, exposed_rows, summary_rows
from samples import sample_tables

from overlaplab import findings
from overlaplab.causes import Cause
from overlaplab.findings.diagnosis.causes import split_by_unit_kind
from overlaplab.findings.loops import Loop
from overlaplab.traits import UNITS


def test_gathers_of_layers_of_other_units_and_reductions_are_apart() -> None:
    rows = exposed_rows(
        *((0, 1, "tail", length, None) for length in (5, 4, 3, 2, 1, 1)),
        kind=["all_gather", "reduce_scatter", "all_gather", "all_gather", "all_gather", "all_reduce"],
        what=["layers.1", "layers.0", "embedding", "layers.0", "parameters of bucket 3", None],
    )
    found = {kind: (own["exposed_ns"] // MS).tolist() for kind, own in split_by_unit_kind(rows)}
    assert found == {
        "layers' gathers": [5, 2],
        "reduce-scatters": [4],
        "gathers of embedding": [3],
        "gathers of updated parameters": [1],
        "other collectives": [1],
    }


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", None])
def test_what_is_of_one_kind_has_no_name(kind: str | None) -> None:
    rows = exposed_rows((0, 1, "tail", 5, None), (0, 1, "tail", 4, None), kind=kind)
    assert [name for name, _ in split_by_unit_kind(rows)] == [""]


def test_each_part_has_its_own_remedy() -> None:
    table = summary_rows((0, 1, 100, 9))
    rows = exposed_rows(
        (0, 1, "tail", 5, None),
        (0, 1, "tail", 4, None),
        kind=["all_gather", "reduce_scatter"],
        what=["embedding", "layers.0"],
    )
    found = findings.diagnose(table, table.iloc[0], rows, table, loop=Loop(traits=UNITS, framework="engine"))
    assert [(part.name, part.remedy) for part in findings.cause_parts(found)] == [
        (
            "nothing left to overlap (tail): gathers of embedding",
            "a smaller first unit, or gathering it before the step begins",
        ),
        (
            "nothing left to overlap (tail): reduce-scatters",
            "a smaller last unit, or something to compute until it is sent",
        ),
    ]


@pytest.mark.parametrize("sample", ["zero3", "zero2", "bucketed"])
def test_parts_add_up(sample: str) -> None:
    found = sample_tables(sample).diagnosis
    assert found is not None
    for share in found.causes:
        assert sum(part.exposed_ns for part in share.parts) == share.exposed_ns
        assert {part.cause for part in share.parts} == {share.cause}
    assert any(len(share.parts) > 1 for share in found.causes) == (sample != "bucketed")
    assert Cause.TAIL in {share.cause for share in found.causes}
