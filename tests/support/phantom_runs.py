"""Records strategies on one rank, one after the other in one process: python phantom_runs.py OUT OPTIONS -- NAMES."""

import os
import sys
from pathlib import Path

from engine import cli, worker
from engine.train import record


def main() -> None:
    cut = sys.argv.index("--")
    out, options, names = Path(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1 :]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # as engine/__main__.py, which says why
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any port, for those without a link
    worker.work = lambda config, argv: record(config, argv)  # which would end the process
    for name in names:
        code = cli.main(["--strategy", name, "--out", str(out / name), *options])
        if code:
            sys.exit(f"{name}: exit code {code}")
    worker.finish()


if __name__ == "__main__":
    main()
