"""What the examples train: a small model on random tokens."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, LAYERS = 500, 128, 4


class Layer(nn.Module):
    """A perceptron, added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seq, WIDTH) → the same."""
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    """Next-token prediction: (batch, seq) and (batch, seq) integers → the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def batches(count: int, device: torch.device | str = "cpu") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of tokens and targets, other ones on each rank."""
    for _ in range(count):
        tokens = torch.randint(VOCAB, (8, 33), device=device)
        yield tokens[:, :-1], tokens[:, 1:]
