"""All ranks of a run in one file that https://ui.perfetto.dev (and chrome://tracing, and overlaplab itself) opens.

The format is the Chrome JSON trace (the "Trace Event Format"), which every reader of kineto's traces takes: a process
per rank, its threads and streams, and above them what overlaplab tells: steps, phases, buckets, gathers, exposed
communication. Times are ns from the first event, written as µs with three decimals, by the first rank's clock: readers
that take them for floats lose nothing below 100 days. Slices of one track must nest, so what overlaps gets one more.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from itertools import count as counted
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.analyses import PARTS, collectives, summary
from overlaplab.events import Run, Trace
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.findings.runs import describe_link, describe_prediction, describe_ranks
from overlaplab.report.threads import assign_threads, nesting_tracks, numbered_names, us_text
from overlaplab.sections.run_tables import RunTables
from overlaplab.timeline.marks import Timeline

OWN = "overlaplab"
"""The category of what is no event of the trace: no rule counts it when the file is read again."""
_ARGUMENTS = {"stream": "stream", "device": "device", "correlation": "correlation", "external_id": "External id"}
"""Columns of events, and kineto's names for them, which the loader reads."""
_COLLECTIVE_ARGUMENTS = (
    ("kind", "Collective name"),
    ("dtype", "dtype"),
    ("elements_in", "In msg nelems"),
    ("elements_out", "Out msg nelems"),
    ("group", "Process Group Name"),
    ("group_description", "Process Group Description"),
    ("group_size", "Group size"),
    ("sequence", "Seq"),
    ("comms_id", "Comms Id"),
)
_OF_COLLECTIVE = ("kind", "bytes", "group_description", "transfer_ns", "bus_gb_per_s", "skew_ns", "last_rank")
_FLOWS = (("flow_launch", "ac2g"), ("flow_backward", "fwdbwd"))
"""Columns of events that number arrows, and kineto's categories for these."""

Ends = dict[int, list[str]]
"""By row of a trace's events: the ends of arrows there as the first members of a JSON object, without time and place.

An arrow has an end in each slice that it joins (`s` the first, `f` the last, `t` between), all with one id; the slice
is the one around the end's time on its thread.
"""

_LINES_AT_ONCE = 4096
"""Lines that are made and written at once."""


