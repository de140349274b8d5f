"""`overlaplab bench-collectives`: the library's all-reduce beside those by hand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from overlaplab.cli.options import Json
from overlaplab.cli.shared import need_engine, print_json, show
from overlaplab.errors import OverlaplabError
from overlaplab.words import shorten

app = typer.Typer()

ENGINE = "overlaplab_engine.bench"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@app.command(epilog="Example: overlaplab bench-collectives --nproc 4 --link 1Gbps,40000us --sizes 1k,1M,10M")
def bench_collectives(
    sizes: Annotated[
        str, typer.Option(metavar="BYTES", help="Sizes of the tensor; k is 1,000, M 1,000,000.")
    ] = "1k,32k,1M",
    algorithms: Annotated[str, typer.Option(help="Any of ring, tree (both by hand, hop by hop) and torch.")] = (
        "ring,tree,torch"
    ),
    nproc: Annotated[int, typer.Option(help="Ranks to start here.")] = 4,
    link: Annotated[str, typer.Option(help="Emulated link of CPUs, such as 1Gbps,5000us; or none.")] = "none",
    iterations: Annotated[
        int, typer.Option(min=1, help="Runs of each size and algorithm, after two that do not count.")
    ] = 10,
    device: Annotated[str, typer.Option(help="cpu, or cuda with a GPU for each rank.")] = "cpu",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep what was measured, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Time all-reduces by size: ring, tree and torch's own side by side, as nccl-tests shows them."""
    need_engine()
    options = ["--sizes", _sizes(sizes), "--algorithms", algorithms, "--nproc", str(nproc), "--link", link]
    options += ["--iterations", str(iterations), "--device", device]
    with TemporaryDirectory() as folder:
        file = Path(folder, "bench.json")
        done = subprocess.run(
            [sys.executable, "-P", "-m", ENGINE, *options, "--out", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise OverlaplabError(shorten(last, 400) or f"the engine ended with exit code {done.returncode}")
        measured = json.loads(file.read_bytes())
        if out is not None:
            shutil.copyfile(file, out)
    _print(measured, as_json=as_json)


def _print(measured: dict[str, Any], *, as_json: bool) -> None:
    from overlaplab import findings
    from overlaplab.analyses.systems.bench import bench_collectives, measured_link
    from overlaplab.report.documents import bench_document
    from overlaplab.report.terminal import terminal_table
    from overlaplab.sections.tables import bench_rows

    table, link = bench_collectives(measured), measured_link(measured)
    if as_json:
        print_json(bench_document(measured, table))
        return
    show(findings.bench_finding(table), terminal_table(bench_rows(table, measured["ranks"])))
    show(*findings.bench_remarks(table, link))


def _sizes(text: str) -> str:
    """`1k,2M` as `1000,2000000`; raises `OverlaplabError`."""
    matches = [re.fullmatch(r"(\d{1,12})([kmg]?)", word.strip().lower()) for word in text.split(",")]
    sizes = [int(match[1]) * _UNITS[match[2]] for match in matches if match]
    if len(sizes) < len(matches) or not all(sizes):
        raise OverlaplabError(f"--sizes {text}: not a list of bytes", remedy="As in --sizes 1k,64k,1M.")
    return ",".join(str(size) for size in sorted({*sizes}))
