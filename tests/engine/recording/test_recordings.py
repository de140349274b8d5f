"""What recordings hold: the traces' labels, run.json, several machines."""

import gzip
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from overlaplab_engine.config import Config
from overlaplab_engine.labels import Word
from overlaplab_engine.recording.manifest import _settings
from overlaplab_engine.strategies import class_of
from overlaplab_engine.strategy_names import StrategyName
from ranks.label_texts import parse
from ranks.warm_ranks import WarmProcess, run_warm

import overlaplab
from overlaplab.analyses import delays
from overlaplab.ports import free_port
from overlaplab.traits import TRAITS

SMALL = [
    *("--device", "cpu", "--layers", "2", "--width", "64", "--seq", "16", "--vocab", "100", "--batch", "2"),
    *("--steps", "2", "--warmup", "2", "--bucket-cap-mb", "0.1"),
]
LINK = ["--link", "0.1Gbps,500us", "--attempts", "1"]
RECORDINGS = {
    "naive": ["--strategy", "naive", *LINK],
    "per-param": ["--strategy", "per-param", *LINK],
    "bucketed": ["--strategy", "bucketed", *LINK, "--accumulate", "2"],
    "torch-ddp": ["--strategy", "torch-ddp", *LINK],
    "bucketed without a link": ["--strategy", "bucketed"],
}
PARAMETERS = 2 + 2 * 12 + 3


def record(out: Path, *options: str, ranks: int = 2, entry: tuple[str, ...] = ("-m", "overlaplab_engine")) -> None:
    """Each rank keeps silent; what the command says, and how it starts ranks, other tests see (test_faults.py)."""
    for rank in run_warm(ranks, *entry, "--out", str(out), *SMALL, *options):
        said = re.sub(r"overlaplab record: the link .* was attained in \d of \d steps; .*\n", "", rank.stderr)
        assert (rank.code, said) == (0, "")  # how busy the machine is does not matter here
        assert rank.stdout == "" or torch.__version__.startswith("2.9.")  # whose gloo greets there


class Recording:
    """A run directory, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = json.loads((path / "run.json").read_text())
        documents = {
            int(p.name[4 : p.name.index(".")]): json.loads(gzip.decompress(p.read_bytes()))
            for p in path.glob("rank*.pt.trace.json.gz")
        }
        self.traces = {rank: document["traceEvents"] for rank, document in documents.items()}
        self.zero_ns = next(iter(documents.values())).get("baseTimeNanoseconds", 0)

    def steps(self, rank: int) -> list[list[dict[str, Any]]]:
        """The labels of each recorded step, in order of time, parsed."""
        events = sorted((e for e in self.traces[rank] if e.get("ph") == "X"), key=lambda e: e["ts"])
        starts = [e["ts"] for e in events if e["name"].startswith("ProfilerStep#")] + [float("inf")]
        found: list[list[dict[str, Any]]] = [[] for _ in starts[:-1]]
        for e in events:
            if e["name"].startswith("engine::"):
                word, values = parse(e["name"])
                step = sum(start <= e["ts"] for start in starts) - 1
                found[step].append({"word": word, "ts": e["ts"], "end": e["ts"] + e["dur"], "tid": e["tid"], **values})
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """The recording of this name, made when it is first asked for."""

    @cache
    def made(name: str) -> Recording:
        out = tmp_path_factory.mktemp("recordings") / "run"
        record(out, *RECORDINGS[name])
        return Recording(out)

    return made


OFTEN = ("bucketed", "torch-ddp")
"""What the others of RECORDINGS leave is much the same."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in RECORDINGS]
)
def recording(request: pytest.FixtureRequest, recorded: Callable[[str], Recording]) -> Recording:
    return recorded(request.param)


def each_step(recording: Recording) -> list[dict[Word, list[dict[str, Any]]]]:
    """The labels of every rank's every step, by word."""
    return [
        {word: [label for label in step if label["word"] is word] for word in Word}
        for rank in (0, 1)
        for step in recording.steps(rank)
    ]


def test_a_run_holds_a_trace_per_rank_and_a_manifest(recording: Recording) -> None:
    assert sorted(p.name for p in recording.path.iterdir()) == [
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
        "run.json",
    ]
    for rank in (0, 1):
        names = [e["name"] for e in recording.traces[rank] if e["name"].startswith("ProfilerStep#")]
        assert names == ["ProfilerStep#2", "ProfilerStep#3"]


