"""The engine's parts that need no second process."""

import copy
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from layouts import ZOO, build
from overlaplab_engine import labels
from overlaplab_engine.cli import AUTO_LINK, _link, main
from overlaplab_engine.config import Config, Device, Dtype
from overlaplab_engine.devices import should_use_gpus
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.batches import Batches
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import Unit, by_block, by_size, form_units, policy, reads_parameters_in_backward
from overlaplab_engine.network.carrier import ClockExchange, clock_offset_ns
from overlaplab_engine.network.communicator import connect
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.network.process_group import _gloo, _gloo_device
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.recording.facts import hardware_of_rank
from overlaplab_engine.recording.trace_file import atomic_path, clear
from overlaplab_engine.strategies.gradients.buckets import OrderedLauncher, assign
from overlaplab_engine.strategies.sharding.absent import mark_absent, mark_present
from overlaplab_engine.strategies.sharding.shards import Layout
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import _device
from ranks.label_texts import parse
from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy
from torch.profiler import ProfilerActivity, profile

ORDERED = "NCCL_LAUNCH_ORDER_IMPLICIT"

# Labels


@pytest.mark.parametrize(
    ("word", "values", "text"),
    [
        (Word.FORWARD, {"microbatch": 2}, "engine::forward microbatch=2"),
        (Word.BACKWARD, {"sync": 1, "microbatch": 0}, "engine::backward microbatch=0 sync=1"),
        (Word.OPTIMIZER, {}, "engine::optimizer"),
        (Word.GRADIENT_READY, {"parameter": "a b=c,d%"}, "engine::gradient_ready parameter=a%20b%3Dc%2Cd%25"),
        (
            Word.BUCKET_READY,
            {"bucket": 1, "bytes": 12, "parameters": ["a.b", "c,d"]},
            "engine::bucket_ready bucket=1 bytes=12 parameters=a.b,c%2Cd",
        ),
        (
            Word.COMM,
            {"seq": 3, "kind": Kind.ALL_REDUCE, "dtype": "float32", "bytes": 8, "group": "0"},
            "engine::comm seq=3 kind=all_reduce dtype=float32 bytes=8 group=0",
        ),
    ],
)
def test_labels_are_written_as_the_grammar_says(word: Word, values: dict, text: str) -> None:
    assert labels.label(word, **values) == text


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(0, 1 << 40))
def test_a_label_says_what_was_put_in(names: list[str], nbytes: int) -> None:
    text = labels.label(Word.BUCKET_READY, bucket=0, bytes=nbytes, parameters=names)
    assert len(text.split(" ")) == 4
    assert parse(text) == (
        Word.BUCKET_READY,
        {"bucket": "0", "bytes": str(nbytes), "parameters": names},
    )


@pytest.mark.parametrize("values", [{}, {"bucket": 1, "more": 2}, {"parameter": "x"}])
def test_a_label_with_other_keys_is_refused(values: dict) -> None:
    with pytest.raises(ValueError, match="takes the keys"):
        labels.label(Word.BUCKET_DONE, **values)


def test_words_are_those_of_the_grammar() -> None:
    table = (Path(__file__).parents[3] / "traces" / "README.md").read_text()
    words = {line.split("`")[1].removeprefix("engine::") for line in table.splitlines() if line.startswith("| `engine")}
    assert words == set(Word)


# The link


@pytest.mark.parametrize(
    ("spec", "kind", "nbytes", "world_size", "ns"),
    [
        ("1Gbps,200us", Kind.ALL_REDUCE, 0, 2, 400_000),
        ("1Gbps,200us", Kind.ALL_REDUCE, 1_000_000, 2, 8_400_000),
        ("1Gbps,200us", Kind.ALL_REDUCE, 1_000_000, 4, 1_200_000 + 12_000_000),
        ("1Gbps,200us", Kind.ALL_GATHER, 1_000_000, 4, 600_000 + 6_000_000),
        ("1Gbps,200us", Kind.REDUCE_SCATTER, 1_000_000, 4, 600_000 + 6_000_000),
        ("1Gbps,200us", Kind.BROADCAST, 1_000_000, 4, 600_000 + 8_000_000),
        ("1Gbps,200us", Kind.ALL_TO_ALL, 1_000_000, 2, 200_000 + 4_000_000),
        ("1Gbps,200us", Kind.BARRIER, 0, 3, 800_000),
        ("400Gbps,10us,8", Kind.ALL_REDUCE, 1_000_000, 2, 140_000 + 35_000),
        ("1Gbps,200us", Kind.ALL_REDUCE, 1_000_000, 1, 0),
        ("1Gbps,200us", Kind.BROADCAST, 1_000_000, 1, 0),
        ("2.5Gbps,0us", Kind.ALL_REDUCE, 1_000_000, 2, 3_200_000),
    ],
)
def test_the_link_takes_as_long_as_its_formula(spec: str, kind: Kind, nbytes: int, world_size: int, ns: int) -> None:
    assert Link.parse(spec).modelled_ns(kind, nbytes, world_size) == ns


