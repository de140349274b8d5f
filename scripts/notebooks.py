"""Execute the notebooks, each from a fresh kernel, and keep their outputs without this machine's paths and timings.

python scripts/notebooks.py                                  # all of notebooks/, as `make notebooks`
python scripts/notebooks.py notebooks/bucket_cap_mb.ipynb
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 1_500_000


def main() -> None:
    """Read the arguments; execute and write each notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted((ROOT / "notebooks").glob("*.ipynb")))
    paths = parser.parse_args().notebooks
    for path, book in zip(paths, execute(paths), strict=True):
        text = nbformat.writes(book) + "\n"
        if problem := what_is_wrong(text):
            sys.exit(f"{path}: {problem}")
        path.write_text(text)
        print(f"{path}: {len(text) / 1e6:.2f} MB")


def execute(paths: Sequence[Path], *, one_kernel: bool = False) -> list[nbformat.NotebookNode]:
    """The notebooks after all their cells ran, each in a fresh kernel and in its folder, or one after another in a
    kernel in the first one's folder, which imports everything once; raises on a cell's error.
    """

    async def run_all() -> list[nbformat.NotebookNode]:
        if not one_kernel:
            return await asyncio.gather(*map(_execute_alone, paths))
        with tempfile.TemporaryDirectory() as sockets:
            kernel = _kernel(sockets)
            try:
                return [await _run(path, kernel, last=path == paths[-1]) for path in paths]
            finally:
                if await kernel.is_alive():
                    await kernel.shutdown_kernel(now=True)

    with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
        return thread.submit(lambda: asyncio.run(run_all())).result()


def _kernel(sockets: str) -> AsyncKernelManager:
    """A kernel that has not started; it will listen in this folder, not on ports, which others could reach."""
    return AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")


async def _execute_alone(path: Path) -> nbformat.NotebookNode:
    with tempfile.TemporaryDirectory() as sockets:
        return await _run(path, _kernel(sockets), last=True)


async def _run(path: Path, kernel: AsyncKernelManager, *, last: bool) -> nbformat.NotebookNode:
    """The notebook after a run in this kernel, which starts if it has not, and ends if this notebook is its `last`."""
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book,
        km=kernel,
        timeout=600,
        startup_timeout=180,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    await client.async_execute(cleanup_kc=last)
    if not last and client.kc is not None:
        client.kc.stop_channels()
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _fewer_colours(output.data["image/png"])
    return book


def _fewer_colours(png: str) -> str:
    """The picture with a palette, in a third of the bytes: charts have few colours."""
    small = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def what_is_wrong(text: str) -> str | None:
    """What must not be committed of an executed notebook; None where it may be."""
    for place in (ROOT, Path.home(), Path(sys.prefix)):
        if len(str(place)) > 1 and str(place) in text:
            return f"an output names a folder of this machine: {place}"
    if len(text) > MOST_BYTES:
        return f"{len(text)} bytes; at most {MOST_BYTES}"
    return None


def outputs(book: nbformat.NotebookNode) -> list[Any]:
    """What the cells put out, as far as the same code and data always give it: no pictures; figures to six digits."""
    return [
        _round_figures(
            {kind: _number_tables(value) for kind, value in output.get("data", {}).items() if kind != "image/png"}
        )
        if "data" in output
        else (output.get("name"), output.get("text"))
        for cell in book.cells
        for output in cell.get("outputs", [])
    ]


def _number_tables(value: Any) -> Any:
    """A chart with its tables numbered in order of use, not named by a hash of every digit."""
    if not isinstance(value, dict) or "datasets" not in value:
        return value
    used: dict[str, str] = {}

    def rename(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: rename(part[key]) for key in sorted(part)}
        if isinstance(part, list):
            return [rename(inner) for inner in part]
        is_table = isinstance(part, str) and part in value["datasets"]
        return used.setdefault(part, f"table {len(used)}") if is_table else part

    drawn = rename({key: inner for key, inner in value.items() if key != "datasets"})
    return drawn | {"datasets": {used.get(name, ""): rows for name, rows in value["datasets"].items()}}


def _round_figures(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _round_figures(inner) for key, inner in value.items()}
    return [_round_figures(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
