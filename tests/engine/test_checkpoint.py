"""Checkpoints on real gloo processes: a run resumed is bit for bit the one never stopped, whoever saved, whoever loads.

Each script run of this file is one rank; each scenario is a test.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.checkpoint import load_sharded, save_sharded
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import MOMENTS, AdamW
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import train_step
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import BATCHES, SHARDED, Branches, transformer
from ranks.full_states import full_state
from ranks.warm_ranks import run_launcher, run_warm
from torch.distributed.checkpoint.filesystem import FileSystemWriter

scenario = Scenarios(__file__)
NAIVE, BUCKETED, ZERO1, ZERO2, ZERO3 = (StrategyName(n) for n in ("naive", "bucketed", "zero1", "zero2", "zero3"))
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "main_grad": torch.bfloat16, "float64": torch.float64}


class Uneven(Branches):
    """a is always used; b too, but its weight is frozen; c is used in steps 2 to 5, d never; the mean shifts inputs."""

    def __init__(self) -> None:
        super().__init__("b.weight")
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x - self.mean, "abc"[: int(count)])
        self.mean.mul_(0.5).add_(x.detach().mean(0))
        return loss


class Inputs:
    """Of `Uneven`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def rank_batch(self, step: int, microbatch: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        seed = 100 * step + 10 * microbatch + rank
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return x.to(self.dtype), torch.tensor(3 if 2 <= step < 6 else 2)


class Run:
    """A strategy around a model and its optimizer; `fresh`: with other values than a run begins with."""

    def __init__(
        self,
        comm: Communicator,
        name: str,
        case: str = "float32",
        *,
        model: torch.nn.Module | None = None,
        inputs: Any = None,
        fresh: bool = False,
        cap: float = 0.0002,
        accumulate: int = 1,
    ) -> None:
        self.accumulate = accumulate
        dtype = TYPES[case]
        model = (Uneven() if model is None else model).to(dtype)
        if fresh:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.fill_(0.5)
        options = Options(bucket_cap_mb=cap, main_grad=case == "main_grad")
        self.strategy: Strategy
        if name == StrategyName.TORCH_DDP:
            self.strategy = TorchDDP(model, comm, options, find_unused=True)
        else:
            self.strategy = make(StrategyName(name), model, comm, options)
        self.optimizer = AdamW(self.strategy.optimized(), lr=1e-2)
        self.inputs = Inputs(dtype) if inputs is None else inputs

    def steps(self, begin: int, end: int) -> list[list[float]]:
        """All ranks' losses, on all ranks: they must agree on what is amiss."""
        losses = [
            float(
                train_step(self.strategy, self.optimizer, self.inputs, step, accumulate=self.accumulate, clip_norm=0.5)
            )
            for step in range(begin, end)
        ]
        return list(zip(*self.strategy.comm.gather_objects(losses), strict=True))

    def state(self, step: int = 8) -> dict[str, Any] | None:
        return full_state(self.strategy, self.optimizer, step)

    def has(self, state: dict[str, Any] | None, step: int = 8) -> None:
        """Everything is equal to the last bit, by rank 0's judgement."""
        mine = self.state(step)
        wrong = [] if mine is None or state is None else list(differences(mine, state))
        wrong = self.strategy.comm.broadcast_object(wrong)
        assert not wrong, str(wrong)


def differences(got: dict[str, Any], want: dict[str, Any]) -> Iterator[str]:
    """The difference of two full states, whatever the order of their buckets."""
    for kind in (got.keys() | want.keys()) - {"order"}:
        if not isinstance(want[kind], dict) or kind == "updates":
            if got[kind] != want[kind]:
                yield f"{kind}: {got[kind]} for {want[kind]}"
            continue
        if got[kind].keys() != want[kind].keys():
            yield f"{kind} of {sorted(got[kind])} for {sorted(want[kind])}"
            continue
        for name, tensor in want[kind].items():
            if got[kind][name].dtype != tensor.dtype or not torch.equal(got[kind][name], tensor):
                yield f"{kind} of {name}"


def folder(name: str) -> Path:
    """Empty, the same on all ranks, and another for each scenario."""
    return Path(sys.argv[1]).parent / name


groups: dict[int, Communicator | None] = {}


def first(comm: Communicator, count: int) -> Communicator | None:
    """The first so many ranks as a world of their own; None on the others."""
    if count > comm.world_size:
        return None
    if count not in groups:
        group = dist.new_group(list(range(count)))
        groups[count] = Communicator(group, comm.device) if comm.rank < count else None
    return comm if count == comm.world_size else groups[count]


# A run goes on


CASES = ("float32 on 1", "float32 on 2", "float32 on 3", "bfloat16 on 2", "main_grad on 3")

AGAIN = (
    r"resume\[(zero1 (float32 on [12]|main_grad)|zero2 (float32|bfloat16)|zero3 float32 on [23]"
    r"|(naive|per-param) )|resume_a_transformer\[zero[12]|hand_on\[main_grad"
)
"""What repeats others: zero1 and zero2 are saved by the same code, and parameters that are whole by one, too."""
LINKED = r"behind_a_link"
"""What two ranks behind a link do, and three without one by hand only."""


@scenario(
    *(f"{name} {case}" for name in SHARDED for case in CASES),
    *(f"{name} main_grad on 3" for name in ("naive", "per-param", "bucketed")),
    "torch-ddp float32 on 3",
)
def resume(comm: Communicator, name: str) -> None:
    """Never stopped; saved and gone on; loaded."""
    strategy, case, _, n = name.split()
    world = first(comm, int(n))
    if world is None:
        return
    never_stopped = Run(world, strategy, case)
    want = never_stopped.steps(0, 8)
    saved = Run(world, strategy, case)
    assert saved.steps(0, 4) == want[:4]
    path = folder(f"resume {name}")
    save_sharded(path, saved.strategy, saved.optimizer, 4)
    assert saved.steps(4, 8) == want[4:]
    end = never_stopped.state()
    loaded = Run(world, strategy, case, fresh=True)
    loaded.steps(7, 8)  # it may have trained before
    assert load_sharded(path, loaded.strategy, loaded.optimizer) == 4
    assert loaded.steps(4, 8) == want[4:]
    loaded.has(end)


@scenario(*SHARDED, "bucketed")
def resume_a_transformer(comm: Communicator, name: str) -> None:
    """Tied, with activation checkpointing; `bucketed` so that its buckets' order decides the last bits."""

    def run(fresh: bool = False) -> Run:
        model = transformer() if name == BUCKETED else transformer(tied=True, checkpointing=True)
        return Run(comm, name, model=model, inputs=BATCHES, fresh=fresh, cap=0.004, accumulate=2)

    never_stopped = run()
    want = never_stopped.steps(0, 4)
    saved = run()
    saved.steps(0, 2)
    save_sharded(folder(f"transformer {name}"), saved.strategy, saved.optimizer, 2)
    loaded = run(fresh=True)
    load_sharded(folder(f"transformer {name}"), loaded.strategy, loaded.optimizer)
    assert loaded.steps(2, 4) == want[2:]
    loaded.has(never_stopped.state(4), 4)


@scenario(*SHARDED)
def behind_a_link(comm: Communicator, name: str) -> None:
    run = Run(comm, name)
    run.steps(0, 2)
    save_sharded(folder(f"link {name}"), run.strategy, run.optimizer, 2)
    state = run.state(2)
    want = run.steps(2, 4)
    loaded = Run(comm, name, fresh=True)
    assert load_sharded(folder(f"link {name}"), loaded.strategy, loaded.optimizer) == 2
    loaded.has(state, 2)
    assert loaded.steps(2, 4) == want


@scenario()
def before_the_first_step(comm: Communicator) -> None:
    for name in (BUCKETED, ZERO2, ZERO3):
        run = Run(comm, name, "bfloat16")
        save_sharded(folder(f"begin {name}"), run.strategy, run.optimizer, 0)
        loaded = Run(comm, name, "bfloat16", fresh=True)
        assert load_sharded(folder(f"begin {name}"), loaded.strategy, loaded.optimizer) == 0
        assert loaded.steps(0, 3) == run.steps(0, 3)
        loaded.has(run.state())


@scenario()
def an_empty_buffer(comm: Communicator) -> None:
    """Such as a cache that nothing has filled."""

    def run(fresh: bool = False) -> Run:
        model = Uneven()
        model.register_buffer("cache", torch.empty(0))
        return Run(comm, BUCKETED, model=model, fresh=fresh)

    saved = run()
    saved.steps(0, 2)
    save_sharded(folder("empty"), saved.strategy, saved.optimizer, 2)
    loaded = run(fresh=True)
    assert load_sharded(folder("empty"), loaded.strategy, loaded.optimizer) == 2
    loaded.has(saved.state(2), 2)


# Others go on


@scenario("float32", "main_grad")
def hand_on(comm: Communicator, case: str) -> None:
    """From one strategy and world size to the next: each has the state of the one before."""
    first_run = Run(comm, BUCKETED, case)
    first_run.steps(0, 5)
    state = first_run.state(5)
    path = folder(f"hand {case} 0")
    save_sharded(path, first_run.strategy, first_run.optimizer, 5)
    chain = [
        (ZERO3, 2),
        (ZERO3, 3),
        (ZERO1, 1),
        (ZERO2, 3),
        (ZERO1, 2),
        (ZERO3, 1),
        (NAIVE, 3),
        (ZERO2, 2),
        (BUCKETED, 1),
    ]
    for number, (strategy, n) in enumerate(chain, 1):
        world = first(comm, n)
        if world is not None:
            run = Run(world, strategy, case, fresh=True, cap=0.0002 * number)
            assert load_sharded(path, run.strategy, run.optimizer) == 5
            run.has(state, 5)
            path = folder(f"hand {case} {number}")
            save_sharded(path, run.strategy, run.optimizer, 5)
        comm.barrier()
        path = folder(f"hand {case} {number}")


@scenario()
def training_handed_on(comm: Communicator) -> None:
    want = Run(comm, NAIVE, "float64")
    losses = want.steps(0, 8)
    got: list[list[float]] = []
    for number, name in enumerate((BUCKETED, ZERO3, ZERO1, ZERO2)):
        run = Run(comm, name, "float64", fresh=number > 0)
        if number:
            assert load_sharded(folder(f"training {number}"), run.strategy, run.optimizer) == 2 * number
        got += run.steps(2 * number, 2 * number + 2)
        save_sharded(folder(f"training {number + 1}"), run.strategy, run.optimizer, 2 * number + 2)
    assert torch.allclose(torch.tensor(got, dtype=torch.float64), torch.tensor(losses, dtype=torch.float64), rtol=1e-12)
    parameters = want.strategy.full_parameters()
    for name, tensor in run.strategy.full_parameters().items():
        assert torch.allclose(tensor, parameters[name], rtol=0, atol=1e-12), name


@scenario(*SHARDED, "naive")
def what_a_full_state_holds(comm: Communicator, name: str) -> None:
    run = Run(comm, name, "bfloat16")
    run.steps(0, 4)
    state = run.state(4)
    parameters = {n: t.clone() for n, t in run.strategy.full_parameters().items()}
    run.steps(4, 5)  # which must not change what was returned
    if comm.rank:
        assert state is None
        return
    assert state is not None
    trained = {f"maps.{m}.{p}" for m in "abcd" for p in ("weight", "bias")} - {"maps.b.weight"}
    assert state["step"] == 4
    assert state["updates"] == {n: 2 if ".c." in n else 4 for n in trained if ".d." not in n}
    assert state["parameters"].keys() == trained | {"maps.b.weight"}
    assert state["masters"].keys() == trained
    assert state["exp_avg"].keys() == state["exp_avg_sq"].keys() == state["updates"].keys()
    assert state["buffers"].keys() == {"mean"}
    for n, tensor in state["parameters"].items():
        assert torch.equal(tensor, parameters[n])
        if n in trained:
            assert state["masters"][n].dtype == torch.float32
            assert torch.equal(state["masters"][n].bfloat16(), tensor)


# Mutants


def forget(kind: str) -> Callable[[AdamW], None]:
    """An optimizer that forgets what it should restore."""

    def patch(optimizer: AdamW) -> None:
        restore = optimizer.restore

        def mutant(parameter: torch.Tensor, state: dict[str, torch.Tensor], updates: int) -> None:
            if kind == "masters":
                state = state | {"masters": parameter.detach().float()}
            if kind in MOMENTS and kind in state:
                state = state | {kind: torch.zeros_like(state[kind])}
            restore(parameter, state, updates if kind != "updates" else min(updates, 1))

        optimizer.restore = mutant  # type: ignore[method-assign]

    return patch


@scenario(ZERO1, ZERO3)
def mutants(comm: Communicator, name: StrategyName) -> None:
    """Losses must show that something was not restored."""
    for case, kinds in (("float32", (*MOMENTS, "updates")), ("bfloat16", ("masters",))):
        saved = Run(comm, name, case)
        saved.steps(0, 4)
        path = folder(f"mutants {name} {case}")
        save_sharded(path, saved.strategy, saved.optimizer, 4)
        want = saved.steps(4, 7)
        for kind in kinds:
            loaded = Run(comm, name, case)
            forget(kind)(loaded.optimizer)
            load_sharded(path, loaded.strategy, loaded.optimizer)
            assert loaded.steps(4, 7) != want, kind


@scenario(ZERO1, ZERO2)
def mutant_others_parts_are_old(comm: Communicator, name: StrategyName) -> None:
    """A load that leaves the other ranks' parts of the parameters as they were."""
    saved = Run(comm, name)
    saved.steps(0, 2)
    save_sharded(folder(f"stale {name}"), saved.strategy, saved.optimizer, 2)
    loaded = Run(comm, name, fresh=True)
    updated = loaded.strategy.updated
    loaded.strategy.updated = lambda: None  # type: ignore[method-assign]
    load_sharded(folder(f"stale {name}"), loaded.strategy, loaded.optimizer)
    loaded.strategy.updated = updated  # type: ignore[method-assign]
    assert loaded.steps(2, 3) != saved.steps(2, 3)


class Shuffled(Branches):
    """Gradients arrive in an order of its own, so that buckets of two maps hold other pairs at first than later."""

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return super().forward(x, "dbac")


@scenario()
def mutant_order_forgotten(comm: Communicator) -> None:
    """From 3 ranks on the order of the buckets decides the last bits."""
    runs = [Run(comm, BUCKETED, model=Shuffled()) for _ in range(2)]
    runs[0].steps(0, 2)
    save_sharded(folder("order"), runs[0].strategy, runs[0].optimizer, 2)
    if comm.rank == 0:
        document = json.loads((folder("order") / "checkpoint.json").read_text())
        assert sorted(document["order"]) == sorted(runs[0].strategy.names)
        (folder("order") / "checkpoint.json").write_text(json.dumps(document | {"order": None}))
    comm.barrier()
    load_sharded(folder("order"), runs[1].strategy, runs[1].optimizer)
    for run in runs:
        run.steps(2, 3)
    equal = [torch.equal(a, b) for a, b in zip(runs[0].strategy.parameters, runs[1].strategy.parameters, strict=True)]
    assert not all(equal)


# What is refused


@contextmanager
def unchanged_by_refusals(run: Run) -> Iterator[Callable[[Path, str], None]]:
    """Loads that must fail, on all ranks in the same words, and leave the run as it was."""

    def require_refusal(path: Path, message: str) -> None:
        with pytest.raises(EngineError) as raised:
            load_sharded(path, run.strategy, run.optimizer)
        told = str(raised.value)
        assert message in told.replace(str(path), "PATH"), told
        assert "\n" not in told
        assert set(run.strategy.comm.gather_objects(told)) == {told}

    before = run.state()
    yield require_refusal
    run.has(before)


FITS_NOT = "resume with the model options that it was saved with"


def damaged(path: Path, name: str) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(path, path.with_name(f"{path.name} {name}")))


