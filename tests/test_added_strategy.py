"""A strategy from outside: the engine records it and overlaplab analyses it, and neither knows its name.

This file is also the script that its ranks run.
"""

import os
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from overlaplab_engine.cli import main
from overlaplab_engine.errors import EngineError
from overlaplab_engine.strategies import Traits, class_of, register
from overlaplab_engine.strategies.base import REGISTERED
from overlaplab_engine.strategies.naive import Naive
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.analyses import memory, volume, volume_theory
from overlaplab.traits import TRAITS


class Backwards(Naive):
    """All-reduces every microbatch's gradients, the last parameter's first."""

    name = "backwards"
    traits = Traits(sends_every_microbatch=True)
    refuses = {"bucket_cap_mb": "backwards has no buckets; leave --bucket-cap-mb out"}  # noqa: RUF012

    def _used_somewhere(self, unused_here: Collection[int]) -> list[int]:
        return super()._used_somewhere(unused_here)[::-1]


OPTIONS = ("--strategy", "backwards", "--device", "cpu", "--accumulate", "2", "--steps", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> overlaplab.Run:
    out = tmp_path_factory.mktemp("runs") / "backwards"
    for rank in run_warm(2, __file__, *OPTIONS, "--layers", "2", "--out", str(out)):
        assert rank.code == 0, rank.stderr
    return overlaplab.load_run(out)


def test_it_is_recorded(run: overlaplab.Run) -> None:
    assert run.manifest is not None
    assert (run.manifest.strategy, run.manifest.bucket_cap_mb) == ("backwards", None)
    assert "backwards" not in TRAITS
    assert len(overlaplab.summary(run)) == 2
    buckets = overlaplab.buckets(run)
    for _, launched in buckets.sort_values("launch_ns").groupby("rank"):
        assert launched["index"].tolist() == list(range(len(run.manifest.buckets)))[::-1]


def test_what_it_costs_is_told_by_its_traits(run: overlaplab.Run) -> None:
    """Twice 2Ψ, for both of two microbatches; beside gradients it sends which parameters were used."""
    theory = volume_theory(run)
    assert theory is not None
    assert theory.formula == "2AΨ"
    for _, sent in volume(run).groupby("rank")["sent_bytes"]:
        assert theory.sent_bytes <= sent.sum() <= 1.001 * theory.sent_bytes
    held = memory(run)
    assert held["formula"].tolist() == ["4Ψ", "4Ψ", "8Ψ"] * 2
    assert (held["bytes"] / held["formula_bytes"]).tolist() == pytest.approx([1.0] * 6, rel=0.001)


def test_what_it_refuses_is_said_before_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineError, match=r"'backwards' is none of naive, .*, torch-fsdp2"):
        class_of("backwards")
    monkeypatch.setitem(REGISTERED, "backwards", Backwards)
    assert main([*OPTIONS, "--bucket-cap-mb", "1", "--out", str(tmp_path / "run")]) == 2
    assert capfd.readouterr().err == "overlaplab record: backwards has no buckets; leave --bucket-cap-mb out\n"
    assert os.listdir(tmp_path) == []


if __name__ == "__main__":
    register(Backwards)
    sys.exit(main(sys.argv[1:]))
