"""What measures and records on a GPU: its arithmetic, and on a CPU the whole of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loaded_script import script
from overlaplab_engine.network.link import Kind, Link

ROOT = Path(__file__).parents[2]
GOALS = {"forward": 0.03, "backward": 0.06, "host": 0.02, "communication": 0.042, "modelled": 0.0415}


TABLE = script("benchmarks/_gpu_table.py")


@pytest.mark.parametrize(
    ("backward", "buckets", "expected"),
    [
        (0.06, [25 << 20] * 24, (230, 10)),  # 42 ms, 3.4 of them latency
        (0.010, [25 << 20] * 24, (2400, 10)),  # 7 ms, 3.4 of them latency
        (0.009, [25 << 20] * 24, (1900, 5)),  # above half of 6.3 ms, so half the latency
        (0.0001, [1 << 20] * 24, (5000, 0)),
    ],
)
def test_the_link_takes_its_share_of_the_backward_pass(
    backward: float, buckets: list[int], expected: tuple[float, float]
) -> None:
    gbps, us = TABLE.pick_link(backward, buckets, 8)
    assert (gbps, us) == expected
    link = Link(bandwidth_gbps=gbps, latency_us=us, world_size=8)
    modelled = sum(link.modelled_ns(Kind.ALL_REDUCE, nbytes, 8) for nbytes in buckets) / 1e9
    assert 0.66 < modelled / backward < 0.74


def written(out: Path, **found: dict[str, Any]) -> None:
    for name, figures in found.items():
        told = {"torch": "2", "link": "L", "link_wait": "host", "device": "a GPU"} | figures
        (out / f"{name.replace('_', '-')}.json").write_text(json.dumps(told))


def test_tables_of_what_was_measured(tmp_path: Path) -> None:
    written(
        tmp_path,
        alone=GOALS | {"buckets": [1, 2], "parameters": 3_000_000},
        ddp={"what": "A ÷ B", "ours": [0.1, 0.11, 0.12], "theirs": [0.1, 0.1, 0.1]},
        fsdp2={"what": "C ÷ D", "ours": [0.6], "theirs": [0.6]} | {"ours": [0.6, 0.6], "theirs": [0.5, 0.5]},
        curve={"caps": [1, 25], "seconds": [[0.7, 0.7, 0.8], [0.6, 0.6, 1.0]], "buckets": [9, 2]},
    )
    sample = ROOT / "traces" / "bucketed"
    (tmp_path / "bucketed").symlink_to(sample)
    text = TABLE.tables(tmp_path)
    assert text.startswith("a GPU, torch 2; one rank of an emulated group, its peers phantoms, --link-wait host\n")
    assert "| communication alone ÷ backward alone, link L, 2 buckets | 0.700 (42.00 ms; modelled 41.50 ms) |" in text
    assert "| A ÷ B | 1.100 (1.050 to 1.150, 3 pairs; 110.00 and 100.00 ms) | ≤ 1.00 |" in text
    assert "| C ÷ D | 1.200 (1.200 to 1.200, 2 pairs; 600.00 and 500.00 ms) | ≤ 1.00 |" in text
    # the bound of this sample's median step is 571 ms
    assert re.search(r"step time ÷ bound, bucketed, 25 MiB \| 1\.05\d \(600\.00 ms; bound 57\d\.\d\d ms", text)
    assert "| step time, median, ms | 700.00 | 600.00 |" in text


def test_the_plan_says_what_holds_up_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for the parts and for the runs that are recorded."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gpu = script("benchmarks/gpu.py")
    measuring = gpu.Measuring(tmp_path, gpu.FULL | {"link_wait": "host"}, 0.0, 60.0)
    ran: list[list[str]] = []
    monkeypatch.setattr(gpu.Measuring, "_run", lambda self, name, words: ran.append(words))
    measuring.plan["link"] = "1Gbps,1us,8"
    measuring.record("bucketed")
    assert ran[0][ran[0].index("--link-wait") + 1] == "host"
    measuring.part("alone", "alone")
    plan = script("benchmarks/_gpu_parts.py").Plan(**json.loads((tmp_path / "alone.plan").read_text()))
    assert plan.link_wait == "host"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_everything_is_measured_on_a_cpu(tmp_path: Path) -> None:
    line = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small", "--out", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "failed" not in done.stderr
    for what in (
        *("communication alone ÷ backward alone", "bucketed ÷ torch-ddp", "zero3 ÷ torch-fsdp2", "recording on ÷ off"),
        *("removed, bucketed", "removed, zero3", "÷ bound, bucketed", "÷ bound, zero3"),
    ):
        assert len(re.findall(rf"^\| .*{what}.* \| \d+\.\d\d\d \(", done.stdout, re.M)) >= 1, what
    assert done.stdout.count("| step time, median, ms |") == 2


FIGURES: dict[str, dict[str, Any]] = {
    "alone": GOALS | {"buckets": [1 << 20], "parameters": 3_000_000, "torch": "2", "link": "L"},
    "ddp": {"what": "A ÷ B", "ours": [0.1, 0.1], "theirs": [0.1, 0.1], "torch": "2"},
    "fsdp2": {"what": "C ÷ D", "ours": [0.6, 0.6], "theirs": [0.5, 0.5], "torch": "2"},
}
GPU_PY = """
import os, runpy, signal, subprocess, sys
_, sys.executable, *sys.argv = sys.argv

