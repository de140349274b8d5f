"""What is said of predicted steps."""

from __future__ import annotations

import pandas as pd
import pytest
from msgspec.structs import replace

from overlaplab import findings
from overlaplab.findings import what_if
from overlaplab.manifest import Link
from overlaplab.simulate.predictions.error import Interval
from overlaplab.simulate.programs.setting import Setting

LINK = Link(emulated=True, bandwidth_gbps=1.0, latency_us=500.0, world_size=2)
SURE = Interval(steps_ns=3_000_000, recordings_ns=4_000_000, model_ns=12_000_000)  # 13 in all
DOUBT_NS = 12_000_000


def test_nothing_changed() -> None:
    said = findings.what_if_headline(Setting(), 497_100_000, 497_000_000, SURE.half_ns, DOUBT_NS)
    assert said == "As recorded, an undisturbed step took 497.0 ms on average. Replayed, it takes 497.1 ms."


@pytest.mark.parametrize(
    ("step_ms", "said"),
    [
        (461, "461.0 ms ± 13.0 ms (497.0 ms measured). Gain: 36.0 ms (7\xa0%) ± 12.0 ms."),
        (521, "521.0 ms ± 13.0 ms (497.0 ms measured). Loss: 24.0 ms (5\xa0%) ± 12.0 ms."),
        (490, "490.0 ms ± 13.0 ms (497.0 ms measured). Gain: 7.0 ms (1\xa0%) ± 12.0 ms, so perhaps none."),
    ],
)
def test_a_changed_cap(step_ms: int, said: str) -> None:
    found = findings.what_if_headline(
        Setting(bucket_cap_mb=1.0), step_ms * 1_000_000, 497_000_000, SURE.half_ns, DOUBT_NS
    )
    assert found == f"With bucket_cap_mb 1 a step is predicted to take {said}"


def test_trees_are_a_change() -> None:
    times = (461_000_000, 497_000_000, SURE.half_ns, DOUBT_NS)
    alone = findings.what_if_headline(Setting(), *times, algorithm="auto")
    assert alone.startswith("With collectives over rings or trees a step is predicted to take 461.0 ms")
    beside = findings.what_if_headline(Setting(bucket_cap_mb=1.0), *times, algorithm="auto")
    assert beside.startswith("With bucket_cap_mb 1 and collectives over rings or trees a step")


def test_settings_in_words() -> None:
    setting = Setting(strategy="zero3", prefetch=2, link=replace(LINK, latency_us=10.0), ranks=64, accumulate=4)
    assert findings.setting_words(setting) == (
        "strategy zero3, prefetch 2, 4 microbatches per step, link 1Gbps,10us and 64 ranks"
    )
    assert findings.setting_words(Setting(straggler=False)) == "no straggler"
    assert findings.setting_words(Setting()) == ""


def test_what_lies_beyond_the_recording() -> None:
    *_, last = findings.what_if_notes(SURE, DOUBT_NS, {"ranks": 5000.0, "bandwidth": 2.5}, "ring")
    assert last == (
        "Extrapolated beyond what was recorded: the number of ranks by a factor of 5,000, bandwidth by a factor of 2.5."
    )


def test_notes_name_the_parts() -> None:
    first, second, third = findings.what_if_notes(SURE, DOUBT_NS, {}, "auto")
    assert first == (
        "A recording's mean step lies within ± 13.0 ms in 95 of 100 cases"
        " (steps ± 3.0, recordings ± 4.0, model ± 12.0)."
    )
    assert second == "The gain of one setting over another, predicted from one recording, lies within ± 12.0 ms."
    assert third == "Each collective takes the faster of a ring and trees, as NCCL chooses."


def caps(*steps_ms: float) -> pd.DataFrame:
    step_ns = [round(1e6 * step) for step in steps_ms]
    return pd.DataFrame({"bucket_cap_mb": [0.5, 1.0, 2.0], "step_ns": step_ns, "buckets": 1})


def test_advice_names_the_largest_of_the_best_caps() -> None:
    said = findings.what_if_advice(caps(470, 471, 490), 497_000_000, DOUBT_NS)
    assert said.startswith("Record with --bucket-cap-mb 1; in a script:")
    assert said.endswith(" Predicted gain: 26.0 ms ± 12.0 ms.")
    said = findings.what_if_advice(caps(490, 495, 497), 497_000_000, DOUBT_NS)
    assert said == (
        "bucket_cap_mb 0.5: predicted gain 7.0 ms ± 12.0 ms, so perhaps none."
        " Record both settings several times to know."
    )
    said = findings.what_if_advice(caps(500, 510, 520), 497_000_000, DOUBT_NS)
    assert said == "No cap is predicted to make the step shorter: the shortest is 500.0 ms, with bucket_cap_mb 0.5."
    said = findings.what_if_advice(caps(4700, 4710, 4900), 4_970_000_000, DOUBT_NS, others="64 ranks")
    assert "Predicted gain with 64 ranks: 260.0 ms ± 12.0 ms." in said
    assert "Change the setting" in findings.what_if_advice(caps(1, 1, 1).head(0), 497_000_000, DOUBT_NS)


