"""`python -m overlaplab_engine`."""

import os
import sys

# Read when torch is loaded: keeps the profiler's notices off stderr. `device_events` finds out why it saw nothing.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Read when CUDA starts: with only 8 queues, a stream may have to wait behind another's kernels, such as a link's.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _main() -> int:
    try:
        from overlaplab_engine.cli import main

        return main(sys.argv[1:])
    except KeyboardInterrupt:
        print("overlaplab record: interrupted", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(_main())
