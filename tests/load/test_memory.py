"""What loading takes of memory, which no other machine changes: times are benchmarks/load.py's to measure."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from loaded_script import script

from overlaplab import collectives, exposed, load_ranks, load_run, summary

EVENTS = 150_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks on GPUs, in the shape that kineto writes."""
    made = tmp_path_factory.mktemp("large")
    kineto = script("benchmarks/_kineto.py")
    for rank in range(2):
        kineto.write(made / f"rank{rank}.json.gz", events=EVENTS, rank=rank, ranks=2)
    return made


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that this process holds at once, more than before, in the call."""
    tracemalloc.start()
    try:
        kept = call()
        assert kept is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_trace_takes_at_most_half_its_text(folder: Path) -> None:
    """And the analyses no more; HTA takes several times as much as the text."""
    path = folder / "rank0.json.gz"
    text_bytes = len(gzip.decompress(path.read_bytes()))
    assert peak_bytes(lambda: load_run(path, cache=False)) <= text_bytes / 2
    run = load_run(path, cache=False)
    assert peak_bytes(lambda: (summary(run), exposed(run))) <= text_bytes / 2


@pytest.fixture
def workers() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield executor


def test_ranks_that_workers_read_leave_no_tables_here(folder: Path, workers: Executor) -> None:
    def analyses() -> object:
        run = load_ranks(folder, executor=workers, cache=False)
        return summary(run), exposed(run), collectives(run)

    assert peak_bytes(analyses) <= 20 * 2 * EVENTS  # of each event the table alone takes more