class Popen(subprocess.Popen):
    def __init__(self, line, **options):
        super().__init__(line, **options)
        if "STARTED" in os.environ and os.environ["HANGS"] in line:  # it runs, and who starts it does not know it yet
            with open(os.environ["STARTED"], "w") as started:
                print(self.pid, file=started)
            os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def measuring(folder: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    """gpu.py whose parts do nothing but leave those figures; the one named HANGS writes its number and does not end.

    With STARTED, gpu.py writes the number there, and is told to end before it holds what it has started.
    """
    python = folder / "python"
    cases = "\n".join(f"{part}) echo '{json.dumps(figures)}' >$4;;" for part, figures in FIGURES.items())
    hangs = '[ "$2" != "$HANGS" ] || { echo $$ >"$READY"; exec sleep 600; }'
    python.write_text(f'#!/bin/sh\n{hangs}\ncase "$2" in\n{cases}\n*) echo no luck >&2; exit 1;; esac\n')
    python.chmod(0o755)
    line = [sys.executable, "-c", GPU_PY, str(python), str(ROOT / "benchmarks" / "gpu.py"), "--device", "cpu"]
    line += ["--out", str(folder / "out"), "--packed", str(folder / "packed"), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), "HANGS": "ddp", "READY": "/dev/null"}
    pipe = subprocess.PIPE
    return subprocess.Popen(line, env=environment | variables, stdout=pipe, stderr=pipe, text=True)


