"""The demo's recordings, whose ranks are forks."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_a_recording_that_fails_ends_the_demo_in_one_line(tmp_path: Path) -> None:
    line = f"import demo; demo.FORKS = True; demo.record(2, ['--strategy', 'none', '--out', {str(tmp_path)!r}])"
    done = subprocess.run(
        [sys.executable, "-c", line], cwd=SCRIPTS, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert done.stdout == f"$ overlaplab record --strategy none --out {tmp_path}\n"
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("overlaplab record: --strategy 'none' is none of naive, per-param, bucketed")
