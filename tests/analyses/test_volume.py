"""Bytes sent, against adding up launches; and theory, against formulas written out."""

from __future__ import annotations

import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.traces import event, launched, op, run_of, step
from samples import sample_run

import overlaplab
from overlaplab.analyses import memory, volume, volume_theory

FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # (n-1)/n each
KINDS = [*FACTORS, "broadcast"]
Collective = tuple[str, int, int]


def comm(seq: int, kind: str, size: int, at: float) -> list[dict[str, Any]]:
    text = f"engine::comm seq={seq} kind={kind} dtype=float32 bytes={size} group=0 link=1Gbps,200us modelled_ns=5"
    return [event(f"engine::launch seq={seq}", at, at + 0.1), event(text, at + 500, at + 501, tid=7)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 999), st.integers(0, 1)), max_size=12), st.integers(1, 4)
)
def test_volume_is_the_sum_of_what_each_step_launched(collectives: list[Collective], ranks: int) -> None:
    events = [step(0, 0, 100), step(1, 100, 200), op("mm", 0, 900)]
    for seq, (kind, size, number) in enumerate(collectives):
        events += comm(seq, kind, size, 100 * number + seq + 1)
    with tempfile.TemporaryDirectory() as folder:
        table = overlaplab.volume(run_of(Path(folder), *[events] * ranks))
    told = {(row["rank"], row["step"], row["kind"]): row for row in table.to_dict("records")}
    counts = Counter((rank, number, kind) for rank in range(ranks) for kind, _, number in collectives)
    assert {key: row["count"] for key, row in told.items()} == counts
    for (_, number, kind), row in told.items():
        full = sum(size for k, size, n in collectives if (k, n) == (kind, number))
        sent = full * FACTORS[kind] * Fraction(ranks - 1, ranks) if kind in FACTORS else full
        assert row["bytes"] == full
        assert abs(row["sent_bytes"] - sent) <= Fraction(1, 2)


def test_without_labels_kinds_come_from_names_and_bytes_are_unknown(tmp_path: Path) -> None:
    calls = ["c10d::allreduce_", "c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::allreduce_"]
    events = [step(3, 0, 100), *(event(name, 10 * i, 10 * i + 5) for i, name in enumerate(calls))]
    table = volume(run_of(tmp_path / "gloo", events))
    assert table[["kind", "count"]].to_numpy().tolist() == [["all_reduce", 2], ["all_gather", 1], ["reduce_scatter", 1]]
    assert table[["bytes", "sent_bytes"]].isna().all(axis=None)
    events = [
        step(3, 0, 100),
        *launched("gemm", 1, 2, 3, correlation=1),
        *launched("ncclDevKernel_AllGather_RING_LL", 4, 5, 9, stream=9, correlation=2),
        *launched("Memcpy PtoP (Device -> Device)", 6, 7, 9, stream=9, correlation=3, cat="gpu_memcpy"),
    ]
    table = volume(run_of(tmp_path / "nccl", events, backend="nccl"))
    assert table[["kind", "count"]].to_numpy().tolist() == [["all_gather", 1], ["unknown", 1]]


def test_labels_give_bytes_on_plain_gloo_and_on_cuda(tmp_path: Path) -> None:
    text = "seq=0 kind=all_gather dtype=float32 bytes=64 group=0"
    events = [step(3, 0, 100), event(f"engine::collective {text}", 10, 20), event("c10d::_allgather_base_", 12, 15)]
    plain = volume(run_of(tmp_path / "gloo", events, events)).to_dict("records")
    assert [(r["kind"], r["count"], r["bytes"], r["sent_bytes"]) for r in plain] == [("all_gather", 1, 64, 32)] * 2
    events = [
        step(3, 0, 100),
        *launched("gemm", 1, 2, 3, correlation=1),
        event(f"engine::comm {text}", 10, 20),
        *launched("ncclDevKernel_AllGather", 12, 20, 30, stream=9, correlation=2),
        *launched("Memcpy DtoD", 13, 30, 31, stream=9, correlation=3, cat="gpu_memcpy"),
    ]
    (row,) = volume(run_of(tmp_path / "nccl", events, backend="nccl")).to_dict("records")
    assert (row["kind"], row["count"], row["bytes"]) == ("all_gather", 1, 64)