@scenario()
def damaged_and_foreign_checkpoints(comm: Communicator) -> None:
    run = Run(comm, ZERO3)
    run.steps(0, 3)
    path = folder("whole")
    save_sharded(path, run.strategy, run.optimizer, 3)
    if comm.rank == 0:
        (damaged(path, "no header") / "checkpoint.json").unlink()
        (damaged(path, "header cut") / "checkpoint.json").write_text("{")
        (damaged(path, "metadata cut") / ".metadata").write_bytes(b"\x80")
        (damaged(path, "no metadata") / ".metadata").unlink()
        (damaged(path, "part missing") / "__0_0.distcp").unlink()
        part = damaged(path, "part cut") / "__0_0.distcp"
        part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
        document = json.loads((path / "checkpoint.json").read_text())
        newer = json.dumps(document | {"format_version": 2})
        (damaged(path, "newer") / "checkpoint.json").write_text(newer)
        document["tensors"]["exp_avg.maps.d.bias"] = document["tensors"]["exp_avg.maps.a.bias"]
        document["updates"]["maps.d.bias"] = 1
        (damaged(path, "mixed") / "checkpoint.json").write_text(json.dumps(document))
        document["tensors"]["exp_avg_sq.maps.d.bias"] = document["tensors"]["exp_avg.maps.a.bias"]
        (damaged(path, "mixed more") / "checkpoint.json").write_text(json.dumps(document))
    comm.barrier()
    with unchanged_by_refusals(run) as require_refusal:
        for name, message in {
            "no header": "PATH is not a complete checkpoint, checkpoint.json is missing; name one that --save wrote",
            "header cut": "PATH is damaged: JSONDecodeError",
            "metadata cut": "PATH is damaged: UnpicklingError",
            "no metadata": "PATH is damaged: FileNotFoundError",
            "part missing": "PATH is damaged: rank 0: FileNotFoundError",
            "part cut": "PATH is damaged: rank 0: ",
            "newer": "PATH is damaged: ValueError: format_version is 2, but only 1 can be read; resume from another",
            "mixed": f"PATH lacks the model's exp_avg_sq.maps.d.bias; {FITS_NOT}",
            "mixed more": "ValueError: its parts do not add up to exp_avg.maps.d.bias; resume from another",
        }.items():
            require_refusal(path.with_name(f"whole {name}"), message)
        require_refusal(path / ".metadata", "PATH does not exist; name a directory that --save wrote")


