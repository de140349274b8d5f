"""Cut some steps out of a run, with everything that their figures need, and write them as a run of their own."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.errors import OverlaplabError
from overlaplab.events import (
    DAMAGED,
    NEXT_STEP,
    Run,
    Trace,
    Window,
    WorkKind,
    counting_as,
    event_times,
    launchers,
    matching,
    step_windows,
    thread_numbers,
)
from overlaplab.folders import MANIFEST_NAME
from overlaplab.intervals import Integers, Mask
from overlaplab.load.file.columns import number
from overlaplab.load.file.decode import FileEvent
from overlaplab.load.file.inflate import Source, open_file
from overlaplab.load.file.slices import NoTraceError, Slices
from overlaplab.load.file.times import counts_ns, nanoseconds
from overlaplab.load.places import local_copy, manifest_text
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, is_device_category
from overlaplab.words import numbers_named

_NEVER = np.iinfo(np.int64).max
_STEP = re.compile(r"ProfilerStep#(\d+)")
_COLLECTIVE_PREFIXES = (
    *("c10d::", "_c10d_functional::", "gloo:", "nccl:", "record_param_comms"),
    *("engine::collective ", "engine::comm ", "engine::launch "),
)
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d[\d.eE+]*)')
_BASE_BYTES = 64
_SEQUENCE = re.compile(r"engine::\w+ (?:.* )?seq=(\d+)\b")


class _ChosenEvents(Struct, frozen=True, kw_only=True):
    """What decides which events of a file are copied."""

    starts: Integers
    """When the chosen events start, in order."""
    ends: Integers
    """When they end, in order."""
    damaged: frozenset[int]
    """Correlation numbers of chosen events at impossible times, which the file has at other times than the table."""
    steps: frozenset[int]
    following: frozenset[int]
    """Steps that are kept only to mark the end of the last one."""


def slice_run(
    run: Run, first: int | None, last: int | None, out: Path, *, progress: Callable[[int, int], None] | None = None
) -> list[int]:
    """Copy the steps from `first` up to, not including, `last` (None: all on that side) to the new folder `out`.

    It contains one gzipped trace per file of the run, with the metadata and the unchanged events that these steps'
    figures depend on, and run.json with a note under `sliced`. Returns the steps' numbers.

    Raises `OverlaplabError` if `out` exists, or a rank lacks one of these steps.
    """
    if out.exists() or out.is_symlink():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    by_file: dict[str, list[Trace]] = {}
    for trace in run.traces:
        by_file.setdefault(trace.path, []).append(trace)
    steps = _steps(run.traces, first, last)
    chosen = frozenset(steps)
    spans = [_span(trace, chosen) for trace in run.traces]
    with whole_folder(out) as part:
        for done, (path, traces) in enumerate(by_file.items()):
            if progress:
                progress(done, len(by_file))
            with local_copy(path) as file, gzip.open(part / _name(path, traces), "wb", compresslevel=6) as target:
                _copy(file, _choose_events(traces, chosen, spans), target, path)
        _copy_manifest(run, steps, part)
    return steps


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends well and vanishes when it does not.

    Raises `OverlaplabError` where it cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        try:
            yield part
            part.rename(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise OverlaplabError(f"cannot be written ({error.strerror or error})", path=out) from None


def _steps(traces: Sequence[Trace], first: int | None, last: int | None) -> list[int]:
    """The chosen steps' numbers; every trace has them."""
    held = [{window.step for window in step_windows(trace) if window.step is not None} for trace in traces]
    for trace, present in zip(traces, held, strict=True):
        if not present:
            remedy = "torch.profiler marks them where the training loop calls its step()."
            raise OverlaplabError("has no steps to cut at", path=trace.path, rank=trace.rank, remedy=remedy)
    low = min(map(min, held)) if first is None else first
    high = max(map(max, held)) + 1 if last is None else last
    for trace, present in zip(traces, held, strict=True):
        missing = next((step for step in range(low, high) if step not in present), None)
        if missing is not None or low >= high:
            what = f"no step from {low} up to, not including, {high}" if missing is None else f"no step {missing}"
            has = f"It holds {numbers_named(sorted(present))}."
            raise OverlaplabError(what, path=trace.path, rank=trace.rank, remedy=has)
    return list(range(low, high))


def _name(path: str, traces: Sequence[Trace]) -> str:
    if len(traces) == 1 and traces[0].rank is not None:
        return f"rank{traces[0].rank}.pt.trace.json.gz"
    name = path.rstrip("/").rpartition("/")[2]
    return name if name.endswith(".gz") else f"{name}.gz"


def _choose_events(traces: Sequence[Trace], steps: Collection[int], spans: Sequence[tuple[int, int]]) -> _ChosenEvents:
    starts, ends, damaged, following = [], [], set(), set()
    for trace in traces:
        first, last = _span(trace, steps)
        overlapping = [span for span in spans if span[0] <= last and span[1] >= first]  # others' clocks are far apart
        rows = rows_of_steps(trace, steps, (min(start for start, _ in overlapping), max(end for _, end in overlapping)))
        begun, ended = event_times(trace.events, rows)
        starts.append(begun)
        ends.append(ended)
        damaged |= {*trace.events["correlation"][rows & (trace.events["phase"] == DAMAGED).to_numpy()].tolist()}
        after = _ending_window(trace, steps)
        if after is not None and after.step is not None:
            following.add(after.step)
    return _ChosenEvents(
        starts=np.unique(np.concatenate(starts)),
        ends=np.unique(np.concatenate(ends)),
        damaged=frozenset(damaged - {-1}),
        steps=frozenset(steps),
        following=frozenset(following),
    )


