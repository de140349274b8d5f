"""The script of ranks that run the engine and never find early that a collective is done.

So `zero2` and `zero3` wait for each where they must, whatever the machine is doing.
"""

import sys

from overlaplab_engine.cli import main
from overlaplab_engine.network.communicator import Work

if __name__ == "__main__":
    Work.is_completed = lambda work: False  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
