"""What ranks of a process group train under a Recorder, and what must then be in the run."""

import gzip
import json
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlaplab_engine import Recorder
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ranks.label_texts import parse

SIZES = (8, 64, 32, 16)
NAMES = sorted(f"{i}.{name}" for i in range(len(SIZES) - 1) for name in ("weight", "bias"))


def wrapped(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = (nn.Linear(a, b) for a, b in pairwise(SIZES))
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.005, **options)


def tripled(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A user's hook: three times the mean; `state` lists the buckets."""
    state.append(bucket.index())
    return allreduce_hook(dist.group.WORLD, bucket).then(lambda done: 3 * done.value())


def train(comm: Communicator, ddp: DistributedDataParallel, step: int, accumulate: int = 1) -> None:
    generator = torch.Generator().manual_seed(100 * step + comm.rank)
    for microbatch in range(accumulate):
        ddp.require_backward_grad_sync = microbatch == accumulate - 1
        ddp(torch.randn(4, SIZES[0], generator=generator)).square().sum().backward()
    with torch.no_grad():
        for p in ddp.parameters():
            p -= 1e-3 * p.grad
    ddp.zero_grad()


def folder(comm: Communicator) -> Path:
    return Path(comm.broadcast_object(tempfile.mkdtemp(dir=Path(sys.argv[1]).parent)))


def labels_of(out: Path, rank: int) -> list[tuple[Word, dict[str, Any]]]:
    events = json.loads(gzip.decompress((out / f"rank{rank}.pt.trace.json.gz").read_bytes()))["traceEvents"]
    events = sorted((e for e in events if e.get("name", "").startswith("engine::")), key=lambda e: e["ts"])
    return [parse(e["name"]) for e in events]


def expect_same(*models: nn.Module) -> None:
    for (name, mine), (_, theirs) in zip(*(m.named_parameters() for m in models), strict=True):
        if not torch.equal(mine, theirs):
            raise AssertionError(f"{name} differs by {(mine - theirs).abs().max()}")


def expect_named(comm: Communicator, out: Path, steps: int) -> None:
    """Each recorded step launches the manifest's buckets once, in order, when their gradients are there."""
    manifest = json.loads((out / "run.json").read_text())
    buckets = {str(b["index"]): b["parameters"] for b in manifest["buckets"]}
    assert len(buckets) > 1, buckets
    assert sorted(name for names in buckets.values() for name in names) == NAMES, buckets
    found = labels_of(out, comm.rank)
    launched = [values["bucket"] for word, values in found if word is Word.BUCKET_LAUNCH]
    assert launched == list(buckets) * steps, launched
    arrived: Counter[str] = Counter()
    for word, values in found:
        if word is Word.GRADIENT_READY:
            arrived[values["parameter"]] += 1
        if word is Word.BUCKET_READY:
            assert values["parameters"] == buckets[values["bucket"]], values
            assert len({arrived[name] for name in values["parameters"]}) == 1, arrived
    assert sorted(arrived) == NAMES, arrived
    uses = [
        (values["unit"], values["phase"], word) for word, values in found if word in (Word.FIRST_USE, Word.LAST_USE)
    ]
    order = [str(i) for i in range(len(SIZES) - 1)]
    once = [(unit, "forward", edge) for unit in order for edge in (Word.FIRST_USE, Word.LAST_USE)]
    once += [(unit, "backward", edge) for unit in order[::-1] for edge in (Word.FIRST_USE, Word.LAST_USE)]
    assert uses == once * (len(uses) // len(once)), uses
    assert len(uses) >= steps * len(once), uses
    assert len(manifest["machine"]) == steps, manifest["machine"]


def fit(comm: Communicator, out: Path, model: nn.Module, module: nn.Module) -> None:
    """Seven steps as a training script makes them; the recorder is given `module`."""
    data = TensorDataset(torch.randn(28, SIZES[0], generator=torch.Generator().manual_seed(comm.rank)))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    with Recorder(out, module, warmup=3, steps=2) as recorder:
        for (x,) in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            recorder.step()
    assert recorder.done