def _span(trace: Trace, steps: Collection[int]) -> tuple[int, int]:
    windows = [window for window in step_windows(trace) if window.step in steps]
    return min(window.start_ns for window in windows), max(window.end_ns for window in windows)


def _ending_window(trace: Trace, steps: Collection[int]) -> Window | None:
    """The window that ends the last of the steps."""
    windows = step_windows(trace)
    last = max(place for place, window in enumerate(windows) if window.step in steps)
    return windows[last + 1] if last + 1 < len(windows) else None


def rows_of_steps(trace: Trace, steps: Collection[int], within: tuple[int, int]) -> Mask:
    """Mark the rows of the trace's events that the figures of these steps depend on.

    `within` is the time, in absolute ns, in which any rank was in these steps, since a collective may begin or end on a
    rank outside of them. The rows are:

    - device events in that time, and the calls that launched them
    - host events in that time, back to the first such call, and what they launched; on a GPU until the launch of what
      ends the last step, as what the host does before it is part of that step
    - both also for as long as communication among these lasts
    - on each stream the last event to end before, since the rank was ready then
    - the start of the following step
    - on each thread the kernel's counts just before and after, since what it computes is judged by both
    - the collectives of the adjacent steps, since they are matched across ranks
    - the counterparts of all labels that are joined by a number
    """
    events, calls = trace.events, launchers(trace)
    windows = [window for window in step_windows(trace) if window.step in steps]
    host = min(window.host_start_ns for window in windows), max(window.host_end_ns for window in windows)
    starts, ends = event_times(events)
    device = matching(events["category"], is_device_category)
    device = device | ((events["stream"] >= 0).to_numpy() & (calls >= 0))
    called = np.where(calls >= 0, starts[calls], _NEVER)
    span = min(within[0], *(w.start_ns for w in windows)), max(within[1], *(w.end_ns for w in windows))
    after = _ending_window(trace, steps)
    # When the host launched what ends the last step.
    end_called = host[1] if after is None else int(called[device & (starts == after.start_ns)].min(initial=_NEVER))
    end_called = host[1] if end_called == _NEVER else end_called
    sent = host[1]
    for _ in range(2):  # once more, over all the time that the communication found first takes
        rows = device & (starts <= span[1]) & (ends >= span[0])
        host = min(host[0], int(called[rows].min(initial=_NEVER))), host[1]
        # Without devices, `span` covers communication.
        hosts = (host[0], max(host[1], end_called, sent)) if device.any() else span
        rows = rows | (~device & (starts <= hosts[1]) & (ends >= hosts[0]))
        rows = rows | (device & (called >= host[0]) & (called < host[1]))
        communicates = rows & (counting_as(trace, WorkKind.COMMUNICATION))
        span = (int(starts[communicates].min(initial=span[0])), int(ends[communicates].max(initial=span[1])))
        sent = int(called[communicates & (calls >= 0)].max(initial=host[1]))  # for the ranges that name these launches
    rows = rows | _neighbours(trace, steps)
    rows[_last_ends(events["stream"].to_numpy(), ends, device & (called < host[0]))] = True
    if after is None:  # the trace may be a slice itself, which marks the end of its last step
        rows = rows | matching(events["name"], lambda text: text.startswith(NEXT_STEP))
    else:
        rows = rows | (events["name"] == f"ProfilerStep#{after.step}").to_numpy()
    rows = rows | _counts_around(trace, hosts)
    rows[calls[rows & (calls >= 0)]] = True
    return np.asarray(rows | _labels_by_number(trace, rows))


def _neighbours(trace: Trace, steps: Collection[int]) -> Mask:
    """Events of collectives, from the step before these to the one after."""
    windows = step_windows(trace)
    chosen = [place for place, window in enumerate(windows) if window.step in steps]
    before, after = windows[max(0, min(chosen) - 1)], windows[min(len(windows) - 1, max(chosen) + 1)]
    starts = trace.events["ts_ns"].to_numpy()
    near = (starts >= min(before.start_ns, before.host_start_ns)) & (starts <= max(after.end_ns, after.host_end_ns))
    described = np.zeros(len(starts), dtype=bool)
    described[trace.collectives["event"].to_numpy()] = True
    named = matching(trace.events["name"], lambda text: text.startswith(_COLLECTIVE_PREFIXES))
    return np.asarray(near & (described | named | counting_as(trace, WorkKind.COMMUNICATION)))


def _last_ends(streams: NDArray[np.integer], ends: Integers, among: Mask) -> Integers:
    """For each stream the one of these rows that ends last."""
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((ends[rows], streams[rows]))]
    last = np.append(streams[rows][1:] != streams[rows][:-1], True) if len(rows) else np.empty(0, dtype=bool)
    return np.asarray(rows[last])


