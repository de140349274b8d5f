"""The Recorder on one GPU: the examples with NCCL and a world of one, and a plain model. It needs torch alone."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch
from devices.gpu_testing import GPU_TESTS, limit, run
from overlaplab_engine import Recorder
from overlaplab_engine.labels import Word
from overlaplab_engine.recording.device_events import probe
from ranks.label_texts import parse
from torch import nn

pytestmark = GPU_TESTS

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDING_S = 80.0
"""How long an example may take."""


def test_the_profiler_sees_the_gpu() -> None:
    found = probe("cuda:0")
    assert (found.seen, found.supported, found.failure) == (True, True, None), found.stderr


def events_of(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress((run / "rank0.pt.trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    return found


def recorded(example: str, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    # Named, since looking up the host's name can take minutes where there is no DNS.
    local = ["--standalone", "--local-addr", "localhost", "--nproc-per-node", "1"]
    line = [sys.executable, "-m", "torch.distributed.run", *local]
    code, said = run([*line, str(EXAMPLES / f"{example}.py"), str(out)], RECORDING_S)
    assert code == 0, said
    return json.loads((out / "run.json").read_text()), events_of(out)


@limit(RECORDING_S + 60)
def test_ddp(tmp_path: Path) -> None:
    manifest, events = recorded("ddp", tmp_path)
    assert (manifest["strategy"], manifest["device"], manifest["backend"]) == ("torch-ddp", "cuda", "nccl")
    assert manifest["hardware"]["gpu"] == torch.cuda.get_device_name()
    assert any(event.get("cat") == "kernel" for event in events)
    found = [parse(event["name"]) for event in events if event.get("name", "").startswith("engine::")]
    names = {p["name"] for p in manifest["parameters"]}
    assert {name for word, values in found if word is Word.BUCKET_READY for name in values["parameters"]} == names
    assert {values["parameter"] for word, values in found if word is Word.GRADIENT_READY} == names
    assert sum(word is Word.BUCKET_LAUNCH for word, _ in found) == 3 * len(manifest["buckets"])


@limit(RECORDING_S + 60)
def test_fsdp2(tmp_path: Path) -> None:
    manifest, events = recorded("fsdp2", tmp_path)
    assert (manifest["strategy"], manifest["device"], manifest["backend"]) == ("torch-fsdp2", "cuda", "nccl")
    assert any(event.get("cat") == "kernel" for event in events)
    ranges = {event["name"] for event in events if event.get("name", "").startswith("FSDP::pre_forward (")}
    assert ranges == {f"FSDP::pre_forward ({u['name']})" for u in manifest["units"] if u["name"] != "root"}


def test_a_plain_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).cuda()
    with Recorder(tmp_path, model, warmup=1, steps=2) as recorder:
        for _ in range(3):
            model(torch.ones(3, 4, device="cuda")).sum().backward()
            recorder.step()
    events = events_of(tmp_path)
    assert any(event.get("cat") == "kernel" for event in events)
    assert sum(event.get("name", "").startswith("engine::gradient_ready") for event in events) == 2 * 4
    assert json.loads((tmp_path / "run.json").read_text())["device"] == "cuda"
