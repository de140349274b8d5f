"""`FORKS FOLDER`: forks of a process that has imported the readers and used none. In each, eight threads read each
kind of file of the folder at once, for the first time. Prints the number of forks that ended badly: killed by a signal,
or with an exception.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from overlaplab.analyses.across_runs.baseline import stored_baseline
from overlaplab.load.file.slices import Slices
from overlaplab.load.file.trace_file import read_trace
from overlaplab.load.packed import unpack
from overlaplab.load.run_folder import load_manifest

THREADS = 8


def readers(folder: Path) -> list[Callable[[], object]]:
    """One for each kind of file, all of which are there."""
    packed = (folder / "packed").read_bytes()
    return [
        lambda: load_manifest(str(folder)),
        lambda: stored_baseline(folder / "baseline.json"),
        lambda: unpack(packed),
        lambda: read_trace(folder / "rank0.json"),
        lambda: read_texts((folder / "rank0.json").read_bytes()),
    ]


def read_texts(trace: bytes) -> list[bytes]:
    slices = Slices(iter([trace]))
    return [text for _ in slices for text in slices.texts()]


def read_in_threads(folder: Path) -> None:
    sys.setswitchinterval(1e-6)  # one thread interrupts another wherever it can
    start = threading.Barrier(THREADS)

    def read_all() -> None:
        for read in readers(folder):
            start.wait()
            read()

    def end(failure: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(failure)
        os._exit(1)

    threading.excepthook = end
    threads = [threading.Thread(target=read_all) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(forks: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bad = 0
    for _ in range(forks):
        child = os.fork()
        if child == 0:
            read_in_threads(folder)
            os._exit(0)
        bad += os.waitpid(child, 0)[1] != 0
    print(bad)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