def _counts_around(trace: Trace, hosts: tuple[int, int]) -> Mask:
    """The `engine::processor` of this time, with the nearest on either side on each thread (`events/preempted.py`)."""
    counts = matching(trace.events["name"], lambda text: text.startswith("engine::processor "))
    starts, threads = trace.events["ts_ns"].to_numpy(), thread_numbers(trace.events)
    for thread in np.unique(threads[counts]):
        of_thread = np.flatnonzero(counts & (threads == thread))
        first = np.searchsorted(starts[of_thread], hosts[0], side="right") - 1
        last = np.searchsorted(starts[of_thread], hosts[1], side="left")
        counts[of_thread[: max(first, 0)]] = False
        counts[of_thread[last + 1 :]] = False
    return np.asarray(counts)


def _labels_by_number(trace: Trace, rows: Mask) -> Mask:
    """Mark the labels that share a number with one of these rows."""
    names = trace.events["name"].cat
    codes = names.codes.to_numpy()
    numbers = {code: match[1] for code, text in enumerate(names.categories) if (match := _SEQUENCE.match(str(text)))}
    present = {numbers[code] for code in np.unique(codes[rows]).tolist() if code in numbers}
    return np.isin(codes, [code for code, number in numbers.items() if number in present])


def _copy(file: Path, wanted: _ChosenEvents, target: BinaryIO | gzip.GzipFile, path: str) -> None:
    """Write the file's chosen events, as they are, with the text around all events.

    A file that is cut short gives the events before the cut, and what closes them.
    """
    base_ns, in_ns, written = _base_ns(file), None, 0
    with open_file(file) as opened:
        chunks = iter(Source(file, opened))
        slices = Slices(chunks)
        try:
            for number, (events, _) in enumerate(slices):
                if number == 0:
                    target.write(slices.head)
                in_ns = counts_ns([event.ts for event in events]) if in_ns is None else in_ns
                times = nanoseconds([event.ts for event in events], ns=bool(in_ns)) + base_ns
                pairs = compress(zip(slices.texts(), events, strict=True), _choose_rows(events, times, wanted).tolist())
                texts = [text for raw, event in pairs if (text := _text(raw, event, wanted)) is not None]
                if texts:
                    target.write((b",\n" if written else b"\n") + b",\n".join(texts))
                    written += len(texts)
        except NoTraceError as error:
            raise OverlaplabError(str(error), path=path) from None
        target.write(b"\n" + (slices.tail or (b"]}" if slices.head.startswith(b"{") else b"]")))
        for chunk in chunks:
            target.write(chunk)
    if not written:
        raise OverlaplabError("its events are not found again in the file", path=path, remedy="Has it changed?")


def _base_ns(file: Path) -> int:
    """The offset of all times; found by a pass of its own, because kineto writes it last."""
    values, text = [b"0"], b""
    with open_file(file) as opened:
        for chunk in Source(file, opened):
            text = text[-_BASE_BYTES:] + chunk  # the key may span two chunks
            values = _BASE.findall(text)[-1:] or values
    return max(0, number(values[0].decode()))


def _choose_rows(events: Sequence[FileEvent], times: Integers, wanted: _ChosenEvents) -> Mask:
    """Mark metadata, events that start or end when a chosen one does, chosen damaged ones, and counters in between."""
    phases = np.array([event.ph or "" for event in events])
    during = (times >= wanted.starts[0]) & (times <= wanted.ends[-1]) if len(wanted.starts) else False
    starts = ~np.isin(phases, ["C", "E", "M"]) & _is_among(times, wanted.starts)
    ends = (phases == "E") & _is_among(times, wanted.ends)
    numbers = [event.args.correlation if event.args else None for event in events] if wanted.damaged else []
    damaged = np.isin(phases, ["X"]) & np.array([number in wanted.damaged for number in numbers]) if numbers else False
    return np.asarray(starts | ends | damaged | (phases == "M") | ((phases == "C") & during))


def _is_among(values: Integers, ordered: Integers) -> Mask:
    """Mark the values that are among the ordered ones."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    return np.asarray(ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values)


def _text(raw: bytes, event: FileEvent, wanted: _ChosenEvents) -> bytes | None:
    """The event's text, or None. The step after the last one is kept under another name, as it marks the end."""
    match = _STEP.fullmatch(event.name or "")
    if match is None or int(match[1]) in wanted.steps:
        return raw
    if int(match[1]) in wanted.following and event.cat in ANNOTATION_CATEGORIES:
        return raw.replace(match[0].encode(), f"{NEXT_STEP}#{match[1]}".encode())
    return None


def _copy_manifest(run: Run, steps: Iterable[int], folder: Path) -> None:
    text = manifest_text(run.path)
    if text is None:
        return
    raw: Mapping[str, object] = json.loads(text)
    note = {"sliced": {"steps": list(steps), "of": run.path}}
    (folder / MANIFEST_NAME).write_text(json.dumps({**raw, **note}, indent=2) + "\n")
