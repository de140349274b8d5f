"""Reading several files: small ones in this process, large ones in parallel by an executor's workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import AbstractContextManager, nullcontext

from overlaplab.errors import OverlaplabError
from overlaplab.load.cache import Cache
from overlaplab.load.file import TraceFile, read_trace
from overlaplab.load.packed import pack, unpack
from overlaplab.load.places import Located, stream

__all__ = ["read_all"]

WORTH_BYTES = 300_000_000
"""From this size of text on, the start of worker processes pays off."""
_SHRUNK = 12
"""The least factor by which gzip shrinks a trace."""


def read_all(
    files: Sequence[Located],
    *,
    cache: Cache | None,
    executor: Executor | None,
    progress: Callable[[int, int], None],
) -> list[TraceFile]:
    """The content of each file, in order; `progress(done, files)` is called at the start and after each.

    Without an executor, large files that are not in the cache are read by worker processes.
    """
    progress(0, len(files))
    read: dict[int, TraceFile] = {}
    for place, content in _each(files, cache, executor):
        read[place] = content
        progress(len(read), len(files))
    return [read[place] for place in range(len(files))]


def _each(files: Sequence[Located], cache: Cache | None, executor: Executor | None) -> Iterator[tuple[int, TraceFile]]:
    left: list[int] = []
    for place, file in enumerate(files):
        known = cache.get(file) if cache else None
        if known is None:
            left.append(place)
        else:
            yield place, known
    missing = [files[place] for place in left]
    with _workers(missing) if executor is None else nullcontext(executor) as workers:
        if workers is not None:
            try:
                for place, content in _by_workers(workers, files, tuple(left), cache):
                    left.remove(place)
                    yield place, content
            except OverlaplabError:
                raise
            except Exception as error:
                if executor is not None:  # whose errors may be of any type
                    raise OverlaplabError(
                        f"the executor did not read it ({type(error).__name__}: {error})", path=files[left[0]].path
                    ) from error
                if not isinstance(error, BrokenExecutor):
                    raise
                # The workers were probably killed for lack of memory: one file at a time needs less.
    for place in left:
        yield place, _read_here(files[place], cache)


def _by_workers(
    workers: Executor, files: Sequence[Located], places: Sequence[int], cache: Cache | None
) -> Iterator[tuple[int, TraceFile]]:
    asked: dict[Future[bytes], int] = {workers.submit(_packed, files[place].path): place for place in places}
    try:
        for done in as_completed(list(asked)):
            place = asked.pop(done)
            packed = done.result()
            if cache:
                cache.put(files[place], packed)
            yield place, unpack(packed)
    finally:
        for future in asked:
            future.cancel()


def _read_here(file: Located, cache: Cache | None) -> TraceFile:
    content = _read(file.path)
    if cache and cache.keeps(file):
        cache.put(file, pack(content))
    return content


def _read(path: str) -> TraceFile:
    with stream(path) as file:
        return read_trace(path, file)


def _packed(path: str) -> bytes:
    """The work of a worker. The packed form is a tenth of the table's size, and goes into the cache unchanged."""
    return pack(_read(path))


def _workers(missing: Sequence[Located]) -> AbstractContextManager[Executor | None]:
    """Worker processes, at most one per file and processor; None if they do not pay off."""
    count = min(len(missing), _processors())
    if count < 2 or sum(map(_text_bytes, missing)) < WORTH_BYTES or not all(file.shared for file in missing):
        return nullcontext(None)
    if multiprocessing.current_process().daemon:  # daemons may not have children
        return nullcontext(None)
    from loky import ProcessPoolExecutor

    # Not the standard library's: it imports the caller's script anew in each worker, which runs the whole of a script
    # that has no `if __name__ == "__main__"`; and forking is unsafe beside threads, which Streamlit and pyarrow start.
    with contextlib.suppress(OSError):
        return ProcessPoolExecutor(count)  # type: ignore[no-any-return]
    return nullcontext(None)


def _text_bytes(file: Located) -> int:
    return file.size * (_SHRUNK if file.name.endswith(".gz") else 1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
