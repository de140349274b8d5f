"""Small models in the layouts that people give theirs, in float64; each returns its loss."""

from collections.abc import Callable
from typing import Any

import torch
from overlaplab_engine.models.units import Unit
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, SEQ = 12, 8, 5


class Attention(nn.Module):
    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, *, seen: torch.Tensor | None = None, bias: Any = None) -> torch.Tensor:
        seen = x if seen is None else seen
        q, k, v = (t.view(*t.shape[:2], 2, -1).transpose(1, 2) for t in (self.q(x), self.k(seen), self.v(seen)))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=self.causal and bias is None)
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, mlp: Callable[[], nn.Module] = Mlp, causal: bool = True) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention(causal)
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), mlp()

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x), **more)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class NanoGPT(nn.Module):
    """`transformer` is a ModuleDict, which nobody calls, with a ModuleList `h` in it."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, WIDTH),
                "wpe": nn.Embedding(SEQ, WIDTH),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(Block() for _ in range(3)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(SEQ))
        x = self.transformer.drop(x)
        for block in self.transformer.h:
            x = block(x)
        return cross_entropy(self.lm_head(self.transformer.ln_f(x)), tokens)


class ParameterLists(nn.Module):
    """Parameters in lists and dictionaries, lists in lists, and a module that only holds others."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(WIDTH) + i) for i in range(2))
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.zeros(WIDTH)), "b": nn.Parameter(torch.ones(WIDTH))})
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.stages = nn.ModuleList(nn.ModuleList(Block() for _ in range(2)) for _ in range(2))
        self.bag = nn.Module()
        self.bag.scale = nn.Parameter(torch.ones(WIDTH))
        self.bag.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scales[0] + self.shifts["a"]
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return cross_entropy(self.bag.head(x * self.scales[1] + self.shifts["b"] * self.bag.scale), tokens)


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = nn.ModuleDict(
            {n: nn.Linear(WIDTH, WIDTH, bias=False) for n in ("gate_proj", "up_proj", "down_proj")}
        )
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, hidden_states: torch.Tensor, position_embeddings: torch.Tensor) -> tuple[torch.Tensor]:
        x = hidden_states + self.self_attn(self.input_layernorm(hidden_states) + position_embeddings)
        y = self.post_attention_layernorm(x)
        return (x + self.mlp.down_proj(functional.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y)),)


class LlamaModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(3))
        self.norm = RMSNorm()
        self.register_buffer("positions", torch.linspace(0, 1, SEQ)[:, None].expand(SEQ, WIDTH).clone())

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            (x,) = layer(x, position_embeddings=self.positions)
        return {"last_hidden_state": self.norm(x)}


class Llama(nn.Module):
    """As in HF: `model.layers` below `model`, keywords, tuples and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs = self.model(input_ids=tokens)
        return cross_entropy(self.lm_head(outputs["last_hidden_state"]), tokens)


class NeoXLayer(nn.Module):
    """Attention and perceptron side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.input_layernorm(x)) + self.mlp(self.post_attention_layernorm(x))


class NeoXModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_in = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(NeoXLayer() for _ in range(2))
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_in(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.final_layer_norm(x)


class GPTNeoX(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gpt_neox = NeoXModel()
        self.embed_out = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.embed_out(self.gpt_neox(tokens)), tokens)


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.projection = nn.Conv2d(3, WIDTH, 4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.projection(images).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.position_embeddings


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Block(causal=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


class ViT(nn.Module):
    """Parameters of the embeddings' own, `vit.encoder.layer`, and a head in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = nn.Module()
        self.vit.embeddings, self.vit.encoder = Patches(), Encoder()
        self.classifier = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.vit.encoder(self.vit.embeddings(images))
        return self.classifier(x[:, 0]).square().mean()


class BasicBlock(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.downsample = nn.Sequential(nn.Conv2d(4, 4, 1, stride), nn.BatchNorm2d(4)) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


class ResNet(nn.Module):
    """Blocks in Sequentials, batch norms with their buffers, sums and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(BasicBlock(1), BasicBlock(1))
        self.layer2 = nn.Sequential(BasicBlock(2), BasicBlock(1))
        self.fc = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3))).square().mean()