@pytest.mark.parametrize("spec", ["1Gbps,200us", "400Gbps,10us,8", "2.5Gbps,0.5us", "123.4567Gbps,1234567us"])
def test_a_link_is_written_as_it_is_read(spec: str) -> None:
    assert str(Link.parse(spec)) == spec


@pytest.mark.parametrize("spec", ["", "1Gbps", "1,200", "1Gbps,200us,", "0Gbps,1us", "-1Gbps,1us", "1Gbps,1us,0"])
def test_what_is_no_link_is_refused(spec: str) -> None:
    with pytest.raises(EngineError, match="1Gbps,200us"):
        Link.parse(spec)


@pytest.mark.parametrize(
    ("exchanges", "offset"),
    [
        ([], 0),  # rank 0 itself
        ([(1_000_000, 1_250_000, 1_100_000)], 0),  # 200 µs: taken for one clock
        ([(1_000_000, 1_251_000, 1_100_000)], 201_000),
        ([(1_000_000, 549_000, 1_100_000)], -501_000),
        ([(0, 900_000, 1_000_000)], 0),  # 400 µs, but the answer may have been under way for 1 ms
        ([(0, 9_000_000, 1_000_000), (2_000_000, 10_050_000, 2_100_000), (3_000_000, 9_000_000, 4_000_000)], 8_000_000),
    ],
)
def test_a_clocks_offset(exchanges: list[tuple[int, int, int]], offset: int) -> None:
    assert clock_offset_ns([ClockExchange(*times) for times in exchanges]) == offset


# Buckets


@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from([torch.float32, torch.float64])), min_size=1, max_size=40),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.randoms(),
)
def test_buckets_are_cut_as_torch_cuts_them(sizes: list, first: int, cap: int, random) -> None:
    tensors = [torch.empty(n, dtype=dtype) for n, dtype in sizes]
    order = list(range(len(tensors)))
    random.shuffle(order)
    wanted, _ = dist._compute_bucket_assignment_by_size([tensors[i] for i in order], [first, cap], [], order)
    got = assign(order, [t.nbytes for t in tensors], [t.dtype for t in tensors], [first, cap])
    assert sorted(got) == sorted(wanted)
    assert [b for b in got if tensors[b[0]].dtype == torch.float32] == [
        b for b in wanted if tensors[b[0]].dtype == torch.float32
    ]


@given(st.permutations(range(7)))
def test_launches_are_in_order_and_as_early_as_can_be(arrival: list[int]) -> None:
    launched: list[int] = []
    launcher = OrderedLauncher(7, lambda number: launched.append(number) or number)
    for seen, number in enumerate(arrival, start=1):
        launcher.mark_ready(number)
        ready = set(arrival[:seen])
        assert launched == [n for n in range(7) if all(m in ready for m in range(n + 1))]
    assert launcher.handles == list(range(7))
    launcher.reset()
    assert launcher.not_ready == list(range(7))
    assert launcher.handles == []


# Data, model, optimizer


def test_batches_differ_by_step_microbatch_and_rank() -> None:
    batches = Batches(seed=1, vocab=50, seq=4, batch=3)
    tokens, targets = batches.rank_batch(5, 1, 0)
    assert tokens.shape == targets.shape == (3, 4)
    assert torch.equal(targets[:, :-1], tokens[:, 1:])
    assert torch.equal(tokens, batches.rank_batch(5, 1, 0)[0])
    for other in ((6, 1, 0), (5, 0, 0), (5, 1, 1)):
        assert not torch.equal(tokens, batches.rank_batch(*other)[0])