def manifest(strategy: str, **keys: Any) -> dict[str, Any]:
    """Three layers of 100 elements, an embedding of 40 and a head of 60, in fp32."""
    units = {"embedding": 40, "layers.0": 100, "layers.1": 100, "layers.2": 100, "head": 60}
    return {
        "strategy": strategy,
        "accumulate": 1,
        "parameters": [
            {"name": f"{unit}.w", "shape": [size // 10, 10], "dtype": "float32", "bytes": 4 * size, "unit": unit}
            for unit, size in units.items()
        ],
        "units": [{"name": unit, "bytes": 4 * size, "parameters": [f"{unit}.w"]} for unit, size in units.items()],
        **keys,
    }


FULL = 1600  # Ψ in bytes
RANK = [step(3, 0, 9), op("mm", 1, 2)]


@pytest.mark.parametrize(
    ("strategy", "keys", "full", "formula"),
    [
        *(
            (name, {"accumulate": 3}, 2 * FULL, "2Ψ")
            for name in ("naive", "per-param", "bucketed", "torch-ddp", "zero1")
        ),
        ("zero2", {}, 2 * FULL, "2Ψ"),
        ("zero2", {"accumulate": 3}, 4 * FULL, "(A+1)Ψ"),
        (
            "zero3",
            {"keep_last": True, "accumulate": 1},
            4 * (40 + 2 * 100 + 2 * 100 + 100 + 60) + FULL,
            "3Ψ − embedding − layers.2 − head",
        ),
        (
            "zero3",
            {"keep_last": True, "accumulate": 2},
            2 * (4 * (40 + 2 * 100 + 2 * 100 + 100 + 60) + FULL),
            "A(3Ψ − embedding − layers.2 − head)",
        ),
        (
            "parameter-server",
            {},
            2 * FULL,
            "2Ψ in the mean of the ranks; rank 0 sends (n−1)Ψ, as much as it receives, the others Ψ",
        ),
        ("local-sgd", {"every": 4, "accumulate": 3}, FULL / 2, "2Ψ/4"),
        ("local-sgd", {"every": 1}, 2 * FULL, "2Ψ"),
        ("torch-fsdp2", {"keep_last": False}, 3 * FULL, "3Ψ"),  # it gathers what it wraps, an embedding, too
    ],
)
def test_the_theory_of_each_strategy(
    tmp_path: Path, strategy: str, keys: dict[str, Any], full: int, formula: str
) -> None:
    theory = volume_theory(run_of(tmp_path, *[RANK] * 4, manifest=manifest(strategy, **keys)))
    assert theory is not None
    assert (theory.sent_bytes, theory.formula) == (full * 3 / 4, formula)
    if strategy == "zero3":
        microbatches = keys["accumulate"]
        assert theory.upper_sent_bytes == 3 * microbatches * FULL * 3 / 4
        assert theory.upper_formula == ("3Ψ" if microbatches == 1 else "3AΨ")


@pytest.mark.parametrize(
    ("name", "formula"),
    [("torch-fsdp2", "3Ψ − root"), ("course/units-small", "3Ψ − root − layers.7.down")],
)
def test_samples_sent_what_theory_says(name: str, formula: str) -> None:
    run = sample_run(name)
    theory, sent = volume_theory(run), volume(run).groupby(["rank", "step"])["sent_bytes"].sum()
    assert theory is not None
    assert theory.formula == formula
    assert sent.tolist() == pytest.approx([theory.sent_bytes] * len(sent), rel=2e-4)  # of zero3 with its flags


def test_fp32_gradients_of_bf16_parameters_count_double(tmp_path: Path) -> None:
    halved = manifest("zero2", accumulate=2, main_grad=True)
    for parameter in halved["parameters"]:
        parameter |= {"dtype": "bfloat16", "bytes": parameter["bytes"] // 2}
    theory = volume_theory(run_of(tmp_path, RANK, RANK, manifest=halved))
    assert theory is not None
    assert theory.sent_bytes == (2 * 1600 + 800) / 2
    assert theory.formula == "(A+1)Ψ, gradients in fp32"


def test_there_is_no_theory_of_a_strangers_run(tmp_path: Path) -> None:
    assert volume_theory(run_of(tmp_path / "a", RANK)) is None
    assert volume_theory(run_of(tmp_path / "b", RANK, manifest=manifest("of my own"))) is None
    assert volume_theory(run_of(tmp_path / "c", RANK, manifest=manifest("zero1", parameters=[]))) is None
    of_loop = manifest("torch-fsdp2", accumulate=None)  # which may gather for several microbatches
    assert volume_theory(run_of(tmp_path / "d", RANK, manifest=of_loop)) is None
    assert volume_theory(run_of(tmp_path / "e", RANK, manifest=manifest("torch-ddp", accumulate=None))) is not None


UNITS = {"gathers": "units"}
ONCE = 4 * (40 + 60)


@pytest.mark.parametrize(
    ("traits", "full", "formula", "upper"),
    [
        ({}, 2 * FULL, "2Ψ", "2Ψ"),
        ({"sends_every_microbatch": True}, 6 * FULL, "2AΨ", "2AΨ"),
        ({"gradients": "reduce_scatter", "sends_every_microbatch": True}, 3 * FULL, "AΨ", "AΨ"),
        ({"gathers": "updated_parameters", "sends_every_microbatch": True}, 7 * FULL, "(2A+1)Ψ", "(2A+1)Ψ"),
        (UNITS, 8 * FULL - 3 * ONCE, "A(2Ψ − embedding − head) + 2Ψ", "(2A+2)Ψ"),
        (UNITS | {"sends_every_microbatch": True}, 12 * FULL - 3 * ONCE, "A(4Ψ − embedding − head)", "4AΨ"),
    ],
)
def test_theory_asks_for_traits_and_not_for_a_name(
    tmp_path: Path, traits: dict[str, Any], full: int, formula: str, upper: str
) -> None:
    """Three microbatches of an unknown strategy, or of one to which run.json gives other traits than usual."""
    for name in ("of my own", "zero2"):
        theory = volume_theory(
            run_of(tmp_path / name, RANK, RANK, manifest=manifest(name, accumulate=3, traits=traits))
        )
        assert theory is not None
        assert (theory.sent_bytes, theory.formula, theory.upper_formula) == (full / 2, formula, upper)
        untold = manifest(name, accumulate=None, traits=traits)
        assert (volume_theory(run_of(tmp_path / "loop" / name, RANK, manifest=untold)) is None) == bool(traits)


@pytest.mark.parametrize(("dtype", "sent_bytes"), [("bfloat16", 1920), ("bf16", 1920), ("of my own", 0)])
def test_run_json_may_spell_types_as_people_do(tmp_path: Path, dtype: str, sent_bytes: int) -> None:
    """Two ranks all-reduce four activations of each of 3 layers, of 80 elements of 2 bytes."""
    model = {"batch": 1, "seq": 8, "width": 10, "layers": 3, "dtype": dtype}
    run_json = manifest("zero2", mesh={"dp": 1, "tp": 2}, model=model)
    theory = volume_theory(run_of(tmp_path, RANK, RANK, manifest=run_json))
    assert theory is not None
    assert theory.sent_bytes == sent_bytes


def test_memory_kept_on_the_host_by_a_run_that_offloads_nothing_has_no_formula(tmp_path: Path) -> None:
    on_host = [held | {"host": 64} for held in HELD]
    run = run_of(tmp_path, RANK, RANK, manifest=manifest("zero1", memory=on_host))
    table = memory(run)
    assert table["formula"].fillna("").tolist() == ["4Ψ", "4Ψ", "8Ψ/N", ""] * 2
    assert table["bytes"].tolist()[3::4] == [64] * 2


def test_memory_asks_for_traits_and_not_for_a_name(tmp_path: Path) -> None:
    traits = {"sharded": ["parameters", "optimizer"]}
    run = run_of(tmp_path, RANK, RANK, manifest=manifest("of my own", memory=HELD, traits=traits))
    assert memory(run)["formula"].tolist() == ["4Ψ/N", "4Ψ", "8Ψ/N"] * 2


def test_a_strategy_sends_what_theory_says(tmp_path: Path) -> None:
    """On a made run of zero1: 1600 bytes scattered and 1600 gathered."""
    events = [step(0, 0, 100), op("mm", 0, 900), *comm(0, "reduce_scatter", 1600, 5), *comm(1, "all_gather", 1600, 9)]
    run = run_of(tmp_path, events, events, manifest=manifest("zero1"))
    theory = volume_theory(run)
    assert theory is not None
    assert volume(run).groupby("rank")["sent_bytes"].sum().tolist() == [theory.sent_bytes] * 2
    (row,) = overlaplab.compare([run]).to_dict("records")
    assert (row["sent_bytes"], row["theory_sent_bytes"]) == (1600, 1600)
    unmarked = run_of(tmp_path / "unmarked", events[1:], events[1:], manifest=manifest("zero1"))
    (row,) = overlaplab.compare([unmarked]).to_dict("records")  # of the trace, and theory is of a step
    assert (row["sent_bytes"], pd.isna(row["theory_sent_bytes"])) == (1600, True)
    assert pd.isna(row["memory_bytes"])


def test_what_is_known_of_some_steps_alone_is_not_compared(tmp_path: Path) -> None:
    known = comm(0, "all_gather", 64, 5)
    events = [step(0, 0, 100), step(1, 100, 200), op("mm", 0, 900), *known, event("engine::launch seq=7", 150, 151)]
    run = run_of(tmp_path, events)
    assert [(r["kind"], r["bytes"]) for r in volume(run).head(1).to_dict("records")] == [("all_gather", 64)]
    assert pd.isna(overlaplab.compare([run])["sent_bytes"].iloc[0])


HELD = [{"rank": rank, "parameters": 10 + rank, "gradients": 20, "optimizer": 30} for rank in range(2)]


@pytest.mark.parametrize(
    ("strategy", "keys", "formulas"),
    [
        ("bucketed", {}, [(1600, "4Ψ"), (1600, "4Ψ"), (3200, "8Ψ")]),
        ("zero1", {}, [(1600, "4Ψ"), (1600, "4Ψ"), (1600, "8Ψ/N")]),
        ("zero2", {}, [(1600, "4Ψ"), (800, "4Ψ/N"), (1600, "8Ψ/N")]),
        ("zero3", {}, [(800, "4Ψ/N"), (800, "4Ψ/N"), (1600, "8Ψ/N")]),
        ("torch-fsdp2", {}, [(800, "4Ψ/N"), (800, "4Ψ/N"), (1600, "8Ψ/N")]),
        ("bucketed", {"dtype": "bfloat16"}, [(800, "2Ψ"), (800, "2Ψ"), (4800, "12Ψ")]),  # 16Ψ
        ("bucketed", {"dtype": "bfloat16", "main_grad": True}, [(800, "2Ψ"), (1600, "4Ψ"), (4800, "12Ψ")]),  # 18Ψ
        ("zero3", {"dtype": "float64"}, [(1600, "8Ψ/N"), (1600, "8Ψ/N"), (3200, "16Ψ/N")]),
        ("bucketed", {"dtype": "float8"}, [(None, None)] * 3),
    ],
)
def test_memory_beside_its_formula(
    tmp_path: Path, strategy: str, keys: dict[str, Any], formulas: list[tuple[int | None, str | None]]
) -> None:
    keys = dict(keys)
    dtype = keys.pop("dtype", "float32")
    told = manifest(strategy, memory=HELD, **keys)
    for parameter in told["parameters"]:
        parameter |= {"dtype": dtype, "bytes": parameter["bytes"] // 4 * {"bfloat16": 2, "float64": 8}.get(dtype, 4)}
    run = run_of(tmp_path, RANK, RANK, manifest=told)
    table = memory(run)
    assert table[["rank", "part"]].to_numpy().tolist() == [
        [rank, part] for rank in range(2) for part in ("parameters", "gradients", "optimizer")
    ]
    assert table["bytes"].tolist() == [10, 20, 30, 11, 20, 30]
    for rank in range(2):
        of_rank = table[table["rank"] == rank]
        assert [(None if pd.isna(b) else b, f) for b, f in of_rank[["formula_bytes", "formula"]].to_numpy()] == formulas
    (row,) = overlaplab.compare([run]).to_dict("records")
    assert row["memory_bytes"] == 61
    known = [size for size, _ in formulas if size is not None]
    assert row["theory_memory_bytes"] == sum(known) if known else pd.isna(row["theory_memory_bytes"])


def test_memory_is_empty_without_a_manifest_that_has_it(tmp_path: Path) -> None:
    assert len(memory(run_of(tmp_path / "a", RANK))) == len(memory(run_of(tmp_path / "b", RANK, manifest={}))) == 0


def test_the_values_of_run_json_are_typed(tmp_path: Path) -> None:
    told = manifest("zero3", accumulate=3, prefetch=2, keep_last=True, memory=HELD, model={"layers": 3, "x": 1})
    found = run_of(tmp_path / "a", RANK, manifest=told).manifest
    assert found is not None
    assert (found.prefetch, found.keep_last, found.accumulate) == (2, True, 3)
    assert found.model is not None
    assert (found.model.layers, found.memory[1].parameters) == (3, 11)
    with pytest.raises(overlaplab.OverlaplabError, match=r"`optimizer`.*memory"):
        run_of(tmp_path / "b", RANK, manifest={"memory": [{"rank": 0, "parameters": 1, "gradients": 2}]})