class CrossBlock(nn.Module):
    """As in T5: its parts in a ModuleList, and a bias that the first block computes for all."""

    def __init__(self, decoder: bool, first: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Attention(causal=False), *([Attention(causal=False)] if decoder else []), Mlp()])
        self.bias = nn.Embedding(SEQ, 2) if first else None

    def forward(self, x: torch.Tensor, seen: Any = None, bias: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        if self.bias is not None:
            distance = (torch.arange(SEQ)[:, None] - torch.arange(SEQ)).abs()
            bias = self.bias(distance).permute(2, 0, 1)[None]
        x = x + self.layer[0](x, bias=bias)
        if seen is not None:
            x = x + self.layer[1](x, seen=seen)
        return x + self.layer[-1](x), bias


class Stack(nn.Module):
    def __init__(self, shared: nn.Embedding, decoder: bool) -> None:
        super().__init__()
        self.embed_tokens = shared
        self.block = nn.ModuleList(CrossBlock(decoder, first=i == 0) for i in range(2))
        self.final_layer_norm = RMSNorm()

    def forward(self, tokens: torch.Tensor, seen: Any = None) -> torch.Tensor:
        x, bias = self.embed_tokens(tokens), None
        for block in self.block:
            x, bias = block(x, seen, bias)
        return self.final_layer_norm(x)


class EncoderDecoder(nn.Module):
    """One embedding module in three places, and two lists of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCAB, WIDTH)
        self.encoder, self.decoder = Stack(self.shared, decoder=False), Stack(self.shared, decoder=True)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.lm_head(self.decoder(tokens, self.encoder(tokens.flip(1)))), tokens)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, x: torch.Tensor, use: int) -> torch.Tensor:
        return self.experts[use](x) * self.gate(x).softmax(-1)[..., use : use + 1]


class MoE(nn.Module):
    """In every layer one expert of three, another one on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block(Experts) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: torch.Tensor, use: int) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, use=(use + i) % 3)
        return cross_entropy(self.head(x), tokens)


class TiedInACall(nn.Module):
    """The embedding's weight is the output projection's, too, without a module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(functional.linear(x, self.wte.weight), tokens)


class LoRALinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, WIDTH, bias=False)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> torch.Tensor:
        return self.model(*args)


class LoRA(nn.Module):
    """As PEFT wraps a model: deep below, with a frozen base of which only the adapters train."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = Wrapper(Llama())
        for layer in self.base_model.model.model.layers:
            layer.self_attn.q, layer.self_attn.v = LoRALinear(), LoRALinear()
        for name, p in self.named_parameters():
            p.requires_grad_("lora_" in name)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.base_model(tokens)


ZOO: dict[str, Callable[[], nn.Module]] = {
    "nanogpt": NanoGPT,
    "nanogpt-untied": lambda: NanoGPT(tied=False),
    "parameter-lists": ParameterLists,
    "llama": Llama,
    "gpt-neox": GPTNeoX,
    "vit": ViT,
    "resnet": ResNet,
    "encoder-decoder": EncoderDecoder,
    "moe": MoE,
    "tied-in-a-call": TiedInACall,
    "lora": LoRA,
}


def in_two_units(model: nn.Module) -> list[Unit]:
    """A unit policy of one's own: the head, and everything else."""
    parameters = dict(model.named_parameters())
    head = {name: parameters.pop(name) for name in list(parameters) if name.startswith("lm_head")}
    return [
        Unit("rest", [model], parameters, kept=True),
        Unit("head", [model.get_submodule("lm_head")], head, kept=True, block=True),
    ]


def build(name: str) -> nn.Module:
    """The model of that name; the same whoever asks."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = ZOO[name]().double()
        for p in model.parameters():  # norms and tokens too: no gradient is zero by symmetry
            p.data += 0.1 * torch.randn(p.shape, dtype=p.dtype)
    return model


def inputs(name: str, step: int, rank: int) -> tuple[Any, ...]:
    """What a rank's model is called with in a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    if name in ("vit", "resnet"):
        return (torch.randn(2, 3, 8, 8, generator=generator).double(),)
    tokens = torch.randint(VOCAB, (2, SEQ), generator=generator)
    return (tokens, (step + rank) % 3) if name == "moe" else (tokens,)