def test_each_microbatch_has_its_passes(recording: Recording) -> None:
    accumulate = recording.manifest["accumulate"]
    for labels in each_step(recording):
        assert [x["microbatch"] for x in labels[Word.FORWARD]] == [str(m) for m in range(accumulate)]
        assert [x["sync"] for x in labels[Word.BACKWARD]] == ["0"] * (accumulate - 1) + ["1"]
        assert len(labels[Word.OPTIMIZER]) == 1
        assert labels[Word.OPTIMIZER][0]["ts"] >= labels[Word.BACKWARD][-1]["end"]


def test_every_gradient_is_labelled_once_in_each_backward_pass(recording: Recording) -> None:
    names = {p["name"] for p in recording.manifest["parameters"]}
    assert len(names) == PARAMETERS
    for labels in each_step(recording):
        for backward in labels[Word.BACKWARD]:
            inside = [x for x in labels[Word.GRADIENT_READY] if backward["ts"] <= x["ts"] < backward["end"]]
            assert Counter(x["parameter"] for x in inside) == dict.fromkeys(names, 1)


def test_buckets_are_ready_launched_and_done_in_order(recording: Recording) -> None:
    buckets = recording.manifest["buckets"]
    sizes = {p["name"]: p["bytes"] for p in recording.manifest["parameters"]}
    assert Counter(n for b in buckets for n in b["parameters"]) == dict.fromkeys(sizes, 1)
    naive = recording.manifest["strategy"] == "naive"
    for labels in each_step(recording):
        ready = {x["bucket"]: x for x in labels[Word.BUCKET_READY]}
        launch = [x["bucket"] for x in labels[Word.BUCKET_LAUNCH]]
        assert launch == [x["bucket"] for x in labels[Word.BUCKET_DONE]] == [str(b["index"]) for b in buckets]
        last = {x["parameter"]: x for x in labels[Word.GRADIENT_READY]}
        backward = labels[Word.BACKWARD][-1]
        for bucket, launched, done in zip(buckets, labels[Word.BUCKET_LAUNCH], labels[Word.BUCKET_DONE], strict=True):
            mark = ready[str(bucket["index"])]
            assert mark["parameters"] == bucket["parameters"]
            assert int(mark["bytes"]) == bucket["bytes"] == sum(sizes[n] for n in bucket["parameters"])
            assert max(last[n]["ts"] for n in bucket["parameters"]) <= mark["ts"] <= launched["ts"] < done["ts"]
            assert (launched["ts"] >= backward["end"]) == naive
        if not naive:
            assert all(x["end"] <= backward["end"] for x in labels[Word.BUCKET_LAUNCH])


def test_the_kernel_tells_how_long_computation_ran_and_waited(recording: Recording) -> None:
    """At the borders of units, passes, gradients and waits; on a machine whose kernel counts."""
    assert recording.manifest["processor_counts"] is Path("/proc/thread-self/schedstat").exists()
    if not recording.manifest["processor_counts"]:
        return
    units = {u["name"] for u in recording.manifest["units"]}
    passes = recording.manifest["accumulate"]
    for labels in each_step(recording):
        counts = labels[Word.PROCESSOR]
        told = Counter((x["unit"], x["phase"]) for x in counts if "unit" in x)
        assert {unit for unit, _ in told} == units
        assert all(told[unit, "forward"] == passes for unit in units - {"embedding", "head"})
        assert sum(n for (_, phase), n in told.items() if phase == "backward") == passes * PARAMETERS
        for one, next_ in pairwise(counts):
            assert one["ts"] <= next_["ts"]
            assert int(one["ran_ns"]) <= int(next_["ran_ns"])
            assert int(one["delayed_ns"]) <= int(next_["delayed_ns"])
        ran = int(counts[-1]["ran_ns"]) - int(counts[0]["ran_ns"])
        assert 0 < ran <= 1e3 * (counts[-1]["ts"] - counts[0]["ts"]) + 20_000_000  # counted at ticks of the clock
    run = overlaplab.load_run(recording.path)
    table = overlaplab.summary(run)
    assert table["preempted_ns"].notna().all()
    assert (table["preempted_ns"] <= delays(run).groupby(["rank", "step"])["delayed_ns"].sum().to_numpy()).all()


