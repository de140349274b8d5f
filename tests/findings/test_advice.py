"""What `advise` says: the words for rows of `simulate.advise`, written by hand, and of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.step_rows import BOUND, MS, exposed_rows, summary_rows
from msgspec.structs import replace
from samples import sample_run, sample_tables

import overlaplab
from overlaplab import findings, simulate
from overlaplab.analyses.across_runs.tiers import verify_gain
from overlaplab.findings import Loop, diagnose
from overlaplab.manifest import MachineStep, Swept
from overlaplab.report.documents import advice_document
from overlaplab.sections.run_tables import RunTables
from overlaplab.traits import BUCKETS, TRAITS, UNITS

SAMPLES = Path(__file__).parents[2] / "traces"


def rows(*made: dict[str, Any]) -> pd.DataFrame:
    """Rows of `simulate.advise`, each the best of its kind, of a step of 100 ms; gains in ms."""
    found = []
    for own in made:
        gain = own.pop("gain")
        usual = {"buckets": 4, "bucket_sizes": (1,) * 4, "caps_mb": (1.0,), "memory_bytes": 0, "replayed": True}
        usual |= {"low_ns": (gain - 1) * MS, "high_ns": (gain + 1) * MS, "best": True}
        found.append(usual | {"gain_ns": gain * MS, "step_ns": (100 - gain) * MS} | own)
    empty = simulate.advise(sample_run("torch-fsdp2"))
    return pd.DataFrame(found, columns=list(empty)).astype(empty.dtypes.to_dict())


CAP = {"option": "cap", "bucket_cap_mb": 1.2}
FIRST = {"option": "first_bucket", "first_bucket_mb": 0.5}
BOTH = {"option": "cap_and_first_bucket", "bucket_cap_mb": 1.2, "first_bucket_mb": 0.5}
LIST = {"option": "buckets", "caps_mb": (2.0, 1.0, 0.5), "buckets": 3, "bucket_sizes": (2_000_000, 1_000_000, 500_000)}
DEEPER = {"option": "prefetch", "prefetch": 2, "buckets": None, "bucket_sizes": None, "memory_bytes": 3_000_000}

SWEPT = Swept(
    settings={"bucket_cap_mb": 25, "lr": 0.1},
    command=("torchrun", "train.py", "--cap", "{bucket_cap_mb}", "--lr", "{lr}", "{x}"),
)


@pytest.mark.parametrize(
    ("made", "chosen"),
    [
        ([CAP | {"gain": 10}], "cap"),
        ([CAP | {"gain": 2}], None),  # too little
        ([FIRST | {"gain": 9}, CAP | {"gain": 10}], "first_bucket"),  # as much, and it changes less
        ([FIRST | {"gain": 5}, CAP | {"gain": 10}, BOTH | {"gain": 11}], "cap"),
        ([CAP | {"gain": 5}, BOTH | {"gain": 10}], "cap_and_first_bucket"),
        ([CAP | {"gain": 5}, LIST | {"gain": 30}], "cap"),  # no option of the engine's
        ([DEEPER | {"gain": 7}], "prefetch"),
        ([], None),
    ],
)
def test_of_settings_that_gain_as_much_the_smaller_change_is_advised(
    made: list[dict[str, Any]], chosen: str | None
) -> None:
    row = findings.choose_setting(rows(*(dict(setting) for setting in made)), None)
    assert (None if row is None else row["option"]) == chosen


def test_the_setting_that_the_diagnosis_advises_comes_first() -> None:
    table, diagnosis = rows(FIRST | {"gain": 9}, CAP | {"gain": 10}), sample_tables("sweep/cap-25").diagnosis
    assert diagnosis is not None
    (action,) = diagnosis.actions[:1]
    assert action.action.name == "cap"
    for setting, option in ((float(table["bucket_cap_mb"].iloc[1]), "cap"), (77.0, "first_bucket")):
        row = findings.choose_setting(table, replace(diagnosis, actions=(replace(action, setting=setting),)))
        assert row is not None
        assert row["option"] == option


def said(table: pd.DataFrame) -> list[str]:
    step = summary_rows((0, 1, 100, 30))
    diagnosis = diagnose(step, step.iloc[0], exposed_rows((0, 1, "tail", 30, None)), step, bound=BOUND)
    return list(findings.advice_sentences(table, diagnosis))


def test_a_list_of_caps_that_gains_more_than_the_first_action_says_so() -> None:
    tables = sample_tables("torch-ddp")
    table, diagnosis = tables.advice, tables.diagnosis
    assert diagnosis is not None
    of_list, little_ns = table["option"] == "buckets", diagnosis.actions[0].step_ns // 60
    for more_ns, half_ns, ends in (
        (little_ns, 0, False),
        (2 * little_ns, 0, True),
        (2 * little_ns, 3 * little_ns, False),
    ):
        gain_ns = table["gain_ns"].mask(of_list, diagnosis.actions[0].gain_ns + more_ns)
        sentences = findings.advice_sentences(table.assign(gain_ns=gain_ns, half_ns=half_ns), diagnosis)
        (last,) = (text.rpartition(". ")[2] for text in sentences if "bucket_cap_mb_list" in text)
        assert last.startswith("That is more than the first action gains; its caps are cut to this recording") is ends


def test_the_sentences_tell_gain_range_memory_and_what_no_buckets_gain() -> None:
    assert said(rows(dict(CAP, gain=10), dict(LIST, gain=12)))[:3] == [
        "First to try: bucket_cap_mb 1.2, 4 buckets: predicted gain 10.0 ms (10\u00a0% of 100.0 ms);"
        " over the steps 9.0 ms to 11.0 ms.",
        "A cap for each bucket (bucket_cap_mb_list), the best 3, with caps of 2, 1 and 0.5 MiB:"
        " predicted gain 12.0 ms (12\u00a0% of 100.0 ms); over the steps 11.0 ms to 13.0 ms.",
        "No division into buckets gains more than 26.0 ms in rank 0, step 1 ().",
    ]
    assert "each rank holds up to 3.00 MB more" in said(rows(dict(DEEPER, gain=12)))[0]
    assert (
        said(rows(dict(CAP, gain=1)))[0]
        == "Another bucket_cap_mb is not predicted to gain more than 2\u00a0% of the step."
    )
    assert said(rows(dict(CAP, gain=10, replayed=False)))[0].endswith(
        "gain at most 10.0 ms of 100.0 ms, if nothing is delayed and no rank is late."
    )


def test_a_bound_below_what_a_play_gains_is_not_told() -> None:
    """A step's bound keeps its idle time, a play need not: then it limits nothing."""
    assert not [line for line in said(rows(dict(CAP, gain=30))) if line.startswith("No division")]