@pytest.mark.parametrize("tied", [False, True])
def test_units_hold_every_parameter_once(tied: bool) -> None:
    model = Transformer(layers=3, width=8, heads=2, seq=4, vocab=10, tied=tied)
    found = by_block(model)
    assert [u.name for u in found] == ["embedding", "layers.0", "layers.1", "layers.2", *([] if tied else ["head"])]
    assert sorted(n for u in found for n in u.parameters) == sorted(n for n, _ in model.named_parameters())
    assert [u.name for u in found if u.kept] == (["embedding", "layers.2"] if tied else ["layers.2", "head"])
    if tied:
        assert set(found[0].modules) == {model.embedding, model.head}
        assert {"embedding.tokens.weight", "head.norm.bias"} < set(found[0].parameters)


def test_units_of_any_model() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(2))
    model.first = nn.Linear(2, 2)
    model.towers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    found = by_block(model)
    assert [(u.name, list(u.parameters), u.kept) for u in found] == [
        ("root", ["scale"], True),
        ("first", ["first.weight", "first.bias"], False),
        ("towers.0", ["towers.0.weight", "towers.0.bias"], False),
        ("towers.2", ["towers.2.weight", "towers.2.bias"], True),
    ]
    assert [u.kept for u in by_block(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}))] == [False, True]


def test_a_module_that_shares_with_two_makes_one_unit_of_them() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in "abc"})
    model["c"].weight, model["c"].bias = model["a"].weight, model["b"].bias
    (unit,) = by_block(model)
    assert set(unit.modules) == set(model.values())
    assert sorted(unit.parameters) == ["a.bias", "a.weight", "b.bias", "b.weight"]


def test_a_list_with_parameters_of_its_own_is_one_unit() -> None:
    model = nn.Module()
    model.tower = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.tower.scale = nn.Parameter(torch.ones(2))
    assert [(u.name, len(u.parameters)) for u in by_block(model)] == [("tower", 5)]


LAYOUTS = {
    "nanogpt": "transformer.wte* transformer.wpe transformer.h.0 transformer.h.1 transformer.h.2* transformer.ln_f*",
    "nanogpt-untied": "transformer.wte transformer.wpe transformer.h.0 transformer.h.1 transformer.h.2* "
    "transformer.ln_f* lm_head*",
    "parameter-lists": "root* embedding stages.0.0 stages.0.1 stages.1.0 stages.1.1* bag.head*",
    "llama": "model.embed_tokens model.layers.0 model.layers.1 model.layers.2* model.norm* lm_head*",
    "gpt-neox": "gpt_neox.embed_in gpt_neox.layers.0 gpt_neox.layers.1* gpt_neox.final_layer_norm* embed_out*",
    "vit": "vit.embeddings vit.encoder.layer.0 vit.encoder.layer.1* classifier.0* classifier.1*",
    "resnet": "conv1 bn1 layer1.0 layer1.1 layer2.0 layer2.1* fc*",
    "encoder-decoder": "shared encoder.block.0 encoder.block.1 encoder.final_layer_norm decoder.block.0 "
    "decoder.block.1* decoder.final_layer_norm* lm_head*",
    "moe": "embed_tokens layers.0 layers.1* head*",
    "tied-in-a-call": "wte blocks.0 blocks.1 blocks.2*",
    "lora": "base_model.model.model.embed_tokens base_model.model.model.layers.0 base_model.model.model.layers.1 "
    "base_model.model.model.layers.2* base_model.model.model.norm* base_model.model.lm_head*",
}
"""The units of each layout by `by_block`; those with a star are kept."""


@pytest.mark.parametrize("layout", ZOO)
def test_blocks_are_found_at_any_depth(layout: str) -> None:
    model = build(layout)
    units = form_units(model, by_block)
    assert " ".join(unit.name + "*" * unit.kept for unit in units) == LAYOUTS[layout]
    assert all(type(module).forward is not nn.Module.forward for unit in units for module in unit.modules)
    assert len(units[0].modules) == (2 if layout == "nanogpt" else 1), "a tied weight's modules form one unit"