def test_units_are_labelled_in_every_strategy(recording: Recording) -> None:
    """Forward, backward, and their updates; gradients arrive between a unit's borders."""
    unit_of = {p["name"]: p["unit"] for p in recording.manifest["parameters"]}
    units = ["embedding", "layers.0", "layers.1", "head"]
    passes = range(recording.manifest["accumulate"])
    wanted = [
        (edge, unit, phase, str(m))
        for m in passes
        for phase, order in (("forward", units), ("backward", units[::-1]))
        for unit in order
        for edge in (Word.FIRST_USE, Word.LAST_USE)
    ]
    for rank in (0, 1):
        for step in recording.steps(rank):
            uses = [x for x in step if x["word"] in (Word.FIRST_USE, Word.LAST_USE)]
            assert [(x["word"], x["unit"], x["phase"], x["microbatch"]) for x in uses] == wanted
            inside = ""
            for x in step:
                if x["word"] is Word.FIRST_USE:
                    inside = x["unit"]
                elif x["word"] is Word.GRADIENT_READY:
                    assert unit_of[x["parameter"]] == inside
            optimizer = next(x for x in step if x["word"] is Word.OPTIMIZER)
            updates = [x for x in step if x["word"] is Word.UPDATE]
            assert {x["unit"] for x in updates} == {*units}
            assert all(optimizer["ts"] <= x["ts"] <= x["end"] <= optimizer["end"] for x in updates)


def test_before_the_first_step_units_links_and_the_machine_are_measured(recording: Recording) -> None:
    told = recording.manifest["calibration"]
    assert [unit["name"] for unit in told["units"]] == ["embedding", "layers.0", "layers.1", "head"]
    assert all(unit[f"{phase}_ns"] > 0 for unit in told["units"] for phase in ("forward", "backward", "update"))
    kinds = ("all_gather", "all_reduce", "reduce_scatter")
    sizes = sorted({row["bytes"] for row in told["collectives"]})
    assert len(sizes) == 5
    assert sizes[-1] >= 0.99 * max(bucket["bytes"] for bucket in recording.manifest["buckets"])
    assert sorted((row["kind"], row["bytes"]) for row in told["collectives"]) == sorted(
        (kind, size) for kind in kinds for size in sizes
    )
    assert all(len(row["took_ns"]) == 5 and min(row["took_ns"]) > 0 for row in told["collectives"])
    assert all(len(row["used_ns"]) == 5 and min(row["used_ns"]) > 0 for row in told["collectives"])
    assert all(ns > 0 for of_rank in told["probe_ns"] for ns in of_rank)
    rows = recording.manifest["machine"]
    assert [(row["rank"], row["step"]) for row in rows] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert all(row["took_ns"] >= row["ran_ns"] - 20_000_000 for row in rows if row["ran_ns"] is not None)


def test_waiting_is_labelled(recording: Recording) -> None:
    for labels in each_step(recording):
        if recording.manifest["strategy"] == "torch-ddp":  # it waits inside its own backward pass
            assert labels[Word.WAIT] == []
            continue
        assert labels[Word.WAIT][0]["ts"] >= labels[Word.BACKWARD][-1]["end"]
        assert labels[Word.WAIT][-1]["end"] <= labels[Word.OPTIMIZER][0]["ts"]