class Other(Uneven):
    """One map is wider."""

    def __init__(self) -> None:
        super().__init__()
        self.maps["a"] = torch.nn.Linear(6, 7, dtype=torch.float64)


class More(Uneven):
    """One parameter more."""

    def __init__(self) -> None:
        super().__init__()
        self.e = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))


@scenario()
def another_models_checkpoint(comm: Communicator) -> None:
    saved = Run(comm, ZERO2)
    path = folder("mine")
    save_sharded(path, saved.strategy, saved.optimizer, 3)
    shape = f"PATH has maps.a.weight [6, 6] float32, the model has [7, 6] float32; {FITS_NOT}"
    with unchanged_by_refusals(Run(comm, ZERO3, model=Other())) as require_refusal:
        require_refusal(path, shape)
    with unchanged_by_refusals(Run(comm, ZERO1, model=More())) as require_refusal:
        require_refusal(path, f"PATH lacks the model's e; {FITS_NOT}")
    with unchanged_by_refusals(Run(comm, NAIVE, "bfloat16")) as require_refusal:
        require_refusal(path, f"has maps.a.weight [6, 6] float32, the model has [6, 6] bfloat16; {FITS_NOT}")
    more = Run(comm, BUCKETED, model=More())
    save_sharded(path, more.strategy, more.optimizer, 3)
    with unchanged_by_refusals(saved) as require_refusal:
        require_refusal(path, f"PATH has e, which the model lacks; {FITS_NOT}")


