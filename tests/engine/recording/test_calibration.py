"""What is measured before the first step, put together from the ranks."""

from overlaplab_engine.network.link import Kind
from overlaplab_engine.recording.calibration import Idle, calibration


def test_units_take_the_ranks_median_and_collectives_what_the_last_rank_saw() -> None:
    passes = [{("a", "forward"): ns, ("a", "backward"): 2 * ns, ("b", "forward"): 7} for ns in (10, 30, 20)]
    idle = [
        [Idle(kind=Kind.ALL_REDUCE, bytes=64, took_ns=[rank, 9 - rank], used_ns=[rank, 2 * rank])] for rank in (2, 3, 4)
    ]
    assert calibration(passes, idle, [(5, 6)] * 3, {"a": 4}) == {
        "units": [
            {"name": "a", "forward_ns": 20, "backward_ns": 40, "update_ns": 4},
            {"name": "b", "forward_ns": 7, "backward_ns": 0, "update_ns": 0},
        ],
        "collectives": [{"kind": "all_reduce", "bytes": 64, "took_ns": [2, 5], "used_ns": [3, 6]}],
        "probe_ns": [[5, 6], [5, 6], [5, 6]],
    }
