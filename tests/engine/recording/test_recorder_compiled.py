"""A Recorder around models that `torch.compile` has compiled, outside DDP or within, on real gloo processes.

The ranks run this file as a script. Inductor, which calls the C++ compiler for a minute, is left to `pytest -m slow`.
"""

import warnings
from itertools import pairwise

import pytest
import torch
from overlaplab_engine.network.communicator import Communicator
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import NAMES, SIZES, fit, folder
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import overlaplab

scenario = Scenarios(__file__)


@scenario(*(f"{place} {backend}" for backend in ("aot_eager", "inductor") for place in ("outside", "inside")))
def buckets_have_names(comm: Communicator, name: str) -> None:
    """The recorder is given the module that was not compiled; compiled code has no borders of units."""
    place, backend = name.split()
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(SIZES)))
    ddp = DistributedDataParallel(torch.compile(inner, backend=backend) if place == "inside" else inner)
    out = folder(comm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fit(comm, out, torch.compile(ddp, backend=backend) if place == "outside" else ddp, inner)
    comm.barrier()
    buckets = overlaplab.buckets(overlaplab.load_run(out))
    assert set(buckets["source"]) == {"engine"}
    assert set(buckets["step"]) == {3, 4}
    for _, own in buckets.groupby(["rank", "step"]):
        assert sorted(name for names in own["parameters"] for name in names) == NAMES
        assert all(None not in arrived for arrived in own["gradient_ready_ns"])


found = scenario.found
CASES = scenario.on(2, slow=True)


@pytest.mark.parametrize(("found", "name"), CASES, indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