def test_every_collective_of_the_link_is_labelled_and_listed(recording: Recording) -> None:
    table = recording.manifest["collectives"]
    if recording.manifest["link"] is None:
        assert table is None
        assert recording.manifest["link_attained"] is None
        assert all(not x[Word.COMM] and not x[Word.LAUNCH] for x in each_step(recording))
        for trace in recording.traces.values():  # gloo says itself what it does
            done = [e for e in trace if e["name"] == "gloo:all_reduce" and e["ph"] == "X"]
            assert len(done) == 2 * len(recording.manifest["buckets"])
        return
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    for rank in (0, 1):
        labels = [x for step in recording.steps(rank) for x in step]
        launches = {x["seq"]: x | {"took": x["end"] - x["ts"]} for x in labels if x["word"] is Word.LAUNCH}
        zero = recording.zero_ns
        comms = [x for x in labels if x["word"] is Word.COMM]
        mine = [row for row in rows if row["rank"] == rank]
        assert [int(x["seq"]) for x in comms] == [row["seq"] for row in mine] == [int(s) for s in launches]
        main = {x["tid"] for x in labels if x["word"] is Word.FORWARD}
        assert len({x["tid"] for x in comms} | main) == 2
        for x, row in zip(comms, mine, strict=True):
            assert launches[x["seq"]]["ts"] <= x["ts"]
            assert (x["kind"], int(x["bytes"]), int(x["modelled_ns"])) == (
                row["kind"],
                row["bytes"],
                row["modelled_ns"],
            )
            assert (x["link"], x["group"]) == ("0.1Gbps,500us", "0")
            assert row["modelled_ns"] == 1_000_000 + 80 * row["bytes"]  # two ranks: 2α + bytes ÷ bandwidth
            assert row["modelled_ns"] <= row["occupied_ns"]
            assert row["overran"] == (row["occupied_ns"] > 1.05 * row["modelled_ns"])
            assert (x["end"] - launches[x["seq"]]["ts"]) * 1e3 >= row["modelled_ns"] - 1000
            queued_ns = zero + launches[x["seq"]]["ts"] * 1e3
            assert abs(row["queued_ns"] - queued_ns) <= 1e3 * launches[x["seq"]]["took"] + 200_000  # of one clock
            assert row["queued_ns"] <= row["arrived_ns"]
            assert 0 <= row["moved_ns"] <= row["occupied_ns"]
            assert zero + x["end"] * 1e3 >= row["arrived_ns"] + row["modelled_ns"] - 200_000
        other = [row for row in rows if row["rank"] != rank]
        assert [row["arrived_ns"] for row in mine] == [row["arrived_ns"] for row in other]  # the last rank's
        for one, next_ in pairwise(comms):
            assert one["end"] <= next_["ts"]
        by_step = [[int(x["seq"]) for x in step if x["word"] is Word.LAUNCH] for step in recording.steps(rank)]
        assert by_step == [[row["seq"] for row in mine if row["step"] == step] for step in (2, 3)]
    steps = recording.manifest["link_steps"]
    assert [(row["rank"], row["step"]) for row in steps] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    for row in steps:
        own = [r for r in rows if (r["rank"], r["step"]) == (row["rank"], row["step"])]
        late = [r["occupied_ns"] - r["modelled_ns"] for r in own]
        assert (row["modelled_ns"], row["occupied_ns"]) == (
            sum(r["modelled_ns"] for r in own),
            sum(r["occupied_ns"] for r in own),
        )
        assert row["latest_ns"] == max(late)
        assert row["attained"] == (
            row["occupied_ns"] <= 1.05 * row["modelled_ns"] and max(late) <= 0.1 * row["took_ns"]
        )
    assert recording.manifest["link_attained"] is all(row["attained"] for row in steps)


def test_the_manifest_says_what_was_recorded(recording: Recording) -> None:
    m = recording.manifest
    assert m["format_version"] == 1
    buckets = m["strategy"] in ("bucketed", "torch-ddp")
    assert m["traits"] == json.loads(json.dumps(asdict(TRAITS[m["strategy"]])))
    assert (m["bucket_cap_mb"], m["prefetch"], m["overlap_param_gather"]) == (0.1 if buckets else None, None, None)
    assert (m["device"], m["backend"], m["world_size"], m["steps"], m["warmup"]) == ("cpu", "gloo", 2, 2, 2)
    assert m["model"] == {
        "layers": 2,
        "width": 64,
        "heads": 4,
        "seq": 16,
        "vocab": 100,
        "tied": False,
        "batch": 2,
        "dtype": "float32",
        "parameters": 113_920,
    }
    if m["link"] is not None:
        assert m["link"] == {"emulated": True, "bandwidth_gbps": 0.1, "latency_us": 500.0, "world_size": 2}
    assert m["communicators"] == 1
    assert m["command"].startswith("overlaplab record ")
    assert [u["name"] for u in m["units"]] == ["embedding", "layers.0", "layers.1", "head"]
    assert sum(u["bytes"] for u in m["units"]) == sum(p["bytes"] for p in m["parameters"])
    assert {"torch", "cuda", "overlaplab"} == set(m["versions"])
    assert m["started_at"].endswith("+00:00")
    assert m["trace_ranks"] is m["link_wait"] is None
    here = {"hostname": platform.node(), **m["hardware"], "gpu_memory_bytes": None}
    assert m["hardware_per_rank"] == [here, here]
    assert (here["cores"], here["gpu"]) == (os.cpu_count(), None)


DDP_ORACLE = """
import json, sys, overlaplab_engine.train
told = sys.argv.pop(1)
from overlaplab_engine.cli import main
build = overlaplab_engine.train.build
def noting(config, comm):
    built = build(config, comm)
    noting.strategy = built[0]
    return built
overlaplab_engine.train.build = noting
manifest = overlaplab_engine.train.manifest
def asking(config, comm, strategy, *more, **named):
    names = [n for n, p in strategy.model.named_parameters() if p.requires_grad]
    indices = strategy._ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    with open(told, "w") as file:
        json.dump([[names[int(i)] for i in bucket.split()] for bucket in indices.split(",") if bucket.strip()], file)
    return manifest(config, comm, strategy, *more, **named)
overlaplab_engine.train.manifest = asking
sys.exit(main(sys.argv[1:]))
"""


