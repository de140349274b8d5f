"""Records strategies on one rank, one after the other: python phantom_runs.py OUT OPTIONS -- NAMES.

One process records as many as it can. After one that fails, or that makes the process take longer than LIMIT_S seconds
(an environment variable), a fresh process records the rest. Failures are told on stderr, and by exit code 1.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> None:
    cut = sys.argv.index("--")
    given, left = sys.argv[1:cut], sys.argv[cut + 1 :]
    failed: dict[str, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # `subprocess.run` then ends the process that records
    while left:
        began, problem = in_one_process(given, left)
        if problem is not None:
            failed |= dict.fromkeys(began[-1:] or left, problem)  # if none began, none will
        left = left[len(began) :] if began else []
    for name, problem in failed.items():
        print(f"{name}: {problem}", file=sys.stderr)
    sys.exit(1 if failed else 0)


def in_one_process(given: list[str], names: list[str]) -> tuple[list[str], str | None]:
    """Those of the names that were begun, and what ended the process before it was done with the last of them."""
    command = [sys.executable, __file__, *given, "--", *names]
    limit = os.environ.get("LIMIT_S")
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, env=os.environ | {"RECORDS": "1"}, timeout=float(limit) if limit else None
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode().split(), f"took too long (LIMIT_S={limit})"
    return done.stdout.decode().split(), f"exit code {done.returncode}" if done.returncode else None


def record_all() -> None:
    """In the process that records: print each name when it begins, and end at the first that fails."""
    from overlaplab_engine import cli, worker
    from overlaplab_engine.train import record

    cut = sys.argv.index("--")
    out, options, names = Path(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1 :]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # as overlaplab_engine/__main__.py, which says why
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any port, for those without a link
    worker.work = lambda config, argv: record(config, argv)  # which would end the process
    for name in names:
        print(name, flush=True)
        code = cli.main(["--strategy", name, "--out", str(out / name), *options])
        if code:
            sys.exit(code)
    worker.finish()


if __name__ == "__main__":
    record_all() if "RECORDS" in os.environ else main()
