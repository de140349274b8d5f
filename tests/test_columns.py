"""Every column has one header, one unit and one explanation, and all that show it take them from the registry."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from loaded_script import script
from made import strangers
from made.dumped import dumps_of_a_stopped_rank
from made.fits import fits
from made.fsdp import fsdp
from made.hosts import evaluating_loop
from made.pipeline import made_pipeline
from made.runs import label, made_gathering, made_runs, made_sweep
from made.step_rows import exposed_rows, summary_rows
from made.traces import op, run_of
from made.watched import eventful, hanging

import overlaplab
from overlaplab import analyses
from overlaplab.analyses.systems.bench import bench_collectives, bench_side_by_side
from overlaplab.analyses.systems.plan import plan_stages
from overlaplab.columns import REGISTRY, column, columns
from overlaplab.costs.batch import planned_batch
from overlaplab.costs.plan import Plan
from overlaplab.findings import diagnose
from overlaplab.findings.predictions import figure_line
from overlaplab.formats import as_held, as_shown, digits, in_one_unit, text, texts
from overlaplab.load.watched import load_watched
from overlaplab.report.terminal import terminal_table
from overlaplab.sections import tables as shown
from overlaplab.simulate import advise, bound
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.programs.setting import Setting
from overlaplab.timeline.timeline import timeline_events
from overlaplab.timeline.window_statistics import timeline_window
from overlaplab.words import ms, percent

SAMPLE = Path(__file__).parents[1] / "traces" / "sweep" / "cap-25"
RING = SAMPLE.parents[1] / "ring"
SOURCES = sorted(Path(overlaplab.__file__).parent.rglob("*.py"))
SHOWN_BY = [path for path in SOURCES if path.parts[-2] in ("report", "dashboard", "sections", "views")]
PLACES = [(table, one) for table, own in REGISTRY.items() for one in own.values()]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """The tables of all analyses for a run; the columns do not depend on the run."""
    folder = tmp_path_factory.mktemp("runs")
    made_sweep(made_gathering(made_runs(folder)))
    bucketed, ahead = (overlaplab.load_run(folder / name) for name in ("bucketed", "ahead"))
    swept = [overlaplab.load_run(folder / name) for name in ("cap-25", "cap-5")]
    found = {
        name: getattr(overlaplab, name)(bucketed) for name in ("summary", "totals", "exposed", "buckets", "clocks")
    }
    found |= {name: getattr(overlaplab, name)(bucketed) for name in ("collectives", "communication_by", "stragglers")}
    found["exposed_moments"] = analyses.exposed_moments(bucketed)
    found |= {name: getattr(analyses, name)(ahead) for name in ("idle", "schedule", "scatters", "volume", "memory")}
    found["blocking"] = analyses.blocking(bucketed)
    found["delays"] = analyses.delays(overlaplab.load_run(folder / "bucketed"))
    found["peaks"] = analyses.peaks(ahead)
    found["compare"] = analyses.compare([bucketed, ahead])
    found["largest_batches"] = analyses.largest_batches([fits(folder / "fits", "torch-fsdp2", batch=2)])
    found |= {name: getattr(analyses, name)(swept) for name in ("sweep", "sweep_links")}
    found |= {name: getattr(analyses, name)(found["schedule"]) for name in ("schedule_steps", "gathered_bytes")}
    found["scatter_steps"] = analyses.scatter_steps(found["scatters"], overlaplab.exposed(ahead))
    found["late_buckets"] = analyses.late_buckets(found["buckets"].head(2))
    found["each_collective"] = analyses.each_collective(found["collectives"])
    found["stragglers_of"] = analyses.stragglers_of(found["collectives"])
    found["bound"] = bound(bucketed)
    served = [op("mm", 0, 9), label("serve worker=1 staleness=1", 1, 2)]
    found["staleness"] = analyses.staleness(run_of(folder / "server", served))
    again = [op("mm", 0, 9), label("recompute module=layers.1", 1, 2)]
    found["recomputation"] = analyses.recomputation(run_of(folder / "checkpointed", again))
    copied = [op("mm", 0, 9), label("copy way=up bytes=8 link=1Gbps,5us modelled_ns=1", 1, 2, tid=8)]
    found["copies"] = analyses.copies(run_of(folder / "offloaded", copied, manifest={}))
    found["transfer_lines"] = analyses.transfer_lines(overlaplab.load_run(SAMPLE))
    found["slowdowns"] = analyses.slowdowns(overlaplab.load_run(folder / "foreign"))
    found["collective_times"] = analyses.collective_times(overlaplab.load_run(SAMPLE))
    sampled = overlaplab.load_run(SAMPLE)
    found["step_phases"] = analyses.step_phases(run_of(folder / "evaluates", evaluating_loop()))
    found["late_steps"] = analyses.late_steps(sampled)
    found["late_rank_names"] = analyses.late_rank_names(sampled, 0, "forward")
    found["late_rank_phases"] = analyses.late_rank_phases(sampled, 0)
    found["advise"] = advise(overlaplab.load_run(SAMPLE))
    stages = made_pipeline(folder / "stages")
    found |= {name: getattr(analyses, name)(stages) for name in ("pipeline", "pipeline_ranks", "pipeline_steps")}
    found["pipeline_waits"] = analyses.pipeline_waits(strangers.run_of(folder / "megatron", *strangers.one_f_one_b()))
    found["pipeline_held"] = analyses.pipeline_held(found["pipeline"])
    ring = [{"bytes": 8, "algorithm": name, "time_ns": 5, "wrong": 0} for name in ("ring", "tree", "torch")]
    found["bench_collectives"] = bench_collectives({"ranks": 2, "link": None, "rows": ring})
    found["bench_side_by_side"] = bench_side_by_side(found["bench_collectives"])
    found["hops"] = analyses.hops(overlaplab.load_run(RING))
    found["chunks_after_hops"] = analyses.chunks_after_hops(found["hops"].query("step == 2 and bucket == 0"))
    swept_run, same = overlaplab.load_run(SAMPLE), Question(setting=Setting())
    found |= {
        "by_cap": what_if.steps_by_cap(swept_run, same, [1.0]),
        "by_ranks": what_if.steps_by_ranks(swept_run, same, [2]),
    }
    gathered = fsdp(0, host_us=450, steps=2)
    fsdp2 = run_of(folder / "fsdp2", gathered, gathered, backend="nccl")
    found["by_depth"] = what_if.steps_by_depth(fsdp2, same, [1])
    found["lanes"] = what_if.answer(swept_run, same).lanes.assign(which="measured")
    training = load_watched(eventful(folder / "live"))
    steps = analyses.watched_steps(training)
    times = analyses.watched_step_times(steps)
    late = analyses.watched_late(training, times)
    bursts = analyses.watched_bursts(training, steps)
    found |= {"watched_steps": steps, "watched_bursts": bursts, "watched_late": late}
    found |= {"watched_ranks": analyses.watched_ranks(steps, bursts, late)}
    kinds = analyses.watched_kinds(times)
    found |= {"watched_kinds": kinds, "watched_changes": analyses.watched_changes(bursts, late, times, kinds)}
    found |= {"watched_series": analyses.watched_series(times, kinds, bursts)}
    found |= {"watched_strip": analyses.watched_strip(training, late, [0, 1])}
    found["watched_stopped"] = analyses.watched_stopped(load_watched(hanging(folder / "hanging")))
    dumps = dumps_of_a_stopped_rank(folder / "dumps")
    found |= {
        "dumped_collectives": analyses.dumped_collectives(dumps),
        "dumped_stopped": analyses.dumped_stopped(dumps),
    }
    window = timeline_window(timeline_events(bucketed), 0, 1_000_000)
    batch = planned_batch(tokens=64, seq=8, microbatch=2, ranks=2)
    plan = Plan(parameters=1000, batch=batch)
    found |= {"plan": plan_stages(plan), "plan_over_ranks": analyses.plan_over_ranks(plan)}
    return found | {"window": window.ranks, "kernels": window.kernels}


def test_every_analysis_is_looked_at(tables: dict[str, pd.DataFrame]) -> None:
    told = {
        name
        for name, function in inspect.getmembers(analyses, inspect.isfunction)
        if inspect.signature(function).return_annotation == "pd.DataFrame"
    }
    assert told - {"rows_of"} <= set(tables)  # rows of any table
    assert all(len(table) for name, table in tables.items() if name not in ("delays", "peaks", "replay", "slowdowns"))


def test_every_column_of_an_analysis_is_registered_under_a_header_of_its_own(tables: dict[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        found = columns(name, *map(str, table))
        once([one.header for one in found], name)


def test_units_are_those_of_the_names() -> None:
    for _, one in PLACES:
        for ending, unit in (("_ns", "ns"), ("_ms", "ms"), ("_ms_median", "ms"), ("_ms_iqr", "ms"), ("bytes", "bytes")):
            assert not one.name.endswith(ending) or one.unit == unit, one


def test_every_registered_column_is_returned_or_shown(tables: dict[str, pd.DataFrame]) -> None:
    returned = {str(name) for table in tables.values() for name in table}
    shown = {name for path in SHOWN_BY for name in re.findall(r'"(\w+)"', path.read_text())}
    for table, one in PLACES:
        assert one.name in (set(tables[table]) if table else returned) | shown, f"{table}.{one.name} is nowhere used"


def test_what_pages_ask_for_is_registered_and_has_different_headers() -> None:
    found = list(asked())
    assert len(found) > 30
    for table, names in found:
        chosen = columns(table, *names)
        for headers in ([one.header for one in chosen], [one.title for one in chosen], [one.terse for one in chosen]):
            once(headers, table)


def test_terminal_tables_have_different_headers(tables: dict[str, pd.DataFrame]) -> None:
    step = summary_rows((0, 1, 100, 30))
    said = diagnose(step, analyses.worst_step(step), exposed_rows((0, 1, "tail", 30, None)), step)
    drawn = [
        shown.summary_rows(tables["summary"]),
        shown.buckets_rows(tables["buckets"].head(2)),
        shown.compare_rows(tables["compare"]),
        shown.costs_rows(tables["compare"].assign(peak_memory_bytes=1.0)),
        shown.batches_rows(tables["largest_batches"]),
        shown.schedule_rows(tables["schedule_steps"]),
        shown.gathers_rows(tables["schedule"].head(3)),
        shown.collectives_rows(tables["each_collective"]),
        shown.median_kinds_rows(tables["communication_by"]),
        shown.late_ranks_rows(tables["stragglers"]),
        shown.pipeline_waits_rows(tables["pipeline_waits"]),
        shown.causes_rows(said),
        shown.spots_rows(said),
        shown.sweep_rows(tables["sweep"], tables["sweep_links"]),
        shown.advice_rows(tables["advise"], "step"),
        shown.lines_rows(tables["transfer_lines"]),
        shown.slowdown_rows(tables["slowdowns"]),
    ]
    headers = {one.terse for _, one in PLACES}
    for block in drawn:
        assert block is not None
        found = [str(one.header) for one in terminal_table(block).columns]
        assert found
        once(found, block.key)
        assert set(found) <= headers


def test_pages_name_tables_that_there_are(tables: dict[str, pd.DataFrame]) -> None:
    named = {table for path in SOURCES for table in re.findall(r'\bcolumns?\(\s*"(\w*)"', path.read_text())}
    named |= {table for path in SOURCES for table in re.findall(r'\bas_held\(\w+, "(\w+)"', path.read_text())}
    assert {"summary", "window"} <= named <= set(tables)


def test_headers_and_explanations_are_plain() -> None:
    for table, one in PLACES:
        assert one.explanation.endswith("."), one
        assert "|" not in one.header + one.explanation
        assert one.unit != "ratio" or re.search(r"% of \w", one.title), f"{one}: a percentage names its denominator"
        assert one != REGISTRY[""].get(one.name) or not table, f"{table}: {one.name} means the same anywhere"


def test_the_page_of_columns_is_the_registrys() -> None:
    found = script("scripts/columns.py")
    assert found.PAGE.read_text() == found.page(), "run scripts/columns.py"


def test_a_unit_is_converted_in_one_place() -> None:
    """Times become ms by `to_ms`, and columns become text by `overlaplab.formats`."""
    allowed = {"words.py", "formats.py", "charts/collectives.py", "cli/files.py"}
    root = Path(overlaplab.__file__).parent
    literal = re.compile(r"[*/] ?(1e6|1e-6|1_?000_?000(\.0)?|10 ?\*\* ?-?6)\b|NS_PER_MS")
    found = {str(path.relative_to(root)) for path in SOURCES if literal.search(path.read_text())}
    assert found - {"dashboard/uploads.py"} <= allowed  # whose MB is a limit
    assert "words.py" in found


def test_titles_tell_the_unit() -> None:
    found = columns("each_collective", "index", "wait_ns", "bytes", "bus_gb_per_s") + columns(
        "summary", "span_ns", "overlap_ratio"
    )
    assert [one.title for one in found] == [
        *("number", "longest wait (ms)", "size (kB)", "bus bandwidth (GB/s)"),
        *("step time (ms)", "overlap ratio (% of comm.)"),
    ]
    assert [one.title_as_held for one in found] == [
        *("number", "longest wait (ns)", "size (bytes)", "bus bandwidth (GB/s)"),
        *("step time (ns)", "overlap ratio"),
    ]
    assert [one.terse for one in found] == ["#", "wait", "MB", "GB/s", "step ms", "overlap"]
    assert column("collectives", "wait_ns").title == "wait (ms)"
    with pytest.raises(KeyError, match="nothing_ns"):
        column("summary", "nothing_ns")


def test_one_formatter_per_unit() -> None:
    units = {"ns": 1_234_567, "ms": 1_234.567, "MB": 1_234_567, "kB": 1_234_567, "GB/s": 1_234.567, "ratio": 0.12345}
    assert [text(value, unit, 2) for unit, value in units.items()] == [
        *("1.23", "1234.57", "1.23", "1234.57", "1234.57", "12.35")
    ]
    assert text(1_234.567, "ms", 1, grouped=True) == "1,234.6"
    assert [text(value, "count") for value in (1234, 2.5, 2.0)] == ["1234", "2.5", "2"]
    assert text(1234, "count", grouped=True) == "1,234"
    assert [text(None, unit) for unit in (*units, "count", "text")] == ["–"] * 8
    assert [digits(pd.Series([ms * 1_000_000, None])) for ms in (0, 9, 10, 999, 1000)] == [3, 3, 2, 2, 1]
    assert [digits(pd.Series([ms]), "ms", one_digit_from=100) for ms in (9, 10, 100)] == [3, 2, 1]
    assert digits(pd.Series([None, None], dtype="Int64")) == 3
    busy = pd.Series([1_234_567_890, 0, None], dtype="Int64")
    assert texts(busy, column("window", "busy_ns")) == ["1,234.6", "0", "–"]


def test_a_table_is_shown_in_ms_and_kept_in_ns() -> None:
    table = pd.DataFrame({"rank": [1], "start_ns": [1_500_000], "bytes": [2_500_000], "kind": ["all_reduce"]})
    held = as_held(table, "each_collective")
    assert held.to_dict("records") == [
        {"rank": 1, "start (ns)": 1_500_000, "size (bytes)": 2_500_000, "kind": "all_reduce"}
    ]
    shown = as_shown(table, columns("each_collective", "kind", "start_ns", "bytes"))
    assert shown.to_dict("records") == [{"kind": "all_reduce", "start (ms)": 1.5, "size (kB)": 2500.0}]


def asked() -> Iterator[tuple[str, list[str]]]:
    """Where a page names a table and its columns as literals: `columns("summary", "rank", *("step", "idle_ns"))`."""
    for path in SHOWN_BY:
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "columns"):
                continue
            names: list[str] = []
            for one in call.args:
                try:
                    literal = ast.literal_eval(one.value if isinstance(one, ast.Starred) else one)
                except ValueError:  # a variable
                    continue
                names += [literal] if isinstance(literal, str) else literal
            yield names[0], names[1:]


def once(headers: list[str], where: str) -> None:
    assert len(set(headers)) == len(headers), f"{where}: {sorted(headers)}"


@pytest.mark.parametrize(
    ("name", "values", "unit", "shown", "form"),
    [
        ("bytes", [4_213_800, 1_091_600, None], "MB", [4.2138, 1.0916, None], "%.3g"),
        ("bytes", [13_745_290_000, 5_000_000], "GB", [13.74529, 0.005], "%.3g"),
        ("bytes", [None], "B", [None], "%.3g"),
        ("bus_gb_per_s", [0.0964, 0.118], "MB/s", [96.4, 118], "%.3g"),
        ("bus_gb_per_s", [1.5], "GB/s", [1.5], "%.3g"),
        ("wait_ns", [1_217_676_123], "ms", [1217.676123], "%.1f"),
        ("wait_ns", [46_307_000, 0], "ms", [46.307, 0], "%.2f"),
        ("wait_ns", [3_243_000], "ms", [3.243], "%.3f"),
        ("index", [3], "", [3], ""),
    ],
)
def test_a_column_is_read_in_one_unit(name: str, values: list[Any], unit: str, shown: list[Any], form: str) -> None:
    kind = "Float64" if name == "bus_gb_per_s" else "Int64"
    read, *look = in_one_unit(pd.Series(values, dtype=kind), column("each_collective", name))
    assert look == [unit, form]
    assert [None if pd.isna(value) else pytest.approx(value) for value in read] == shown


def test_nothing_is_minus_nothing() -> None:
    assert text(-10_000, "ns", 1) == "0.0"
    assert text(-1_234_560_000, "ns", 1, grouped=True) == "-1,234.6"
    assert ms(-1) == "0.000 ms"
    assert percent(-1, 1000) == "0\u00a0%"
    assert figure_line("mean step", 1_500_000_000, 1_499_999_000) == (
        "mean step: 1,500.0 ms recorded, 1,500.0 ms predicted (+0.0%)"
    )
