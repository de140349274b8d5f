"""A small decoder-only transformer (GPT-2's layout, pre-norm, biases, learned positions)."""

import zlib
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from overlaplab_engine import labels
from overlaplab_engine.labels import Word


class Attention(nn.Module):
    """Causal self-attention over heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        """Its rows are ordered by head, as Megatron-LM's are, so that ranks may hold some of the heads."""
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) → (batch, seq, width)."""
        heads = self.qkv(x).unflatten(2, (-1, 3, self.head_width)).transpose(1, 2)  # those that are here
        q, k, v = heads.unbind(3)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.output(y.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention and a perceptron of four times the width, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) → (batch, seq, width)."""
        x = x + self.attention(self.attention_norm(x))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.mlp_norm(x))))
        return out


class Embedding(nn.Module):
    """Tokens and their positions."""

    def __init__(self, vocab: int, seq: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(seq, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, seq) integers → (batch, seq, width)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        out: torch.Tensor = self.tokens(tokens) + self.positions(positions)
        return out


class Head(nn.Module):
    """The final norm and the output projection."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) → (batch, seq, vocab)."""
        out: torch.Tensor = self.output(self.norm(x))
        return out


class Transformer(nn.Module):
    """Next-token prediction; called with tokens and targets it returns the mean loss."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        seq: int,
        vocab: int,
        tied: bool = False,
        checkpointing: int = 0,
        seed: int = 0,
    ) -> None:
        """Parameters get their `initial_values`, in float32; `.to(dtype)` afterwards. On `meta` they have none.

        Every `checkpointing`-th layer, from the first on, keeps only its input, and runs its forward pass again in the
        backward pass (Chen et al. 2016, arXiv 1604.06174); 0: none does. torch ends that pass where nothing more is
        needed: before the last matrix product.
        """
        super().__init__()
        self.checkpointing = checkpointing
        with torch.random.fork_rng(devices=[]):  # modules draw values of their own first
            self.embedding = Embedding(vocab, seq, width)
            self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
            self.head = Head(width, vocab)
        if tied:
            self.head.output.weight = self.embedding.tokens.weight
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:
                parameter.data = initial_values(name, parameter.shape, parameter.device, seed=seed)

    @property
    def width(self) -> int:
        """Features of the activations between layers."""
        return int(self.embedding.tokens.embedding_dim)

    @property
    def dtype(self) -> torch.dtype:
        """The type of parameters and activations."""
        return self.embedding.tokens.weight.dtype

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(batch, seq) and (batch, seq) integers → the mean cross-entropy over all tokens, in at least float32."""
        return self.part(range(len(self.layers)), tokens, targets)

    def part(self, layers: range, x: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        """The part of the forward pass in these consecutive layers, and in what comes before the first, after the last.

        `x`: the tokens before layer 0, else activations (batch, seq, width). Returns the loss after the last layer,
        for which alone there need be `targets`, else activations.
        """
        if layers.start == 0:
            x = self.embedding(x)
        for number in layers:
            x = self.through_layer(number, x)
        if layers.stop < len(self.layers):
            return x
        assert targets is not None
        logits = self.head(x).flatten(0, 1)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return functional.cross_entropy(logits, targets.flatten())

    def through_layer(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) → (batch, seq, width), checkpointed or not."""
        layer = self.layers[number]
        if not self.checkpointing or number % self.checkpointing:
            out: torch.Tensor = layer(x)
        else:
            out = checkpoint(layer, x, use_reentrant=False, context_fn=partial(_contexts, f"layers.{number}"))
        return out


def _contexts(module: str) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Around a module's forward pass, and around the one that runs again."""
    return nullcontext(), labels.span(Word.RECOMPUTE, module=module)


def initial_values(name: str, shape: torch.Size, device: torch.device, *, seed: int) -> torch.Tensor:
    """What a Transformer's parameter begins with: as in GPT-2 N(0, 0.02²), but biases with 0 and norms with 1.

    It depends on the seed, the name and the kind of device alone, so that parameters can be made in any order.
    """
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.normal(0.0, 0.02, shape, generator=generator, device=device)