def test_where_buckets_were_played_none_gain_more_than_the_least_step_leaves() -> None:
    table = rows(dict(CAP, gain=10, least_ns=85 * MS), dict(LIST, gain=12, least_ns=85 * MS))
    assert said(table)[2] == "No division into buckets gains more than about 15.0 ms of the mean step."


@pytest.mark.parametrize(
    ("loop", "lines"),
    [
        (
            Loop(framework="engine", traits=TRAITS["naive"]),
            ["overlaplab record … --strategy bucketed --bucket-cap-mb 1.2"],
        ),
        (
            Loop(framework="ddp", traits=BUCKETS),
            [
                "DistributedDataParallel(model, bucket_cap_mb=1.2)",
                "DistributedDataParallel(model, bucket_cap_mb_list=[2, 1, 0.5])",
            ],
        ),
        (
            Loop(framework="ddp", traits=BUCKETS, swept=SWEPT),
            [
                "torchrun train.py --cap 1.2 --lr 0.1 '{x}'",
                "DistributedDataParallel(model, bucket_cap_mb=1.2)",
                "DistributedDataParallel(model, bucket_cap_mb_list=[2, 1, 0.5])",
            ],
        ),
        (Loop(framework="fsdp2", traits=UNITS), []),  # nothing waits for gathers
    ],
)
def test_the_lines_to_change_are_those_of_the_framework(loop: Loop, lines: list[str]) -> None:
    step = summary_rows((0, 1, 100, 30))
    diagnosis = diagnose(step, step.iloc[0], exposed_rows((0, 1, "tail", 30, None)), step, bound=BOUND)
    table = rows(dict(CAP, gain=10), dict(LIST, gain=12))
    assert list(findings.advice_lines(table, loop, diagnosis)) == lines


def test_fsdp2_is_told_how_to_gather_ahead() -> None:
    step = summary_rows((0, 1, 100, 30))
    waits = exposed_rows((0, 1, "late launch", 30, None), kind="all_gather")
    diagnosis = diagnose(step, step.iloc[0], waits, step)
    lines = list(findings.advice_lines(rows(), Loop(framework="fsdp2", traits=UNITS), diagnosis))
    assert "set_modules_to_forward_prefetch" in lines[1]
    compile("\n".join(lines), "lines", "exec")


@pytest.mark.parametrize("name", ["bucketed", "sweep/cap-25", "sweep/cap-0.25", "naive", "per-param", "zero3-serial"])
def test_advise_and_summary_say_the_same_setting(name: str) -> None:
    tables = sample_tables(name)
    chosen, diagnosis = findings.choose_setting(tables.advice, tables.diagnosis), tables.diagnosis
    assert chosen is not None
    assert diagnosis is not None
    assert findings.option_words(chosen) in diagnosis.advice
    own = tables.replays.set_index("remedy").loc[[chosen["option"]], "setting"]
    assert set(own) == {chosen["bucket_cap_mb"] if chosen["option"] == "cap" else chosen["prefetch"]}


