"""`overlaplab bench-collectives`: what is measured, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks.warm_ranks import run_launcher
from schemas import expect_schema

from overlaplab.analyses.systems.bench import bench_collectives, measured_link
from overlaplab.cli.bench import _sizes
from overlaplab.errors import OverlaplabError
from overlaplab.findings import bench_finding, bench_remarks
from overlaplab.report.documents import bench_document
from overlaplab.sections.tables import bench_rows

MEASURED = {
    "ranks": 4,
    "device": "cpu",
    "link": {"bandwidth_gbps": 1.0, "latency_us": 1000.0},
    "rows": [
        {"bytes": 1000, "algorithm": "ring", "time_ns": 6_300_000, "wrong": 0},
        {"bytes": 1000, "algorithm": "tree", "time_ns": 4_200_000, "wrong": 0},
        {"bytes": 1_000_000, "algorithm": "ring", "time_ns": 18_000_000, "wrong": 0},
        {"bytes": 1_000_000, "algorithm": "tree", "time_ns": 36_000_000, "wrong": 3},
    ],
}


def test_bandwidths_are_nccl_tests() -> None:
    table = bench_collectives(MEASURED)
    assert table["algbw_gb_per_s"].tolist()[2] == pytest.approx(1e6 / 18e6)
    assert table["bus_gb_per_s"].tolist()[2] == pytest.approx(1e6 / 18e6 * 2 * 3 / 4)
    assert table["modelled_ns"].tolist() == [6_012_000, 4_032_000, 18_000_000, 36_000_000]
    assert bench_collectives(MEASURED | {"link": None})["modelled_ns"].isna().all()


@pytest.mark.parametrize("measured", [MEASURED, MEASURED | {"link": None}], ids=["with a link", "without"])
def test_the_document(measured: dict[str, Any]) -> None:
    document = bench_document(measured, bench_collectives(measured))
    expect_schema("bench-collectives", json.loads(json.dumps({"schema_version": 2} | document)))


def test_ring_and_tree_stand_side_by_side_and_cross() -> None:
    table = bench_collectives(MEASURED)
    frame = bench_rows(table, 4).frame
    assert frame[["bytes", "ring_time_ns", "tree_time_ns"]].to_numpy().tolist() == [
        [1e3, 63e5, 42e5],
        [1e6, 18e6, 36e6],
    ]
    assert bench_finding(table) == "Fastest is tree at 1.00 kB and ring at 1.00 MB."
    assert list(bench_remarks(table, measured_link(MEASURED))) == [
        "By the formula of the link, 1 Gbit/s and 1000 µs, a tree over 4 ranks takes less time than a ring up to"
        " 100 kB, and more beyond.",
        "Measured ÷ formula: ring 1.000 to 1.048 and tree 1.000 to 1.042.",
        "3 elements came out wrong.",
    ]


def test_ranks_measure_for_the_command(tmp_path: Path) -> None:
    options = ("--sizes", "1000,4000", "--algorithms", "ring,tree,torch", "--iterations", "1", "--link", "10Gbps,100us")
    done = run_launcher("-m", "overlaplab_engine.bench", "--nproc", "2", *options, "--out", str(tmp_path / "out.json"))
    assert done.code == 0, done.stderr
    table = bench_collectives(json.loads((tmp_path / "out.json").read_text()))
    assert table[["bytes", "algorithm", "wrong"]].to_numpy().tolist() == [
        [size, name, 0] for size in (1000, 4000) for name in ("ring", "tree", "torch")
    ]
    assert (table["time_ns"] >= table["modelled_ns"]).all()


@pytest.mark.slow
@pytest.mark.alone
def test_ring_and_tree_take_what_the_formula_says(tmp_path: Path) -> None:
    """Hops of 40 ms, beside which the millisecond that the machine takes for each is small."""
    options = ("--sizes", "1000,1000000", "--algorithms", "ring,tree", "--iterations", "3", "--link", "1Gbps,40000us")
    done = run_launcher("-m", "overlaplab_engine.bench", "--nproc", "4", *options, "--out", str(tmp_path / "out.json"))
    assert done.code == 0, done.stderr
    table = bench_collectives(json.loads((tmp_path / "out.json").read_text())).set_index(["algorithm", "bytes"])
    hop_ms = {("ring", 1000): 40.002, ("tree", 1000): 40.008, ("ring", 10**6): 42, ("tree", 10**6): 48}
    hops = {"ring": 6, "tree": 4}
    for (algorithm, size), ms in hop_ms.items():
        assert table.loc[(algorithm, size), "time_ns"] == pytest.approx(hops[algorithm] * ms * 1e6, rel=0.05)


@pytest.mark.parametrize(
    "options", [("--nproc", "1"), ("--nproc", "2", "--algorithms", "star"), ("--nproc", "2", "--link", "fast")]
)
def test_bad_input_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    words = {"--sizes": "8", "--algorithms": "ring", "--iterations": "1", "--out": str(tmp_path / "o.json")}
    words |= dict(zip(options[::2], options[1::2], strict=True))
    done = run_launcher("-m", "overlaplab_engine.bench", *(word for pair in words.items() for word in pair))
    assert done.code == 2
    assert done.stderr.startswith("--")
    assert len(done.stderr.splitlines()) == 1


def test_sizes_are_decimal() -> None:
    assert _sizes("64k,1k,1M") == "1000,64000,1000000"
    with pytest.raises(OverlaplabError, match="not a list of bytes"):
        _sizes("1k,big")
