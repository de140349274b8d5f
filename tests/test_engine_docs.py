"""docs/engine.md: its training loop runs as it stands, and trains as one process does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks.warm_ranks import run_warm

ROOT = Path(__file__).parents[1]
LOOP = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "engine.md").read_text(), re.DOTALL)[0]
EXACT = "import torch\ntorch.set_default_dtype(torch.float64)\n"
SAVE = "if comm.rank == 0:\n    torch.save(state, {path!r})\nimport os\nos._exit(0)\n"


def train(folder: Path, loop: str, ranks: int = 2) -> dict[str, torch.Tensor]:
    """The state that rank 0 has at the end."""
    script, saved = folder / "train.py", folder / "state.pt"
    script.write_text(EXACT + loop + SAVE.format(path=str(saved)))
    for rank in run_warm(ranks, str(script)):
        assert rank.code == 0, rank.stderr
    state: dict[str, torch.Tensor] = torch.load(saved)
    return state


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """The same training without the engine, in one process."""
    names: dict[str, Any] = {}
    exec(compile(LOOP[: LOOP.index("torch.manual_seed")], "docs/engine.md", "exec"), names)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        try:
            model = names["Model"]()
        finally:
            torch.set_default_dtype(torch.float32)
    groups = [
        {"params": list(model.layers.parameters()), "weight_decay": 0.1},
        {"params": list(model.embedding.parameters()), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(20):
        optimizer.zero_grad()
        for rank in range(2):
            tokens = torch.randint(100, (16,), generator=torch.Generator().manual_seed(2 * step + rank))
            (model(tokens, targets=tokens)["loss"] / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


@pytest.mark.parametrize(
    "strategy",
    ["Zero3", pytest.param("Zero1", marks=pytest.mark.slow), pytest.param("Bucketed", marks=pytest.mark.slow)],
)
def test_the_loop_trains_as_one_process_does(strategy: str, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    state = train(tmp_path, LOOP.replace("Zero3", strategy))
    assert list(state) == list(alone)
    for name, want in alone.items():
        assert float((state[name] - want).abs().max()) <= 1e-9, name


def test_the_loop_has_40_lines() -> None:
    assert LOOP.count("\n") <= 40
