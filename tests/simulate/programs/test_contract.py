"""Programs made from one recording against what the engine launches and waits for when it runs so: equal lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import asdict
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.evidence.labels import engine_labels
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.player import Launch, Program, Wait
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs import _STRATEGIES, all_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import recorded_programs
from overlaplab.traits import TRAITS

COMMON = (
    *("--device", "cpu", "--layers", "2", "--width", "20", "--vocab", "32", "--seq", "4", "--batch", "1"),
    *("--steps", "2", "--warmup", "2", "--attempts", "1", "--compute", "sleep:1ms,2ms,1ms"),
    *("--link", "100Gbps,500us"),
)
"""Layers of 20 kB, an embedding and a head of 3 kB, in 31 parameters."""
SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "patient_ranks.py"
SOURCES = (
    Setting(strategy="bucketed", bucket_cap_mb=0.01),
    Setting(strategy="zero3"),
    Setting(strategy="torch-fsdp2", accumulate=2),
    Setting(strategy="ring", bucket_cap_mb=0.01),
    Setting(strategy="parameter-server"),
)
TARGETS = (
    Setting(strategy="naive"),
    Setting(strategy="naive", accumulate=2),
    Setting(strategy="per-param"),
    Setting(strategy="bucketed", bucket_cap_mb=0.02),
    Setting(strategy="bucketed", bucket_cap_mb=0.02, first_bucket_mb=0.002, accumulate=3),
    Setting(strategy="ring", bucket_cap_mb=0.02, first_bucket_mb=0.002, ranks=3),
    Setting(strategy="tree", bucket_cap_mb=0.005, accumulate=2, ranks=3),
    Setting(strategy="parameter-server", accumulate=2, ranks=3),
    Setting(strategy="torch-ddp", bucket_cap_mb=0.01),
    Setting(strategy="torch-ddp", bucket_cap_mb=0.005, accumulate=2),
    Setting(strategy="zero1", bucket_cap_mb=0.01),
    Setting(strategy="zero1", bucket_cap_mb=0.01, first_bucket_mb=0.004, accumulate=2),
    Setting(strategy="zero2", bucket_cap_mb=0.004),
    Setting(strategy="zero2", bucket_cap_mb=0.01, accumulate=2, ranks=3),
    Setting(strategy="zero3"),
    Setting(strategy="zero3", prefetch=0),
    Setting(strategy="zero3", prefetch=2, accumulate=2, ranks=3),
    Setting(strategy="torch-fsdp2"),
    Setting(strategy="torch-fsdp2", prefetch=0, accumulate=2),
    Setting(strategy="torch-fsdp2", prefetch=2, ranks=3),
)


def test_every_strategy_that_is_played_has_programs_and_is_a_target() -> None:
    played = {name for name, traits in TRAITS.items() if traits.is_played or traits.gradients == "server"}
    assert played == _STRATEGIES.keys() == {target.strategy for target in TARGETS}


FURTHER = {
    *(Setting(strategy="naive", accumulate=2), Setting(strategy="torch-ddp", bucket_cap_mb=0.005, accumulate=2)),
    *(
        Setting(strategy="zero1", bucket_cap_mb=0.01),
        Setting(strategy="zero2", bucket_cap_mb=0.01, accumulate=2, ranks=3),
    ),
    *(Setting(strategy="zero3", prefetch=0), Setting(strategy="torch-fsdp2", prefetch=2, ranks=3)),
}
"""Targets whose options others have as well: by hand only."""


def told(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(setting).items() if value not in (None, True))


def record(settings: dict[Path, Setting], *more: str) -> dict[Setting, overlaplab.Run]:
    """The engine with each of these settings, in its folder; one start of the ranks makes all recordings on as many."""
    for ranks in {setting.ranks or 2 for setting in settings.values()}:
        own = {out: setting for out, setting in settings.items() if (setting.ranks or 2) == ranks}
        lines = [[*COMMON, *options(setting), *more, "--out", str(out)] for out, setting in own.items()]
        for rank in run_warm(ranks, str(SCRIPT), json.dumps(lines)):
            assert rank.code == 0, rank.stderr
    return {setting: overlaplab.load_run(out) for out, setting in settings.items()}


def options(setting: Setting) -> list[str]:
    names = ("strategy", "bucket_cap_mb", "first_bucket_mb", "prefetch", "accumulate")
    given = {name: value for name in names if (value := getattr(setting, name)) is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setting], overlaplab.Run]:
    """Each setting's run; those of FURTHER are recorded when one of them is asked for."""
    known: dict[Setting, overlaplab.Run] = {}

    def run_of(setting: Setting) -> overlaplab.Run:
        if setting not in known:
            alike = [one for one in (*SOURCES, *TARGETS) if (one in FURTHER) == (setting in FURTHER)]
            known.update(record({tmp_path_factory.mktemp("run"): one for one in dict.fromkeys(alike)}))
        return known[setting]

    return run_of


