"""A transformer by arithmetic, against the real module: parameters, operations, and what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from overlaplab_engine.models.transformer import Layer
from overlaplab_engine.models.transformer import Transformer as Module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from overlaplab import OverlaplabError
from overlaplab.costs.transformer import Attention, Transformer

SIZES = [
    {"layers": 2, "width": 64, "heads": 4, "seq": 32, "vocab": 100, "tied": False},
    {"layers": 3, "width": 128, "heads": 8, "seq": 64, "vocab": 500, "tied": True},
]
KERNELS = {True: SDPBackend.MATH, False: SDPBackend.FLASH_ATTENTION}
"""By whether they keep all scores."""
SEQUENCES = 3


def kept_bytes(module: Module, keeps_scores: bool) -> tuple[int, int]:
    """What autograd keeps of a pass besides parameters, each storage once; and the pass's operations."""
    tokens = torch.randint(module.head.output.out_features, (SEQUENCES, module.embedding.positions.num_embeddings))
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with sdpa_kernel(KERNELS[keeps_scores]), hooks, FlopCounterMode(display=False) as counter:
        module(tokens, tokens)
    return sum(storage.nbytes() for at, storage in storages.items() if at not in own), counter.get_total_flops()


@pytest.mark.parametrize("sizes", SIZES)
def test_parameters_are_those_of_the_module(sizes: dict[str, int]) -> None:
    assert Transformer(**sizes).parameters == sum(one.numel() for one in Module(**sizes).parameters())
    layer = Layer(sizes["width"], sizes["heads"])
    assert Transformer(**sizes).layer_parameters == sum(one.numel() for one in layer.parameters())


@pytest.mark.parametrize("sizes", SIZES)
def test_operations_are_those_that_torch_counts(sizes: dict[str, int]) -> None:
    """With all scores in plain matrix products: torch does not count its CPU kernel of FlashAttention."""
    _, counted = kept_bytes(Module(**sizes), keeps_scores=True)
    assert Transformer(**sizes).forward_flops(SEQUENCES) == counted


def test_a_step_takes_three_forward_passes_and_recomputation_a_fourth_of_the_layers() -> None:
    model = Transformer(**SIZES[0])
    output = 2 * SEQUENCES * 32 * 64 * 100
    assert model.step_flops(SEQUENCES) == 3 * model.forward_flops(SEQUENCES)
    assert model.step_flops(SEQUENCES, checkpointing=True) == 4 * model.forward_flops(SEQUENCES) - output


@pytest.mark.parametrize("keeps_scores", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_activations_are_what_autograd_keeps(sizes: dict[str, int], keeps_scores: bool) -> None:
    kept, _ = kept_bytes(Module(**sizes), keeps_scores)
    found = Transformer(**sizes).activations(SEQUENCES, 4, Attention(keeps_scores=keeps_scores))
    assert found == pytest.approx(kept, rel=0.05)


@pytest.mark.parametrize("sizes", SIZES)
def test_checkpoints_are_the_layers_inputs(sizes: dict[str, int]) -> None:
    """Autograd keeps them alone until the backward pass computes one layer at a time again."""
    kept, _ = kept_bytes(Module(**sizes, checkpointing=True), keeps_scores=False)
    model = Transformer(**sizes)
    found = model.activations(SEQUENCES, 4, Attention(), checkpointing=True)
    assert found - model.layer_activations(SEQUENCES, 4, Attention()) == pytest.approx(kept, rel=0.05)


def test_16_bit_activations_with_dropout_take_34bsh_and_5abs2() -> None:
    """Korthikanti et al. 2022, equation 1."""
    model = Transformer(layers=1, width=96, heads=3, vocab=7, seq=20)
    found = model.layer_activations(2, 2, Attention(keeps_scores=True, dropout=True))
    assert found == 34 * 2 * 20 * 96 + 5 * 3 * 2 * 20**2


def test_gpt_3_has_175_billion_parameters_and_its_cache_4_7_mb_per_token() -> None:
    model = Transformer(layers=96, width=12288, heads=96, vocab=50257, seq=2048, tied=True)
    assert model.parameters == 174_604_259_328
    assert model.cache_bytes(1, 2) == 4_718_592


@pytest.mark.parametrize(("change", "said"), [({"heads": 5}, "no multiple of --heads 5"), ({"seq": 0}, "--seq 0: not")])
def test_sizes_that_make_no_model(change: dict[str, int], said: str) -> None:
    with pytest.raises(OverlaplabError, match=said):
        Transformer(**(SIZES[0] | change))
