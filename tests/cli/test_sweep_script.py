"""`overlaplab sweep … -- COMMAND`: a real script under torchrun, and one without torch that fails on demand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
from ranks.warm_ranks import run_launcher

import overlaplab
from overlaplab import OverlaplabError
from overlaplab.cli import script
from overlaplab.cli.script import _number, settings
from overlaplab.cli.sweep import in_rounds

LOOP = Path(__file__).parents[1] / "support" / "programs" / "swept_loop.py"
SCRIPT = """
import json, os, sys, time
from pathlib import Path
cap, rate, way = sys.argv[1:4]
with open("order", "a") as file:
    print(cap, rate, file=file)
out = Path(os.environ["OVERLAPLAB_RECORD"])
out.mkdir()
(out / "rank0.pt.trace.json.gz").touch()
if way == "slow" and cap == "5":
    Path("begun").touch()
    time.sleep(60)
if way == "fails" and cap == "5":
    print("[rank0]: RuntimeError: no luck", "ChildFailedError: train.py FAILED", "=" * 60, sep="\\n")
    sys.exit(1)
if way == "idle":
    sys.exit(print(f"train.py:3: UserWarning: no run in {out}: the loop made 1 steps"))
own = {"bucket_cap_mb": 25 if way == "deaf" else float(cap), "prefetch": None}
(out / "run.json").write_text(json.dumps({"command": "python train.py"} | own))
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any) -> Callable[..., tuple[int, str, list[str]]]:
    """`overlaplab sweep` with the script above: exit code, stderr, and what it was given in order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def call(way: str, *options: str) -> tuple[int, str, list[str]]:
        Path("order").unlink(missing_ok=True)
        line = [sys.executable, "train.py", "{bucket_cap_mb}", "{rate}", way]
        code, _, said = command("sweep", "--out", "DIR", *options, "--", *line)
        return code, said, Path("order").read_text().splitlines() if Path("order").exists() else []

    return call


def names() -> list[str]:
    return sorted(path.name for path in Path("DIR").iterdir())


def test_every_combination_is_recorded_in_random_rounds(sweep: Callable[..., Any]) -> None:
    options = ["--bucket-cap-mb", "1,5", "--set", "rate=0.1,fast", "--repeats", "2"]
    code, said, order = sweep("well", *options)
    assert code == 0
    folders = [f"cap-{cap}_rate-{rate}" for cap in (1, 5) for rate in ("0.1", "fast")]
    assert names() == sorted([*folders, *(f"{folder}-2" for folder in folders)])
    assert sorted(order[:4]) == sorted(order[4:]) == ["1 0.1", "1 fast", "5 0.1", "5 fast"]
    told = said.partition("(--order-seed 0): ")[2].partition("\n")[0].replace(" | ", " ").split(" ")
    assert [name.removesuffix("-2") for name in told] == ["cap-{}_rate-{}".format(*words.split(" ")) for words in order]
    manifest = json.loads(Path("DIR", "cap-5_rate-0.1-2", "run.json").read_text())
    assert manifest["swept"]["settings"] == {"bucket_cap_mb": 5, "rate": 0.1}
    assert manifest["swept"]["command"][1:] == ["train.py", "{bucket_cap_mb}", "{rate}", "well"]
    assert sweep("well", *options)[2] == []  # what is there is not recorded again
    code, said, _ = sweep("else", *options)
    assert (code, "recorded otherwise" in said) == (2, True)


@pytest.mark.parametrize(
    ("way", "says", "kept"),
    [
        ("fails", "cap-5_rate-1 failed: RuntimeError: no luck", ["cap-1_rate-1", "cap-5_rate-1.log"]),
        ("idle", "recorded nothing: the loop made 1 steps. It needs", ["cap-1_rate-1.log", "cap-5_rate-1.log"]),
        ("deaf", "given bucket_cap_mb 5, and its model has 25", ["cap-1_rate-1.log", "cap-5_rate-1.log"]),
    ],
)
def test_what_a_script_does_wrong_is_one_line(sweep: Callable[..., Any], way: str, says: str, kept: list[str]) -> None:
    code, said, _ = sweep(way, "--bucket-cap-mb", "1,5", "--set", "rate=1", "--repeats", "1")
    assert code == 2
    assert says in said
    assert "Traceback" not in said
    assert names() == kept


def test_an_interrupted_sweep_goes_on(sweep: Callable[..., Any]) -> None:
    """Begun in a shell that does not hand on signals; the run under way leaves nothing."""
    options = ["--bucket-cap-mb", "1,5", "--set", "rate=1", "--repeats", "1", "--order-seed", "1"]
    shell = ["sh", "-c", f"{sys.executable} train.py {{bucket_cap_mb}} {{rate}} slow; true"]
    line = [sys.executable, "-m", "overlaplab", "sweep", "--out", "DIR", *options, "--", *shell]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a background job ignores
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    until = time.monotonic() + 200
    while not Path("begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=200)[1]
    assert process.returncode not in (0, 1)
    assert "interrupted: 1 of 2 recorded. The same command goes on from here." in said
    assert names() == ["cap-1_rate-1"]
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{sys.executable} train.py 5" not in left


@pytest.mark.parametrize(
    ("command", "caps", "given", "says"),
    [
        (["true", "{lr}"], None, [], "nothing varies"),
        (["true"], "1,5", [], r"no \{bucket_cap_mb\}"),
        (["true", "{lr}"], None, ["lr=1,1"], "twice"),
        (["true", "{lr}"], None, ["lr"], "not NAME=A,B"),
        (["true", "{out}"], None, ["out=1"], "not NAME=A,B"),
        (["no-such-program", "{lr}"], None, ["lr=1"], "no such command"),
        (["true", "{x}"], None, ["x=a/b,a:b"], "one folder"),
    ],
)
def test_what_cannot_be_swept_is_one_line(command: list[str], caps: str | None, given: list[str], says: str) -> None:
    with pytest.raises(OverlaplabError, match=says):
        settings(command, caps, given)


def test_two_recordings_never_share_a_folder(tmp_path: Path) -> None:
    """The second recording of `a` would be called as the first one of `a-2`."""
    planned = settings(["true", "{m}"], None, ["m=a,a-2"])
    with pytest.raises(OverlaplabError, match="two recordings would share the folder m-a-2"):
        in_rounds(planned, 2, tmp_path, 0)
    assert len(in_rounds(planned, 1, tmp_path, 0)[0]) == 2


def test_infinite_settings_stay_text() -> None:
    """JSON has no such numbers: run.json could not be read."""
    assert [_number(text) for text in ("inf", "-inf", "nan", "1.5", "7")] == ["inf", "-inf", "nan", 1.5, 7]


def test_a_real_script_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    """Its runs are a sweep, and what is advised for one of them is its own command with another cap."""

    def warm(words: list[str], output: IO[bytes], environment: dict[str, str], *, group: bool) -> int:
        done = run_launcher(*words[1:], **{**environment, "CUDA_VISIBLE_DEVICES": ""})
        output.write((done.stdout + done.stderr).encode())
        return done.code or 0

    monkeypatch.setattr(script, "run_to_end", warm)
    monkeypatch.setenv("COLUMNS", "400")
    out = tmp_path / "caps"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(LOOP)]
    swept = ["sweep", "--bucket-cap-mb", "0.02,1", "--repeats", "1", "--out", out, "--"]
    code, _, said = command(*swept, *line, "--cap", "{bucket_cap_mb}")
    assert code == 0, said
    table = overlaplab.sweep(overlaplab.load_sweep(out))
    assert table["bucket_cap_mb"].tolist() == [0.02, 1]
    assert table["buckets"].tolist()[0] > table["buckets"].tolist()[1] == 1
    run = overlaplab.load_run(out / "cap-0.02")
    assert [trace.rank for trace in run.traces] == [0, 1]
    code, printed, _ = command("exposed", out / "cap-0.02")
    assert code == 0
    assert "overlaplab record" not in printed
    code, _, said = command(*swept, *line, "--cap", "{bucket_cap_mb}", "--deaf")
    assert (code, "recorded otherwise" in said) == (2, True)
