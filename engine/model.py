"""A small decoder-only transformer (GPT-2's layout, pre-norm, biases, learned positions)."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Transformer", "unit_of", "units"]


class Attention(nn.Module):
    """Causal self-attention over heads."""

    def __init__(self, width: int, heads: int) -> None:
        """`width` features split over `heads`."""
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) → (batch, seq, width)."""
        batch, seq, width = x.shape
        q, k, v = (
            t.view(batch, seq, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.output(y.transpose(1, 2).reshape(batch, seq, width))
        return out


class Layer(nn.Module):
    """Attention and a perceptron of four times the width, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        """`width` features, `heads` attention heads."""
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
        """Tables of `vocab` and `seq` rows."""
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
        """`width` features to `vocab` logits."""
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
        self, *, layers: int, width: int, heads: int, seq: int, vocab: int, tied: bool = False, seed: int = 0
    ) -> None:
        """Weights are drawn from `seed` alone, in float32; `.to(dtype)` afterwards."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = Embedding(vocab, seq, width)
            self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
            self.head = Head(width, vocab)
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)
        if tied:
            self.head.output.weight = self.embedding.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(batch, seq) and (batch, seq) integers → the mean cross-entropy over all tokens, in at least float32."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x).flatten(0, 1)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return functional.cross_entropy(logits, targets.flatten())


def unit_of(name: str) -> str:
    """The unit that a parameter belongs to: `embedding`, `layers.3` or `head`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else parts[0]


def units(model: nn.Module) -> "OrderedDict[str, list[str]]":
    """Parameter names of each unit, in the model's order; a tied weight belongs to the embedding."""
    found: OrderedDict[str, list[str]] = OrderedDict()
    for name, _ in model.named_parameters():
        found.setdefault(unit_of(name), []).append(name)
    return found
