"""The report's page: what stands in it, that everything in it is escaped, and that a file is whole or not there."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.runs import EMULATED, engine_events, gpu_events, made_gathering, made_sweep
from made.traces import event, gloo, launched, op, run_of, step, write
from samples import sample_run

from overlaplab import OverlaplabError, charts, collectives, compare, load_run, schedule, stragglers, summary
from overlaplab import buckets as bucket_table
from overlaplab.analyses import each_collective, gathered_bytes, scatters, volume
from overlaplab.charts.lanes import WINDOW
from overlaplab.charts.theme import LIGHT
from overlaplab.cli import main
from overlaplab.columns import columns
from overlaplab.folders import run_folders
from overlaplab.report.blocks import draw_chart, shown_columns
from overlaplab.report.bundle import columnar_spec, data_island, policy, style, themed_spec
from overlaplab.report.page import report_page
from overlaplab.report.whole_file import refuse_target, whole_file
from overlaplab.sections.blocks import TableBlock
from overlaplab.sections.tables import sent_rows
from overlaplab.selection import Selection
from overlaplab.timeline.timeline import timeline_events, timeline_view

HOSTILE = "</script><script>x</script><!--<img src=x>&\u2028\u202e"


class Parsed(html.parser.HTMLParser):
    """The elements of a page with their texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self._open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self.elements[self._open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for place in self._open[-1:]:
            tag, attributes, text = self.elements[place]
            self.elements[place] = (tag, attributes, text + data)

    def texts(self, tag: str) -> list[str]:
        return [" ".join(text.split()) for name, _, text in self.elements if name == tag]


@pytest.fixture(scope="module")
def pages(report: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parsed]:
    """The report that all tests share, and one of a foreign GPU trace alone."""
    foreign = load_run(write(tmp_path_factory.mktemp("foreign") / "trace.json", gpu_events()))
    return {"three": Parsed(report.read_text(encoding="utf-8")), "foreign": Parsed(report_page([foreign]))}


def test_runs_are_compared_and_each_told(pages: dict[str, Parsed]) -> None:
    three = pages["three"]
    assert three.texts("h1") == ["overlaplab: 3 runs"]
    assert three.texts("h2") == [
        "Contents",
        "Runs compared",
        "bucketed",
        "ahead",
        "<img src=x onerror=window.pwned&&pwned(1)>",
    ]
    first = ["Summary", "Timeline"]
    assert three.texts("h3") == [
        "Step time",
        "What each strategy costs",
        *first,
        "Buckets",
        "Collectives",
        *first,
        "Gathered parameters (ZeRO-3, FSDP)",
        "Collectives",
        *first,
        "Collectives",
    ]
    links = {attributes["href"] for tag, attributes, _ in three.elements if tag == "a"}
    anchors = {f"#{attributes['id']}" for _, attributes, _ in three.elements if "id" in attributes}
    assert links <= anchors
    assert len(links) == len(three.texts("h3")) + len(three.texts("h2")) - 1


def test_a_sweep_is_one_comparison_with_its_best_and_worst_cap(tmp_path: Path) -> None:
    runs = [load_run(path) for path in run_folders(made_sweep(tmp_path / "sweep"))]
    silent = run_of(tmp_path / "silent", [event("note", 0, 1)], manifest={"bucket_cap_mb": 25, "link": EMULATED})
    page = Parsed(report_page([*runs, silent]))
    assert page.texts("h1") == ["overlaplab: 4 runs"]
    assert page.texts("h2") == [
        *("Contents", "Runs compared"),
        "cap-5: bucket_cap_mb 5, the shortest median step",
        "cap-25: bucket_cap_mb 25, the longest median step",
        "silent",
    ]
    assert page.texts("h3").count("Step time by bucket_cap_mb") == 1
    assert page.texts("h3").count("Buckets") == 2
    assert [text for text in page.texts("p") if "one of the worst. 1 recording more:" in text]
    both = Parsed(report_page([runs[0], runs[2]]))  # two runs are the best and the worst
    assert both.texts("h2")[2:] == ["cap-5", "cap-25"]


def test_what_to_do_ends_a_run_and_is_said_nowhere_between(pages: dict[str, Parsed]) -> None:
    assert len(pages["three"].texts("h3")) > len(pages["three"].texts("strong")) >= 4  # the comparison's and the runs'
    head, *others = [text for _, attributes, text in pages["foreign"].elements if attributes.get("class") == "advice"]
    assert [text.strip().endswith(head) for text in others] == [True]
    told = pages["three"].texts("p")
    assert any(text.startswith("bucketed, 2 ranks") for text in told)
    assert any(text.endswith("Emulated link 1Gbps,200us.") for text in told)


def test_a_run_without_communication_ends_with_what_to_do(tmp_path: Path) -> None:
    events = [step(0, 0, 100), *launched("gemm", 5, 10, 90, correlation=1)]
    page = Parsed(report_page([run_of(tmp_path, events, backend="nccl")]))
    assert page.texts("strong") == ["What to do:"]


def test_gathers_are_counted(pages: dict[str, Parsed]) -> None:
    assert any("7 gathers and 7 frees of 4 layers" in text for text in pages["three"].texts("p"))


def test_foreign_traces_have_no_manifest(pages: dict[str, Parsed]) -> None:
    assert any("Foreign traces, 1 rank" in text for text in pages["foreign"].texts("p"))
    assert "Buckets" not in pages["foreign"].texts("h3")


def test_every_chart_has_a_place_and_nothing_is_loaded(pages: dict[str, Parsed]) -> None:
    for page in pages.values():
        places = {attributes["id"] for _, attributes, _ in page.elements if attributes.get("class") == "chart"}
        scripts = [(attributes, text) for tag, attributes, text in page.elements if tag == "script"]
        assert [attributes.get("type") for attributes, _ in scripts] == ["application/json", None, None]
        assert places == set(json.loads(scripts[0][1])) != set()
        assert not any("src" in attributes or tag in ("link", "img", "iframe") for tag, attributes, _ in page.elements)


def test_the_policy_names_the_scripts_and_styles_by_their_hashes(pages: dict[str, Parsed]) -> None:
    page = pages["foreign"]
    (content,) = [a["content"] for t, a, _ in page.elements if t == "meta" and a.get("http-equiv")]
    rules = dict(rule.split(" ", 1) for rule in str(content).split("; "))
    inline = [text for tag, attributes, text in page.elements if tag == "script" and "type" not in attributes]
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["script-src"].split() == [digest(text) for text in inline]
    assert rules["style-src"].split() == [digest(text) for tag, _, text in page.elements if tag == "style"]
    assert "unsafe" not in str(content)
    assert not any(
        "style" in attributes or any(key.startswith("on") for key in attributes) for _, attributes, _ in page.elements
    )


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_a_strangers_words_stay_text(pages: dict[str, Parsed]) -> None:
    assert any(text.startswith("![x](http://evil.example/md.p") for text in pages["three"].texts("p"))
    assert not any("\u202e" in text or "\u2028" in text for _, _, text in pages["three"].elements)


def test_the_data_island_ends_no_element() -> None:
    text = data_island({HOSTILE: [HOSTILE, "\ud800", 1.5]})
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert text.isascii()
    assert json.loads(text) == {HOSTILE: [HOSTILE, "\ud800", 1.5]}


def test_data_stand_by_column() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    uneven = [{"a": 1}, {"b": 1}]
    spec = {"mark": "bar", "datasets": {"rows": rows, "uneven": uneven, "none": []}}
    assert columnar_spec(spec) == {
        "mark": "bar",
        "datasets": {"rows": {"a": [1, 2], "b": ["x", None]}, "uneven": uneven, "none": []},
    }
    assert columnar_spec({"mark": "bar"}) == {"mark": "bar", "datasets": {}}


def test_colours_become_variables_but_data_stay() -> None:
    tones = asdict(LIGHT)
    assert len(set(tones.values())) == len(tones)  # else one could not tell which the dark one is
    spec = {"mark": {"color": LIGHT.exposed}, "range": [LIGHT.on_dark], "data": {"values": [LIGHT.exposed]}}
    assert themed_spec(spec) == {
        "mark": {"color": "var(--exposed)"},
        "range": ["var(--on-dark)"],
        "data": {"values": [LIGHT.exposed]},
    }


def test_charts_in_variables_are_the_dark_ones_in_the_dark(tmp_path: Path) -> None:
    """Whatever differs between the themes is a colour that the style sheet knows. (Summary's numbers are a layer per
    colour, of which the dark theme has fewer: the browser's test looks at these.)
    """
    run = load_run(made_gathering(tmp_path) / "ahead")
    other = run_of(tmp_path / "run", engine_events(), engine_events(), manifest={"link": EMULATED})
    first = bucket_table(other).query("rank == 0 and step == 1")
    gathers = schedule(run).query("rank == 0")
    rows, compared = each_collective(collectives(other)), compare([run, other])
    drawings = [
        partial(charts.timeline, timeline_view(timeline_events(run))),
        partial(charts.timeline, timeline_view(timeline_events(other))),
        partial(charts.buckets, first),
        partial(charts.gathered, gathered_bytes(gathers)),
        partial(charts.schedule, gathers, scatters(run).query("rank == 0"), prefetch=1, window_ns=(0, 10**8)),
        partial(charts.bus_bandwidth, rows),
        partial(charts.waits, rows),
        partial(charts.late_ranks, stragglers(other)),
        partial(charts.compare, compared),
        partial(charts.sent_compared, compared),
        partial(charts.memory_compared, compared),
    ]
    (sheet,) = re.findall(r"dark\) { :root { (.*?) } }", style())
    dark = {f"var({word})": tone for word, tone in re.findall(r"(--[\w-]+): (#\w+);", sheet)}
    for drawing in drawings:
        expected = drawing(dark=True).to_dict()
        assert _bare(themed_spec(drawing(dark=False).to_dict()), dark) == _bare(expected, {})


def _bare(value: Any, names: dict[str, str]) -> Any:
    """A spec without its data, and without names that Altair makes up anew for each chart."""
    if isinstance(value, dict):
        left_out = ("data", "datasets", "name", "views", "param")
        return {key: _bare(kept, names) for key, kept in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_bare(member, names) for member in value]
    return names.get(value, value) if isinstance(value, str) else value


def test_a_charts_words_are_the_pages_and_the_wheel_alone_scrolls(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", engine_events(), manifest={"link": EMULATED})
    view = timeline_view(timeline_events(run))
    shown = draw_chart(charts.timeline(view, note="emulated link 1Gbps,200us"), "emulated link 1Gbps,200us")
    assert shown.title.startswith("Exposed communication 0.70 ms of 1.0 ms")
    assert shown.lines[-1] == "Emulated link 1Gbps,200us."
    assert shown.hint == "Ctrl + wheel zooms, drag pans, double-click shows all."
    assert "title" not in shown.spec
    (parameter,) = [one for one in shown.spec["params"] if one["name"] == WINDOW]
    assert parameter["select"]["zoom"] == "wheel![event.ctrlKey || event.metaKey]"
    assert "wheel zooms" not in json.dumps({key: value for key, value in shown.spec.items() if key != "datasets"})
    still = draw_chart(charts.summary(summary(run)))
    assert "params" not in still.spec
    assert still.lines == (
        "Summed over 1 rank and 2 steps. Each bar is 100 % of its rank's step time; numbers are percent of it.",
    )


def test_numbers_stand_right_with_the_digits_that_their_column_needs() -> None:
    table = pd.DataFrame(
        {
            "name": ["a\u202eb", "c" * 200],
            "rank": pd.array([1, None], dtype="Int64"),
            "span_ns": [1_234_567_890, 0],
            "wait_ns": [4_000, None],
            "bytes": [5_234_756, 12_000_000],
            "overlap_ratio": [0.2512, None],
            "idle_ns": [None, None],
        }
    )
    block = TableBlock(key="table", caption="Caption", frame=table, columns=columns("summary", *table))
    filled = shown_columns(block)
    assert [column.name for column, _ in filled] == [*table][:-1]
    first, second = zip(*(cells for _, cells in filled), strict=True)
    assert first == ("a\N{REPLACEMENT CHARACTER}b", "1", "1,234.6", "0.004", "5.23 MB", "25.1")
    assert second[0].startswith("ccc")
    assert len(second[0]) == 80
    assert second[1:] == ("–", "0", "–", "12.0 MB", "–")


def test_columns_are_headed_and_explained(pages: dict[str, Parsed]) -> None:
    heads = {" ".join(text.split()): attributes for tag, attributes, text in pages["three"].elements if tag == "th"}
    assert heads["size"]["class"] == heads["step time (ms)"]["class"] == "right"
    assert "class" not in heads["run"]
    assert heads["overlap ratio (% of comm.)"]["title"] == "Hidden communication ÷ communication."


def test_a_long_table_says_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlaplab.sections.blocks.MOST_ROWS", 1)
    page = Parsed(report_page([run_of(tmp_path, engine_events(), manifest={"link": EMULATED})]))
    assert "The first 1 of 2. The command line shows the others with --all." in page.texts("p")


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_may_not_be_written_over(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", engine_events(), manifest={})
    trace = Path(run.traces[0].path)
    for path in (tmp_path, tmp_path / "none" / "x.html", trace, trace.with_name("run.json"), Path("/dev/null")):
        with pytest.raises(OverlaplabError, match=re.escape(str(path.parent if "none" in path.parts else path))):
            refuse_target(path, [run])
    refuse_target(tmp_path / "new.html", [run])


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> tuple[Any, str]:
    monkeypatch.setattr(sys, "argv", ["overlaplab", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return stopped.value.code, captured.out + captured.err


def test_the_commands_write_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        run_of(tmp_path / "runs" / name, engine_events(), engine_events(), manifest={})
    out = tmp_path / "r.html"
    code, said = command(capsys, monkeypatch, "report", tmp_path / "runs", "--rank", 1, "--skip-steps", 1, "-o", out)
    assert code == 0
    unwrapped = "".join(said.split())  # a terminal's line ends where the temporary folder's name makes it
    assert re.fullmatch(rf"{re.escape(str(out))}:[12]\.\dMB", unwrapped)
    assert Parsed(out.read_text()).texts("h2") == ["Contents", "Runs compared", "one", "two"]
    file = tmp_path / "all.json"
    code, said = command(capsys, monkeypatch, "export", tmp_path / "runs" / "one", "--perfetto", file)
    assert code == 0
    assert [trace.rank for trace in load_run(file).traces] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "{runs}/none", "-o", "{runs}/r.html"], "none"),
        (["report", "{runs}/one", "-o", "{runs}"], "is a folder"),
        (["report", "{runs}/one", "-o", "{runs}/one/run.json"], "is a file of the run itself"),
        (["report", "{runs}/one", "-o", "{runs}/r.html", "--rank", "7"], "It holds 0, 1."),
        (["report", "{runs}/one", "-o", "{runs}/r.html", "--step", "7"], "It holds 0, 1."),
        (["report", "{runs}/one"], "--out"),
        (["export", "{runs}/one"], "--perfetto"),
        (["export", "{runs}/one", "--perfetto", "{runs}/one"], "is a folder"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run_of(tmp_path / "one", engine_events(), engine_events(), manifest={})
    before = sorted(tmp_path.rglob("*"))
    code, line = command(capsys, monkeypatch, *(argument.format(runs=tmp_path) for argument in arguments))
    assert code == 2
    assert said in line
    assert line.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("device", ["cuda", None])
def test_a_run_without_anything_that_counts_says_so(tmp_path: Path, device: str | None) -> None:
    """A GPU is known by the calls to it, or by run.json."""
    on_gpu = [step(0, 0, 10), event("cudaLaunchKernel", 1, 2, cat="cuda_runtime")]
    run = run_of(tmp_path / "run", engine_events() if device else on_gpu, manifest={"device": device})
    page = Parsed(report_page([run]))
    assert any(text.startswith("Device activity was not recorded") for text in page.texts("p"))
    assert not any(attributes.get("class") == "chart" for _, attributes, _ in page.elements)


def test_a_step_whose_messages_reach_a_server_in_the_next_one_is_reported() -> None:
    page = report_page([sample_run("parameter-server")], Selection(steps=[2]))
    assert "Who came last" in page


def test_mean_counts_have_three_digits() -> None:
    run = sample_run("naive")
    block = sent_rows(volume(run), 7 * len(summary(run)), "step")
    assert block is not None
    assert block.frame["count"].tolist() == [round(number, 3) for number in block.frame["count"]]
    assert any(number % 1 for number in block.frame["count"])


def test_policy_lists_each_hash() -> None:
    assert f"script-src {digest('a')} {digest('b')}; style-src {digest('c')};" in policy(
        scripts=["a", "b"], styles=["c"]
    )


def test_the_timeline_has_the_rank_of_the_verdict(tmp_path: Path) -> None:
    """Eight of twelve ranks are drawn; the eleventh is the most exposed."""
    ranks = [
        [step(3, 0, 200), op("mm", 0, 60), gloo(50, 190 if rank == 10 else 90), op("mm", 190, 195)]
        for rank in range(12)
    ]
    text = report_page([run_of(tmp_path / "run", *ranks)])
    assert "Ranks 0, 1, 2, 3, 4, 5, 6, 10 of 12." in re.sub(r"\s+", " ", text)