def test_the_neighbour_has_a_bucket_fewer() -> None:
    table = simulate.advise(sample_run("sweep/cap-25"))
    chosen = findings.choose_setting(table, None)
    assert chosen is not None
    other = findings.neighbour(table, chosen)
    assert other is not None
    assert (chosen["buckets"], other["buckets"]) == (5, 4)
    assert other["option"] == "cap"
    alone = table[(table["option"] == "cap") & (table["buckets"] == 1)].to_dict("records")[0]
    beside = findings.neighbour(table, alone)
    assert beside is not None
    assert beside["buckets"] == 2


def test_runs_that_cannot_be_trusted_are_refused() -> None:
    run = sample_run("sweep/cap-4")
    assert findings.advice_refused(run) is None
    assert run.manifest is not None
    steps = [3, 4, 5]
    busy, less_busy = (
        tuple(MachineStep(rank=0, step=step, took_ns=100, cores=2, busy=True, delayed_ns=waited) for step in steps)
        for waited in (51, 50)
    )
    late = tuple(replace(own, occupied_ns=2 * own.modelled_ns) for own in run.manifest.link_steps or ())
    for changed, words in (
        ({"machine": busy}, "computation waited for a core 51\N{NO-BREAK SPACE}% of the time"),
        ({"link_steps": late}, "link not attained"),
    ):
        refused = findings.advice_refused(replace(run, manifest=replace(run.manifest, **changed)))
        assert refused is not None
        assert words in refused[0]
        assert refused[1].endswith(".")
    assert findings.advice_refused(replace(run, manifest=replace(run.manifest, machine=less_busy))) is None
    some_late = tuple(replace(each, occupied_ns=each.modelled_ns) if each.step == 5 else each for each in late)
    assert findings.advice_refused(replace(run, manifest=replace(run.manifest, link_steps=some_late))) is None
    for by_recorder, option in ((False, "more steps (--steps 12)"), (True, "more steps (Recorder(…, steps=12))")):
        raw = run.manifest.raw | ({"command": "python train.py"} if by_recorder else {})
        refusal = findings.advice_refused(replace(run, manifest=replace(run.manifest, machine=busy, raw=raw)))
        assert refusal is not None
        assert option in refusal[1]


def test_a_rank_alone_is_advised_as_on_its_summary() -> None:
    run = overlaplab.load_run(SAMPLES / "bucketed" / "rank0.pt.trace.json.gz")
    assert findings.advice_refused(run) is None
    tables = RunTables(run=run)
    advised, diagnosis = advice_document(tables), tables.diagnosis
    assert diagnosis is not None
    assert advised["advice"] == diagnosis.advice

    assert "open all their traces together" in advised["advice"]
    assert advised["sentences"] == [
        "No bucket or prefetch setting can be predicted from this run alone: `overlaplab predict` with --bucket-cap-mb"
        " or --prefetch says why."
    ]
    assert advised["settings"] == []


def test_where_the_bound_alone_is_known_it_is_said() -> None:
    """Of one rank of several on a GPU, whose buckets are not played."""
    table = summary_rows((0, 1, 100, 30))
    found = diagnose(table, table.iloc[0], exposed_rows((0, 1, "tail", 30, None)), table, bound=BOUND)
    sentences = list(findings.advice_sentences(rows(), found))
    assert sentences == ["Other buckets gain at most 26.0 ms in rank 0, step 1 (); none was replayed with all ranks."]


def steps(*medians: float) -> list[np.ndarray[Any, Any]]:
    return [np.array([[own - 1, own, own + 1]] * 2, dtype=np.float64) for own in medians]


@pytest.mark.parametrize(
    ("after", "other", "confirmed", "words"),
    [
        (
            (90, 91, 89),
            (95, 94, 96),
            True,
            "Confirmed: the median step takes 90.0 ms with bucket_cap_mb 1.2, 100.0 ms before",
        ),
        ((80, 81, 79), None, False, "the gain is 20.0 ms ± 1.6 ms, outside the predicted 9.0 ms to 11.0 ms"),
        ((88, 89, 87), None, True, "the gain is 12.0 ms ± 1.6 ms, within the predicted 9.0 ms to 11.0 ms"),
        ((90, 91, 99), (95, 94, 96), False, "3 recordings of each cannot be told apart"),
        ((90, 91, 89), (85, 84, 86), False, "is faster still: 85.0 ms"),
    ],
)
def test_recordings_confirm_a_gain_in_its_range_and_beyond_chance(
    after: tuple[float, ...], other: tuple[float, ...] | None, confirmed: bool, words: str
) -> None:
    """Recordings of 100, 101 and 99 ms before; 3 against 3 come in one order by chance in 5 % of cases."""
    table = rows(dict(CAP, gain=10), dict(CAP, bucket_cap_mb=1.4, gain=8, best=False))
    own, beside = table.to_dict("records")
    found = verify_gain(steps(100, 101, 98.5), steps(*after))
    next_to = None if other is None else verify_gain(steps(*after), steps(*other))
    told, sentence = findings.verified_finding(own, found, None if other is None else beside, next_to)
    assert told == confirmed
    assert words in sentence
