"""Only `network/` calls torch.distributed's collectives, so that each is labelled, counted and can be emulated."""

import ast
import re
from pathlib import Path

import overlaplab_engine
import pytest

ENGINE = Path(overlaplab_engine.__file__).parent
COLLECTIVE = re.compile(
    r"all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|gather|scatter|reduce(_|$)|barrier|monitored_barrier"
    r"|i?(send|recv)(_|$)|batch_isend_irecv|new_group|.*_object(_list)?$"
)


def collectives(source: str) -> set[str]:
    """Full names of the collectives of torch.distributed that a module imports or looks up."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}

    def full(node: ast.expr) -> str:
        match node:
            case ast.Name(name):
                return names.get(name, name)
            case ast.Attribute(value, name):
                return f"{full(value)}.{name}"
            case ast.Call(ast.Name("getattr"), [value, ast.Constant(name), *_]):
                return f"{full(value)}.{name}"
        return ""

    looked_up = {full(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Call)}
    return {
        name
        for name in looked_up | set(names.values())
        if name.startswith("torch.distributed.") and COLLECTIVE.match(name.rpartition(".")[2])
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch.distributed as dist\ndist.all_reduce(x)", "torch.distributed.all_reduce"),
        ("import torch\ntorch.distributed.barrier()", "torch.distributed.barrier"),
        ("import torch.distributed\nf = torch.distributed.new_group", "torch.distributed.new_group"),
        ("from torch import distributed as d\nd.isend(x, 1)", "torch.distributed.isend"),
        ("from torch.distributed import all_gather_into_tensor", "torch.distributed.all_gather_into_tensor"),
        (
            "import torch.distributed as dist\ngetattr(dist, 'reduce_scatter_single')",
            "torch.distributed.reduce_scatter_single",
        ),
        (
            "def f():\n import torch.distributed as dist\n dist.send_object_list([1])",
            "torch.distributed.send_object_list",
        ),
    ],
)
def test_a_collective_is_found(source: str, name: str) -> None:
    assert collectives(source) == {name}


def test_what_is_no_collective_is_not_found() -> None:
    assert (
        collectives("import torch.distributed as dist\ndist.get_rank()\ncomm.all_gather(x)\ndist.is_initialized()")
        == set()
    )


def test_only_the_network_calls_collectives() -> None:
    users = {path.relative_to(ENGINE): collectives(path.read_text()) for path in ENGINE.rglob("*.py")}
    assert {str(path): found for path, found in users.items() if found and path.parts[0] != "network"} == {}
    assert "torch.distributed.all_reduce" in users[Path("network/communicator.py")], "the scan sees them"
