"""The Compare page: sweeps, runs of any kind, and which of them it begins with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made.fits import fits
from made.runs import engine_events, made_sweep
from made.traces import run_of
from streamlit.testing.v1 import AppTest

Open = Callable[..., AppTest]


def made_sweeps(folder: Path) -> Path:
    """A folder with a sweep of two caps, and two runs beside it."""
    made_sweep(folder / "sweep")
    for name in ("alone", "other"):
        run_of(folder / name, engine_events(), manifest={"strategy": name, "checkpointing": True, "prefetch": 1})
    return folder


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests only read them."""
    return made_sweeps(tmp_path_factory.mktemp("sweeps"))


@pytest.fixture
def own_sweeps(tmp_path: Path) -> Path:
    """The same, for a test that changes them."""
    return made_sweeps(tmp_path)


def charts_of(app: AppTest) -> list[Any]:
    return list(app.get("vega_lite_chart"))


def texts(app: AppTest) -> str:
    return " ".join(text.value for text in app.text)


def test_the_page_says_that_it_compares(opened: Open, sweeps: Path, spinners: list[str]) -> None:
    opened(sweeps, "compare", "sweep/cap-5")
    assert "Comparing 3 runs" in spinners
    spinners.clear()
    opened(sweeps, "compare", "alone")
    assert "Comparing 2 runs" in spinners


def test_what_follows_a_sentence_begins_like_one(opened: Open, sweeps: Path) -> None:
    app = opened(sweeps, "compare", "sweep/cap-5")
    assert ". Emulated link 1Gbps,200us" in texts(app)
    assert ". emulated link" not in texts(app)
    assert "emulated link" not in [text.value[:13] for text in opened(sweeps, "compare", "alone").text]


def test_a_sweep_is_shown_by_cap(opened: Open, sweeps: Path) -> None:
    app = opened(sweeps, "compare", "sweep/cap-5")
    assert app.multiselect[0].value == ["sweep/cap-5", "sweep/cap-5-2", "sweep/cap-25"]
    assert len(charts_of(app)) == 2
    assert "No clear difference: bucket_cap_mb 5 has" in texts(app)
    assert "bucketed, 2 ranks, 3 recordings, emulated link 1Gbps,200us" in texts(app)
    assert "Caps 5 and 25 make the same number of buckets, 2" in texts(app)
    (table,) = app.dataframe
    assert table.value["bucket_cap_mb"].tolist() == [5, 25]
    assert table.value["recordings"].tolist() == [2, 1]
    assert table.value["exposed (ms)"].tolist() == pytest.approx([0.35, 0.35])
    assert app.header[-1].value == "What to do about it"


def test_other_runs_keep_their_page(opened: Open, sweeps: Path) -> None:
    app = opened(sweeps, "compare", "alone")
    assert app.multiselect[0].value == ["alone", "other"]
    assert app.dataframe[0].value["setting"].tolist() == ["cap 25 MiB, prefetch 1, checkpointing"] * 2
    assert "Record at least 3 steps of each run before choosing" in texts(app)
    app.multiselect[0].set_value(["alone"]).run()
    assert "Choose another run" in texts(app)
    app.multiselect[0].set_value(["alone", "sweep/cap-5"]).run()
    assert len(charts_of(app)) >= 1
    assert not app.exception


def test_the_largest_batches_stand_beside_each_other(opened: Open, tmp_path: Path) -> None:
    fits(tmp_path / "ddp", "torch-ddp", batch=4)
    fits(tmp_path / "full", "torch-fsdp2", batch=6)
    fits(tmp_path / "roomy", "torch-fsdp2", batch=9, limit=50_000_000)
    app = opened(tmp_path, "compare", "full")
    assert app.multiselect[0].value == ["ddp", "full"]
    assert "FULL_SHARD fits 6 samples per rank within 24.0 MB, 1.50 × DDP's" in texts(app)
    (table,) = (one.value for one in app.dataframe if "sharding" in one.value)
    assert table["batch"].tolist() == [4, 6]
    assert "Choose FULL_SHARD: it takes least time per sample" in texts(app)
    assert not app.exception


