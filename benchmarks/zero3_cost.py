"""What zero3 costs beside torch's FSDP2, as ratios; the two sides of each alternate step by step in one run.

    python benchmarks/zero3_cost.py               zero3 ÷ torch-fsdp2 on gloo: step time, then peak memory
    python benchmarks/zero3_cost.py --link auto   the same behind the emulated link

Each prints one line per figure: median of the pairs' ratios, and their quartiles. Run them on an idle machine.

Peak memory of a step is what tensors hold after it (parameters, gradients, optimizer states: bytes of their storages)
and what the process held above that at most, on the rank that held most. On CUDA that is the allocator's highest mark
less its last. On the CPU it is the highest mark of resident memory less its last, as Linux counts both (VmHWM and VmRSS
of /proc/self/status, see proc(5)), in a run of its own in which glibc maps and unmaps each block of 16 KiB or more by
itself, so that what is freed is given back. torch.profiler's count would not do: it misses blocks that are freed on
gloo's threads, which FSDP2's often are.
"""

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from _common import (
    BATCH,
    LAYERS,
    LINK,
    PAIRS,
    SEQ,
    WIDTH,
    Side,
    compare,
    end_rank,
    make_side,
    parse_link,
    ranks,
    seconds,
    torchrun,
)
from _shared import resident_bytes
from overlaplab_engine.config import Device
from overlaplab_engine.network.communicator import connect
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.strategy_names import StrategyName

app = typer.Typer(add_completion=False)

GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(16 << 10)}


def peak_bytes(side: Side) -> float:
    """What the rank that holds most holds at most during a step."""
    comm = side.strategy.comm
    comm.barrier()
    if comm.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        side()
        above = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
        side()
        above = resident_bytes("VmHWM") - resident_bytes("VmRSS")
    held = sum(held_bytes(side.strategy, side.optimizer).values())
    return max(comm.gather_objects(held + above))


@app.command()
def main(
    link: LINK = "none",
    device: Device = Device.CPU,
    nproc: int = 2,
    prefetch: Annotated[int, typer.Option(help="Units gathered ahead, on both sides.")] = 1,
    keep_last: Annotated[
        bool, typer.Option("--keep-last", help="torch-fsdp2 keeps its last layer, too, as zero3 does.")
    ] = False,
    checkpointing: Annotated[
        str, typer.Option(help="Activation checkpointing: all, every K-th layer, or none.")
    ] = "none",
    accumulate: Annotated[int, typer.Option(help="Microbatches per step.")] = 1,
    pairs: PAIRS = 30,
    layers: LAYERS = 8,
    width: WIDTH = 256,
    seq: SEQ = 64,
    batch: BATCH = 8,
    measure: Annotated[str, typer.Option(help="time, memory or both.")] = "both",
) -> None:
    """Step time and peak memory of zero3 ÷ torch-fsdp2."""
    if "RANK" not in os.environ:
        for figure in ("time", "memory") if measure == "both" else (measure,):
            command = [*torchrun(nproc), "--measure", figure]
            subprocess.run(command, env=os.environ | (GIVE_BACK if figure == "memory" else {}), check=True)
        return
    ranks(nproc)
    emulated = parse_link(link)
    here = torch.device("cpu")
    if device is Device.CUDA:
        here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(here)
    comm = connect(here, emulated)
    sides = [
        make_side(
            name,
            comm,
            layers,
            width,
            seq,
            batch,
            prefetch=prefetch,
            keep_last=keep_last and name is StrategyName.TORCH_FSDP2,
            checkpointing=checkpointing,
            accumulate=accumulate,
        )
        for name in (StrategyName.ZERO3, StrategyName.TORCH_FSDP2)
    ]
    what = f"zero3 ÷ torch-fsdp2, {prefetch} ahead, link {emulated or 'none'}"
    if measure == "time":
        compare(f"step time, {what}", [partial(seconds, side) for side in sides], pairs, comm)
    else:
        peaks = [partial(peak_bytes, side) for side in sides]
        compare(f"peak memory, {what}", peaks, pairs, comm, unit="MiB", scale=2**-20)
    end_rank(comm)


if __name__ == "__main__":
    app()
