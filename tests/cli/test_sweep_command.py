"""`overlaplab sweep`: with real processes, and with an engine that fails or is slow on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import overlaplab
from overlaplab import OverlaplabError
from overlaplab.analyses.across_runs.tiers import FEWEST_RECORDINGS
from overlaplab.cli.engine import CAPPED, Engine, settings, with_defaults
from overlaplab.cli.runs import sweep_command
from overlaplab.cli.sweep import PlannedRecording, in_rounds, parse_caps, record_all

ENGINE = """
import json, os, shlex, signal, sys, time
from pathlib import Path
def end(*_):
    Path("asked").touch()
    sys.exit(2)
signal.signal(signal.SIGTERM, end)
words = sys.argv[1:]
told = dict(zip(words, words[1:]))
out, cap = Path(told["--out"]), told["--bucket-cap-mb"]
Path("pid").write_text(str(os.getpid()))
with open("order", "a") as file:
    print(out.name, file=file)
out.mkdir(parents=True, exist_ok=True)
(out / "rank0.pt.trace.json.gz").write_bytes(b"")
if cap == os.environ.get("SLOW"):
    time.sleep(600)
if cap in os.environ.get("FAIL", "").split():
    print("a notice", file=sys.stderr)
    print(f"overlaplab record: rank 1: no luck{' with ' + cap if 'APART' in os.environ else ''}", file=sys.stderr)
    sys.exit(2)
(out / "run.json").write_text(json.dumps({"command": shlex.join(["overlaplab", "record", *words])}))
"""


def plan(caps: tuple[str, ...], repeats: int, out: Path, seed: int) -> list[list[PlannedRecording]]:
    return in_rounds(settings(caps), repeats, out, seed)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Make `python -m overlaplab_engine` another one; returns what tells the order of its recordings."""
    package = tmp_path / "elsewhere" / "overlaplab_engine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)

    def order() -> list[str]:
        return (tmp_path / "order").read_text().split()

    return order


def test_caps_are_numbers_above_nothing() -> None:
    assert parse_caps("1, 5,0.50,100") == ("1", "5", "0.5", "100")
    for text in ("", "1,", "x", "0", "-1", "inf", "nan", "1,1.0", "1;2"):
        with pytest.raises(OverlaplabError, match="--bucket-cap-mb"):
            parse_caps(text)


def test_each_round_has_every_cap_in_an_order_of_its_own() -> None:
    rounds = plan(("1", "5", "25", "100"), 4, Path("DIR"), seed=0)
    assert [sorted(one.setting[1] for one in each) for each in rounds] == [["1", "100", "25", "5"]] * 4
    assert len({tuple(one.setting for one in each) for each in rounds}) > 1
    assert sorted(one.out.name for one in rounds[0]) == ["cap-1", "cap-100", "cap-25", "cap-5"]
    assert sorted(one.out.name for one in rounds[2]) == ["cap-1-3", "cap-100-3", "cap-25-3", "cap-5-3"]
    assert plan(("1", "5", "25", "100"), 4, Path("DIR"), seed=0) == rounds
    assert plan(("1", "5", "25", "100"), 4, Path("DIR"), seed=1) != rounds


def test_defaults_give_way() -> None:
    assert with_defaults([]) == ["--strategy", "bucketed", "--warmup", "3", "--steps", "5"]
    assert with_defaults(["--steps=9", "--strategy", "zero2"]) == ["--warmup", "3", "--steps=9", "--strategy", "zero2"]
    for words in (["--strategy", "zero3"], ["--strategy=nothing"], ["--save", "x"], ["--no-trace"]):
        with pytest.raises(OverlaplabError, match=words[0].partition("=")[0]):
            with_defaults(words)


def test_the_capped_strategies_are_the_engines() -> None:
    from overlaplab_engine.strategy_names import StrategyName

    assert set(CAPPED) <= {str(name) for name in StrategyName}