def test_the_recorded_setting_is_not_advised() -> None:
    """Though it replays shorter than it was measured."""
    advice = findings.what_if_advice(caps(490, 495, 497), 497_000_000, DOUBT_NS, recorded=0.5)
    assert advice == "No cap is predicted to make the step shorter: the shortest is 490.0 ms, with bucket_cap_mb 0.5."
    assert "bucket_cap_mb 0.5: predicted gain" in findings.what_if_advice(
        caps(490, 495, 497), 497_000_000, DOUBT_NS, recorded=2.0
    )
    depths = pd.DataFrame({"prefetch": [1, 2], "step_ns": [480_000_000, 490_000_000]})
    advice = findings.depths_advice(depths, 497_000_000, DOUBT_NS, recorded=1)
    assert advice == "No prefetch depth is predicted to make the step shorter."


def test_the_advised_cap_is_named_where_it_is_as_good() -> None:
    assert "bucket_cap_mb=0.5" in findings.what_if_advice(caps(470, 471, 490), 497_000_000, DOUBT_NS, 0.5)
    assert "bucket_cap_mb=1" in findings.what_if_advice(caps(470, 471, 490), 497_000_000, DOUBT_NS, 2.0)
    assert "with 0.5 MiB" in what_if.caps_predicted_title(caps(471, 470, 490), 0.5)


def test_a_gain_that_may_be_none_is_not_certain() -> None:
    assert findings.gain_finding(628_000_000, 608_000_000, 38_000_000) == (
        "Gain per mean step: 20.0 ms ± 38.0 ms, so perhaps none."
    )
    assert findings.gain_finding(628_000_000, 728_000_000, 38_000_000) == ("Loss per mean step: 100.0 ms ± 38.0 ms.")
    # Twice as many samples in a longer step are a gain.
    assert findings.gain_finding(600_000_000, 960_000_000, 30_000_000, (6, 12)) == (
        "A step works on 12 microbatches, not 6, each of as many samples: 80.0 ms per microbatch, 100.0 ms recorded."
        " Gain per microbatch: 20.0 ms ± 5.0 ms."
    )
    more = findings.what_if_headline(Setting(accumulate=4), 150_000_000, 50_000_000, 1_000_000, 2_000_000)
    assert more.endswith("Gain per microbatch: 12.5 ms ± 2.0 ms.")
    as_many = findings.what_if_headline(Setting(accumulate=4), 150_000_000, 50_000_000, 1_000_000, 2_000_000, 4)
    assert "Loss: 100.0 ms" in as_many


def test_advice_for_a_script_of_somebody_else() -> None:
    said = findings.what_if_advice(caps(470, 471, 490), 497_000_000, DOUBT_NS, by_engine=False)
    assert said == "Try DistributedDataParallel(model, bucket_cap_mb=1). Predicted gain: 26.0 ms ± 12.0 ms."


def test_advice_names_the_smallest_of_the_best_depths() -> None:
    depths = pd.DataFrame({"prefetch": [1, 2, 3], "step_ns": [480_000_000, 470_000_000, 469_000_000]})
    assert findings.depths_advice(depths, 497_000_000, DOUBT_NS) == (
        "Prefetch 2: predicted gain 27.0 ms ± 12.0 ms. Name the next 2 units in"
        " set_modules_to_forward_prefetch, the 2 units before in set_modules_to_backward_prefetch."
    )
    assert findings.depths_advice(depths, 475_000_000, DOUBT_NS) == (
        "Prefetch 2: predicted gain 5.0 ms ± 12.0 ms, so perhaps none."
    )
    assert findings.depths_advice(depths, 400_000_000, DOUBT_NS).startswith("No prefetch depth is predicted")


def test_titles() -> None:
    ranks = pd.DataFrame({"ranks": [2, 128], "step_ns": [10**9, 4 * 10**9], "throughput": [1.0, 0.25]})
    assert what_if.caps_predicted_title(caps(5, 4, 6)) == "Predicted step by cap: shortest with 1 MiB, 4.0 ms"
    near = "Predicted step by cap: within 1\u00a0% of the shortest with 2 MiB, 401.0 ms"
    assert what_if.caps_predicted_title(caps(500, 400, 401)) == near
    assert what_if.ranks_predicted_title(ranks) == ("Predicted step by ranks: 1,000 ms with 2 ranks, 4,000 ms with 128")
    assert what_if.throughput_predicted_title(ranks) == (
        "Predicted throughput per rank: 25\xa0% with 128 ranks of that with 2"
    )
    held = ranks.assign(held_bytes=[8, 8])
    assert what_if.held_predicted_title(held) == "Memory per rank by formula: the same with more ranks"
    assert what_if.held_predicted_title(ranks.assign(held_bytes=[8, 1])).endswith("less with more ranks")
    assert what_if.lanes_title(461_000_000, 497_000_000) == (
        "The step of median length: 497.0 ms measured, 461.0 ms predicted"
    )
