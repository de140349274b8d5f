"""Runs examples/with_accelerate.py with FSDP2 on a CPU: `accelerate_fsdp2.py OUT`, as a rank.

Accelerate takes a `FullyShardedDataParallelPlugin` only where it found several GPUs or other devices of that sort; on
CPUs it leaves it out without a word, and wraps the model in DDP (AcceleratorState.__init__, accelerate/state.py). So
here it is told that it found several GPUs; everything after that is its own.
"""

import runpy
import sys
from pathlib import Path

from accelerate.state import PartialState
from accelerate.utils import DistributedType

EXAMPLES = Path(__file__).parents[3] / "examples"

PartialState(cpu=True)
PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
sys.path.insert(0, str(EXAMPLES))
sys.argv = ["with_accelerate.py", sys.argv[1], "--fsdp2"]
runpy.run_path(str(EXAMPLES / "with_accelerate.py"), run_name="__main__")
