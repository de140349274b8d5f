"""The sample runs of traces/."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from overlaplab import Run, load_run
from overlaplab.sections.run_tables import RunTables

TRACES = Path(__file__).parents[2] / "traces"
OF_EACH_KIND = {"bucketed", "bucketed-cap-100", "zero3", "torch-fsdp2", "pipeline", "parameter-server"}
"""Samples that differ most in what they recorded."""


def sample_run(name: str | Path) -> Run:
    """A run of traces/, loaded once for all tests of a process; they do not modify it.

    What analyses compute once per run is so computed once for many tests: one that makes an analysis compute something
    else has to load its run itself.
    """
    return _loaded(TRACES / name)


@cache
def _loaded(folder: Path) -> Run:
    return load_run(folder)


def sample_tables(name: str | Path) -> RunTables:
    """The tables of `sample_run`, each computed once, too."""
    return _tables(TRACES / name)


@cache
def _tables(folder: Path) -> RunTables:
    return RunTables(run=_loaded(folder))


def late_gradients(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Rank, step, index and ns of each gradient in `overlaplab.buckets` that arrived after its bucket was ready."""
    names = ("rank", "step", "index", "ready_ns", "gradient_ready_ns")
    return [
        (rank, step, index, at_ns - ready_ns)
        for rank, step, index, ready_ns, arrivals in zip(*(table[name] for name in names), strict=True)
        for at_ns in arrivals
        if at_ns is not None and pd.notna(ready_ns) and at_ns > ready_ns
    ]


def cpu_samples() -> list[Path]:
    """The folders of runs recorded on the CPU, without the sweep's."""
    return sorted(path.parent for path in TRACES.glob("*/run.json"))


def each_sample() -> list[Any]:
    """`cpu_samples` as test parameters, all but one of each kind marked slow."""
    return _few_at_once(cpu_samples())


def each_gpu_sample() -> list[Any]:
    """`gpu_samples` likewise."""
    return _few_at_once(gpu_samples())


def _few_at_once(folders: list[Path]) -> list[Any]:
    assert len({folder.name for folder in folders} & OF_EACH_KIND) > 2
    return [
        pytest.param(folder, id=folder.name, marks=[] if folder.name in OF_EACH_KIND else pytest.mark.slow)
        for folder in folders
    ]


def gpu_samples(traces: Path = TRACES) -> list[Path]:
    """The folders of runs recorded on a GPU, without the sweep's: traces/<GPU>/<run>, whatever the GPU."""
    found = sorted(path.parent for path in traces.glob("*/*/run.json"))
    return [folder for folder in found if json.loads((folder / "run.json").read_text())["device"] == "cuda"]


def unlabelled(source: Path, folder: Path) -> Path:
    """The recorded run as anybody's: without the engine's labels and manifest."""
    for file in source.glob("*.json.gz"):
        document = json.loads(gzip.decompress(file.read_bytes()))
        document["traceEvents"] = [e for e in document["traceEvents"] if not e["name"].startswith("engine::")]
        (folder / file.name).write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


def with_recorders_labels(name: str, folder: Path) -> Path:
    """A copy of a sample of DDP in the folder, without the labels that the Recorder does not write."""
    for path in (TRACES / name).glob("rank*.gz"):
        text = re.sub(
            r"engine::(forward|backward|optimizer|bucket_done)\b",
            r"user::\1",
            gzip.decompress(path.read_bytes()).decode(),
        )
        (folder / path.stem).write_text(text)
    shutil.copy(TRACES / name / "run.json", folder)
    return folder
