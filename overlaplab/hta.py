"""Holistic Trace Analysis (HTA) on overlaplab's tables: its analyses, without its parser.

`pip install 'overlaplab[hta]'`, then

    analysis = overlaplab.hta.trace_analysis(overlaplab.load_run("traces/bucketed"))
    analysis.get_temporal_breakdown(visualize=False)

HTA is https://github.com/facebookresearch/HolisticTraceAnalysis; this is written against its release 0.5.0.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, WorkKind, activity, outermost, rule_of, thread_numbers
from overlaplab.evidence.launches import launches
from overlaplab.intervals import Integers, Mask, pieces
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule, collective_kind

if TYPE_CHECKING:
    from hta.common.trace import Trace as HtaTrace
    from hta.trace_analysis import TraceAnalysis

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")
_LAUNCH = "cudaLaunchKernel"
"""The name by which HTA recognises launches on a host."""

_ELSEWHERE = "Open the files with hta.trace_analysis.TraceAnalysis for it."
_IN_THE_FILE = "writes into the trace file, by the positions that HTA's own parser gives events"
_COPIES = "needs the bandwidth of copies, which overlaplab does not keep"
_REFUSED = {
    "generate_trace_with_counters": _IN_THE_FILE,
    "get_cupti_counter_data_with_operators": "needs hardware counters, which overlaplab does not keep",
    "get_frequent_cuda_kernel_sequences": _IN_THE_FILE,
    "get_memory_bw_summary": _COPIES,
    "get_memory_bw_time_series": _COPIES,
    "overlay_critical_path_analysis": _IN_THE_FILE,
}
_WAITS = {"wait_on_stream": "wait_on_stream", "wait_on_cuda_event_record_corr_id": "recorded_by"}
"""HTA's columns about `cuda_sync` events, and those of `Trace.syncs`."""
_REMEDIES = {
    "critical_path_analysis": "It needs pandas below 3 or HTA 0.6 (named traceinsight), and no cuda_sync events.",
    "get_potential_stragglers": "It compares kernels named ncclKernel* of several ranks; `overlaplab collectives` "
    "finds stragglers of any kind.",
}


def trace_analysis(run: Run) -> TraceAnalysis:
    """HTA's own `TraceAnalysis`, filled from a run's tables; the run stays as it is.

    Times are µs from the first event of any rank, exact to the ns. A run whose only rank is unknown is rank 0. Every
    step counts (HTA's `include_last_profiler_step=True`, without rounding to µs), and as in HTA, where there are
    several steps, device events are left out that no call in the trace launched.

    GPU runs give the tables of HTA's own parser, and so HTA's view of communication: only kernels named
    `nccl*Kernel*`. Other kernels that `overlaplab.summary` counts as communication are computation there.
    A host event is on no stream, whatever its arguments say. docs/hta.md shows where HTA's figures differ from
    overlaplab's.

    CPU runs (gloo) have no streams. Their threads take that role, numbered from 1 in order of their first event. Every
    event is also there as a host event, on stream -1. The streams hold

    - the outermost operators that compute (the CPU rule of docs/design.md, without waiting inside them), under their
      own names, each launched by itself;
    - communication, named `ncclKernel_<kind>`, launched by the call of its collective, which is repeated as a
      `cudaLaunchKernel`.

    So overlap, temporal breakdown and kernel breakdown follow the CPU rule, and launch statistics and queue lengths are
    those of collectives. The `host_wait` of a communication thread is time in which nothing was launched for it. A
    computing thread launches its own work: its `host_wait` is time between operators, other idle time is waiting inside
    them.

    Raises `OverlaplabError` if HTA is not installed. So do HTA's methods if they fail, or if they need data that the
    tables do not hold: always `generate_trace_with_counters`, `get_cupti_counter_data_with_operators`,
    `get_frequent_cuda_kernel_sequences`, `get_memory_bw_summary`, `get_memory_bw_time_series` and
    `overlay_critical_path_analysis`; on pandas 3 with HTA up to 0.5 also `critical_path_analysis`.
    """
    try:
        from hta.common.trace import Trace as HtaTrace
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        raise OverlaplabError(f"HTA is missing ({error})", remedy="pip install 'overlaplab[hta]'") from None
    rows = {trace.rank or 0: _rows(trace) for trace in run.traces}
    zero_ns = min((int(table["ts_ns"].min()) for table in rows.values() if len(table)), default=0)
    filled = HtaTrace(trace_files={}, trace_dir=".")
    for rank, table in rows.items():
        filled.symbol_table.add_symbols(dict.fromkeys([*table["name"], *table["cat"]]))
        filled.meta_data[rank] = {"baseTimeNanoseconds": zero_ns}
    for rank, table in rows.items():
        filled.traces[rank] = _hta_table(table, filled, zero_ns)
    filled.is_parsed = True
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = filled
    for name, method in inspect.getmembers(analysis, inspect.ismethod):
        if not name.startswith("_"):
            setattr(analysis, name, _in_one_line(name, method, run))
    return analysis


