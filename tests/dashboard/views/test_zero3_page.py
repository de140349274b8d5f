"""The ZeRO-3 page, and what Summary and Compare show of sharded runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browsing.app_page import body_texts, head_texts, unfold
from streamlit.testing.v1 import AppTest

from overlaplab.analyses import volume
from overlaplab.dashboard.data import Opened

Open = Callable[..., AppTest]
SAMPLES = Path(__file__).parents[3] / "traces"


def words(app: AppTest) -> list[str]:
    return [element.value for element in app.text]


def framed(app: AppTest, column: str) -> pd.DataFrame:
    """The table that has this column."""
    return next(frame.value for frame in app.dataframe if column in frame.value)


def titles(app: AppTest) -> list[str]:
    """The charts' titles, which stand above them with a subtitle."""
    drawn = list(elements(app.main))
    found = [drawn[place - 2].value for place, element in enumerate(drawn) if element.type == "vega_lite_chart"]
    return [title for title in found if not title.endswith("at most in a rank's step")]  # the strips, below all others


def elements(block: Any) -> Iterator[Any]:
    """A block's elements in the order in which they are drawn."""
    for child in getattr(block, "children", {}).values():
        yield from elements(child) if hasattr(child, "children") else [child]


def scales(app: AppTest, chart: int) -> dict[str, Any]:
    encoding = json.loads(app.get("vega_lite_chart")[chart].proto.spec)["layer"][0]["encoding"]
    return {axis: encoding[axis]["scale"]["domain"] for axis in ("x", "y")}


def test_the_page_says_that_it_follows_units(opened: Open, gathering: Path, spinners: list[str]) -> None:
    opened(gathering, "zero3")
    assert any(said.startswith("Following each unit from its gather to its free, among ") for said in spinners)


def test_the_page_counts_what_was_seen(opened: Open, gathering: Path) -> None:
    app = opened(gathering, "zero3", "ahead")
    assert body_texts(app)[0] == (
        "Rank 0, step 3: 7 gathers and 7 frees of 4 layers, and 2 gathers of other units. At most 800 kB (2 layers)"
        " held in full at a time. Compute waited 2.7 ms for gathers, longest for layers.0 (1.4 ms). Gathers are exposed"
        " for 2.8 ms: also while compute paused for another reason. Of 5.2 ms of reduce-scatters 1.5 ms is exposed"
        " (29\u00a0% of their time), the largest part of layers.0 (1.2 ms)."
    )
    assert head_texts(app)[1].startswith(
        "zero3, 2 ranks, cpu, prefetch 1, emulated link 1Gbps,200us · rank 0, step 3 ("
    )
    assert titles(app) == [
        "Gather and free schedule: 7 gathers for 4 layers (4 forward + 3 backward)",
        "At most 800 kB of parameters held in full",
    ]
    assert scales(app, 0)["x"] == scales(app, 1)["x"]
    table = app.dataframe[0].value
    assert list(table) == [
        *("unit", "phase", "wait (ms)", "cause", "size (kB)", "microbatch", "launch (ms)", "start (ms)", "end (ms)"),
        *("first use (ms)", "free (ms)"),
    ]
    waits = table["wait (ms)"].tolist()
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 0 == waits[-1]
    assert (table["cause"].notna() == (table["wait (ms)"] > 0)).all()
    assert dict(zip(table["unit"], table["size (kB)"], strict=True)) == {
        "embedding": 100,
        **{f"layers.{layer}": 400 for layer in range(4)},
        "head": 50,
    }


def test_rank_and_step_can_be_chosen(opened: Open, gathering: Path) -> None:
    app = opened(gathering, "zero3", "ahead")
    chosen = {box.label: box for box in app.selectbox}
    chosen["Rank"].set_value(1)
    chosen["Step"].set_value(3).run()
    assert body_texts(app)[0].startswith("Rank 1, step 3: 7 gathers")


def test_two_runs_stand_side_by_side_on_the_same_scales(opened: Open, gathering: Path) -> None:
    app = opened(gathering, "zero3", "ahead")
    against = app.selectbox(key="against")
    assert against.options == ["nothing", "serial", "bucketed"]
    against.set_value("serial").run()
    assert not app.exception
    said = words(app)
    # Serial, each of 7 layers' 1.8 ms are waited for, and in backward what is left of a scatter's 1.2 ms as well.
    assert (
        "Medians over all ranks' steps: prefetch 1 waits 2.7 ms for gathers in a step of 25.4 ms, prefetch 0 waits"
        " 16.8 ms for gathers in a step of 39.5 ms. Prefetching hides 14.1 ms of gathering per step."
    ) in said
    assert "ahead, rank 0, step 3" in said
    assert "serial, rank 0, step 3" in said
    assert titles(app)[2] == "At most 800 kB of parameters held in full"
    assert titles(app)[3] == "At most 450 kB of parameters held in full"
    assert scales(app, 0) == scales(app, 1)
    assert scales(app, 2) == scales(app, 3)
    assert scales(app, 0)["x"] == scales(app, 2)["x"]