def test_new_runs_of_a_folder_join_and_gone_ones_leave(opened: Open, own_sweeps: Path) -> None:
    app = opened(own_sweeps, "compare", "sweep/cap-5")
    shutil.copytree(own_sweeps / "sweep" / "cap-25", own_sweeps / "sweep" / "cap-25-2")
    app.run()
    assert app.multiselect[0].value == [f"sweep/cap-{name}" for name in ("5", "5-2", "25", "25-2")]
    app.multiselect[0].set_value(["sweep/cap-5-2", "sweep/cap-25"]).run()
    shutil.rmtree(own_sweeps / "sweep" / "cap-5-2")
    shutil.copytree(own_sweeps / "sweep" / "cap-25", own_sweeps / "sweep" / "cap-25-3")
    app.run()
    assert app.multiselect[0].value == ["sweep/cap-25"]  # what the reader chose, without the one that is gone
    assert not app.exception


def test_what_was_chosen_is_there_after_another_page(opened: Open, sweeps: Path) -> None:
    app = opened(sweeps, "compare", "sweep/cap-5")
    app.multiselect[0].set_value(["sweep/cap-5", "sweep/cap-25"]).run()
    app.switch_page("views/summary.py").run()
    app.switch_page("views/compare.py").run()
    assert app.multiselect[0].value == ["sweep/cap-5", "sweep/cap-25"]
    app.selectbox(key="run_picker").set_value("other").run()
    assert app.multiselect[0].value == ["alone", "other"]


def test_where_nothing_compares_it_says_what_differs(opened: Open, own_sweeps: Path) -> None:
    run_of(own_sweeps / "large", engine_events(), manifest={"model": {"layers": 8}})
    app = opened(own_sweeps, "compare", "large")
    assert app.multiselect[0].value == ["large"]
    assert "alone and other differ in layers" in texts(app)
    app.multiselect[0].set_value(["large", "alone"]).run()
    assert "alone and other differ" not in texts(app)
    assert not app.exception


def test_chosen_runs_stand_in_the_link(opened: Open, sweeps: Path) -> None:
    app = opened(sweeps, "compare", "alone")
    assert "runs" not in app.query_params  # what the page shows anyway
    app.multiselect[0].set_value(["alone", "sweep/cap-5"]).run()
    assert app.query_params["runs"] in ("alone,sweep/cap-5", ["alone,sweep/cap-5"])
    app.multiselect[0].set_value(["alone", "other"]).run()
    assert "runs" not in app.query_params


@pytest.mark.parametrize(
    ("runs", "shown"), [("sweep/cap-5,other", ["sweep/cap-5", "other"]), ("gone,other", ["alone", "other"])]
)
def test_a_link_chooses_runs(followed: Open, sweeps: Path, runs: str, shown: list[str]) -> None:
    app = followed(sweeps, "compare", run="alone", runs=runs)
    assert app.multiselect[0].value == shown
    assert [warning.value for warning in app.warning if "runs that are not here" in warning.value] == (
        [warning.value for warning in app.warning] if "gone" in runs else []
    )
    app.run()
    assert app.multiselect[0].value == shown
    app.selectbox(key="run_picker").set_value("sweep/cap-25").run()
    assert app.multiselect[0].value == ["sweep/cap-5", "sweep/cap-5-2", "sweep/cap-25"]
    assert "runs" not in app.query_params


def test_links_out_of_the_folder_are_named_beside_the_runs(
    opened: Open, own_sweeps: Path, tmp_path_factory: Any
) -> None:
    (own_sweeps / "elsewhere").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    app = opened(own_sweeps, "compare", "alone")
    assert [text.value for text in app.sidebar.text if "elsewhere" in text.value] == [
        "Not opened, a link out of this folder: elsewhere. Copy the runs here, or open their own folder."
    ]
