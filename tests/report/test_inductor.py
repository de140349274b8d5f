"""Collective times for torch inductor: read by its own parser, and compared with the link that was emulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from samples import sample_run
from torch._inductor.fx_passes.profile_guided_estimation import ProfileData, _dtype_to_nccl_str

import overlaplab
from overlaplab.analyses import collective_times
from overlaplab.cli import main
from overlaplab.costs import transfer_ns
from overlaplab.dtypes import DTYPE_BYTES
from overlaplab.report import inductor

SAMPLES = Path(__file__).parents[2] / "traces"
RANKS = (0, 1)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> ProfileData:
    """What inductor reads of a run of zero3, which gathers and scatters."""
    path = tmp_path_factory.mktemp("estimates") / "estimates.json"
    with path.open("wb") as file:
        inductor.write_inductor_estimates(sample_run("zero3"), file)
    found = ProfileData()
    found.load(str(path))
    return found


@pytest.mark.parametrize(
    ("kind", "name"), [("all_gather", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_tensor")]
)
@pytest.mark.parametrize("mb", [0.7, 1.5, 2.5, 5.0])
def test_inductor_estimates_what_the_link_takes(read: ProfileData, kind: str, name: str, mb: float) -> None:
    """Sizes that were not recorded, too, up to twice the largest."""
    run = sample_run("zero3")
    assert run.manifest is not None
    assert run.manifest.link is not None
    whole = int(mb * 1e6)
    elements = whole // 4 // (2 if kind == "reduce_scatter" else 1)  # inductor asks by the output
    found = read.lookup_collective(name, RANKS, elements, "Float")
    assert found is not None
    estimate_ms, source = found
    assert source == "profile"
    assert estimate_ms == pytest.approx(transfer_ns(kind, whole, run.manifest.link) / 1e6, rel=0.05)


def test_between_sizes_estimates_follow_the_line(read: ProfileData) -> None:
    times = collective_times(sample_run("zero3"))
    own = times[(times["kind"] == "all_gather") & (times["dtype"] == "float32")]
    first, second = own.iloc[3], own.iloc[4]
    middle = (first["bytes"] + second["bytes"]) // 2
    found = read.lookup_collective("all_gather_into_tensor", RANKS, middle // 4, "Float")
    assert found is not None
    assert found[0] == pytest.approx((first["time_ns"] + second["time_ns"]) / 2e6, rel=0.01)


def test_other_groups_and_types_stay_unknown(read: ProfileData) -> None:
    assert read.lookup_collective("all_gather_into_tensor", (0, 1, 2), 1 << 18, "Float") is None
    assert read.lookup_collective("all_gather_into_tensor", RANKS, 1 << 18, "BFloat16") is None
    assert read.op_count == 0


def test_types_are_called_as_inductor_calls_them() -> None:
    for ours, theirs in inductor._DTYPES.items():
        dtype = getattr(torch, ours)
        assert _dtype_to_nccl_str(dtype) == theirs
        assert DTYPE_BYTES[ours] == dtype.itemsize


def test_the_command_writes_one_file_and_marks_an_emulated_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "estimates.json"
    for arguments, code in ((["--inductor-estimates", str(out)], 0), ([], 2)):
        monkeypatch.setattr(sys, "argv", ["overlaplab", "export", str(SAMPLES / "bucketed"), *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == code
    assert "Give --perfetto FILE or --inductor-estimates FILE" in capsys.readouterr().err
    assert json.loads(out.read_text())["overlaplab"]["emulated"] is True


def test_one_rank_alone_tells_no_transfer(tmp_path: Path) -> None:
    alone = overlaplab.load_run(SAMPLES / "bucketed" / "rank0.pt.trace.json.gz")
    with (tmp_path / "none").open("wb") as file, pytest.raises(overlaplab.OverlaplabError, match="without waiting"):
        inductor.write_inductor_estimates(alone, file)
