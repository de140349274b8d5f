"""Copies between a device and its host's memory, from made traces."""

from __future__ import annotations

from pathlib import Path

from made.gpu import Gpu
from made.phantoms import phantom_run

import overlaplab
from overlaplab.analyses import copies

DOWN, UP = 40, 41
"""Streams."""


def test_on_a_gpu_a_copy_lasts_as_long_as_what_its_label_launched(tmp_path: Path) -> None:
    gpu = Gpu()
    with gpu.step():
        gpu.run("gemm_backward", 100)  # from 6 to 106
        with gpu.range("engine::copy way=down bytes=8"):
            gpu.run("Memcpy DtoH (Device -> Pinned)", 30, DOWN)  # beside it
        gpu.run("Memcpy DtoH (Device -> Pageable)", 500, 42)  # the loss, without a label
        gpu.wait(UP, 106)
        with gpu.range("engine::copy way=up bytes=16"):
            gpu.run("Memcpy HtoD (Pinned -> Device)", 70, UP)  # after it
        gpu.run("optimizer", 20)
    run = phantom_run(tmp_path, gpu.events, device="cuda", strategy="zero2", offload=True)
    table = copies(run)
    assert table[["way", "count", "bytes", "copy_ns", "hidden_ns"]].to_numpy().tolist() == [
        ["down", 1, 8, 30_000, 30_000],
        ["up", 1, 16, 70_000, 20_000],
    ]
    assert overlaplab.summary(run)["comm_ns"].tolist() == [0]