def write_perfetto(
    run: Run, file: BinaryIO, *, packed: bool = False, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the run to a binary file or pipe, gzipped where it is to be packed."""
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=5) if packed else nullcontext(file) as to:
        text = _lines(run, progress)
        while lines := list(islice(text, _LINES_AT_ONCE)):
            to.write("".join(lines).encode())


def _lines(run: Run, progress: Callable[[int, int], None] | None) -> Iterator[str]:
    """The file's text, a rank at a time, so that memory holds no more than the tables and a rank's text."""
    timeline = RunTables(run=run).timeline
    first = _first_ns(run, timeline)
    yield '{"schemaVersion": 1, "displayTimeUnit": "ns",'
    yield f' "baseTimeNanoseconds": {run.traces[0].origin_ns + first if run.traces else 0},'
    yield f' "distributedInfo": {json.dumps(_distributed_info(run))},'
    yield ' "traceEvents": ['
    details = _details(run)
    ids = counted(1)
    across = _arrows_of_collectives(timeline, len(run.traces), ids)
    comma = ""
    for place, trace in enumerate(run.traces):
        if progress:
            progress(place, len(run.traces))
        writer = _Writer(run=run, place=place, first_ns=first)
        ends = across[place]
        for row, arrows in _arrows_of_events(trace, ids).items():
            ends.setdefault(row, []).extend(arrows)
        for line in chain(writer.rank_lines(timeline, *details), writer.event_lines(trace, ends)):
            yield f"{comma}{line}"
            comma = ",\n"
    yield "\n]}"


def _first_ns(run: Run, timeline: Timeline) -> int:
    """When the first event or mark begins, in ns from the run's zero: no time in the file is negative."""
    starts = [int(trace.events["ts_ns"].min()) - run_zero_ns(run, trace) for trace in run.traces if len(trace.events)]
    starts += [int(timeline.events["start_ns"].min())] if len(timeline.events) else []
    return min(starts, default=0)


def _distributed_info(run: Run) -> dict[str, Any]:
    """Kineto's `distributedInfo` as far as it is the same for all ranks, with the groups of all."""
    first = run.traces[0]
    groups = [
        {"pg_name": group.name, "pg_desc": group.description, "pg_size": group.size, "ranks": list(group.ranks)}
        for group in dict.fromkeys(group for trace in run.traces for group in trace.groups)
    ]
    rank_entry = {} if len(run.traces) > 1 or first.rank is None else {"rank": first.rank}
    return rank_entry | {"world_size": first.world_size, "backend": first.backend, "pg_config": groups}


def _details(run: Run) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """What a click on one of overlaplab's own slices shows, as JSON: of collectives by index, of steps by the trace's
    place and the step's start, in ns from the run's zero.
    """
    facts = collectives(run).drop_duplicates("index").set_index("index")[list(_OF_COLLECTIVE)]
    places = {trace.rank: place for place, trace in enumerate(run.traces)}
    windows = summary(run)
    keys = zip((places[int_or_none(rank)] for rank in windows["rank"]), windows["start_ns"].tolist(), strict=True)
    figures = map(_known_arguments, windows[[*PARTS, "overlap_ratio"]].to_dict("records"))
    of_collectives = zip(facts.index.tolist(), map(_known_arguments, facts.to_dict("records")), strict=True)
    return dict(of_collectives), dict(zip(keys, figures, strict=True))


class _Writer(Struct, frozen=True, kw_only=True):
    """One rank's part of the file. Its processes are numbered from `pid` on; the first holds the rank's tracks."""

    run: Run
    place: int
    first_ns: int

    @property
    def pid(self) -> int:
        return 1 + 1000 * self.place

    def rank_lines(
        self, timeline: Timeline, of_collectives: dict[int, str], of_steps: dict[tuple[int, int], str]
    ) -> Iterator[str]:
        """The rank's name, and its tracks that are neither threads nor streams."""
        rank = self.run.traces[self.place].rank
        name = "rank unknown" if rank is None else f"rank {rank}"
        yield from _process_name(self.pid, name + _emulation_words(self.run), self.place)
        chosen = timeline.events[timeline.events["trace"] == self.place]
        tid = 1
        for lane in timeline.lanes[timeline.lanes["kind"] != "stream"].itertuples():
            marks = chosen[chosen["lane"] == lane.lane]
            if marks.empty:
                continue
            label = str(lane.label).split(" ", 2)[-1]  # without `rank 3`
            starts, ends = marks["start_ns"].to_numpy(), marks["end_ns"].to_numpy()
            tracks = nesting_tracks(starts, ends)
            count = int(tracks.max()) + 1
            for track, name in enumerate(numbered_names(label, count)):
                yield from _thread_name(self.pid, tid + track, name)
            names = [json.dumps(name.removeprefix("engine::")) for name in marks["name"].cat.categories]
            columns = (marks["name"].cat.codes, starts, ends - starts, tracks, marks["collective"])
            for code, start, took, track, collective in zip(*(column.tolist() for column in columns), strict=True):
                is_step = lane.kind == "steps"
                arguments = of_steps.get((self.place, start)) if is_step else of_collectives.get(collective)
                yield (
                    f'{{"ph":"X","cat":"{OWN}","name":{names[code]},"pid":{self.pid},"tid":{tid + track}'
                    f',"ts":{us_text(start - self.first_ns)},"dur":{us_text(took)}'
                    f',"args":{arguments or "{}"}}}'
                )
            tid += count

    def event_lines(self, trace: Trace, ends: Ends) -> Iterator[str]:
        """The rank's events with their arrows."""
        events = trace.events
        starts = events["ts_ns"].to_numpy() - (run_zero_ns(self.run, trace) + self.first_ns)
        places = assign_threads(trace, self.pid)
        for pid, name in places.processes:
            yield from _process_name(pid, name, self.place)
        for pid, tid, name in places.names:
            yield from _thread_name(pid, tid, name)
        fixed = [f'"rank":{trace.rank}'] if trace.rank is not None else []
        more = _more_arguments(trace)
        texts = [_texts(events[column]) for column in ("name", "category", "phase")]
        columns = [events[column].cat.codes.to_numpy() for column in ("name", "category", "phase")]
        columns += [starts, events["dur_ns"].to_numpy(), places.pids, places.tids]
        columns += [events[column].to_numpy() for column in _ARGUMENTS]
        for begin in range(0, len(events), _LINES_AT_ONCE):
            part = (column[begin : begin + _LINES_AT_ONCE].tolist() for column in columns)
            for row, values in enumerate(zip(*part, strict=True), begin):
                name, category, phase = (words[code] for words, code in zip(texts, values[:3], strict=True))
                start, took, pid, tid = values[3:7]
                where = f'"pid":{pid},"tid":{tid},"ts":{us_text(start)}'
                numbers = zip(_ARGUMENTS.values(), values[7:], strict=True)
                arguments = [*fixed, *(f'"{key}":{value}' for key, value in numbers if value >= 0), *more.get(row, ())]
                # What has no duration becomes an instant ("i") of its thread ("s":"t").
                kind, lasts = (phase, f',"dur":{us_text(took)}') if phase == '"X"' else ('"i"', ',"s":"t"')
                yield (
                    f'{{"ph":{kind},"cat":{category},"name":{name},{where}{lasts},"args":{{{",".join(arguments)}}}}}'
                )
                for end in ends.get(row, ()):
                    yield f"{{{end},{where}}}"


def _arrows_of_events(trace: Trace, ids: Iterator[int]) -> Ends:
    """The trace's own arrows; each gets one of `ids`, since ranks number theirs alike."""
    ends: Ends = {}
    for column, category in _FLOWS:
        numbers = trace.events[column].to_numpy()
        rows = np.flatnonzero(numbers >= 0)
        table = pd.DataFrame({"row": rows, "number": numbers[rows]})
        for _, joined in table.groupby("number", sort=False)["row"]:
            _join([(int(row), ends) for row in joined], category, ids)
    return ends


def _arrows_of_collectives(timeline: Timeline, traces: int, ids: Iterator[int]) -> list[Ends]:
    """Per trace of the run: for each collective an arrow through its first event on each rank, in order of start."""
    ends: list[Ends] = [{} for _ in range(traces)]
    events = timeline.events
    with_event = events[(events["collective"] >= 0) & (events["event"] >= 0)].sort_values("start_ns", kind="stable")
    firsts = with_event.drop_duplicates(["collective", "trace"])
    for _, rows in firsts.groupby("collective", sort=False):
        joined = zip(rows["event"].tolist(), rows["trace"].tolist(), strict=True)
        _join([(row, ends[place]) for row, place in joined], "collective", ids)
    return ends


def _join(places: list[tuple[int, Ends]], category: str, ids: Iterator[int]) -> None:
    """Add an end at each of these rows, in order of time; one alone has nothing to point to."""
    if len(places) < 2:
        return
    number, last = next(ids), len(places) - 1
    for place, (row, ends) in enumerate(places):
        phase = "s" if place == 0 else "f" if place == last else "t"
        bound = ',"bp":"e"' if phase == "f" else ""
        ends.setdefault(row, []).append(f'"ph":"{phase}","id":{number},"cat":"{category}","name":"{category}"{bound}')


def _more_arguments(trace: Trace) -> dict[int, list[str]]:
    """Further arguments of events, as JSON, by row: what a collective is, and the inputs of operators."""
    texts_by_row: dict[int, list[str]] = {}
    for row in trace.collectives.to_dict("records"):
        arguments = ((key, row[column]) for column, key in _COLLECTIVE_ARGUMENTS)
        texts = [f'"{key}":{json.dumps(value)}' for key, value in arguments if value not in ("", -1)]
        texts_by_row.setdefault(int(row["event"]), []).extend(texts)
    for row in trace.inputs.to_dict("records"):
        parts = [("Input Dims", row["shapes"]), ("Input type", row["types"])]
        texts = [f'"{key}":{text}' for key, text in parts if _is_json(text)]
        texts_by_row.setdefault(int(row["event"]), []).extend(texts)
    return texts_by_row


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _texts(column: pd.Series[Any]) -> list[str]:
    """The JSON of each of a column's categories."""
    return [json.dumps(str(text)) for text in column.cat.categories]


def _known_arguments(row: Mapping[Any, Any]) -> str:
    """What is known of a collective or a step, times in µs, as JSON."""
    figures = {}
    for key, value in row.items():
        if pd.isna(value) or value == "":
            continue
        value = value.item() if hasattr(value, "item") else value
        figures[str(key).replace("_ns", "_us")] = value / 1000 if str(key).endswith("_ns") else value
    return json.dumps(figures)


def _emulation_words(run: Run) -> str:
    """What follows a rank's name where not everything in its tracks is real; else nothing."""
    if run.manifest is None:
        return ""
    link = describe_link(run.manifest)
    group = describe_ranks(run.manifest) if link and run.manifest.phantom_ranks else ""
    return "".join(f", {part}" for part in (describe_prediction(run.manifest), group, link) if part)


def _process_name(pid: int, name: str, order: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"ts":0,"args":{{"name":{json.dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"ts":0,"args":{{"sort_index":{order}}}}}'


def _thread_name(pid: int, tid: int, name: str) -> Iterator[str]:
    yield f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"ts":0,"args":{{"name":{json.dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"ts":0,"args":{{"sort_index":{tid}}}}}'
