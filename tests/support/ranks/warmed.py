"""What ranks that are forks have from the process they are forks of: what they import, and what the command line does
when it is first used.
"""

import contextlib
import importlib
import io

from overlaplab_engine.cli import main

for name in (
    *("numpy.random", "pytest", "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"),
    *("torch.profiler", "ranks.engine_trials", "overlaplab_engine.launch", "overlaplab_engine.worker"),
):
    importlib.import_module(name)
with contextlib.redirect_stderr(io.StringIO()):
    main(["--strategy", "none", "--out", "nowhere"])  # as far as the first mistake
