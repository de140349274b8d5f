"""`overlaplab predict`, and that what it writes is marked on every screen."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from made.gloo import ddp_over_gloo
from made.traces import run_of

from overlaplab import findings, load_run
from overlaplab.cli.predict import OPTIONS
from overlaplab.findings.runs import PREDICTED
from overlaplab.simulate.programs.edits import EDITS

SWEEP = Path(__file__).parents[2] / "traces" / "sweep"
BUSY = [{"rank": 0, "step": step, "took_ns": 9, "cores": 2, "busy": True, "delayed_ns": 6} for step in range(20)]
"""Of run.json's `machine`: a machine on which computation waited for a core for most of each step."""


@pytest.fixture
def predicted(command: Any, tmp_path: Path) -> Path:
    """A run that was predicted with a cap of 1 MiB, from one of a single bucket."""
    assert command("predict", SWEEP / "cap-25", "--bucket-cap-mb", 1, "--out", tmp_path / "cap-1-predicted")[0] == 0
    return tmp_path / "cap-1-predicted"


def test_the_document(command: Any) -> None:
    code, out, err = command("predict", SWEEP / "cap-25", "--bucket-cap-mb", 1, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == [
        *("schema_version", "run", "changes", "recorded", "predicted", "interval"),
        *("gain", "extrapolated", "warnings"),
    ]
    assert document["changes"] == {"bucket_cap_mb": 1.0}
    assert document["extrapolated"] == {}, "buckets are smaller than twice below, but the link's formula tells T"
    recorded, found, interval = (document[key] for key in ("recorded", "predicted", "interval"))
    assert recorded["exposed_comm_ns"] / recorded["step_ns"] == pytest.approx(0.32, abs=0.01)
    assert interval["half_ns"] ** 2 == pytest.approx(
        sum(interval[name] ** 2 for name in ("steps_ns", "recordings_ns", "model_ns")), rel=1e-3
    )
    truth = [json.loads((run / "run.json").read_text())["link_steps"] for run in SWEEP.glob("cap-1*")]
    for rows in truth:
        took = sum(row["took_ns"] for row in rows) / len(rows)
        assert abs(took - found["step_ns"]) < interval["half_ns"]


def test_the_folder_says_from_what_it_was_predicted(predicted: Path) -> None:
    run = json.loads((predicted / "run.json").read_text())
    assert run["predicted"]["from"] == str(SWEEP / "cap-25")
    assert run["predicted"]["changes"] == {"bucket_cap_mb": 1.0}
    low, high = run["predicted"]["interval_ns"]
    assert 0 < low < high
    assert (run["bucket_cap_mb"], len(run["buckets"]), run["world_size"]) == (1.0, 7, 2)
    assert not {"link_steps", "machine", "calibration", "collectives", "memory", "losses", "started_at"} & run.keys()
    assert sorted(file.name for file in predicted.iterdir()) == [
        *("rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz", "run.json")
    ]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (("--link", "10Gbps,50us"), {"link": "10Gbps,50us"}),
        (("--link", SWEEP.parent / "bucketed"), {"link": "1Gbps,1000us"}),
        (("--ranks", 4), {"ranks": 4}),
        (("--accumulate", 2), {"accumulate": 2}),
        (("--strategy", "naive"), {"strategy": "naive"}),
        (("--strategy", "tree"), {"strategy": "tree"}),
        (("--strategy", "parameter-server", "--ranks", 3), {"strategy": "parameter-server", "ranks": 3}),
        (("--first-bucket-mb", 2.0), {"first_bucket_mb": 2.0}),
        (("--edit", "cap=4", "--edit", "ranks=4"), {"bucket_cap_mb": 4.0, "ranks": 4}),
        (("--edit", "caps=4,0.5"), {"caps_mb": [4.0, 0.5]}),
        (("--edit", "half-bytes", "--edit", "balance=0"), {"edits": ["half-bytes", "balance=0"]}),
        (("--no-straggler",), {"straggler": False}),
    ],
)
def test_every_option_changes_the_prediction(
    command: Any, tmp_path: Path, options: tuple[object, ...], changes: dict[str, Any]
) -> None:
    code, out, _ = command("predict", SWEEP / "cap-1", *options, "--json", "--out", tmp_path / "run")
    document = json.loads(out)
    assert (code, document["changes"]) == (0, changes)
    assert document["predicted"]["step_ns"] != document["recorded"]["step_ns"]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(list((tmp_path / "run").glob("rank*"))) == run["world_size"] == changes.get("ranks", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SWEEP / "cap-1", "--link", "fast"), "--link fast: not BANDWIDTH,LATENCY"),
        ((SWEEP / "cap-1", "--prefetch", 2), "bucketed gathers no units ahead: it has no prefetch"),
        ((SWEEP / "cap-1", "--strategy", "none"), "no strategy none is known"),
        ((SWEEP.parent / "parameter-server",), "its workers do not wait for each other, which is not predicted"),
        (
            (SWEEP.parent / "dp-tp", "--ranks", 8),
            "(dp 2 × tp 2): of such a run another link is predicted, nothing else",
        ),
        ((SWEEP.parent / "tensor", "--strategy", "zero3"), "its ranks share the model (tp 2): of such a run another"),
        ((SWEEP / "cap-1", "--strategy", "pipeline"), "is predicted from recordings of pipelines alone"),
        ((SWEEP / "cap-1", "--strategy", "tensor"), "tensor cuts layers: from its recording only another link"),
        ((SWEEP / "cap-1", "--schedule", "1f1b"), "bucketed is no pipeline"),
        ((SWEEP / "cap-1", "--microbatches", 2), "bucketed is no pipeline"),
        ((SWEEP / "cap-1", "--stages", "2,x"), "--stages 2,x are not the layers of each stage"),
        ((SWEEP / "cap-1", "--edit", "half-byte"), "no edit is called half-byte. Did you mean half-bytes? Known: "),
        (
            (SWEEP / "cap-1", "--strategy", "zero"),
            "no strategy zero is known. Did you mean zero1 or zero2 or zero3? Known: ",
        ),
        ((SWEEP / "cap-1", "--edit", "faster"), "no edit is called faster. Known: balance, even-work, "),
        ((SWEEP / "cap-1", "--edit", "cap=x"), "--edit cap=x: no value for cap. As in cap=4"),
        ((SWEEP / "cap-1", "--edit", "caps=1,0"), "caps must be above 0"),
        ((SWEEP / "cap-1", "--edit", "cap=nan"), "bucket_cap_mb must be above 0, not nan"),
        ((SWEEP / "cap-1", "--edit", "caps=4,inf"), "caps must be above 0"),
        ((SWEEP.parent / "ring", "--ranks", 2, "--edit", "balance=3"), "rank 3 is not among the predicted ranks"),
        ((SWEEP / "cap-1", "--edit", "half-bytes=2"), "As in --edit half-bytes, without a value"),
        ((SWEEP / "cap-1", "--edit", "without-host-work"), "As in --edit without-host-work=NAME"),
        ((SWEEP / "cap-1", "--edit", "without-host-work=save"), "no host work between its passes is called save"),
        ((SWEEP / "cap-1", "--edit", "last-pass"), "edit last-pass does not apply: no step sends its gradients in sev"),
        ((SWEEP / "cap-1", "--edit", "balance=7"), "rank 7 is not there. Ranks: 0, 1"),
        ((SWEEP / "cap-1", "--edit", "without-parameter=x"), "it sends no gradient of x. Known: "),
        ((SWEEP.parent / "zero3", "--edit", "without-parameter=x"), "which bucket sends which gradient is not known"),
        ((SWEEP.parent / "pipeline", "--edit", "balance"), "edits"),
        ((SWEEP.parent / "dp-tp", "--edit", "balance"), "of such a run another link is predicted, nothing else"),
        ((SWEEP / "cap-1" / "rank0.pt.trace.json.gz", "--bucket-cap-mb", 4), "1 of 2 ranks are there. Of these overl"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(command: Any, arguments: tuple[object, ...], said: str) -> None:
    code, out, err = command("predict", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"machine": BUSY},
            "computation waited for a core 67 % of the time",
        ),
        ({"link_steps": None, "link_attained": False, "collectives": None}, "link not attained"),
        ({"phantom_ranks": [1]}, "a prediction needs them all"),
    ],
)
def test_recordings_that_cannot_be_trusted_predict_nothing(
    command: Any, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    for file in (SWEEP / "cap-1").glob("rank*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    run = json.loads((SWEEP / "cap-1" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | changed))
    code, out, err = command("predict", tmp_path, "--accumulate", 2)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert said in str(findings.not_predicted(load_run(tmp_path)))  # of which the page What if takes it


def test_a_prediction_predicts_nothing_and_is_not_overwritten(command: Any, predicted: Path) -> None:
    assert "was predicted, not recorded" in command("predict", predicted)[2]
    assert "exists already" in command("predict", SWEEP / "cap-1", "--out", predicted)[2]


@pytest.mark.parametrize("name", ["summary", "exposed", "buckets", "schedule", "collectives"])
def test_every_command_marks_it(command: Any, predicted: Path, name: str) -> None:
    code, out, _ = command(name, predicted)
    assert code == 0
    assert out.startswith("Predicted from")
    document = json.loads(command(name, predicted, "--json")[1])
    assert document["predicted"]["changes"] == {"bucket_cap_mb": 1.0}
    assert any("nobody recorded it" in warning for warning in document["warnings"])
    assert json.loads(command(name, SWEEP / "cap-1", "--json")[1])["predicted"] is None


def test_a_comparison_marks_it(command: Any, predicted: Path) -> None:
    code, out, _ = command("compare", SWEEP / "cap-1", predicted)
    assert code == 0
    assert "a predicted run is no recording" in " ".join(out.split())
    document = json.loads(command("compare", SWEEP / "cap-1", predicted, "--json")[1])
    assert [run["predicted"] for run in document["runs"]] == [False, True]
    assert [run["recording_of"] for run in document["runs"]] == [0, 1]  # no repeat of the recorded one
    assert document["finding"].count(f"({PREDICTED})") == 1
    assert document["sweep"] is None


def test_report_and_export_mark_it(command: Any, predicted: Path, tmp_path: Path) -> None:
    assert command("report", predicted, "-o", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert f"{PREDICTED}, not recorded" in page.lower()
    assert page.count('"strokeDash":[3,2]') >= 5  # of each chart
    assert '<rect class="predicted"' in page
    assert "<rect fill=" not in page
    assert command("report", SWEEP / "cap-1", "-o", tmp_path / "recorded.html")[0] == 0
    recorded = (tmp_path / "recorded.html").read_text()
    assert '"strokeDash":[3,2]' not in recorded
    assert command("export", predicted, "--perfetto", tmp_path / "all.json")[0] == 0
    named = [row for row in json.loads((tmp_path / "all.json").read_text())["traceEvents"] if row["ph"] == "M"]
    ranks = [row["args"]["name"] for row in named if row["name"] == "process_name"]
    assert sum(f"{PREDICTED}, not recorded" in name for name in ranks) == 2


def test_a_rank_alone_is_marked(command: Any, predicted: Path) -> None:
    """Without run.json the trace says so."""
    document = json.loads(command("summary", predicted / "rank0.pt.trace.json.gz", "--json")[1])
    assert any("they were predicted" in warning for warning in document["warnings"])


def test_every_edit_is_in_the_docs() -> None:
    page = (SWEEP.parents[1] / "docs" / "predictions.md").read_text()
    named = set(re.findall(r"`([a-z-]+)(?:\[?=[^`]*)?`", page))
    assert set(EDITS) | set(OPTIONS) | {"no-straggler"} <= named


def test_edits_are_behind_the_link_that_is_asked_for(command: Any) -> None:
    """On a link ten times as fast, half the bytes gain a tenth of what they gained, not all of T."""

    def step_ns(*options: str) -> int:
        document = json.loads(command("predict", SWEEP.parent / "naive", "--json", *options)[1])
        taken: int = document["predicted"]["step_ns"]
        return taken

    gained = step_ns() - step_ns("--edit", "half-bytes")
    faster = ("--edit", "link=10Gbps,1000us")
    assert step_ns(*faster) - step_ns(*faster, "--edit", "half-bytes") == pytest.approx(gained / 10, rel=0.1)


def test_an_option_and_an_edit_of_one_setting_agree(command: Any) -> None:
    code, _, error = command("predict", SWEEP.parent / "bucketed", "--bucket-cap-mb", 4, "--edit", "cap=8")
    assert (code, error) == (
        2,
        "overlaplab: --bucket-cap-mb and --edit give it two values. Give the option, or --edit.\n",
    )
    assert command("predict", SWEEP.parent / "bucketed", "--bucket-cap-mb", 8, "--edit", "cap=8")[0] == 0
    code, _, error = command("predict", SWEEP.parent / "bucketed", "--edit", "cap=4", "--edit", "cap=8")
    assert (code, error) == (2, "overlaplab: --edit cap is given twice. Predict one value at a time.\n")


def test_edits_alone_need_not_all_ranks(command: Any, tmp_path: Path) -> None:
    """With run.json, which says that there are two ranks, and without."""
    sample = SWEEP.parent / "torch-ddp-gloo"
    for name in ("rank0.pt.trace.json.gz", "run.json"):
        shutil.copy(sample / name, tmp_path)
    for path in (tmp_path, sample / "rank0.pt.trace.json.gz"):
        code, out, err = command("predict", path, "--edit", "no-pause")
        assert (code, err) == (0, "")
        assert "warning: 1 of 2 ranks has no trace here" in out
    code, out, err = command("predict", tmp_path, "--edit", "cap=4")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "1 of 2 ranks: a prediction needs them all" in err


def test_caps_of_ddp_that_nobody_labelled(command: Any, tmp_path: Path) -> None:
    """No run.json says whose buckets they are."""
    path = run_of(tmp_path, ddp_over_gloo()).path
    code, out, err = command("predict", path, "--bucket-cap-mb", 0.0028)
    assert (code, err) == (0, "")
    # Both in one bucket end at 17 ms, not at 14, and one launch is spared, of 0.05 ms before and after.
    assert "Loss per mean step: 2.8 ms" in " ".join(out.split())
    code, out, err = command("predict", path, "--ranks", 4)
    assert (code, err.count("\n")) == (2, 1)
    assert "what its strategy is has not been recorded" in err


def test_traces_without_steps(command: Any, tmp_path: Path) -> None:
    """A trace is one step then, which has no number."""
    events = [event for event in ddp_over_gloo() if not event["name"].startswith("ProfilerStep")]
    path = run_of(tmp_path, events, events).path
    code, out, err = command("predict", path, "--bucket-cap-mb", 0.0028)
    assert (code, err) == (0, "")
    assert "Loss per mean step: 2.8 ms" in " ".join(out.split())
    code, out, err = command("summary", path)
    assert (code, err) == (0, "")
