"""Peaks of memory against counts by hand and torch's profiler; the largest batch against trying all of them."""

import json
import threading
from pathlib import Path

import pytest
import torch
from overlaplab_engine.config import Bytes, Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.host_link import host_allocation
from overlaplab_engine.recording.peak import Peak, largest_batch
from overlaplab_engine.strategies import class_of
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import _rehearsed_peak
from ranks.engine_ranks import Scenarios
from ranks.warm_ranks import run_warm
from torch import nn
from torch.autograd.profiler import profile

import overlaplab
from overlaplab.analyses import copies

scenario = Scenarios(__file__)
SMALL = {"layers": 3, "width": 64, "seq": 16, "vocab": 100, "batch": 4}
SETTINGS = {
    "DDP": {"strategy": "torch-ddp"},
    "SHARD_GRAD_OP": {"strategy": "torch-fsdp2", "reshard_after_forward": False},
    "FULL_SHARD": {"strategy": "torch-fsdp2"},
    "offload": {"strategy": "torch-fsdp2", "offload": True},
}


@scenario()
def each_setting_takes_less_than_the_one_before(comm: Communicator) -> None:
    # On a busy machine gathered units are freed late, which adds to a peak: the least of three is what a setting takes.
    configs = [Config(**SMALL, **more, out=Path("nowhere")) for more in SETTINGS.values()]
    peaks = [min(_rehearsed_peak(config, comm) for _ in range(3)) for config in configs]
    assert peaks == sorted(peaks, reverse=True), peaks
    assert len({*peaks}) == len(peaks)


@scenario(*StrategyName)
def every_strategy_can_be_rehearsed(comm: Communicator, name: StrategyName) -> None:
    more = {"tp": 2} if class_of(name).traits.cuts_layers else {}
    config = Config(**SMALL | {"layers": 2}, strategy=name, out=Path("nowhere"), **more)
    owned = 4 * (2 * 12 * 64 * 64 + 2 * 100 * 64) // comm.world_size  # bytes of this rank's part of the parameters
    assert _rehearsed_peak(config, comm) > owned


@scenario(*SETTINGS)
def a_larger_batch_takes_more(comm: Communicator, name: str) -> None:
    config = {**SMALL, **SETTINGS[name]}
    one, two, four = (_rehearsed_peak(Config(**config | {"batch": n}, out=Path("nowhere")), comm) for n in (8, 16, 32))
    # Activations alone depend on the batch; when a gathered unit is freed depends on the machine's other work, too.
    assert four - two == pytest.approx(2 * (two - one), rel=0.1 if name != "FULL_SHARD" else 0.25)


@scenario()
def what_is_replicated_is_counted(comm: Communicator) -> None:
    """Parameters, two moments, gradients, and DDP's buckets, which gradients are views of."""
    config = Config(**SMALL | {"batch": 1, "seq": 1}, strategy="torch-ddp", out=Path("nowhere"))
    psi = 3 * 12 * 64 * 64 * 4 + 2 * 100 * 64 * 4
    assert 4 * psi <= _rehearsed_peak(config, comm) <= 5.6 * psi


def test_tensors_count_until_they_are_freed() -> None:
    with Peak() as peak:
        kept = torch.zeros(1000)
        gone = torch.zeros(500)
        view = gone[10:]
        assert (peak.now, peak.most) == (6000, 6000)
        del gone
        torch.zeros(1)
        assert peak.now == 6004  # the view keeps it, and the new one is still to be forgotten
        del view
        peak.reset_most()
        assert (peak.now, peak.most) == (4000, 4000)
        kept.untyped_storage().resize_(8000)
        kept.untyped_storage().resize_(0)
        assert (peak.now, peak.most) == (0, 8000)
    assert torch.UntypedStorage.resize_ is Peak()._resize


def test_what_another_thread_frees_counts_no_longer() -> None:
    box = []
    with Peak() as peak:
        box.append(torch.zeros(1000))
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        peak.reset_most()
        assert peak.now == 0


def test_the_hosts_memory_does_not_count() -> None:
    with Peak() as peak:
        moved, stays = torch.zeros(100), torch.zeros(10)
        with host_allocation():
            landed = torch.zeros(1000)
        landed += 1
        assert peak.most == 440
        peak.leave_out([moved, stays[5:], torch.ones(3)[:1]])
        moved += 1
        peak.reset_most()
        assert peak.now == 0


def test_the_peak_is_that_of_the_profiler() -> None:
    def passes() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(300, 300) for _ in range(4)], nn.ReLU())
        for _ in range(2):
            model(torch.randn(50, 300)).square().sum().backward()

    with Peak() as peak:
        passes()
    with profile(profile_memory=True) as profiler:
        passes()
    now = most = 0
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    assert peak.most == pytest.approx(most, rel=0.02)