def test_a_run_that_cannot_stand_beside_it_leaves_the_page_whole(opened: Open, gathering: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gathering, tmp_path / "runs"))
    (folder / "broken").mkdir()
    (folder / "broken" / "rank0.pt.trace.json.gz").write_bytes(b"no gzip")
    app = opened(folder, "zero3", "ahead")
    app.selectbox(key="against").set_value("bucketed").run()
    assert "gathers no parameters" in app.info[0].value
    assert len(titles(app)) == 2
    app.selectbox(key="against").set_value("broken").run()
    assert "cannot be read" in app.warning[0].value
    assert app.code[0].value.startswith("broken: ") or "rank0.pt.trace" in app.code[0].value
    assert len(titles(app)) == 2


def test_a_run_without_gathers_says_what_the_page_needs(opened: Open, gathering: Path) -> None:
    app = opened(gathering, "zero3", "bucketed")
    assert "overlaplab record --strategy zero3" in app.info[0].value
    assert not titles(app)


def test_summary_shows_what_was_sent_and_held_beside_theory(opened: Open, gathering: Path) -> None:
    app = opened(gathering, run="ahead")
    unfold(app, "costs_fold")
    # Ψ = 1.75 MB; the embedding, the last layer and the head are gathered once: 3Ψ − 0.55 MB, halved by the ring.
    sent, held = framed(app, "sent (MB)"), framed(app, "theory (MB)")
    assert sent.to_numpy().tolist() == [
        ["all-gather", 9, 2.95, 1.475],
        ["reduce-scatter", 6, 1.75, 0.875],
        ["in all", 15, 4.7, 2.35],
    ]
    assert held.to_numpy().tolist()[:4] == [
        [0, "parameters", 0.875, 0.875, "4Ψ/N"],
        [0, "gradients", 0.875, 0.875, "4Ψ/N"],
        [0, "optimizer", 1.75, 1.75, "8Ψ/N"],
        [1, "parameters", 0.875012, 0.875, "4Ψ/N"],
    ]
    said = "\n".join(words(app))
    assert "2.35 MB in all; theory says 2.35 MB: 3Ψ − embedding − layers.3 − head (at most 3Ψ, 2.62 MB)." in said
    assert "all-gather and reduce-scatter (n−1)/n. n = 2 ranks; Ψ = 1.75 MB, the bytes of all parameters." in said
    assert "3.50 MB on the rank that holds most; theory says 3.50 MB." in said
    assert "Ψ = 437,500 = the number of parameters" in said


def test_summary_says_why_what_was_sent_is_unknown(
    opened: Open, gathering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_unknown(opened: Opened) -> pd.DataFrame:
        found = volume(opened.run)
        row = found["kind"] == "all_gather"
        found.loc[row & (found["rank"] == 1) & (found["step"] == 4), ["bytes", "sent_bytes"]] = pd.NA
        return found

    monkeypatch.setattr(Opened, "volume", property(one_unknown))
    app = opened(Path(shutil.copytree(gathering, tmp_path / "runs")), run="ahead")  # what is read of it is kept
    unfold(app, "costs_fold")
    said = words(app)
    assert "Unknown: the trace does not hold all sizes of 9 collectives of kind all-gather." in said


def test_summary_of_one_rank_shows_every_ranks_memory(opened: Open, gathering: Path) -> None:
    """The rank that is chosen is the verdict's; the tables below are the run's."""
    app = opened(gathering, run="ahead")
    unfold(app, "costs_fold")
    app.selectbox(key="one_rank_picker").set_value(1).run()
    assert head_texts(app)[1].endswith("rank 1, step 3 (as chosen)")
    assert framed(app, "theory (MB)")["rank"].tolist() == [0, 0, 0, 1, 1, 1]


def test_compare_shows_costs_against_theory(opened: Open, gathering: Path) -> None:
    app = opened(gathering, "compare")
    compared = app.multiselect(key="compared")
    assert compared.value == ["ahead", "serial"]  # bucketed trained something else
    compared.set_value(["ahead", "bucketed", "serial"]).run()
    assert not app.exception
    assert app.dataframe[0].value["setting"].tolist() == [
        "prefetch 1, last layer kept",
        "cap 25 MiB",
        "prefetch 0, last layer kept",
    ]
    costs = app.dataframe[1].value
    assert costs["run"].tolist() == ["ahead (emulated link)", "bucketed", "serial (emulated link)"]
    assert costs["sent per rank and step (MB)"].tolist() == [2.35, 8.0, 2.35]
    assert costs["theory: sent (MB)"].dropna().tolist() == [2.35, 2.35]
    assert costs["largest rank's memory (MB)"].dropna().tolist() == [3.500012, 3.500012]
    assert titles(app)[1:] == [
        "Sent per rank: what theory says, within 2 %",
        "Held per rank: what theory says, within 2 %",
    ]


def test_a_recorded_run_is_drawn(opened: Open) -> None:
    app = opened(SAMPLES, "zero3", "zero3")
    assert "15 gathers and 15 frees of 8 layers, and 2 gathers of other units." in body_texts(app)[0]
    assert "Gather and free schedule: 15 gathers for 8 layers (8 forward + 7 backward)" in titles(app)
    summary = opened(SAMPLES, "summary", "zero3")
    unfold(summary, "costs_fold")
    assert [len(framed(summary, column)) for column in ("sent (MB)", "theory (MB)")] == [4, 6]
    assert any("theory says" in line for line in words(summary))