def test_parameters_of_what_is_not_called_go_to_the_module_above() -> None:
    units = {unit.name: list(unit.parameters) for unit in by_block(build("parameter-lists"))}
    assert units["root"] == ["scales.0", "scales.1", "shifts.a", "shifts.b", "bag.scale"]


class Counted(nn.Module):
    """Stands in for FSDP, and has what it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module


@pytest.mark.parametrize("layout", ["nanogpt-untied", "llama", "gpt-neox", "resnet", "moe", "lora"])
@pytest.mark.parametrize("min_parameters", [1, 50, 100, 300, 2000, 10**6])
def test_units_by_size_are_those_of_fsdp(layout: str, min_parameters: int) -> None:
    """The oracle is torch's: `_recursive_wrap` with `size_based_auto_wrap_policy`, and the root around it all."""
    found = [unit for unit in form_units(build(layout), by_size(min_parameters)) if unit.name != "root"]
    model = build(layout)
    by_fsdp = partial(size_based_auto_wrap_policy, min_num_params=min_parameters)
    _recursive_wrap(model, by_fsdp, Counted, set(), set(), only_wrap_children=True)
    wrapped = [name.replace(".wrapped", "") for name, m in model.named_modules() if isinstance(m, Counted)]
    assert [unit.name for unit in found] == wrapped


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("by_layer", "--units 'by_layer' is none of by_block, by_size:N, MODULE:FUNCTION"),
        ("by_size", "--units 'by_size' is none of by_block, by_size:N, MODULE:FUNCTION"),
        ("by_size:many", "--units 'by_size:many' is none of by_block, by_size:N, MODULE:FUNCTION"),
        ("by_size:0", "by_size(0): a unit has at least 1 parameter"),
        ("nosuch:units", "--units nosuch:units: No module named 'nosuch'; is its folder on PYTHONPATH?"),
        (
            "layouts:units",
            "--units layouts:units: module 'layouts' has no attribute 'units'; is its folder on PYTHONPATH?",
        ),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError) as raised:
        policy(text)
    assert str(raised.value) == message


def test_a_policy_must_place_each_parameter_once() -> None:
    model = nn.Linear(2, 2)
    atomic_path = dict(model.named_parameters())
    bias = {"bias": atomic_path["bias"]}
    for parts, message in [
        ([bias], "parameter weight is in no unit: check the unit policy"),
        ([atomic_path, bias], "parameter bias is in two units, 0 and 1: check the policy"),
        (
            [{**atomic_path, "scale": atomic_path["bias"]}],
            "unit 0 has scale, which is no parameter of the model: check the unit",
        ),
    ]:
        with pytest.raises(EngineError, match=f"^{message}"):
            form_units(model, lambda m, parts=parts: [Unit(str(i), [m], part) for i, part in enumerate(parts)])
    with pytest.raises(EngineError, match=r"^two units are called a: check the unit policy$"):
        form_units(model, lambda m: [Unit("a", [m], atomic_path), Unit("a", [m], {})])


# Absent parameters


READS: dict[str, Callable[[nn.Parameter], Any]] = {
    "a function": lambda p: nn.functional.linear(torch.ones(1, 2), p),
    "an operator": lambda p: torch.ones(2, 2) @ p,
    "a view": lambda p: p.t(),
    "another view": lambda p: p.T,
    "an element": lambda p: p[0],
    "in a list": lambda p: torch.cat([torch.ones(2, 2), p]),
    "as a keyword": lambda p: torch.add(input=torch.ones(2, 2), other=p),
    "its data": lambda p: p.data,
    "detached": lambda p: p.detach(),
    "a copy": copy.deepcopy,
    "as text": repr,
    "a change": lambda p: p.detach_().fill_(1),
}
LOOKS: dict[str, Callable[[nn.Parameter], Any]] = {
    "shape": lambda p: (p.shape, p.size(), p.dim(), p.numel(), len(p), p.nbytes),
    "type": lambda p: (p.dtype, p.device, p.is_floating_point(), p.requires_grad, p.is_leaf),
    "grad": lambda p: (p.grad, setattr(p, "grad", None)),
    "hash": lambda p: {p: isinstance(p, nn.Parameter)},
    "something like it": torch.zeros_like,
}