@pytest.mark.parametrize("limit", range(5, 400, 7))
def test_the_largest_batch_is_that_of_trying_all(limit: int) -> None:
    tried: list[int] = []

    def measure_peak(batch: int) -> int:
        tried.append(batch)
        return 5 + 3 * batch * (1 if batch < 40 else 2)

    fits = [batch for batch in range(1, 200) if 5 + 3 * batch * (1 if batch < 40 else 2) <= limit]
    if not fits:
        with pytest.raises(EngineError, match=rf"--memory-limit {limit} B: one sample per rank already takes 8 B"):
            largest_batch(measure_peak, limit)
        return
    assert largest_batch(measure_peak, limit) == (fits[-1], measure_peak(fits[-1]))
    assert len(tried) == len({*tried}) + 1  # the assertion asked once more


def test_no_batch_is_tried_that_would_take_much_more_than_the_limit() -> None:
    """A GPU has no more memory than the limit, or little more."""
    tried: list[int] = []

    def measure_peak(batch: int) -> int:
        tried.append(batch)
        return 5 + 3 * batch

    assert largest_batch(measure_peak, 100) == (31, 98)
    assert tried == [1, 2, 4, 8, 16, 31, 32]


def test_a_limit_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(EngineError, match=r"--memory-limit 1 GB is more than 1048576 samples take"):
        largest_batch(lambda batch: 1, 10**9)


@pytest.mark.parametrize(
    ("text", "size", "said"),
    [("64MB", 64 * 10**6, "64 MB"), ("1.5 GB", 15 * 10**8, "1.5 GB"), ("512B", 512, "512 B"), ("2kB", 2000, "2 kB")],
)
def test_sizes(text: str, size: int, said: str) -> None:
    assert (Bytes.parse(text), str(Bytes.parse(text))) == (size, said)


@pytest.mark.parametrize("text", ["", "64", "MB", "0MB", "-1MB", "64mb", "1e3MB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(EngineError, match=r"is not a size such as 64MB or 24GB"):
        Bytes.parse(text)


@pytest.mark.slow
def test_the_largest_batch_is_recorded_and_one_more_is_refused(tmp_path: Path) -> None:
    options = ["--strategy", "torch-fsdp2", "--offload", "--device", "cpu", "--memory-limit", "1MB", "--steps", "1"]
    options += ["--layers", "2", "--width", "32", "--seq", "16", "--vocab", "50", "--checkpointing", "all"]
    out = tmp_path / "run"
    for rank in run_warm(2, "-m", "overlaplab_engine", "--out", str(out), "--largest-batch", *options):
        assert rank.code == 0, rank.stderr
    told = json.loads((out / "run.json").read_bytes())
    batch = told["model"]["batch"]
    assert (told["memory_limit"], told["largest_batch"]) == (10**6, True)
    assert batch > 1
    assert all(0 < held["peak_allocated"] <= 10**6 for held in told["memory"])
    assert overlaplab.load_run(out).manifest is not None
    given = ["--batch", str(batch), *options[: options.index("--memory-limit")], *options[options.index("--steps") :]]
    for rank in run_warm(2, "-m", "overlaplab_engine", "--out", str(tmp_path / "given"), *given):
        assert rank.code == 0, rank.stderr
    without = json.loads((tmp_path / "given" / "run.json").read_bytes())
    assert without["losses"] == told["losses"]  # nothing of a rehearsal is in the recording
    assert (without["memory_limit"], without["memory"][0]["peak_allocated"]) == (None, None)
    ranks = run_warm(2, "-m", "overlaplab_engine", "--out", str(tmp_path / "more"), "--batch", str(batch + 1), *options)
    for rank in ranks:
        assert rank.code == 2
        assert "Traceback" not in rank.stderr
    assert f"--memory-limit 1 MB: --batch {batch + 1} takes 1.0" in "".join(rank.stderr for rank in ranks)
    assert not (tmp_path / "more" / "run.json").exists()


@pytest.mark.slow
def test_one_rank_of_an_emulated_group_is_rehearsed(tmp_path: Path) -> None:
    options = ["--strategy", "torch-fsdp2", "--offload", "--device", "cpu", "--memory-limit", "1MB", "--largest-batch"]
    options += ["--layers", "2", "--width", "32", "--seq", "16", "--vocab", "50", "--steps", "1", "--attempts", "1"]
    out = tmp_path / "run"
    (rank,) = run_warm(1, "-m", "overlaplab_engine", "--out", str(out), "--link", "1Gbps,100us,4", *options)
    assert rank.code == 0, rank.stderr
    told = json.loads((out / "run.json").read_bytes())
    assert told["phantom_ranks"] == [1, 2, 3]
    assert f"largest batch within 1 MB is {told['model']['batch']} per rank" in rank.stderr
    assert {row["way"] for row in copies(overlaplab.load_run(out)).to_dict("records")} == {"up", "down"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"largest_batch": True}, "--largest-batch is for --memory-limit SIZE"),
        ({"memory_limit": Bytes(1), "strategy": "parameter-server", "asynchronous": True}, "--memory-limit goes"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, object], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        Config(**{"strategy": "naive", "out": Path("nowhere")} | options)


found = scenario.found


@pytest.mark.parametrize(("found", "name"), [*scenario.on(2)], indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
