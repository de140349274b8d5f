"""A parameter server's step on more ranks, by its formula and as recorded, on the sleeping device.

    python benchmarks/server.py OUT    records what OUT does not hold yet, then compares

Each line: the ranks; the mean step, by the one recorded on two ranks and what the formula adds
(`overlaplab.costs.server_ns`), and as recorded on so many; and the bytes that rank 0 sends per step ÷ (n−1)Ψ.
"""

from pathlib import Path
from statistics import fmean

import typer
from _shared import record

import overlaplab
from overlaplab.analyses import volume
from overlaplab.costs import server_ns
from overlaplab.findings import refuse_to_predict
from overlaplab.manifest import Manifest
from overlaplab.simulate.predictions.error import measured_steps

RANKS = (2, 4, 8)
COMMON = (
    *("--strategy", "parameter-server", "--layers", "4", "--width", "128", "--steps", "5"),
    *("--attempts", "1", "--link", "1Gbps,2000us", "--compute", "sleep:10ms,20ms,1ms"),
)


def main(out: Path) -> None:
    """Record, compare."""
    runs = {ranks: recording(ranks, out / str(ranks)) for ranks in RANKS}
    first_ns, its_transfer_ns = fmean(measured_steps(runs[RANKS[0]])), transfer_ns(runs[RANKS[0]].manifest)
    for ranks, run in runs.items():
        predicted, really = first_ns - its_transfer_ns + transfer_ns(run.manifest), fmean(measured_steps(run))
        sent = volume(run, overlaplab.Selection(ranks=[0]))["sent_bytes"].mean() / (ranks - 1) / size(run.manifest)
        print(f"{ranks} ranks: {predicted / 1e6:.1f} {really / 1e6:.1f} ms {predicted / really - 1:+.2%}, {sent:.3f}")


def size(manifest: Manifest | None) -> int:
    """Ψ in bytes."""
    assert manifest is not None
    return sum(parameter.bytes for parameter in manifest.parameters)


def transfer_ns(manifest: Manifest | None) -> int:
    """T of a step's messages on rank 0's link."""
    assert manifest is not None
    assert manifest.link is not None
    return server_ns(size(manifest), size(manifest), manifest.link)


def recording(ranks: int, out: Path) -> overlaplab.Run:
    """The engine on so many ranks, asleep, unless it is there already."""
    run = overlaplab.load_run(out) if out.exists() else record(out, *COMMON, "--nproc", str(ranks))
    refuse_to_predict(run)  # the machine was busy, or the link late: remove the folder, and go on
    return run


if __name__ == "__main__":
    typer.run(main)
