"""An action from outside: one edit and one row, and it is played, ranked and said everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from samples import TRACES

import overlaplab
from overlaplab.causes import Cause
from overlaplab.findings.actions.table import ACTIONS, Action
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate.player import Launch, Program
from overlaplab.simulate.programs.edits import EDITS, Edit


def ideal(programs: Sequence[Program]) -> list[Program]:
    """Collectives take no time once all ranks have come to them."""
    return [
        [replace(move, transfer_ns=0) if isinstance(move, Launch) else move for move in program] for program in programs
    ]


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    edit = Edit(
        remedy="ideal_link",
        apply=lambda _run, programs, _value, _link: ideal(programs),
        on_devices=lambda _run, programs, _value: ideal(programs.programs),
        nothing="",
    )
    action = Action(name="ideal_link", causes=(Cause.BLOCKING, Cause.LINK), words=lambda _case: "an ideal link: no T")
    monkeypatch.setitem(EDITS, "ideal-link", edit)
    ACTIONS.append(action)
    yield
    ACTIONS.remove(action)


@pytest.mark.parametrize("sample", ["naive", "h100/naive"])
def test_it_is_ranked_and_said(command: Any, sample: str) -> None:
    folder = TRACES / sample
    found = RunTables(run=overlaplab.load_run(folder)).diagnosis
    assert found is not None
    (own,) = [each for each in found.actions if each.action.name == "ideal_link"]
    same_loop = [each.gain_ns for each in found.actions if each.action.name != "cap"]  # hosts of `bucketed` do less
    assert own.gain_ns == max(same_loop)
    assert own.why.startswith("waited for at once (blocking), ")
    assert "an ideal link" in command("summary", folder)[1]
    code, out, _ = command("predict", folder, "--edit", "ideal-link")
    assert (code, "Gain per mean step" in out) == (0, True)
