"""Numbers of run.json that cannot be: one line each, before anything is computed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import op, run_of, step

from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest


def parameter(*shape: int, num_bytes: int = 4) -> dict[str, Any]:
    return {"parameters": [{"name": "w", "shape": shape, "dtype": "float32", "bytes": num_bytes}]}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"world_size": 0}, "$.world_size"),
        ({"world_size": -3}, "$.world_size"),
        ({"world_size": 10**23}, "$.world_size"),
        ({"mesh": {"dp": 3}}, "the mesh has 3 ranks, and world_size is 1"),
        ({"mesh": {"dp": 1, "replicate": 2, "shard": 2}}, "replicate × shard is not dp"),
        ({"bucket_cap_mb": -1}, "$.bucket_cap_mb"),
        ({"accumulate": 0}, "$.accumulate"),
        ({"prefetch": -1}, "$.prefetch"),
        (parameter(-1), "$.parameters[0].shape[0]"),
        (parameter(8, num_bytes=-4), "$.parameters[0].bytes"),
        (parameter(2**40, 2**40), "w has too many elements"),
        ({"units": [{"name": "a", "bytes": 2**63 - 1, "parameters": []}]}, "$.units[0].bytes"),
        ({"memory": [{"rank": 0, "parameters": -1, "gradients": 0, "optimizer": 0}]}, "$.memory[0].parameters"),
        ({"link": {"emulated": True, "bandwidth_gbps": 0, "latency_us": 1, "world_size": 2}}, "$.link.bandwidth_gbps"),
        ({"link": {"emulated": True, "bandwidth_gbps": 1, "latency_us": -1, "world_size": 2}}, "$.link.latency_us"),
        ({"model": {"layers": -1}}, "$.model.layers"),
    ],
)
def test_a_number_out_of_range_is_one_line(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(OverlaplabError, match="not a readable manifest") as error:
        run_of(tmp_path, [step(3, 0, 9), op("mm", 1, 2)], manifest=changes)
    assert place in str(error.value)
    assert "run.json" in str(error.value)
    assert "Remove it to open the traces without it." in str(error.value)


def test_what_is_shown_of_a_manifest_says_nothing_twice() -> None:
    assert "raw=" not in repr(Manifest(format_version=1, world_size=2, raw={"world_size": 2}))
