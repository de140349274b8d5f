"""What users install: wheel and sdist with both packages and the files beside their modules; it runs without extras."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "overlaplab", ROOT / "engine" / "overlaplab_engine")
RUN = ROOT / "traces" / "bucketed"
NEEDED = {
    "overlaplab/dashboard/canvas/timeline.js",
    "overlaplab/dashboard/views/summary.py",
    "overlaplab/py.typed",
    "overlaplab/report/assets/page.html",
    "overlaplab_engine/__main__.py",
    "overlaplab_engine/py.typed",
    "overlaplab_engine/strategies/zero3.py",
}
EXTRAS = ("pyarrow", "streamlit", "torch", "vl_convert")
"""Modules that only extras install."""


def built(what: str, folder: Path) -> Path:
    """`wheel` or `sdist` of the project in a folder."""
    code = f"from setuptools.build_meta import build_{what}; print(build_{what}('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("built") / "checkout"
    for source in SOURCES:
        shutil.copytree(source, copy / source.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for other in ("scripts", "tests", "traces"):
        (copy / other).mkdir()
        (copy / other / "module.py").touch()
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return built("wheel", checkout)


def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as file:
        return {name for name in file.namelist() if not name.startswith("overlaplab-")}


def test_the_wheel_has_both_packages_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        entry_points = next(name for name in file.namelist() if name.endswith("/entry_points.txt"))
        assert "overlaplab = overlaplab.cli:main" in file.read(entry_points).decode()
    there = {file.relative_to(source.parent).as_posix() for source in SOURCES for file in source.rglob("*.*")}
    assert names(wheel) == {name for name in there if "__pycache__" not in name}
    assert names(wheel) >= NEEDED


def test_the_sdist_makes_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built("sdist", checkout)) as file:
        file.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert names(built("wheel", unpacked)) == names(wheel)


def test_what_is_installed_runs_without_extras(wheel: Path, tmp_path: Path) -> None:
    """Its own files are used, and what needs an extra says which."""
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    pip += ["--target", tmp_path / "installed"]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS!r}))\n")
    path = os.pathsep.join(map(str, (tmp_path / "installed", tmp_path)))
    environment = os.environ | {"PYTHONPATH": path, "OVERLAPLAB_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "200"}

    def overlaplab(*words: object) -> subprocess.CompletedProcess[str]:
        line = [str(tmp_path / "installed" / "bin" / "overlaplab"), *map(str, words)]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)

    read, cached = (overlaplab("exposed", RUN) for _ in range(2))
    assert (read.returncode, read.stderr) == (0, "")
    assert cached.stdout == read.stdout
    assert list((tmp_path / "cache").iterdir())
    for words, needs, extra in (
        (("report", RUN, "-o", "report.html"), "a report needs vl_convert", "report"),
        (("app",), "the dashboard needs streamlit", "app"),
        (("record", "--out", "x"), "recording needs torch", "engine"),
    ):
        done = overlaplab(*words)
        said = f"overlaplab: {needs}. Install it with: pip install 'overlaplab[{extra}]'.\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