@scenario()
def no_checkpoint_of_fsdp2(comm: Communicator) -> None:
    strategy = make(StrategyName.TORCH_FSDP2, transformer(), comm, Options())
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    for act in (lambda: full_state(strategy, optimizer, 0), lambda: load_sharded(folder("none"), strategy, optimizer)):
        with pytest.raises(EngineError, match=r"torch-fsdp2 has state dicts of its own: .*; use zero3"):
            act()


# Whole or absent


@scenario()
def saved_again_and_elsewhere(comm: Communicator) -> None:
    run = Run(comm, ZERO1)
    path = folder("there") / "not yet"
    for step in (1, 2):
        run.steps(step - 1, step)
        save_sharded(path, run.strategy, run.optimizer, step)
        assert load_sharded(path, run.strategy, run.optimizer) == step
        assert [p.name for p in path.parent.iterdir()] == ["not yet"]
    comm.barrier()
    if comm.rank == 0:
        folder("there").joinpath("notes").write_text("mine")
    comm.barrier()
    with pytest.raises(EngineError, match="there exists and is not a checkpoint; save to a new directory"):
        save_sharded(folder("there"), run.strategy, run.optimizer, 3)
    with pytest.raises(EngineError, match="notes/below cannot be written: FileExistsError"):
        save_sharded(folder("there") / "notes" / "below", run.strategy, run.optimizer, 3)
    assert folder("there").joinpath("notes").read_text() == "mine"