def _rows(trace: Trace) -> pd.DataFrame:
    """The events that HTA keeps, with names as text and times in ns; for a CPU run also those on streams."""
    events = trace.events
    host = events[["ts_ns", "dur_ns", "stream", "correlation", "external_id"]].astype("int64")
    texts = {"name": events["name"].astype(object), "cat": events["category"].astype(object)}
    host = host.assign(**texts, pid=_numbers(events["pid"]), tid=_numbers(events["tid"]))
    if len(trace.syncs):
        host[list(_WAITS)] = -1
        host.loc[trace.syncs["event"], list(_WAITS)] = trace.syncs[list(_WAITS.values())].to_numpy()
    tables = [host]
    if rule_of(trace) is Rule.CPU:
        computing, communicating = _compute_operators(trace), _communication_ranges(trace)
        host[["stream", "correlation"]] = -1
        host.loc[computing["event"], "correlation"] = computing["event"].to_numpy() + 1
        tables += [_calls(trace, host, communicating), _stream_events(computing, communicating)]
    is_complete = events["phase"].eq("X") & ~events["category"].isin(["", "Trace"])
    added = [table for table in tables[1:] if len(table)]  # an empty one would turn integers into floats
    return pd.concat([host[is_complete.to_numpy()], *added], ignore_index=True)


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Processes or threads as in HTA: as numbers where the text is one."""
    values = [int(text) if re.fullmatch(r"-?\d+", text) else text for text in column.cat.categories]
    return pd.Series(np.array(values, dtype=object)[column.cat.codes], index=column.index).infer_objects()


def _compute_operators(trace: Trace) -> pd.DataFrame:
    """Every thread's outermost computing operators, cut to the time that counts (columns of `outermost`, `name`)."""
    whole = outermost(trace, WorkKind.COMPUTE)
    rows, starts, ends = pieces(whole["start_ns"].to_numpy(), whole["end_ns"].to_numpy(), activity(trace).compute)
    cut = whole.iloc[rows]
    names = trace.events["name"].astype(object).to_numpy()[cut["event"]]
    return cut.assign(name=names, start_ns=starts, end_ns=ends)


def _communication_ranges(trace: Trace) -> pd.DataFrame:
    """Every thread's outermost ranges of communication (columns of `outermost`, `name`)."""
    ranges = outermost(trace, WorkKind.COMMUNICATION)
    kinds = [collective_kind(str(name)) for name in trace.events["name"].iloc[ranges["event"]]]
    return ranges.assign(name=[f"ncclKernel_{kind or 'communication'}" for kind in kinds])


def _calls(trace: Trace, host: pd.DataFrame, communicating: pd.DataFrame) -> pd.DataFrame:
    """The calls that launched communication, where known."""
    called = {launch.ran: launch for launch in launches(trace) if launch.ran}
    ran = zip(communicating["start_ns"], communicating["end_ns"], strict=True)
    pairs = [(event, called.get(bounds)) for event, bounds in zip(communicating["event"], ran, strict=True)]
    launched = [(event, launch) for event, launch in pairs if launch]
    threads = host[["pid", "tid"]].set_index(thread_numbers(trace.events))
    threads = threads[~threads.index.duplicated()]
    return pd.DataFrame(
        {
            **threads.loc[[launch.thread for _, launch in launched]].to_dict("list"),
            "name": _LAUNCH,
            "cat": "cuda_runtime",
            "ts_ns": [launch.start_ns for _, launch in launched],
            "dur_ns": [launch.end_ns - launch.start_ns for _, launch in launched],
            "stream": -1,
            "correlation": [event + 1 for event, _ in launched],
            "external_id": -1,
        }
    )


def _stream_events(computing: pd.DataFrame, communicating: pd.DataFrame) -> pd.DataFrame:
    """Both as events of a device; each thread is a stream."""
    events = pd.concat([computing, communicating], ignore_index=True).sort_values("start_ns", kind="stable")
    stream = pd.factorize(events["thread"])[0] + 1
    return pd.DataFrame(
        {
            "name": events["name"],
            "cat": "kernel",
            "pid": 0,
            "tid": stream,
            "ts_ns": events["start_ns"],
            "dur_ns": events["end_ns"] - events["start_ns"],
            "stream": stream,
            "correlation": events["event"] + 1,
            "external_id": -1,
        }
    )


