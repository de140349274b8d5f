"""The contracts between the two sides of the trace file, and which room may import which."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import msgspec
import overlaplab_engine
import overlaplab_engine.integrations
import pytest
from hypothesis import given
from hypothesis import strategies as st
from overlaplab_engine import labels
from overlaplab_engine.network.link import Kind
from overlaplab_engine.network.link import Link as EngineLink
from overlaplab_engine.recording.attained import LinkStep as EngineStep
from overlaplab_engine.recording.attained import is_attained
from overlaplab_engine.recording.trace_file import NO_STEP
from overlaplab_engine.strategies import class_of
from overlaplab_engine.strategy_names import StrategyName

import overlaplab
import overlaplab.integrations
from overlaplab.costs import attained_steps, link_attained, ring_factor, transfer_ns
from overlaplab.events.windows import NEXT_STEP
from overlaplab.manifest import Link, Manifest
from overlaplab.traits import TRAITS, Traits
from overlaplab.vocabulary import label_fields, label_list, layer_number

ROOT = Path(__file__).parents[1]
PLAIN = {
    "microbatch": 1,
    "stage": 2,
    "sync": 1,
    "bucket": 3,
    "bytes": 8,
    "seq": 4,
    "group": 0,
    "modelled_ns": 5,
    "ran_ns": 7,
    "delayed_ns": 9,
    "worker": 1,
    "staleness": 2,
    "hop": 2,
    "sends": 1,
    "to": 2,
    "receives": 0,
    "source": 3,
}
names = st.text(min_size=1, max_size=12)


KEYS = {word: word.keys for word in labels.Word}


@pytest.mark.parametrize("word", KEYS)
def test_the_analyser_reads_every_label_that_the_engine_writes(word: labels.Word) -> None:
    texts = {
        "parameters": ["a.b", "c,d e"],
        "parameter": "a,b=c",
        "link": "1Gbps,200us",
        "kind": "x",
        "dtype": "y",
        "unit": "a b.1",
        "module": "layers.3.up",
        "phase": "forward",
        "way": "down",
    }
    values = {key: {**PLAIN, **texts}[key] for key in KEYS[word]}
    found = label_fields(labels.label(word, **values))
    assert found is not None
    assert found[0] == word
    for key, value in values.items():
        wanted = tuple(value) if isinstance(value, list) else (str(value),)
        assert label_list(found[1][key]) == wanted


@given(st.lists(names, max_size=4))
def test_any_parameter_names_survive(parameters: list[str]) -> None:
    text = labels.label(labels.Word.BUCKET_READY, bucket=0, bytes=8, parameters=parameters)
    found = label_fields(text)
    assert found is not None
    assert label_list(found[1]["parameters"]) == tuple(parameters)


@pytest.mark.parametrize(
    "text",
    [
        "engine::first_use unit=a phase=sideways microbatch=0",
        "engine::first_use unit=a phase=forward microbatch=99999999999999999999",
        "engine::free unit=a phase=forward microbatch=0 bytes=many",
        "engine::free unit=a phase=forward bytes=8",
        "engine::recompute module=,",
        "engine::gradient_ready parameter=,",
        "engine::hop bucket=0 kind=all_gather hop=1 bytes=8 receives=1",
        "engine::hop bucket=0 kind=all_gather hop=1 bytes=8 to=1",
    ],
)
def test_what_is_no_label(text: str) -> None:
    assert label_fields(text) is None
    assert label_fields("engine::first_use unit=a phase=forward microbatch=0") is not None
    assert layer_number("layers.99999999999999999999") is None
    assert layer_number("layers.7") == 7


def test_the_grammar_is_documented() -> None:
    text = (ROOT / "traces" / "README.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `engine::")}
    assert set(rows) == {f"engine::{word}" for word in KEYS}
    for word, keys in KEYS.items():
        documented = rows[f"engine::{word}"].split("|")[3]
        assert [part for part in documented.split("`")[1::2] if part in sum(KEYS.values(), ())][: len(keys)] == list(
            keys
        )


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.integers(0, 10**12),
    st.sampled_from([0.5, 1, 10, 400]),
    st.sampled_from([0, 5.5, 200]),
    st.integers(1, 64),
)
def test_both_sides_have_the_same_link(kind: str, num_bytes: int, gbps: float, latency: float, ranks: int) -> None:
    recorded = EngineLink(bandwidth_gbps=gbps, latency_us=latency).modelled_ns(Kind(kind), num_bytes, ranks)
    read = Link(emulated=True, bandwidth_gbps=gbps, latency_us=latency, world_size=ranks)
    assert transfer_ns(kind, num_bytes, read) == pytest.approx(recorded, rel=1e-12, abs=1)


@given(st.sampled_from(sorted({*Kind} - {Kind.BARRIER, Kind.GATHER, Kind.SCATTER})), st.integers(2, 2**20))
def test_both_sides_have_the_same_ring(kind: str, ranks: int) -> None:
    """Without latency the engine's T is what a rank sends, a byte at 8 Gbit/s taking 1 ns."""
    size = 2**20 * ranks
    recorded = EngineLink(bandwidth_gbps=8, latency_us=0).modelled_ns(Kind(kind), size, ranks)
    assert round(ring_factor(kind, ranks) * size) == pytest.approx(recorded, rel=1e-12, abs=1)


