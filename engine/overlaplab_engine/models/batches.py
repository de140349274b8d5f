"""Synthetic batches: random tokens, the same ones whoever asks."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches that are a function of seed, step, microbatch and rank, with the same number of tokens for each rank."""

    seed: int
    """Seed of the whole sequence of batches."""
    vocab: int
    """Tokens are 0 to vocab − 1."""
    seq: int
    """Tokens per sample."""
    batch: int
    """Samples per rank and microbatch."""

    def rank_batch(self, step: int, microbatch: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of one rank, each (batch, seq) int64 on the CPU."""
        seed = hashlib.blake2b(repr((self.seed, step, microbatch, rank)).encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
        text = torch.randint(self.vocab, (self.batch, self.seq + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def place(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors on `device`; to a GPU from pinned memory, so that the host does not wait for the copies."""
    if device.type == "cuda":
        return [t.pin_memory().to(device, non_blocking=True) for t in tensors]
    return [t.to(device) for t in tensors]
