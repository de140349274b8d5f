"""Lines through a group's transfers, behind a link of 0.05 Gbit/s and 1,000 µs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from made.traces import event, gloo, op, write
from samples import sample_run

from overlaplab import load_run
from overlaplab.analyses import transfer_lines


def test_transfers_of_one_size_tell_no_latency() -> None:
    """Tensor parallelism sends activations of one size, data parallelism buckets of two."""
    table = transfer_lines(sample_run("dp-tp")).set_index("ranks")
    of_one, of_two = table.loc[[(0, 1), (2, 3)]], table.loc[[(0, 2), (1, 3)]]
    assert of_one["sizes"].tolist() == [1, 1]
    assert of_one["latency_ns"].isna().all()
    assert of_one["r_squared"].isna().all()
    assert (of_one["bus_gb_per_s"] < 0.00625).all(), "its latency included"
    assert of_two["latency_ns"].astype(float).tolist() == pytest.approx([1e6, 1e6], rel=0.1)
    assert of_two["bus_gb_per_s"].astype(float).tolist() == pytest.approx([0.00625, 0.00625], rel=0.01)
    assert table["latency_ns"].dtype == pd.Float64Dtype()


def test_a_group_of_one_on_an_unknown_rank_has_no_line(tmp_path: Path) -> None:
    sent = {"Collective name": "allreduce", "Group size": 1, "In msg nelems": 1000, "Out msg nelems": 1000}
    call = event("c10d::allreduce_", 10, 20, **sent, dtype="Float")
    run = load_run(write(tmp_path / "trace.json", [op("aten::mm", 0, 9), call, gloo(20, 40)]))
    assert transfer_lines(run).empty
