"""A run's collective times as torch inductor's profile-guided estimation reads them.

Inductor's overlap scheduler takes `aten_distributed_optimizations.profile_guided_estimations_profile_path`, a
profiler's trace, and looks up how long its NCCL kernels took (torch/_inductor/fx_passes/profile_guided_estimation.py).
There a kernel's time includes waiting for the ranks that come later. This file holds one kernel per group, kind, type
and size, as long as the transfer alone takes. It names no other operators, which inductor then estimates by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from overlaplab.analyses import collective_times
from overlaplab.analyses.across_runs.settings import is_emulated
from overlaplab.dtypes import DTYPE_BYTES, torch_dtype
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run

_TYPES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_DTYPES = {torch_dtype(name): name for name in _TYPES}
"""Types as `torch.Tensor.type()` calls them, which inductor compares."""
_GATHERED, _SCATTERED = "all_gather", "reduce_scatter"


def write_inductor_estimates(run: Run, file: BinaryIO) -> int:
    """Write the times; return of how many collectives they are. Raises `OverlaplabError` where no transfer is known."""
    rows = [row for row in collective_times(run).to_dict("records") if row["dtype"] in _DTYPES]
    if not rows:
        raise OverlaplabError(
            "no collective's time without waiting is known",
            path=run.path,
            remedy="Open the traces of all ranks together.",
        )
    groups = {ranks: str(number) for number, ranks in enumerate(dict.fromkeys(row["ranks"] for row in rows))}
    document = {
        "overlaplab": {"run": run.path, "waits": "taken out", "emulated": is_emulated(run)},
        "distributedInfo": {
            "pg_config": [{"pg_name": name, "ranks": list(ranks)} for ranks, name in groups.items()],
        },
        "traceEvents": [_kernel(row, groups[row["ranks"]]) for row in rows],
    }
    file.write(json.dumps(document).encode())
    return len(rows)


def _kernel(row: Mapping[Any, Any], group: str) -> dict[str, Any]:
    ranks = row["ranks"]
    whole = max(row["bytes"] // DTYPE_BYTES[row["dtype"]], 1)
    part = max(whole // len(ranks), 1)
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"overlaplab {row['kind']}",
        "ts": 0,
        "dur": row["time_ns"] / 1e3,
        "pid": 0,
        "tid": 0,
        "args": {
            "Collective name": row["kind"],
            "Process Group Name": group,
            "Process Group Ranks": json.dumps(ranks),
            "Group size": len(ranks),
            "In msg nelems": part if row["kind"] == _GATHERED else whole,
            "Out msg nelems": part if row["kind"] == _SCATTERED else whole,
            "dtype": _DTYPES[row["dtype"]],
        },
    }