def _hta_table(rows: pd.DataFrame, filled: HtaTrace, zero_ns: int) -> pd.DataFrame:
    """One rank as from HTA's parser: symbols for names, µs, and the derived columns."""
    from hta.common.trace import transform_correlation_to_index

    if sum("ProfilerStep" in symbol for symbol in filled.symbol_table.get_sym_table()) > 1:
        rows = rows[_launched_here(rows)]
    symbols = filled.symbol_table.get_sym_id_map()
    table = pd.DataFrame(
        {
            "index": np.arange(1, len(rows) + 1),  # HTA takes the number 0 for none
            **{column: _symbols(rows[column], symbols) for column in ("cat", "name")},
            **{column: rows[column].to_numpy() for column in ("pid", "tid")},
            "ts": (rows["ts_ns"].to_numpy() - zero_ns) / 1000,
            "dur": rows["dur_ns"].to_numpy() / 1000,
            **{column: rows[column].to_numpy() for column in ("stream", "correlation", "external_id")},
        }
    )
    table.index = pd.Index(table["index"].to_numpy())
    linked: pd.DataFrame = transform_correlation_to_index(table, filled.symbol_table)
    waits = {name: rows[name].fillna(-1).astype("int64").to_numpy() if name in rows else -1 for name in _WAITS}
    return linked.assign(**waits, iteration=_iterations(rows, linked), end=linked["ts"] + linked["dur"])


def _symbols(names: pd.Series[Any], symbols: dict[str, int]) -> Integers:
    codes, texts = pd.factorize(names)
    return np.array([symbols[text] for text in texts], dtype=np.int64)[codes]


def _launched_here(rows: pd.DataFrame) -> Mask:
    """All but device events that no call in the trace launched, as HTA's `_filter_irrelevant_gpu_kernels`."""
    device = rows["stream"].ge(0) & rows["correlation"].ge(0)
    return (~device | rows["correlation"].isin(rows.loc[~device, "correlation"])).to_numpy()


def _iterations(rows: pd.DataFrame, table: pd.DataFrame) -> Integers:
    """The `ProfilerStep` in which a host event starts, or in which a device event was launched; -1 for none.

    As HTA's `add_iteration`, which asks every step about every event in Python.
    """
    steps = rows[rows["cat"].isin(ANNOTATION_CATEGORIES) & rows["name"].str.match(_STEP)].sort_values("ts_ns")
    numbers = np.append([int(_STEP.match(name)[1]) for name in steps["name"]], -1).astype(np.int64)  # type: ignore[index]
    place = np.searchsorted(steps["ts_ns"], rows["ts_ns"], side="right") - 1
    ends = np.append(steps["ts_ns"] + steps["dur_ns"], np.iinfo(np.int64).min)
    steps_at_start = np.where(rows["ts_ns"].to_numpy() < ends[place], numbers[place], -1)
    link = table["index_correlation"].to_numpy()
    return np.where(rows["stream"] < 0, steps_at_start, np.where(link > 0, steps_at_start[np.maximum(link, 1) - 1], -1))


def _in_one_line(name: str, method: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """HTA's method with every failure turned into one `OverlaplabError`, and without pandas' deprecation warnings."""
    signature = inspect.signature(method)

    @wraps(method)
    def call_and_translate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if name in _REFUSED:
            raise OverlaplabError(f"HTA's {name} {_REFUSED[name]}", path=run.path, remedy=_ELSEWHERE)
        _check_ranks(bound.arguments, run)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"hta\.")  # pandas'
                warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"hta\.")  # of ratios of nothing
                return method(*args, **kwargs)
        except Exception as error:
            raise OverlaplabError(
                f"HTA's {name} failed on pandas {pd.__version__} ({type(error).__name__}: {error})",
                path=run.path,
                remedy=_REMEDIES.get(name, "It may need what this run does not hold. " + _ELSEWHERE),
            ) from None

    return call_and_translate


def _check_ranks(arguments: dict[str, Any], run: Run) -> None:
    ranks = [trace.rank or 0 for trace in run.traces]
    wanted = [arguments["rank"]] if "rank" in arguments else arguments["ranks"] or [0] if "ranks" in arguments else []
    for rank in wanted:
        if rank not in ranks:
            remedy = f"Pass one of {ranks} (HTA takes rank 0 by itself)."
            raise OverlaplabError("not in this run", path=run.path, rank=rank, remedy=remedy)