@given(st.integers(0, 10**9), st.integers(0, 2 * 10**9), st.integers(-(10**9), 10**9), st.integers(1, 10**10))
def test_both_sides_have_the_same_rule_of_an_attained_link(
    modelled: int, occupied: int, latest: int, took: int
) -> None:
    figures = {"modelled_ns": modelled, "occupied_ns": occupied, "latest_ns": latest, "took_ns": took}
    recorded = [EngineStep(rank=0, step=step, **figures) for step in range(3)]
    written = json.loads(json.dumps([asdict(step) | {"attained": step.attained} for step in recorded]))
    read = msgspec.convert({"format_version": 1, "world_size": 1, "link_steps": written}, type=Manifest)
    assert [step.attained for step in attained_steps(read)] == [step.attained for step in recorded]
    assert link_attained(read) is is_attained(recorded)


def test_both_sides_have_the_same_name_for_what_is_no_step() -> None:
    assert NO_STEP == NEXT_STEP


def test_both_sides_say_the_same_of_each_strategy() -> None:
    assert list(TRAITS) == list(StrategyName)
    for name, traits in TRAITS.items():
        written = json.loads(json.dumps(asdict(class_of(name).traits)))
        assert msgspec.convert(written, Traits, strict=True) == traits
        assert written.keys() == asdict(traits).keys()


def test_traits_are_documented() -> None:
    text = (ROOT / "traces" / "README.md").read_text()
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `traits.")] == [
        f"traits.{field.name}" for field in fields(Traits)
    ]


def test_rooms_import_only_what_they_may() -> None:
    done = subprocess.run(["lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False, env=_with_bin())
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["overlaplab", "overlaplab.charts"])
def test_exported_names_exist(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


def test_names_that_are_imported_when_asked_for_are_listed() -> None:
    assert {*overlaplab.__all__, "Recorder", "trace_handler"} <= {*dir(overlaplab)}
    with pytest.raises(AttributeError, match="module 'overlaplab' has no attribute 'no_such'"):
        getattr(overlaplab, "no_such")  # noqa: B009 (a type checker sees it otherwise)


def test_both_sides_have_the_same_integrations() -> None:
    assert dir(overlaplab.integrations) == overlaplab_engine.integrations.__all__


def test_the_engines_names_come_when_they_are_asked_for() -> None:
    code = "import sys, overlaplab_engine; assert 'torch' not in sys.modules; from overlaplab_engine import *; Zero3"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    code = "import sys; sys.modules['torch'] = None; from overlaplab_engine import Zero3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: Zero3 needs torch; install it with: pip install 'ov")
    assert {*overlaplab_engine.__all__} <= {*dir(overlaplab_engine)}
    assert sorted(overlaplab_engine.__all__) == sorted(overlaplab_engine._HOMES)


def test_all_names_come_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from overlaplab import *; load_run, Selection"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _with_bin() -> dict[str, str]:
    return {"PATH": str(Path(sys.executable).parent)}