def packed(folder: Path) -> list[str]:
    (tar,) = (folder / "packed").iterdir()
    return sorted(subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.slow
def test_a_part_that_hangs_keeps_no_other_from_being_measured(tmp_path: Path) -> None:
    with measuring(tmp_path, "--part-seconds", "5") as process:
        tables, said = process.communicate()
    assert process.returncode == 0, said
    assert "ddp: failed after 5 s\ntook too long\n" in said
    assert "curve: failed after 0 s\nno luck\n" in said
    assert "| A ÷ B |" not in tables
    assert "| C ÷ D | 1.200 (" in tables
    kept = {"out/alone.json", "out/alone-first.json", "out/fsdp2.json", "out/curve.log"}
    assert kept <= set(packed(tmp_path))
    assert "out/ddp.json" not in packed(tmp_path)


def test_what_was_measured_is_packed_before_the_next_part_hangs(tmp_path: Path) -> None:
    """So that it is there even if all is killed."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    with measuring(tmp_path, READY=str(ready)) as process:
        child = int(ready.read_text())
        process.kill()
    os.kill(child, signal.SIGKILL)
    assert {"out/alone.json", "out/alone-first.json"} <= set(packed(tmp_path))


@pytest.mark.slow
def test_no_part_takes_longer_than_there_is_time(tmp_path: Path) -> None:
    with measuring(tmp_path, "--minutes", "0.15", "--part-seconds", "20") as process:
        tables, said = process.communicate()
    assert process.returncode == 0, said
    assert re.search(r"ddp: failed after \d+ s\ntook too long\nfsdp2: no time is left\n", said)
    assert "| communication alone ÷ backward alone" in tables


@pytest.mark.parametrize("when", ["READY", "STARTED"])
def test_measuring_that_is_stopped_keeps_what_it_has(tmp_path: Path, when: str) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    with measuring(tmp_path, **{when: str(ready)}) as process:
        child = ready.read_text().strip()
        if when == "READY":
            process.terminate()
        tables, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not Path("/proc", child).exists()
    assert "| communication alone ÷ backward alone" in tables
    assert {"out/alone.json", "out/alone-first.json"} <= set(packed(tmp_path))


MAIN = [
    *("naive", "per-param", "bucketed-cap-5", "bucketed-cap-25", "bucketed-cap-100"),
    *("torch-ddp", "zero1", "zero2", "zero3", "torch-fsdp2"),
]
SWEEP = [f"sweep/cap-{cap}{repeat}" for cap in (1, 5, 25, 100) for repeat in ("", "-2", "-3", "-4")]


def names(out: Path) -> set[str]:
    """The runs of a folder, by their place in it."""
    return {path.parent.relative_to(out).as_posix() for path in out.rglob("run.json")}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_sample_is_recorded_on_a_cpu(tmp_path: Path) -> None:
    line = [sys.executable, "scripts/record_gpu_samples.py", str(tmp_path), "--device", "cpu", "--seconds", "1000"]
    subprocess.run([*line, "--run-seconds", "600"], cwd=ROOT, check=True)  # on a busy CPU each is recorded five times
    assert names(tmp_path) == {*MAIN, *SWEEP}
    for name in names(tmp_path):
        manifest = json.loads((tmp_path / name / "run.json").read_text())
        assert manifest["world_size"] == manifest["link"]["world_size"] == 8
        assert manifest["numerics_meant"] is False
        layers = 32 if name in ("zero1", "zero2", "zero3", "torch-fsdp2") else 4 if name in SWEEP else 8
        assert manifest["model"]["layers"] == layers
        assert (tmp_path / name / "rank0.pt.trace.json.gz").exists()
    line = [sys.executable, "-m", "overlaplab", "compare", str(tmp_path / "sweep"), "--json"]
    compared = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(compared.stdout)


TORCH = """
import os
class cuda:
    def get_device_name(): return os.environ["GPU"] or exit(1)
    def empty_cache(): pass
"""
CLI = """
import os, sys, time
from pathlib import Path

def main(argv):
    out, said = Path(argv[1]), " ".join(argv)
    out.mkdir(parents=True, exist_ok=True)
    if said.split()[1].endswith("/" + os.environ["HANGS"]):
        (out / "rank0.pt.trace.json.gz").touch()
        Path(os.environ["READY"]).write_text(f"{os.getpid()}\\n")
        time.sleep(600)
    if out.name == os.environ["FAILS"]:
        return 2
    (out / "run.json").write_bytes(bytes(3_000_000 if os.environ["LARGE"] in said else 9))
"""


class Samples:
    """The script in a folder of its own, with an engine that records nothing but a file, and a torch.

    They know a GPU's name, how large which runs are, and which fails; the run named HANGS writes its process's number
    to READY and does not end.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir()
        for name in ("record_gpu_samples.py", "pack.sh"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
        files = {
            "torch.py": TORCH,
            "overlaplab_engine/__init__.py": "",
            "overlaplab_engine/cli.py": CLI,
            "overlaplab_engine/worker.py": "def finish(): exit()",
            "overlaplab_engine/train.py": "record = None",
        }
        for name, text in files.items():
            path = root / "engine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        variables = {"LARGE": "none", "HANGS": "none", "FAILS": "none", "READY": "/dev/null", "GPU": "NVIDIA H200"}
        return subprocess.Popen(
            [sys.executable, str(self.root / "scripts" / "record_gpu_samples.py"), *arguments],
            env=os.environ | {"PYTHONPATH": str(self.root / "engine")} | variables | more,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def record(self, *arguments: str, **more: str) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and stderr's lines."""
        with self.start(*arguments, **more) as process:
            said, complaints = process.communicate()
            return process.returncode, said, complaints.splitlines()


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("AMD Instinct MI300X (rev 1)", "amd-instinct-mi300x-rev-1"),
    ],
)
def test_a_folder_is_named_after_the_gpu(gpu: str, folder: str) -> None:
    assert script("scripts/record_gpu_samples.py").folder_name(gpu) == folder


def test_samples_lie_in_the_folder_of_the_gpu(samples: Samples) -> None:
    code, _, complaints = samples.record()
    assert (code, complaints) == (0, [])
    assert names(samples.root / "traces" / "h200") == {*MAIN, *SWEEP}


def test_without_a_gpu_no_sample_is_recorded(samples: Samples) -> None:
    code, _, complaints = samples.record(GPU="")
    assert code == 2
    assert complaints == ["torch finds no GPU here; DIR --device cpu shows whether all works"]
    assert not (samples.root / "traces").exists()


def test_samples_that_grow_too_large_are_told(samples: Samples) -> None:
    """Three steps are too large, two are not, or both are."""
    code, said, _ = samples.record("out", LARGE="--steps 3")
    assert code == 0
    assert "naive: 2 steps, 9 bytes" in said
    code, _, complaints = samples.record("out", LARGE="zero3")
    assert (code, complaints) == (1, ["failed: zero3"])


@pytest.mark.parametrize("how", ["HANGS", "FAILS"])
def test_a_run_that_is_not_recorded_keeps_no_other_from_being(samples: Samples, tmp_path: Path, how: str) -> None:
    packed = tmp_path / "packed"
    code, _, complaints = samples.record("--run-seconds", "3", "--packed", str(packed), **{how: "zero1"})
    assert (code, complaints) == (1, ["failed: zero1"])
    others = {*MAIN, *SWEEP} - {"zero1"}
    assert names(samples.root / "traces" / "h200") == others
    assert not (samples.root / "traces" / "h200" / "zero1").exists()
    assert names_in(packed) == {f"h200/{name}/run.json" for name in others}


@pytest.mark.parametrize("how", [{"FAILS": "zero1"}, {"HANGS": "zero1"}, {"LARGE": "zero1"}])
def test_an_older_run_is_not_taken_for_one_that_was_recorded(samples: Samples, how: dict[str, str]) -> None:
    assert samples.record("out")[0] == 0
    code, _, complaints = samples.record("out", "--run-seconds", "3", **how)
    assert (code, complaints) == (1, ["failed: zero1"])
    code, _, complaints = samples.record("out", "--seconds", "0")
    assert (code, complaints) == (1, [f"failed: {' '.join([*MAIN, *SWEEP_ORDER])}"])


def names_in(folder: Path) -> set[str]:
    """What was packed there; less what does not fit is cut off."""
    listed = subprocess.run(f"cat {folder}/h200.tar.? | tar t", shell=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def test_an_engine_that_does_not_start_is_started_once(samples: Samples) -> None:
    (samples.root / "engine" / "overlaplab_engine" / "cli.py").write_text("raise SystemExit('no luck')")
    code, _, complaints = samples.record()
    assert code == 1
    assert complaints == ["no luck", f"failed: {' '.join([*MAIN, *SWEEP_ORDER])}"]


SWEEP_ORDER = [
    *("sweep/cap-1", "sweep/cap-5", "sweep/cap-25", "sweep/cap-100"),
    *("sweep/cap-100-2", "sweep/cap-25-2", "sweep/cap-5-2", "sweep/cap-1-2"),
    *("sweep/cap-25-3", "sweep/cap-1-3", "sweep/cap-100-3", "sweep/cap-5-3"),
    *("sweep/cap-5-4", "sweep/cap-100-4", "sweep/cap-1-4", "sweep/cap-25-4"),
]


def test_no_recording_begins_once_time_is_over(samples: Samples) -> None:
    code, _, complaints = samples.record("--seconds", "4", HANGS="torch-ddp")
    assert code == 1
    assert complaints[0].startswith("failed: torch-ddp zero1 zero2")
    assert names(samples.root / "traces" / "h200") == set(MAIN[:5])


@pytest.mark.parametrize("ends", ["is stopped", "is killed"])
def test_what_was_recorded_is_kept_if_the_script(samples: Samples, tmp_path: Path, ends: str) -> None:
    ready, packed = tmp_path / "ready", tmp_path / "packed"
    os.mkfifo(ready)
    with samples.start("--packed", str(packed), HANGS="bucketed-cap-5", READY=str(ready)) as process:
        child = ready.read_text().strip()
        assert process.stdout is not None
        packed_names = [process.stdout.readline().split(":")[0] for _ in range(2)]  # a run is named once it is packed
        assert packed_names == ["naive", "per-param"]
        process.terminate() if ends == "is stopped" else process.kill()
        if ends == "is killed":
            os.kill(int(child), signal.SIGKILL)
        _, complaints = process.communicate()
    assert names(samples.root / "traces" / "h200") == {"naive", "per-param"}
    assert {"h200/naive/run.json", "h200/per-param/run.json"} <= names_in(packed)
    if ends == "is stopped":
        assert process.returncode == 128 + signal.SIGTERM
        assert complaints == "stopped; what was recorded until then stays\n"
        assert not Path("/proc", child).exists()


@pytest.mark.parametrize(("edges", "taken"), [("1234", "1234"), ("unknown", "")])
def test_minutes_on_a_gpu_go_as_written(tmp_path: Path, edges: str, taken: str) -> None:
    """The commands of docs/gpus.md, by an interpreter that notes what it is to run, and has found edges, or none."""
    text = (ROOT / "docs" / "gpus.md").read_text()
    (block,) = (b for b in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "gpu_probe.py" in b)
    python = tmp_path / "python3"
    python.write_text(
        f"""#!/bin/sh
        case "$1" in *probe.py) echo found; echo EDGES_NS={edges};; esac
        echo "$OVERLAPLAB_EDGES_NS $PYTHONPATH $*" >>noted
        """
    )
    python.chmod(0o755)
    variables = {"RESULTS": "results", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-e", "-c", block], cwd=tmp_path, env=os.environ | variables, check=True)
    packages = f"{tmp_path}:{tmp_path}/engine"
    assert (tmp_path / "noted").read_text().splitlines() == [
        f" {packages} scripts/gpu_probe.py",
        f"{taken} {packages} scripts/gpu_tests.py results --seconds 420",
        f" {packages} scripts/record_gpu_samples.py --seconds 240 --packed results",
        f" {packages} benchmarks/gpu.py --minutes 7 --packed results",
    ]
    assert (tmp_path / "results" / "probe.txt").read_text() == f"found\nEDGES_NS={edges}\n"
