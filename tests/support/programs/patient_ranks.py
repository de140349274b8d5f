"""The script of ranks that run the engine with one list of options after the other, and never find early that a
collective is done, so that `zero2` and `zero3` wait for each where they must, whatever the machine is doing.
"""

import json
import os
import sys
from functools import partial

import torch.distributed as dist
from overlaplab_engine import worker
from overlaplab_engine.cli import main
from overlaplab_engine.network.communicator import Work
from overlaplab_engine.train import record


def run_all(lines: list[list[str]]) -> int:
    """Each as a recording of its own, in this process; the exit code of the first that fails."""
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, is_master=rank == 0)
    start = dist.init_process_group
    for number, line in enumerate(lines):
        own = dist.PrefixStore(str(number), store)
        dist.init_process_group = partial(start, store=own, rank=rank, world_size=ranks)
        if code := main(line):
            return code
    return 0


if __name__ == "__main__":
    Work.is_completed = lambda work: False  # type: ignore[method-assign]
    worker.work = record  # which would end the process
    code = run_all(json.loads(sys.argv[1]))
    if code:
        sys.exit(code)
    worker.finish()
