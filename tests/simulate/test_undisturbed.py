"""Which steps settings are compared by."""

from __future__ import annotations

from overlaplab.manifest import LinkStep, MachineStep, Manifest
from overlaplab.simulate.undisturbed import disturbed


def test_steps_are_disturbed_by_other_processes_and_by_a_late_link() -> None:
    busy = [MachineStep(rank=0, step=step, took_ns=100, cores=2, busy=step == 4) for step in (3, 4, 5)]
    late = [
        LinkStep(rank=0, step=step, modelled_ns=100, occupied_ns=own, latest_ns=0) for step, own in ((3, 101), (5, 120))
    ]
    manifest = Manifest(format_version=1, world_size=1, machine=tuple(busy), link_steps=tuple(late))
    assert disturbed(manifest) == {4, 5}
    assert disturbed(None) == set()