def moves(program: Program, strategy: str) -> list[tuple[object, ...]]:
    """Launches and waits in order, each with what it moves; FSDP2 names no passes."""
    names = {}
    for move in program:
        if isinstance(move, Launch):
            what = (move.what or "").split(" ")
            names[move.key] = (move.kind, move.bytes, move.role, *(what[:1] if strategy == "torch-fsdp2" else what))
    chosen = [move for move in program if isinstance(move, Launch | Wait)]
    return [(type(move).__name__, *names[move.key]) for move in chosen]


@pytest.mark.parametrize(
    "target", [pytest.param(one, marks=pytest.mark.slow if one in FURTHER else (), id=told(one)) for one in TARGETS]
)
@pytest.mark.parametrize("source", SOURCES, ids=told)
def test_the_engine_launches_and_waits_as_predicted(
    source: Setting, target: Setting, recorded: Callable[[Setting], overlaplab.Run]
) -> None:
    predicted = [moves(program, target.strategy or "") for program in all_programs(recorded(source), complete(target))]
    really = recorded_programs(recorded(target))
    assert really is not None
    assert predicted == [moves(program, target.strategy or "") for program in really.programs]


@pytest.mark.parametrize(
    "target", [one for one in TARGETS if one.strategy in ("ring", "tree", "parameter-server")], ids=told
)
def test_messages_are_sent_and_labelled_as_predicted(
    target: Setting, recorded: Callable[[Setting], overlaplab.Run], tmp_path: Path
) -> None:
    found = predict(recorded(SOURCES[0]), complete(target))
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    predicted, really = overlaplab.load_run(tmp_path / "predicted", cache=False), recorded(target)
    for own, other in zip(predicted.traces, really.traces, strict=True):
        for word in ("hop", "bucket_launch", "bucket_ready", "bucket_done"):
            assert labelled(own, word) == labelled(other, word)
        assert messages(own) == messages(other)


def labelled(trace: overlaplab.Trace, word: str) -> list[dict[str, str]]:
    return [label.fields for label in engine_labels(trace) if label.word == word]


def messages(trace: overlaplab.Trace) -> list[tuple[str, ...]]:
    """By lane and in order: type, bytes and link."""
    comms = [fields for fields in labelled(trace, "comm") if fields["kind"] == "send_recv"]
    first = min((int(fields["seq"]) for fields in comms), default=0)  # others came before the recording began
    rows = [(fields["group"], int(fields["seq"]) - first, fields) for fields in comms]
    return [
        (group, *(fields[name] for name in ("dtype", "bytes", "link")))
        for group, _, fields in sorted(rows, key=lambda row: row[:2])
    ]


def test_ranks_that_clip_parts_of_gradients_add_up_their_norms(tmp_path: Path) -> None:
    source, target = SOURCES[0], Setting(strategy="zero3", accumulate=2)
    runs = record({tmp_path / "source": source, tmp_path / "target": target}, "--clip-norm", "1")
    really = recorded_programs(runs[target])
    assert really is not None
    predicted = all_programs(runs[source], complete(target))
    assert [moves(program, "zero3") for program in predicted] == [
        moves(program, "zero3") for program in really.programs
    ]


def test_layers_that_are_not_freed_after_their_forward_are_gathered_once(tmp_path: Path) -> None:
    source = Setting(strategy="torch-fsdp2")
    target = Setting(strategy="torch-fsdp2", prefetch=2, accumulate=2)
    runs = record({tmp_path / "source": source, tmp_path / "target": target}, "--no-reshard-after-forward")
    really = recorded_programs(runs[target])
    assert really is not None
    predicted = [moves(program, "torch-fsdp2") for program in all_programs(runs[source], complete(target))]
    assert predicted == [moves(program, "torch-fsdp2") for program in really.programs]


def complete(setting: Setting) -> Setting:
    """With the defaults that the engine has where the target names nothing, and the source may have something else."""
    gathers = setting.strategy in ("zero3", "torch-fsdp2")
    return Setting(
        strategy=setting.strategy,
        bucket_cap_mb=setting.bucket_cap_mb,
        first_bucket_mb=setting.first_bucket_mb,
        ranks=setting.ranks,
        accumulate=setting.accumulate or 1,
        prefetch=(1 if setting.prefetch is None else setting.prefetch) if gathers else None,
    )
