"""A decoder-only transformer by arithmetic: its parameters, operations, activations and cache.

The layout is GPT-2's: biases, two norms per layer, a perceptron of four times the width, learned positions. Letters are
those of Narayanan et al. 2021 (arXiv 2104.04473) and Korthikanti et al. 2022 (arXiv 2205.05198): l layers of width h
with a heads, s tokens in a sequence, b sequences in a microbatch, V words, e bytes per activation.
"""

from __future__ import annotations

from msgspec import Struct

from overlaplab.errors import OverlaplabError


class Attention(Struct, frozen=True, kw_only=True):
    """How scores of attention are computed, and what is dropped at random while training."""

    keeps_scores: bool = False
    """Whether the s × s scores are kept for the backward pass; FlashAttention (arXiv 2205.14135) does without."""
    dropout: bool = False
    """Whether there is dropout after attention, after the perceptron, and on kept scores: one byte per element."""


class Transformer(Struct, frozen=True, kw_only=True):
    """Sizes of a model. Raises `OverlaplabError` for sizes that make none."""

    layers: int
    width: int
    heads: int
    vocab: int
    seq: int
    tied: bool = False
    """Whether the output projection is the table of tokens."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocab", "seq"):
            if getattr(self, name) < 1:
                raise OverlaplabError(f"--{name} {getattr(self, name)}: not a positive number")
        if self.width % self.heads:
            what = f"--width {self.width} is no multiple of --heads {self.heads}"
            raise OverlaplabError(what, remedy="Each head has the same share of the width.")

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, 12h² + 13h: attention 4h² + 4h, perceptron 8h² + 5h, two norms 4h."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def parameters(self) -> int:
        """Parameters of the layers, tables of tokens and positions, the last norm, and the output unless it is tied."""
        tables = (self.vocab + self.seq) * self.width
        output = 0 if self.tied else self.vocab * self.width
        return self.layers * self.layer_parameters + tables + 2 * self.width + output

    def forward_flops(self, sequences: int) -> int:
        """Floating-point operations of a forward pass, l(24bsh² + 4bs²h) + 2bshV, an addition being one, too.

        Matrix products alone are counted, as `torch.utils.flop_counter` does, and all s² scores, though a causal mask
        needs half of them. A widely copied text has 24hsh² for 24bsh².
        """
        tokens = sequences * self.seq
        layer = 24 * tokens * self.width**2 + 4 * tokens * self.seq * self.width
        return self.layers * layer + 2 * tokens * self.width * self.vocab

    def step_flops(self, sequences: int, *, checkpointing: bool = False) -> int:
        """Operations of forward and backward pass; the backward pass takes twice the forward pass.

        With checkpointing all layers run forward a second time.
        """
        forward = self.forward_flops(sequences)
        output = 2 * sequences * self.seq * self.width * self.vocab
        return 3 * forward + (forward - output if checkpointing else 0)

    def layer_activations(self, sequences: int, element_bytes: int, attention: Attention) -> int:
        """Bytes that one layer keeps for its backward pass (Korthikanti et al., §4.1).

        16e·bsh in all: inputs of the two norms (2), of the projections to and from attention (2), queries, keys and
        values (3), the perceptron's input (1), what goes into its activation function (4) and what comes out (4); and
        e·abs² for kept scores. Dropout adds 2bsh and abs²(e + 1). So 16-bit activations with dropout and kept scores
        take 34bsh + 5abs². Statistics of norms are left out: they take 1/h of the rest.
        """
        hidden = sequences * self.seq * self.width
        scores = self.heads * sequences * self.seq**2 if attention.keeps_scores else 0
        num_bytes = 16 * element_bytes * hidden + element_bytes * scores
        return num_bytes + (2 * hidden + (element_bytes + 1) * scores if attention.dropout else 0)

    def activations(
        self, sequences: int, element_bytes: int, attention: Attention, *, checkpointing: bool = False
    ) -> int:
        """Bytes that a microbatch keeps between its passes.

        With checkpointing each layer keeps its input alone, and one layer at a time all of it. The head keeps the
        inputs of its norm and its projection, and logits in fp32 as the loss needs them, 4bsV.
        """
        layer = self.layer_activations(sequences, element_bytes, attention)
        hidden = sequences * self.seq * self.width * element_bytes
        layers = self.layers * hidden + layer if checkpointing else self.layers * layer
        return layers + 2 * hidden + 4 * sequences * self.seq * self.vocab

    def cache_bytes(self, tokens: int, element_bytes: int) -> int:
        """Bytes of keys and values of so many tokens while text is generated: 2lhe each."""
        return 2 * self.layers * self.width * element_bytes * tokens