@scenario("write_data", "finish")
def a_save_that_fails(comm: Communicator, where: str) -> None:
    """On one rank, or at the very end: an older checkpoint stays as it was, and the next save comes through.

    It does also where a job was killed after the older one had made room for the newer one.
    """
    run = Run(comm, ZERO3)
    path = folder(f"fails {where}")
    save_sharded(path, run.strategy, run.optimizer, 1)
    if comm.rank == 0 and where == "write_data":
        path.rename(path.with_name(f".{path.name}.old"))
    comm.barrier()
    original = getattr(FileSystemWriter, where)
    if comm.rank == (0 if where == "finish" else comm.world_size - 1):

        def full_disk(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        setattr(FileSystemWriter, where, full_disk)
    try:
        run.steps(1, 2)
        with pytest.raises(EngineError, match=r"cannot be written: rank \d: OSError: .*No space left on device"):
            save_sharded(path, run.strategy, run.optimizer, 2)
    finally:
        setattr(FileSystemWriter, where, original)
    comm.barrier()
    assert not path.with_name(f".{path.name}.tmp").exists()
    assert load_sharded(path, run.strategy, run.optimizer) == 1
    save_sharded(path, run.strategy, run.optimizer, 2)
    assert load_sharded(path, run.strategy, run.optimizer) == 2


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [*scenario.on(3, f"^(?!{AGAIN}|{LINKED})"), *scenario.on(2, "link", link=True), *scenario.on(3, slow=True)],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


# The command line

SMALL = [
    *(
        "--device",
        "cpu",
        "--layers",
        "2",
        "--width",
        "32",
        "--heads",
        "2",
        "--seq",
        "8",
        "--vocab",
        "50",
        "--batch",
        "2",
    ),
    *("--warmup", "1", "--bucket-cap-mb", "0.02"),
]


def record(out: Path, *options: object) -> tuple[int | None, list[str]]:
    """By the command: exit code and the lines on stderr."""
    ended = run_launcher("-m", "overlaplab_engine", "--out", str(out), "--nproc", "2", *SMALL, *map(str, options))
    assert ended.stdout == ""
    return ended.code, ended.stderr.splitlines()


def record_warm(out: Path, *options: object) -> None:
    """By the ranks that the command would start."""
    for rank in run_warm(2, "-m", "overlaplab_engine", "--out", str(out), *SMALL, *map(str, options)):
        assert (rank.code, rank.stdout, rank.stderr) == (0, "", "")


def losses(out: Path) -> list[float]:
    found: list[float] = json.loads((out / "run.json").read_text())["losses"]
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of zero3 after 4 steps."""
    path = tmp_path_factory.mktemp("saved") / "checkpoint"
    options = ("--strategy", "zero3", "--steps", 3, "--save", path, "--link", "100Gbps,1us")
    record_warm(path.parent / "run", *options)
    return path


def test_the_command_line_resumes(checkpoint: Path, tmp_path: Path) -> None:
    record_warm(tmp_path / "whole", "--strategy", "zero3", "--steps", 7)
    whole = losses(tmp_path / "whole")
    assert losses(checkpoint.parent / "run") == whole[:3]
    resumed = tmp_path / "checkpoint"  # saved over what it was resumed from
    shutil.copytree(checkpoint, resumed)
    code, said = record(tmp_path / "run", "--strategy", "zero3", "--steps", 2, "--resume", resumed, "--save", resumed)
    assert (code, said) == (0, [f"overlaplab record: zero3, 2 steps on 2 ranks → {tmp_path / 'run'}"])
    assert losses(tmp_path / "run") == whole[4:6]
    assert json.loads((resumed / "checkpoint.json").read_text())["step"] == 7
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "run", "whole"]


def test_a_damaged_checkpoint_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    cut = Path(shutil.copytree(checkpoint, tmp_path / "cut"))
    (cut / "__1_0.distcp").write_bytes(b"")
    code, said = record(tmp_path / "run", "--strategy", "zero3", "--resume", cut)
    assert (code, len(said)) == (2, 1)
    assert f"{cut} is damaged: " in said[0]
    assert said[0].endswith("; resume from another")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume", "nowhere"), "nowhere does not exist; name a directory that --save wrote"),
        (
            ("--resume", "mine"),
            "mine is not a complete checkpoint, checkpoint.json is missing; name one that --save wrote",
        ),
        (("--save", "mine"), "mine exists and is not a checkpoint; save to a new directory"),
        (("--save", "mine/notes"), "mine/notes exists and is not a checkpoint; save to a new directory"),
        (("--save", "."), "--save . would replace --out run; name a directory of its own"),
        (("--save", "run"), "--save run would replace --out run; name a directory of its own"),
        (
            ("--strategy", "torch-fsdp2", "--save", "there"),
            "torch-fsdp2 has state dicts of its own: --save and --resume are not for it; use zero3",
        ),
    ],
)
def test_what_cannot_be_is_said_at_once(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from overlaplab_engine.cli import main

    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/notes").write_text("mine")
    assert main(["--strategy", "zero3", "--out", "run", "--nproc", "2", "--device", "cpu", *options]) == 2
    assert capsys.readouterr().err == f"overlaplab record: {message}\n"
    assert not Path("run").exists()


if __name__ == "__main__":
    scenario.main()
