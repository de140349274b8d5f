"""Recordings of meshes of several axes, and what the analyses make of them: groups by axis, waits, bytes, advice."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab import simulate
from overlaplab.analyses import communication_by, memory, pipeline_steps, volume, volume_theory
from overlaplab.causes import Cause
from overlaplab.errors import OverlaplabError
from overlaplab.findings.actions.words import Case, general_remedy
from overlaplab.findings.loops import loop_of
from overlaplab.findings.runs import describe_ranks
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting
from overlaplab.timeline.timeline import timeline_events

SMALL = (
    *("--device", "cpu", "--layers", "2", "--width", "16", "--heads", "2", "--seq", "8", "--vocab", "32"),
    *("--batch", "2", "--warmup", "2", "--steps", "2", "--attempts", "1", "--link", "0.02Gbps,300us"),
    *("--compute", "sleep:4ms,8ms,1ms"),
)
LAYERS, ACTIVATIONS = 2, 2 * 8 * 16 * 4


def recorded(out: Path, *options: str) -> overlaplab.Run:
    line = ["-m", "overlaplab_engine", *SMALL, *options, "--out", str(out)]
    for rank in run_warm(4, *line):
        assert rank.code == 0, rank.stderr
    return overlaplab.load_run(out)


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory) -> overlaplab.Run:
    """DP × TP; rank 3 is slow."""
    out = tmp_path_factory.mktemp("meshes") / "dp-tp"
    return recorded(out, "--strategy", "tensor", "--dp", "2", "--tp", "2", "--slow-rank", "3:2")


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> overlaplab.Run:
    return recorded(tmp_path_factory.mktemp("meshes") / "hsdp", "--strategy", "zero3", "--hsdp", "2x2")


def test_run_json_has_the_mesh_and_a_ranks_parts(cut: overlaplab.Run, hybrid: overlaplab.Run) -> None:
    assert (str(cut.manifest.axes), str(hybrid.manifest.axes)) == ("dp 2 × tp 2", "replicate 2 × shard 2")
    assert cut.manifest.raw["mesh"] == {"dp": 2, "pp": 1, "tp": 2, "replicate": None, "shard": None}
    shapes = {p.name: p.shape for p in cut.manifest.parameters}
    assert shapes["layers.0.attention.qkv.weight"] == (24, 16)
    assert shapes["layers.0.attention.output.weight"] == (16, 8)
    assert shapes["head.output.weight"] == (32, 16)


@pytest.mark.parametrize("more", [(), ("--sequence-parallel",)], ids=["activations whole", "activations cut"])
def test_torchs_tensor_parallelism_is_recorded(tmp_path: Path, more: tuple[str, ...]) -> None:
    """What autograd keeps are DTensors, and results of functional collectives that may be under way."""
    real = [word for word in SMALL if word not in ("--compute", "sleep:4ms,8ms,1ms")]
    line = ["-m", "overlaplab_engine", *real, "--strategy", "torch-tensor", "--tp", "2", *more]
    for rank in run_warm(2, *line, "--out", str(tmp_path / "run")):
        assert rank.code == 0, rank.stderr
    run = overlaplab.load_run(tmp_path / "run")
    assert set(communication_by(run)["group_description"]) == {"tp"}
    assert all(rank["activations"] > 0 for rank in run.manifest.raw["memory"])


def test_groups_are_named_by_axis(cut: overlaplab.Run, hybrid: overlaplab.Run) -> None:
    by = communication_by(cut, overlaplab.Selection(ranks=[0])).set_index("group_description")
    assert dict(by["count"]) == {"tp": 2 * 4 * LAYERS, "dp": 2 * len(cut.manifest.buckets)}
    assert by.loc["tp", "bytes"] == 2 * 4 * LAYERS * ACTIVATIONS
    every = overlaplab.collectives(cut)
    assert set(every["group_description"]) == {"tp", "dp"}
    assert (every["group_size"] == 2).all()
    assert every["unmatched"].isna().all()
    kinds = communication_by(hybrid, overlaplab.Selection(ranks=[0])).set_index("group_description")["kind"]
    assert set(kinds["shard"]) == {"all_gather", "reduce_scatter"}
    assert kinds["replicate"] == "all_reduce"


def test_a_wait_names_the_late_rank_of_its_own_group(cut: overlaplab.Run) -> None:
    """Rank 3 is slow: rank 2 waits for it in each layer, and rank 1 only when gradients are averaged."""
    rows = overlaplab.exposed(cut)
    waits = rows[rows["cause"] == "straggler wait"].merge(
        overlaplab.collectives(cut)[["index", "rank", "group_description"]],
        left_on=["collective", "rank"],
        right_on=["index", "rank"],
    )
    of = waits.groupby(["rank", "group_description", "late_rank"])["exposed_ns"].sum()
    assert set(of[2, "tp"].index) == {3}
    assert {late for rank, group, late in of.index if (rank, group) == (1, "tp")} <= {0}  # on a busy machine, too
    assert of[2, "tp", 3] > 10 * 1_000_000
    assert of[1, "dp", 3] > 5 * 1_000_000


def test_bytes_and_memory_are_those_of_theory(cut: overlaplab.Run, hybrid: overlaplab.Run) -> None:
    for run, formula in (
        (cut, "2Ψ + 8L·bsh over tp"),
        (hybrid, "3Ψ − embedding − layers.1 − head + 2Ψ/S over replicas"),
    ):
        theory = volume_theory(run)
        assert theory is not None
        assert theory.formula == formula
        for _, sent in volume(run).groupby(["rank", "step"])["sent_bytes"]:
            assert theory.sent_bytes <= sent.sum() <= 1.01 * theory.sent_bytes
        held = memory(run)
        assert (held["bytes"] / held["formula_bytes"]).tolist() == pytest.approx([1.0] * len(held), rel=0.03)


def test_what_helps_against_activations_is_no_bucket(cut: overlaplab.Run) -> None:
    rows = overlaplab.exposed(cut)
    own = rows[(rows["cause"] == Cause.BLOCKING) & rows["what"].str.startswith("activations of layers.").fillna(False)]
    assert len(own)
    loop = loop_of(cut.manifest, frozenset())
    assert "nothing can hide them" in general_remedy(Case(loop=loop, rows=own, cause=Cause.BLOCKING))


def test_it_is_not_bounded_and_its_link_alone_is_predicted(cut: overlaplab.Run) -> None:
    assert simulate.bound(cut).empty
    with pytest.raises(OverlaplabError, match="another link is predicted, nothing else"):
        predict(cut, Setting(bucket_cap_mb=1))


def test_lanes_are_named_by_axis(cut: overlaplab.Run) -> None:
    lanes: pd.DataFrame = timeline_events(cut).lanes
    names = set(lanes["label"].astype(str))
    assert any("link (tp)" in name for name in names)
    assert any("link (dp)" in name for name in names)
    assert "4 ranks (dp 2 × tp 2)" in describe_ranks(cut.manifest)


@pytest.mark.slow
def test_pipelines_side_by_side_are_recorded(tmp_path: Path) -> None:
    """Their stages differ in size, but the collectives that are measured before the first step must not."""
    run = recorded(tmp_path / "dp-pp", "--strategy", "pipeline", "--dp", "2", "--pp", "2", "--microbatches", "2")
    assert set(pipeline_steps(run)["pipeline"]) == {0, 1}
    by = communication_by(run)
    assert set(by["group_description"].dropna()) == {"dp", "pp"}
    assert set(by.loc[by["kind"] == "send_recv", "axis"]) == {"pp"}