def test_what_is_there_is_not_recorded_again(fake: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    out = Path("DIR")
    assert record_all(plan(("1", "5"), 1, out, seed=0), Engine(["--layers", "2"])) == []
    assert record_all(plan(("1", "5", "25"), 2, out, seed=0), Engine(["--layers=2"])) == []
    assert sorted(fake()) == ["cap-1", "cap-1-2", "cap-25", "cap-25-2", "cap-5", "cap-5-2"]
    assert "2 of 6 recordings are there already" in capsys.readouterr().err
    with pytest.raises(OverlaplabError, match=r"recorded otherwise \(--batch, --layers, --width\)"):
        record_all(plan(("1",), 1, out, seed=0), Engine(["--layers", "4", "--width", "8", "--batch", "2"]))
    assert len(fake()) == 6


@pytest.mark.parametrize("folder", ["DIR", "v1,v2"])
def test_a_sweep_measures_its_link_once(fake: Callable[[], list[str]], folder: str) -> None:
    """Else its runs could be behind different links, and not be compared."""
    rounds = plan(("1", "5"), 2, Path(folder), seed=0)
    options = ["--link", "auto"]
    assert record_all(rounds, Engine(options)) == []
    first, *others = fake()
    commands = {path.parent.name: json.loads(path.read_text())["command"] for path in Path(folder).glob("*/run.json")}
    assert commands[first].count("--link") == 1
    assert all(f"--link auto --link {folder}/cap-" in commands[name] for name in others)
    assert record_all(rounds, Engine(options)) == []
    assert len(fake()) == 4
    assert record_all(plan(("1", "5"), 2, Path(folder).resolve(), seed=0), Engine(options)) == []
    with pytest.raises(OverlaplabError, match=r"recorded otherwise \(--link\)"):
        record_all(rounds, Engine(["--link", "1Gbps,1us"]))


@pytest.mark.parametrize("recorded", [["--link", "1Gbps,1us"], ["--link", "none"], []])
def test_another_link_is_not_the_measured_one_of_this_folder(
    fake: Callable[[], list[str]], recorded: list[str]
) -> None:
    assert record_all(plan(("1",), 1, Path(), seed=0), Engine(recorded)) == []
    with pytest.raises(OverlaplabError, match=r"recorded otherwise \(--link\)"):
        record_all(plan(("1",), 1, Path(), seed=0), Engine(["--link", "auto"]))
    assert len(fake()) == 1


def test_a_failing_cap_leaves_the_others(fake: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "5")
    rounds = plan(("1", "5", "25"), 2, Path("DIR"), seed=0)
    assert record_all(rounds, Engine([])) == ["cap-5 failed: rank 1: no luck"]
    assert sorted(path.name for path in Path("DIR").iterdir()) == ["cap-1", "cap-1-2", "cap-25", "cap-25-2"]
    monkeypatch.delenv("FAIL")
    assert record_all(rounds, Engine([])) == []
    assert len(list(Path("DIR").iterdir())) == 6


def test_where_the_first_two_fail_alike_the_rest_would(
    fake: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1 5 25")
    assert len(record_all(plan(("1", "5", "25"), 2, Path("DIR"), seed=0), Engine([]))) == 2
    assert len(fake()) == 2
    monkeypatch.setenv("APART", "1")
    assert len(record_all(plan(("1", "5", "25"), 2, Path("DIR"), seed=0), Engine([]))) == 3


def test_a_sweep_records_as_often_as_it_takes_to_tell_two_caps_apart() -> None:
    assert signature(sweep_command).parameters["repeats"].default == FEWEST_RECORDINGS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_whole_runs_and_no_process(
    fake: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = (one.setting[1] for one in plan(("1", "5"), 1, Path("DIR"), seed=0)[0])
    monkeypatch.setenv("SLOW", second)
    line = [sys.executable, "-m", "overlaplab", "sweep", "--bucket-cap-mb", "1,5", "--repeats", "3", "--out", "DIR"]
    # Where tests run in the background SIGINT is ignored, and children inherit that.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    half = Path("DIR") / f"cap-{second}" / "rank0.pt.trace.json.gz"
    deadline = time.monotonic() + 600
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, number)
    said = process.communicate(timeout=600)[1]
    assert process.returncode not in (0, 1)
    assert "interrupted: 1 of 6 recorded. The same command goes on from here." in said
    assert "Traceback" not in said
    assert Path("asked").exists()  # the engine ends its ranks in order
    assert [path.name for path in Path("DIR").iterdir()] == [f"cap-{first}"]
    assert fake() == [f"cap-{first}", f"cap-{second}"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


@pytest.mark.slow  # test_sweep_script.py records with a script under torchrun
def test_a_real_sweep(tmp_path: Path, command: Callable[..., tuple[Any, str, str]]) -> None:
    """In a folder with files named like modules of this project or of Python's library; one rank has buckets, too."""
    out = tmp_path / "sweep"
    for name in ("engine", "record", "labels", "profile"):
        (tmp_path / f"{name}.py").write_text('raise SystemExit("shadowed")')
    line = [sys.executable, "-m", "overlaplab", "sweep", "--bucket-cap-mb", "0.02,1", "--repeats", "1", "--out", out]
    small = [
        "--device",
        "cpu",
        "--layers",
        "1",
        "--width",
        "32",
        "--vocab",
        "50",
        "--seq",
        "8",
        "--batch",
        "2",
        "--nproc",
        "1",
    ]
    words = [str(word) for word in (*line, *small, "--steps", "2", "--link", "1Gbps,200us", "--attempts", "1")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert (done.returncode, done.stdout) == (0, "")
    assert "in random order (--order-seed 0): cap-" in done.stderr
    assert f"Next: overlaplab compare {out}" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["cap-0.02", "cap-1"]
    manifest = json.loads((out / "cap-1" / "run.json").read_text())
    assert (manifest["strategy"], manifest["bucket_cap_mb"], manifest["steps"], manifest["warmup"]) == (
        "bucketed",
        1,
        2,
        3,
    )
    table = overlaplab.sweep(overlaplab.load_sweep(out))
    assert table["bucket_cap_mb"].tolist() == [0.02, 1]
    assert table["steps"].tolist() == [2, 2]
    many, one = table["buckets"]
    assert many > one == 1
    parts = table[["compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms"]].sum(axis="columns")
    assert parts.tolist() == pytest.approx(table["step_ms"].tolist())
    document = json.loads(command("compare", out, "--json")[1])
    assert [Path(run["path"]).name for run in document["runs"]] == ["cap-0.02", "cap-1"]
    assert [cap["bucket_cap_mb"] for cap in document["sweep"]["caps"]] == [0.02, 1]
    assert [len(cap["links"]["buckets"]) for cap in document["sweep"]["caps"]] == [many, 1]
    assert document["fastest"] is None  # two steps tell no spread


def test_bad_options_are_one_line(tmp_path: Path) -> None:
    for words, says in (
        (["--bucket-cap-mb", "1,x"], "x is no cap"),
        (["--bucket-cap-mb", "1", "--strategy", "naive"], "naive has no buckets with a cap"),
    ):
        line = [sys.executable, "-m", "overlaplab", "sweep", *words, "--out", str(tmp_path / "x")]
        done = subprocess.run(line, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert says in done.stderr
    assert not (tmp_path / "x").exists()
