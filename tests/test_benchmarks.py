"""Benchmarks and scripts run: each once, with tiny sizes, as a command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_script import script

ROOT = Path(__file__).parents[1]
TINY = "--layers 1 --width 16 --seq 4 --batch 2"
PAIRS = r"pairs; medians "
PREDICTED = r"ms +[+-]\d+\.\d\d%"

COMMANDS = [
    ("advised_caps.py {out} --settings 1", r"1 of|ms"),
    (f"commands.py {ROOT} --only schedule --pairs 1", rf"schedule.*{PAIRS}"),
    ("dashboard.py --events 4000 --ranks 2 --rounds 1 --folder {out}", "first picture"),
    ("edits.py {out} --recordings 1 --only metrics", "advice right in [01] of 1: metrics(.|\n)*(ok |OFF) metrics"),
    (f"engine_cost.py step-time {TINY} --pairs 1", PAIRS),
    (f"engine_cost.py recording {TINY} --pairs 1", PAIRS),
    (f"engine_cost.py labels {TINY} --pairs 1", PAIRS),
    ("live.py --steps 2000 --ranks 2", "sentences"),
    ("load.py --events 6000 --rounds 1 --folder {out}", "time"),
    ("pipelines.py {out} --settings 2", PREDICTED),
    ("predictions.py {out} --targets 1", PREDICTED),
    ("ranks.py --sizes 2,4 --folder {out}", r"\| 4 \|"),
    ("real_predictions.py {out} --targets 3 --repeats 2 --attempts 1", r"inside: \d of 6"),
    (f"replay.py {ROOT}/traces/bucketed", "bucketed"),
    ("server.py {out}", "8 ranks"),
    (f"users.py --users 1 --turns 1 --folder {ROOT}/traces", "pages"),
    (f"watching.py cost {TINY} --blocks 2 --block 4 --every 2 --burst 1", "watched ÷ not"),
    (f"watching.py exposed {TINY} --repeats 1", "zero3"),
    ("what_if.py", "ms"),
    (f"zero3_cost.py {TINY} --pairs 1 --checkpointing all", rf"step time.*{PAIRS}(.|\n)*peak memory.*{PAIRS}"),
    ("busy_figures.py --out {out} --rounds 1", "busy: [01] of 1 recordings marked"),
    (
        f"../scripts/screenshots.py {ROOT}/traces {{out}} --run bucketed --pages buckets --themes light --width 1024",
        "png",
    ),
    ("link_figures.py 1", "[01] of 1 demos attained"),
]
"""What is run in benchmarks/, and what it prints."""

RATIOS = {"commands.py": ["schedule"], "zero3_cost.py": ["step time", "peak memory"]}
"""Of some of them which ratios, and no others."""

DISTURBED = r"OverlaplabError: (.|\n)*(machine\s+was\s+busy|attain)"
"""The error of a benchmark that refuses what it recorded beside other tests."""

ELSEWHERE = {
    "action_pictures.py": "tests/test_benchmarks.py",
    "columns.py": "tests/test_columns.py",
    "demo.py": "Makefile",  # which link_figures.py calls
    "golden.py": "tests/test_golden.py",
    "gpu.py": "tests/scripts/test_gpu_scripts.py",
    "gpu_probe.py": "tests/scripts/test_gpu_probe.py",
    "gpu_tests.py": "tests/scripts/test_gpu_tests.py",
    "notebooks.py": "tests/test_notebooks.py",
    "record_gpu_samples.py": "tests/scripts/test_gpu_scripts.py",
    "schemas.py": "tests/cli/test_schemas.py",
}
"""Which other tests run a script."""


@pytest.mark.slow
@pytest.mark.parametrize(("command", "prints"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_benchmark_prints_its_figures(command: str, prints: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command.format(out=tmp_path / "out").split()],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}"},
        capture_output=True,
        text=True,
    )
    if done.returncode and (refused := re.search(DISTURBED, done.stderr)):
        pytest.skip(refused.group())
    assert done.returncode == 0, done.stderr
    assert re.search(prints, done.stdout), done.stdout
    ratios = [line.partition(",")[0].partition(":")[0] for line in done.stdout.splitlines() if f" {PAIRS}" in line]
    assert ratios == RATIOS.get(command.split()[0], ratios)


@pytest.mark.slow
def test_the_picture_of_an_action_is_drawn(tmp_path: Path) -> None:
    script("scripts/action_pictures.py").main(["merge"], tmp_path)
    assert (tmp_path / "merge.svg").read_text() == (ROOT / "docs" / "actions" / "merge.svg").read_text()


def test_every_benchmark_and_script_is_run_by_a_test() -> None:
    files = {path.name for folder in ("benchmarks", "scripts") for path in (ROOT / folder).glob("[a-z]*.py")}
    here = {Path(command.split()[0]).name for command, _ in COMMANDS}
    assert files == here | set(ELSEWHERE)
    for file, test in ELSEWHERE.items():
        assert file in (ROOT / test).read_text(), test
