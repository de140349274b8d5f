"""Scenarios on real gloo processes: a test file is also the script that its ranks run, all scenarios in one go."""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from overlaplab_engine.network.communicator import Communicator, connect
from overlaplab_engine.network.link import Link
from overlaplab_engine.worker import finish

from ranks.arrivals import ARRIVALS
from ranks.warm_ranks import run_warm

TIMEOUT_S = 120
"""After so long a rank that waits for another gives up: a scenario that ranks leave apart fails, and does not hang."""


class Scenarios(dict[str, Callable[[Communicator], None]]):
    """Functions that every rank runs, by name; one start of the ranks runs many."""

    def __init__(self, script: str = "") -> None:
        """`script` is the file whose scenarios these are, if `found` is to start it."""
        super().__init__()
        self.script = script

        known: dict[Ranks, dict[str, list[str]]] = {}

        @pytest.fixture
        def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
            ranks: Ranks = request.param
            if ranks not in known:
                out = tmp_path_factory.mktemp("ranks") / "found.json"
                more = {"LINK": "100Gbps,1us"} if ranks.link else {}
                more["ARRIVALS"] = ranks.arrivals
                known[ranks] = run_ranks(script, ranks.count, out, ONLY=ranks.only, **more)
            return known[ranks]

        self.found = found
        """The complaints of each scenario, of those that `on` names."""

    def __call__(self, *names: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a function of (comm) or, given names, of (comm, name), once for each."""
        if any(map(callable, names)):
            raise TypeError("write @scenario() with its parentheses, or nothing is registered")

        def register(function: Callable[..., None]) -> Callable[..., None]:
            if not names:
                self[function.__name__] = function
            for name in names:
                self[f"{function.__name__}[{name}]"] = lambda comm, name=name: function(comm, name)
            return function

        return register

    def on(self, count: int, only: str = "", link: bool = False, slow: bool = False, arrivals: str = "") -> list[Any]:
        """Test parameters (`found`, `name`): the scenarios in whose name the regex `only` is found, on so many ranks.

        `arrivals` names a communicator of `arrivals.ARRIVALS`.
        """
        ranks = Ranks(count, only, link, arrivals)
        marks = [pytest.mark.slow] if slow else []
        return [pytest.param(ranks, name, id=f"{ranks}-{name}", marks=marks) for name in self if re.search(only, name)]

    def main(self) -> None:
        """One rank: run them, and let rank 0 write what each found."""
        torch.set_num_threads(1)
        link = Link.parse(os.environ["LINK"]) if "LINK" in os.environ else None
        comm = connect(torch.device("cpu"), link, timeout_s=TIMEOUT_S)
        comm = ARRIVALS.get(os.environ.get("ARRIVALS", ""), lambda comm: comm)(comm)
        found = {}
        for name, run in self.items():
            if not re.search(os.environ.get("ONLY", ""), name):
                continue
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


@dataclass(frozen=True)
class Ranks:
    """How to start ranks."""

    count: int
    only: str
    link: bool
    arrivals: str = ""

    def __str__(self) -> str:
        return f"{self.count} behind a link" if self.link else f"{self.count} {self.arrivals}".rstrip()


def run_ranks(script: str, world_size: int, out: Path, **environment: str) -> dict[str, list[str]]:
    """Start the ranks and wait for them; the complaints of each scenario."""
    ranks = run_warm(world_size, script, str(out), **environment)
    for rank in ranks:
        print(rank.stdout, rank.stderr)
    assert [rank.code for rank in ranks] == [0] * world_size
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found
