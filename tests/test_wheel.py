"""The wheel that users install: both packages, with the files beside their modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "overlaplab", ROOT / "engine" / "overlaplab_engine")
NEEDED = {
    "overlaplab/dashboard/canvas/timeline.js",
    "overlaplab/dashboard/views/summary.py",
    "overlaplab/py.typed",
    "overlaplab/report/assets/page.html",
    "overlaplab_engine/__main__.py",
    "overlaplab_engine/py.typed",
    "overlaplab_engine/strategies/zero3.py",
}


def test_the_wheel_has_both_packages_and_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    for source in SOURCES:
        shutil.copytree(source, copy / source.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for other in ("scripts", "tests", "traces"):
        (copy / other).mkdir()
        (copy / other / "module.py").touch()
    code = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (copy / "dist").glob("overlaplab-*.whl")
    with ZipFile(wheel) as file:
        names = {name for name in file.namelist() if not name.startswith("overlaplab-")}
        entry_points = next(name for name in file.namelist() if name.endswith("/entry_points.txt"))
        assert "overlaplab = overlaplab.cli:main" in file.read(entry_points).decode()
    there = {file.relative_to(source.parent).as_posix() for source in SOURCES for file in source.rglob("*.*")}
    assert names == {name for name in there if "__pycache__" not in name}
    assert names >= NEEDED