CAPS = [("bucketed", 1, 2.0, 1.0), ("pipeline", 1, 2.0, 1.0), ("pipeline", 0, None, None), ("zero3", 0, None, None)]


@pytest.mark.parametrize(("name", "buckets", "cap", "first"), CAPS)
def test_caps_are_those_of_buckets(
    name: StrategyName, buckets: int, cap: float | None, first: float | None, tmp_path: Path
) -> None:
    """A pipeline has some where it averages over replicas; other strategies without the trait have none."""
    strategy = SimpleNamespace(
        traits=class_of(name).traits, buckets=[(8, ["a"])] * buckets, stages=None, keeps_last=None, comm=None
    )
    settings = _settings(Config(out=tmp_path, strategy=name, bucket_cap_mb=2.0, first_bucket_mb=1.0), strategy)
    assert (settings["bucket_cap_mb"], settings["first_bucket_mb"]) == (cap, first)


def test_torch_ddps_buckets_are_those_that_ddp_reports(tmp_path: Path, recorded: Callable[[str], Recording]) -> None:
    """The names in the trace's labels, in order, and what our own `bucketed` sends with the same cap."""
    script = tmp_path / "oracle.py"
    script.write_text(DDP_ORACLE)
    record(tmp_path / "ddp", "--strategy", "torch-ddp", entry=(str(script), str(tmp_path / "told.json")))
    told = json.loads((tmp_path / "told.json").read_text())
    assert len(told) > 2

    def buckets(recording: Recording) -> Iterator[list[list[str]]]:
        for labels in each_step(recording):
            in_launch_order = sorted(labels[Word.BUCKET_READY], key=lambda x: int(x["bucket"]))
            yield [x["parameters"] for x in in_launch_order]

    for names in buckets(Recording(tmp_path / "ddp")):
        assert names == told
    for names in buckets(recorded("bucketed without a link")):
        assert [sorted(bucket) for bucket in names] == [sorted(bucket) for bucket in told]


@pytest.mark.slow
def test_two_machines_record_one_run(tmp_path: Path) -> None:
    """Two torchrun launchers that meet by torchrun's own rendezvous."""
    port = free_port()
    launchers = [
        WarmProcess(
            [
                *("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"),
                *("-m", "overlaplab_engine", "--strategy", "bucketed", "--out", str(tmp_path / "run"), *SMALL),
            ],
            {},
        )
        for _ in range(2)
    ]
    try:
        for launcher in launchers:
            _, stderr = launcher.communicate(timeout=250)
            assert launcher.returncode == 0, stderr
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.communicate()
    recording = Recording(tmp_path / "run")
    assert set(recording.traces) == {0, 1}
    assert recording.manifest["world_size"] == 2


def test_only_the_ranks_that_are_asked_for_leave_a_trace(tmp_path: Path) -> None:
    record(tmp_path / "run", "--strategy", "bucketed", *LINK, "--trace-ranks", "1")
    recording = Recording(tmp_path / "run")
    assert set(recording.traces) == {1}
    assert len(recording.steps(1)) == 2
    assert recording.manifest["trace_ranks"] == [1]
    assert set(recording.manifest["collectives"]["rank"]) == {0, 1}
    assert len(recording.manifest["memory"]) == len(recording.manifest["hardware_per_rank"]) == 2
    assert overlaplab.load_run(tmp_path / "run").warnings == (
        "1 of 2 ranks was recorded without a trace (--trace-ranks)",
    )


@pytest.mark.slow
def test_world_size_1_and_no_trace(tmp_path: Path) -> None:
    record(tmp_path / "one", "--strategy", "bucketed", *LINK, "--dtype", "bfloat16", "--main-grad", ranks=1)
    recording = Recording(tmp_path / "one")
    assert set(recording.traces) == {0}
    assert set(recording.manifest["collectives"]["modelled_ns"]) == {0}
    assert recording.manifest["link_attained"] is True
    record(tmp_path / "none", "--strategy", "naive", "--no-trace", ranks=1)
    assert not (tmp_path / "none").exists()
    assert os.listdir(tmp_path) == ["one"]
