"""Scenarios on real gloo processes: a test file is also the script that its ranks run, all scenarios in one go."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.comm import Communicator, connect
from engine.link import Link
from engine.worker import finish

TIMEOUT_S = 60
"""After so long a rank that waits for another gives up: a scenario that ranks leave apart fails, and does not hang."""


class Scenarios(dict[str, Callable[[Communicator], None]]):
    """Functions that every rank runs, by name."""

    def __call__(self, *names: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a function of (comm) or, given names, of (comm, name), once for each."""

        def register(function: Callable[..., None]) -> Callable[..., None]:
            if not names:
                self[function.__name__] = function
            for name in names:
                self[f"{function.__name__}[{name}]"] = lambda comm, name=name: function(comm, name)
            return function

        return register

    def main(self) -> None:
        """One rank: run all, and let rank 0 write what each found."""
        torch.set_num_threads(1)
        link = Link.parse(os.environ["LINK"]) if "LINK" in os.environ else None
        comm = connect(torch.device("cpu"), link, timeout_s=TIMEOUT_S)
        found = {}
        for name, run in self.items():
            verdict = ""
            try:
                run(comm)
            except BaseException as error:
                verdict = f"rank {comm.rank}: {type(error).__name__}: {error}"
                print(f"{name}: {verdict}", file=sys.stderr)
            found[name] = [v for v in comm.gather_objects(verdict) if v]
            if comm.rank == 0:
                Path(sys.argv[1]).write_text(json.dumps(found))
        comm.close()
        finish()


def run_ranks(script: str, world_size: int, out: Path, **environment: str) -> dict[str, list[str]]:
    """Start the ranks and wait for them; the complaints of each scenario."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        **environment,
        "PYTHONPATH": os.path.dirname(__file__),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        subprocess.Popen([sys.executable, script, str(out)], env={**common, "RANK": str(rank)})
        for rank in range(world_size)
    ]
    try:
        codes = [rank.wait(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * world_size
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found