@pytest.mark.parametrize("name", [*READS, *LOOKS])
def test_who_reads_an_absent_parameter_is_noticed(name: str) -> None:
    parameter, read = nn.Parameter(torch.ones(2, 2)), []
    mark_absent([parameter], lambda: (read.append(1), mark_present([parameter])))
    assert type(parameter) is not nn.Parameter
    (READS | LOOKS)[name](parameter)
    assert len(read) == (name in READS)
    mark_present([parameter])
    assert type(parameter) is nn.Parameter
    READS["a function"](parameter)
    assert len(read) == (name in READS)


def test_only_a_table_can_be_freed_for_backward() -> None:
    assert not reads_parameters_in_backward(Transformer(layers=1, width=8, heads=2, seq=4, vocab=10).embedding)
    assert reads_parameters_in_backward(nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_flat_shards_hold_everything_once(world_size: int) -> None:
    shapes = [torch.Size(s) for s in [(2, 3), (), (0,), (4,), (1, 1)]]  # 12 elements
    full = torch.arange(-(-12 // world_size) * world_size).float()
    layouts = [Layout(shapes, rank, world_size) for rank in range(world_size)]
    views = layouts[0].views(full)
    assert [v.shape for v in views] == shapes
    assert torch.equal(torch.cat([v.flatten() for v in views]), full[:12])
    assert torch.equal(torch.cat([layout.local_chunk(full) for layout in layouts]), full)
    pieces: dict[int, list[float]] = {}
    for layout in layouts:
        for number, _, part in layout.pieces(layout.local_chunk(full)):
            pieces.setdefault(number, []).extend(part.tolist())
    assert pieces == {i: v.flatten().tolist() for i, v in enumerate(views) if v.numel()}


def test_a_token_sees_only_those_before_it() -> None:
    model = Transformer(layers=2, width=8, heads=2, seq=4, vocab=10).double()
    tokens = torch.tensor([[1, 2, 3, 4]])
    x = model.embedding(tokens).detach().requires_grad_()
    y = x
    for layer in model.layers:
        y = layer(y)
    y[0, 1].sum().backward()
    assert x.grad[0, 2:].abs().max() == 0
    assert (x.grad[0, :2].abs().amax(1) > 0).all()


def test_bfloat16_parameters_have_fp32_masters() -> None:
    """A hundred updates, each too small for bfloat16 to see."""
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = AdamW([parameter], lr=1e-4)
    for _ in range(100):
        parameter.main_grad = torch.ones(4)
        optimizer.step()
    assert parameter.tolist() == pytest.approx([1 - 100 * 1e-4] * 4, abs=4e-3)
    assert parameter.tolist() != [1.0] * 4


# Files and the command line


def test_a_file_that_exists_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text("{") and 1 / 0
    assert list(tmp_path.iterdir()) == []
    with atomic_path(path) as temporary:
        temporary.write_text("{}")
        assert not path.exists()
    assert path.read_text() == "{}"


def test_an_older_run_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    for name in ("run.json", "rank0.pt.trace.json.gz", ".rank12.pt.trace.json.gz.tmp", "notes.md", "rank0.txt"):
        (tmp_path / name).touch()
    clear(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.md", "rank0.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "0"], "--layers must be 1 or more"),
        (["--warmup", "0"], "--warmup must be 1 or more"),
        (["--width", "10", "--heads", "4"], "--heads 4 must divide --width 10"),
        (["--bucket-cap-mb", "0"], "--bucket-cap-mb must be above 0"),
        (["--main-grad"], "--main-grad is for --dtype bfloat16: others have it"),
        (["--dtype", "int8"], "--dtype 'int8' is none of float32, bfloat16, float64"),
        (["--device", "tpu"], "--device 'tpu' is none of auto, cpu, cuda"),
        (["--nproc", "0"], "--nproc must be 1 or more"),
        (
            ["--nproc", "2", "--link", "1Gbps,1us,8"],
            "--link 1Gbps,1us,8: WORLD does not match the 2 ranks that are recorded",
        ),
        (["--link", "fast"], "--link 'fast' is not BANDWIDTH,LATENCY[,WORLD]"),
        (["--link-wait", "gpu"], "--link-wait 'gpu' is none of kernel, host"),
        (
            ["--link", "1Gbps,1us", "--link-wait", "host"],
            "--link-wait host is for an emulated link on a GPU; leave it out",
        ),
        (["--communicators", "3"], "--communicators must be 1 or 2"),
        (["--communicators", "2"], "--communicators 2 is for zero3: no other"),
        (
            ["--strategy", "zero3", "--communicators", "2", "--link", "1Gbps,1us"],
            "--communicators 2 is for NCCL: an emulated link carries one collective at a time",
        ),
        (
            ["--strategy", "zero3", "--communicators", "2"],
            "--communicators 2 is for NCCL, and these ranks are to run on the CPU; leave it out",
        ),
        (["--units", "by_layer"], "--units 'by_layer' is none of by_block, by_size:N, MODULE:FUNCTION"),
        (
            ["--strategy", "zero9"],
            "--strategy 'zero9' is none of naive, per-param, bucketed, ",
        ),
        (
            ["--strategy", "torch-ddp", "--warmup", "1"],
            "torch-ddp rebuilds its buckets in the second step: --warmup must",
        ),
        (["--strategy", "torch-ddp", "--first-bucket-mb", "1"], "torch-ddp has no --first-bucket-mb"),
        (["--nproc", "2", "--trace-ranks", "0,2"], "--trace-ranks 0,2: there is no rank 2, ranks count from 0 to 1"),
        (["--trace-ranks", "0,x"], "--trace-ranks '0,x' is not a list of ranks such as 0,8"),
        (["--trace-ranks", "-1"], "--trace-ranks '-1' is not a list of ranks such as 0,8"),
        (["--trace-ranks", "0", "--no-trace"], "--trace-ranks and --no-trace exclude each other"),
        (["--steps", "x"], "Invalid value for '--steps'"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--strategy", "bucketed", "--device", "cpu", "--out", str(tmp_path / "run"), *options]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"overlaplab record: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--nproc", "2"], ["--link", "auto"]])
def test_cuda_without_gpus_is_one_line(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    message = "--device cuda: this machine has no GPU; use --device cpu"
    assert main(["--strategy", "naive", "--device", "cuda", "--out", str(tmp_path), *options]) == 2
    assert capfd.readouterr().err == f"overlaplab record: {message}\n"
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(EngineError, match=f"^{message}$"):
        _device(Config(strategy=StrategyName.NAIVE, out=tmp_path, device=Device.CUDA))


@pytest.mark.parametrize(
    ("device", "gpus", "ranks_here", "ranks", "wanted"),
    [
        (Device.AUTO, 0, 2, 2, False),
        (Device.AUTO, 1, 1, 1, False),  # nothing to communicate
        (Device.AUTO, 1, 1, 2, True),  # two machines with a GPU each
        (Device.AUTO, 1, 2, 2, False),
        (Device.AUTO, 2, 2, 2, True),
        (Device.AUTO, 2, 1, 1, False),
        (Device.AUTO, 8, 2, 2, True),
        (Device.CUDA, 1, 1, 1, True),
        (Device.CPU, 8, 2, 2, False),
    ],
)
def test_where_ranks_compute(
    device: Device, gpus: int, ranks_here: int, ranks: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert should_use_gpus(device, ranks_here, ranks) is wanted
    assert _link("auto", wanted) == (None if wanted else AUTO_LINK)


CPU_MODEL = {
    "layers": 8, "width": 256, "heads": 4, "seq": 64, "vocab": 1000, "tied": False, "batch": 4, "dtype": "float32"
}  # fmt: skip
GPU_MODEL = {
    "layers": 8, "width": 1024, "heads": 16, "seq": 512, "vocab": 8000, "tied": False, "batch": 32, "dtype": "bfloat16"
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "model", "warmup"),
    [
        (["--device", "cpu"], CPU_MODEL, 2),
        (["--device", "cuda"], GPU_MODEL, 12),
        (["--device", "auto"], GPU_MODEL, 12),  # a GPU for each rank
        (["--device", "cuda", "--width", "64", "--heads", "4", "--warmup", "2"], {"width": 64, "heads": 4}, 2),
        (["--device", "cuda", "--dtype", "float32", "--batch", "4"], {"dtype": "float32", "batch": 4}, 12),
        (["--device", "cuda", "--seq", "64", "--vocab", "1000"], {"seq": 64, "vocab": 1000}, 12),
    ],
)
def test_options_left_out_are_those_of_the_device(
    options: list[str], model: dict[str, Any], warmup: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    asked: list[Config] = []
    monkeypatch.setattr("overlaplab_engine.worker.work", lambda config, argv: asked.append(config))
    assert main(["--strategy", "torch-ddp", "--out", str(tmp_path / "run"), *options]) == 0
    assert asked[0].model() == (CPU_MODEL if "cpu" in options else GPU_MODEL) | model
    assert asked[0].warmup == warmup


def test_the_help_tells_both_defaults(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main(["--help"])
    told = dict(re.findall(r"--(\w+) .*default (\w+, on GPUs \w+)\.", capfd.readouterr().out))
    assert told == {
        "width": "256, on GPUs 1024",
        "heads": "4, on GPUs 16",
        "seq": "64, on GPUs 512",
        "vocab": "1000, on GPUs 8000",
        "dtype": "float32, on GPUs bfloat16",
        "batch": "4, on GPUs 32",
        "warmup": "2, on GPUs 12",
    }


def test_the_links_gloo_heeds_the_interface_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0,lo")
    with pytest.raises(RuntimeError, match="nosuch0"):
        _gloo(dist.HashStore(), 0, 1, timedelta(seconds=10), _gloo_device())


def test_what_nccl_says_last_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NCCL error in: x.cpp:9\nLast error:\nDuplicate GPU detected\nException raised from f at x.cpp:9\nframe #0"

    def fail(*_: object, **__: object) -> None:
        raise dist.DistBackendError(text)

    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(EngineError) as raised:
        connect(torch.device("cpu"))
    wanted = "the ranks cannot be reached: NCCL error in: x.cpp:9 Last error: Duplicate GPU detected"
    assert str(raised.value) == wanted


def test_the_hardware_of_a_rank_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(total_memory=150_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {torch.device("cuda", 3): gpu}.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU, number {device.index}")
    found = hardware_of_rank(torch.device("cuda", 3))
    assert list(found) == ["hostname", "cpu", "cores", "gpu", "torch_threads", "gpu_memory_bytes"]
    assert (found["gpu"], found["gpu_memory_bytes"]) == ("a GPU, number 3", 150_000_000_000)


@pytest.mark.parametrize("communicators", [1, 2])
def test_each_group_has_its_own_name_and_numbers(communicators: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", ORDERED):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv(ORDERED)
    join, ordered = dist.init_process_group, []

    def noting(*args: object, **more: object) -> None:
        ordered.append(os.environ.get(ORDERED))
        join(*args, **more)

    monkeypatch.setattr(dist, "init_process_group", noting)
    comm = connect(torch.device("cpu"), communicators=communicators)
    full, shard = torch.ones(8), torch.ones(8)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        comm.all_gather(full, shard).wait()
        comm.reduce_scatter_mean(shard, full).wait()
        comm.all_gather(full, shard).wait()
    comm.close()
    found = [event.name for event in recorded.events() if event.name.startswith("engine::")]
    gathers, numbers, set_before = (0, (0, 1, 2), None) if communicators == 1 else (1, (0, 0, 1), "1")
    assert found == [
        f"engine::collective seq={seq} kind={kind} dtype=float32 bytes=32 group={group}"
        for seq, kind, group in zip(
            numbers, ("all_gather", "reduce_scatter", "all_gather"), (gathers, 0, gathers), strict=True
        )
    ]
    assert ordered == [set_before], "NCCL reads it when it begins"


def test_a_directory_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="is a file; name a directory"):
        Config(strategy=StrategyName.NAIVE, out=tmp_path / "file")
    with pytest.raises(EngineError, match="torch-ddp has no fp32 main_grad"):
        Config(strategy=StrategyName.TORCH_DDP, out=tmp_path, main_grad=True, dtype=Dtype.BFLOAT16)
    assert json.dumps(Config(strategy=StrategyName.NAIVE, out=tmp_path).model())
