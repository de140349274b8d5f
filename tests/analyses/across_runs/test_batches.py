"""The largest batches that fit, beside each other and beside what was published."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from made.fits import fits
from rich.console import Console

from overlaplab import Run
from overlaplab.analyses import largest_batches
from overlaplab.findings import batches_advice, batches_finding
from overlaplab.report import terminal
from overlaplab.report.documents import compare_document
from overlaplab.sections.comparison import batches_section
from overlaplab.selection import EVERYTHING


@pytest.fixture
def four(tmp_path: Path) -> list[Run]:
    fsdp = {"strategy": "torch-fsdp2"}
    return [
        fits(tmp_path / "full", **fsdp, batch=8, step_us=2400),
        fits(tmp_path / "ddp", "torch-ddp", batch=4, step_us=1600),
        fits(tmp_path / "grad-op", **fsdp, batch=6, step_us=1500, reshard_after_forward=False),
        fits(tmp_path / "offload", **fsdp, batch=12, step_us=7200, offload=True),
    ]


def test_the_rows_stand_beside_ddp_and_beside_what_was_published(four: list[Run]) -> None:
    table = largest_batches(four)
    assert table["sharding"].tolist() == ["FULL_SHARD", "DDP", "SHARD_GRAD_OP", "FULL_SHARD, offloaded"]
    assert table["batch"].tolist() == [8, 4, 6, 12]
    assert table["sample_ms"].tolist() == pytest.approx([0.15, 0.2, 0.125, 0.3])
    assert table["sample_iqr_ms"].tolist() == [0] * 4
    assert table["batch_ratio"].tolist() == [2, 1, 1.5, 3]
    assert table["sample_ratio"].tolist() == pytest.approx([0.75, 1, 0.625, 1.5])
    assert table["published_batch_ratio"].tolist() == pytest.approx([15 / 7, 1, 11 / 7, 20 / 7])
    assert table["published_sample_ratio"].tolist() == pytest.approx([12 / 15, 1, 11 / 15, 23 / 15])
    assert table["memory_limit_bytes"].tolist() == [24_000_000] * 4
    assert table["peak_memory_bytes"].tolist() == [23_999_991] * 4


def test_what_is_said_of_them(four: list[Run]) -> None:
    table = largest_batches(four)
    assert batches_finding(table) == (
        "FULL_SHARD, offloaded fits 12 samples per rank within 24.0 MB, 3.00 × DDP's, and takes 1.50 × its time "
        "per sample"
    )
    assert batches_advice(table) == (
        "Choose SHARD_GRAD_OP: it takes least time per sample, 0.12 ms; FULL_SHARD, offloaded pays where a rank must "
        "hold more than 6 samples."
    )
    assert batches_finding(table.iloc[[1]]) == "DDP fits 4 samples per rank within 24.0 MB"
    assert batches_advice(table.iloc[[1]]) is None
    assert batches_finding(table.iloc[[1]].assign(batch=1)) == "DDP fits 1 sample per rank within 24.0 MB"


def test_what_the_spread_hides_is_not_advised(four: list[Run]) -> None:
    table = largest_batches(four).assign(sample_iqr_ms=[0.01, 0.01, 0.025, 0.01])
    assert batches_advice(table) == (
        "SHARD_GRAD_OP and FULL_SHARD do not differ clearly in time per sample: record more steps, with nothing "
        "else running, before choosing by it."
    )


def test_without_ddp_the_first_row_is_the_measure(four: list[Run]) -> None:
    table = largest_batches([four[2], four[0]])
    assert table["batch_ratio"].tolist() == pytest.approx([1, 8 / 6])
    assert table["published_batch_ratio"].tolist() == pytest.approx([1, 15 / 11])


def test_samples_are_those_of_all_microbatches_and_ranks(tmp_path: Path) -> None:
    table = largest_batches([fits(tmp_path, "zero3", batch=5, step_us=1000, accumulate=2)])
    assert table["sample_ms"].tolist() == pytest.approx([1 / 20])


def test_other_work_and_other_limits_have_no_ratio(tmp_path: Path, four: list[Run]) -> None:
    wider = fits(tmp_path / "wider", "torch-fsdp2", batch=3, model={"layers": 4, "batch": 3})
    roomy = fits(tmp_path / "roomy", "torch-fsdp2", batch=30, limit=50_000_000)
    table = largest_batches([four[1], wider, roomy])
    assert table["batch_ratio"].isna().tolist() == [False, True, True]
    assert table["sample_ratio"].isna().tolist() == [False, True, True]
    assert batches_finding(table) == "Different memory limits, not comparable"


@pytest.mark.parametrize(
    ("strategy", "name"),
    [("bucketed", "DDP"), ("naive", "naive"), ("ring", "ring"), ("zero2", "zero2"), ("zero3", "FULL_SHARD")],
)
def test_how_strategies_shard(tmp_path: Path, strategy: str, name: str) -> None:
    (row,) = largest_batches([fits(tmp_path, strategy, batch=1)]).to_dict("records")
    assert row["sharding"] == name
    assert pd.isna(row["published_batch_ratio"]) == (name not in ("DDP", "FULL_SHARD"))


def test_other_runs_have_no_row(tmp_path: Path, four: list[Run]) -> None:
    given = fits(tmp_path / "given", "torch-ddp", batch=4, largest_batch=False)
    assert largest_batches([given]).empty
    assert batches_section(largest_batches([given])) is None
    assert compare_document([given, four[1]])["largest_batches"][0]["path"] == four[1].path
    section = batches_section(largest_batches(four))
    assert section is not None
    assert section.advice == (batches_advice(largest_batches(four)),)


def test_the_command_shows_them(four: list[Run]) -> None:
    written = StringIO()
    console = Console(width=80, file=written)
    for part in terminal.compare(four, EVERYTHING):
        console.print(part)
    lines = written.getvalue().splitlines()
    assert "The largest batch that fits" in [line.strip() for line in lines]
    (row,) = (line.split() for line in lines if line.startswith(" FULL_SHARD, offloaded "))
    assert row == ["FULL_SHARD,", "offloaded", "12", "300", "%", "286", "%", "0.300", "150", "%", "153", "%"]
    assert "published: Hugging Face's" in " ".join(line.strip() for line in lines)
