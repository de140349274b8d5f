"""`python -m overlaplab_engine.bench`: how long all-reduces take, the library's and those by hand, by size.

As nccl-tests' all_reduce_perf does it, out of place: every rank repeats the all-reduce of a tensor, one right after
another, after two that are not counted. A size's time is the mean over the ranks of each one's median. `overlaplab
bench-collectives` shows what this writes.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from overlaplab_engine.collectives import ring, tree
from overlaplab_engine.config import Device
from overlaplab_engine.devices import gpus
from overlaplab_engine.errors import EngineError
from overlaplab_engine.launch import launch
from overlaplab_engine.network.communicator import Communicator, connect
from overlaplab_engine.network.link import Link
from overlaplab_engine.recording.trace_file import write_json
from overlaplab_engine.worker import run

WARM_UP = 2

ALGORITHMS: dict[str, Callable[[Communicator, torch.Tensor], Any]] = {
    "ring": lambda comm, tensor: comm.aside(partial(ring.all_reduce, comm, tensor)).wait(),
    "tree": lambda comm, tensor: comm.aside(partial(tree.all_reduce, comm, tensor)).wait(),
    "torch": lambda comm, tensor: comm.all_reduce_sum(tensor).wait(),
}
"""What is measured, by name; each adds up a tensor over the ranks, in place."""


def measure_algorithm(comm: Communicator, algorithm: str, nbytes: int, iterations: int) -> dict[str, Any]:
    """Measure one row: `algorithm`, `bytes`, `time_ns`, and `wrong`, how many elements of all ranks have another sum.

    All ranks call it, and all get it. The elements are float32, `nbytes` rounded down to whole ones, at least one.
    """
    source = torch.arange(max(nbytes // 4, 1), device=comm.device).remainder(7).add(comm.rank).float()
    result, times = torch.empty_like(source), []
    comm.barrier()
    for _ in range(WARM_UP + iterations):
        begun = time.perf_counter_ns()
        ALGORITHMS[algorithm](comm, result.copy_(source))
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
        times.append(time.perf_counter_ns() - begun)
    n = comm.world_size
    want = (source - comm.rank) * n + n * (n - 1) // 2  # small whole numbers: exact in any order
    ranks = comm.gather_objects((statistics.median(times[WARM_UP:]), int((result != want).sum())))
    return {
        "algorithm": algorithm,
        "bytes": source.nbytes,
        "time_ns": round(statistics.mean(took for took, _ in ranks)),
        "wrong": sum(wrong for _, wrong in ranks),
    }


def _run_rank(options: argparse.Namespace) -> None:
    """Measure everything on this rank, and let rank 0 write it."""
    torch.set_num_threads(1)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if options.device == "cuda" else torch.device("cpu")
    comm = connect(device, options.link)
    rows = [
        measure_algorithm(comm, algorithm, nbytes, options.iterations)
        for nbytes in options.sizes
        for algorithm in options.algorithms
    ]
    if comm.rank == 0:
        link = None
        if options.link is not None:
            link = {"bandwidth_gbps": options.link.bandwidth_gbps, "latency_us": options.link.latency_us}
        write_json(options.out, {"ranks": comm.world_size, "device": device.type, "link": link, "rows": rows})
    comm.barrier()
    comm.close()


def main(argv: list[str]) -> int:
    """Start the ranks, or be one; the exit code: 0 done, 2 bad input or a fault, with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m overlaplab_engine.bench")
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], required=True)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), required=True)
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--link", default="none")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        options.link = None if options.link == "none" else Link.parse(options.link)
        _require_possible(options)
        if "RANK" in os.environ:
            run(partial(_run_rank, options))
        launch(options.nproc, argv, options.out.parent, entry=("-P", "-m", "overlaplab_engine.bench"))
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _require_possible(options: argparse.Namespace) -> None:
    if options.nproc < 2:
        raise EngineError("--nproc must be 2 or more: one rank has nobody to send to")
    if unknown := [name for name in options.algorithms if name not in ALGORITHMS]:
        raise EngineError(f"--algorithms {unknown[0]!r} is none of {', '.join(ALGORITHMS)}")
    if options.link is not None and (options.link.stands_alone(options.nproc) or options.device == "cuda"):
        raise EngineError("--link needs a process on a CPU for every rank: leave WORLD out, and --device cuda")
    if options.device == "cuda" and (there := gpus(Device.CUDA)) < options.nproc:
        raise EngineError(f"--nproc {options.nproc} needs a GPU for every rank, and there are {there}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
