"""Record with real processes, analyse what they left: the truth on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import overlaplab
from overlaplab.analyses import PARTS, replay

SUPPORT = Path(__file__).parent / "support"
SAMPLES = Path(__file__).parents[1] / "traces"
SMALL = ["--nproc", "2", "--layers", "4", "--steps", "2", "--bucket-cap-mb", "1", "--link", "1Gbps,200us"]


def overlaplab_json(*arguments: object) -> Any:
    line = [sys.executable, "-m", "overlaplab", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module", params=["naive", "per-param", "bucketed"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / str(request.param)
    line = [sys.executable, "-m", "overlaplab", "record", "--strategy", request.param, "--out", out, *SMALL]
    subprocess.run([str(word) for word in line], check=True, timeout=120)
    return out


def test_a_recorded_run_obeys_the_identities(recorded: Path) -> None:
    document = overlaplab_json("summary", recorded)
    assert document["run"]["strategy"] == recorded.name
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    for rank in document["ranks"]:
        assert len(rank["steps"]) == 2
        for step in (*rank["steps"], rank["total"]):
            assert step["span_ns"] == sum(step[part] for part in PARTS)
            assert step["compute_ns"] == step["compute_only_ns"] + step["overlapped_ns"]
            assert step["comm_ns"] == step["overlapped_ns"] + step["exposed_comm_ns"]
            assert step["overlap_ratio"] == step["overlapped_ns"] / step["comm_ns"]
        for key in ("span_ns", "comm_ns", *PARTS):
            assert rank["total"][key] == sum(step[key] for step in rank["steps"])


def test_naive_hides_nothing_and_hooks_hide_something(recorded: Path) -> None:
    ratios = [rank["total"]["overlap_ratio"] for rank in overlaplab_json("summary", recorded)["ranks"]]
    if recorded.name == "naive":
        assert max(ratios) < 0.005
    else:
        assert min(ratios) > 0.05


def test_buckets_are_those_of_the_manifest_and_in_order(recorded: Path) -> None:
    manifest = json.loads((recorded / "run.json").read_text())
    planned = [(b["index"], b["bytes"], b["parameters"]) for b in manifest["buckets"]]
    assert sorted(name for _, _, names in planned for name in names) == sorted(
        p["name"] for p in manifest["parameters"]
    )
    for rank in overlaplab_json("buckets", recorded)["ranks"]:
        for step in rank["steps"]:
            assert [(b["index"], b["bytes"], b["parameters"]) for b in step["buckets"]] == planned
            for bucket in step["buckets"]:
                arrived = bucket["gradient_ready_ns"]
                assert None not in arrived
                assert bucket["last_parameter"] == bucket["parameters"][arrived.index(max(arrived))]
                assert step["backward_start_ns"] < min(arrived)
                assert bucket["launch_ns"] <= bucket["start_ns"] < bucket["end_ns"]
                assert 0 <= bucket["exposed_ns"] <= bucket["end_ns"] - bucket["start_ns"]
            starts = [b["start_ns"] for b in step["buckets"]]
            ends = [b["end_ns"] for b in step["buckets"]]
            assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
            if recorded.name == "naive":
                assert min(starts) >= step["backward_end_ns"]
            else:
                assert min(starts) < step["backward_end_ns"]


def test_every_collective_took_at_least_what_the_link_takes(recorded: Path) -> None:
    manifest = json.loads((recorded / "run.json").read_text())
    carried = manifest["collectives"]
    assert len(carried["seq"]) == 2 * 2 * (len(manifest["buckets"]) + (recorded.name != "bucketed"))
    pairs = list(zip(carried["occupied_ns"], carried["modelled_ns"], carried["overran"], strict=True))
    assert all(occupied >= modelled for occupied, modelled, _ in pairs)
    assert all(overran == (occupied > 1.05 * modelled) for occupied, modelled, overran in pairs)


def test_a_blocking_all_reduce_in_hooks_is_exposed(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*line, str(SUPPORT / "blocking_hooks.py"), str(tmp_path)], check=True, timeout=120)
    table = overlaplab.totals(overlaplab.load_run(tmp_path))
    assert table["rank"].tolist() == [0, 1]
    assert (table["comm_ns"] > 1_000_000).all()
    assert (table["overlap_ratio"] < 0.005).all()


@pytest.mark.parametrize("strategy", ["per-param", "bucketed"])
def test_replay_predicts_when_the_last_bucket_ends(strategy: str) -> None:
    """On the sample runs: the time from the first gradient to the last bucket's end, within 5 %."""
    run = overlaplab.load_run(SAMPLES / strategy)
    assert run.manifest is not None
    assert run.manifest.link is not None
    table = replay(run, run.manifest.link)
    assert table["step"].nunique() >= 3
    for _, step in table.groupby("step"):
        begins, ends, predicted = step["ready_ns"].min(), step["end_ns"].max(), step["predicted_end_ns"].max()
        assert abs(ends - predicted) <= 0.05 * (ends - begins)


def test_the_sample_runs_attained_their_link() -> None:
    for strategy in ("naive", "per-param", "bucketed", "torch-ddp"):
        manifest = overlaplab.load_run(SAMPLES / strategy).manifest
        assert manifest is not None
        assert manifest.link_attained is True, strategy
        overran = manifest.raw["collectives"]["overran"]
        assert len(overran) >= 2 * 3 * 7
        assert sum(overran) <= 0.05 * len(overran)
