"""What is measured before the first step, put together from the ranks."""

from collections.abc import Iterator

import pytest
import torch
from overlaplab_engine.network.link import Kind
from overlaplab_engine.recording.calibration import PROBE, Idle, probe_ns
from overlaplab_engine.recording.manifest import Before, Outcome, Recorded, calibration


def outcome(forward_ns: int, rank: int, update_ns: int) -> Outcome:
    passes = {("a", "forward"): forward_ns, ("a", "backward"): 2 * forward_ns, ("b", "forward"): 7}
    idle = Idle(kind=Kind.ALL_REDUCE, bytes=64, took_ns=[rank, 9 - rank], used_ns=[rank, 2 * rank])
    return Outcome(
        recorded=Recorded(attempt=1, link=None, losses=[], carried=[], link_steps=[], machine=[]),
        held={},
        peak_allocated=None,
        scratch=0,
        counts=False,
        before=Before(probe_ns=5, passes=passes, saved_bytes=None, idle=[idle]),
        probe_after_ns=6,
        updates={"a": update_ns},
        hardware={},
    )


def test_units_take_the_ranks_median_and_collectives_what_the_last_rank_saw() -> None:
    outcomes = [outcome(10, 2, 1), outcome(30, 3, 2), outcome(20, 4, 3)]
    assert calibration(outcomes, owners=2) == {
        "units": [
            {"name": "a", "forward_ns": 20, "backward_ns": 40, "update_ns": 4},
            {"name": "b", "forward_ns": 7, "backward_ns": 0, "update_ns": 0},
        ],
        "collectives": [{"kind": "all_reduce", "bytes": 64, "took_ns": [2, 5], "used_ns": [3, 6]}],
        "probe_ns": [[5, 6], [5, 6], [5, 6]],
    }


@pytest.fixture
def other_defaults() -> Iterator[None]:
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def test_the_probe_is_the_same_whatever_the_loop_has_for_defaults(
    other_defaults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied = []
    monkeypatch.setattr(torch, "mm", lambda a, b: multiplied.append(a))
    probe_ns()
    assert {(a.device.type, a.dtype, a.shape) for a in multiplied} == {("cpu", torch.float32, (PROBE, PROBE))}
