"""Which steps settings are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.traces import event, run_of, step

from overlaplab.manifest import LinkStep, MachineStep, Manifest
from overlaplab.simulate.undisturbed import disturbed_steps, undisturbed_steps


def test_steps_are_disturbed_by_other_processes_and_by_a_late_link() -> None:
    busy = [MachineStep(rank=0, step=step, took_ns=100, cores=2, busy=step == 4) for step in (3, 4, 5)]
    late = [
        LinkStep(rank=0, step=step, modelled_ns=100, occupied_ns=own, latest_ns=0) for step, own in ((3, 101), (5, 120))
    ]
    manifest = Manifest(format_version=1, world_size=1, machine=tuple(busy), link_steps=tuple(late))
    assert disturbed_steps(manifest) == {4, 5}
    assert disturbed_steps(None) == set()


@pytest.mark.parametrize(("long", "counted"), [({3}, [1, 1, 1, 0, 1, 1]), ({1, 4}, [1] * 6)])
def test_a_lone_step_unlike_the_others_does_not_count(long: set[int], counted: list[int], tmp_path: Path) -> None:
    """How often it comes is not known; of several, a third of the steps are so."""
    events, at = [], 0
    for number in range(6):
        took = 500 if number in long else 100
        events += [step(number, at, at + took), event("aten::mm", at + 5, at + 90)]
        at += took
    run = run_of(tmp_path, events)
    assert undisturbed_steps(run).tolist() == [bool(each) for each in counted]
