"""A training step of our language model compared with the same model of torch's parts."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnbook import Block, LanguageModel, LearnedPositions, ModelConfig
from benchmarks.contenders import OURS
from benchmarks.timing import Call, Ratios, race, speed_ratio

BATCH, TOKENS = 12, 64
N_BATCHES = 8
LEARNING_RATE = 1e-3


def config() -> ModelConfig:
    """The character model that nanoGPT's README trains on a CPU."""
    return ModelConfig(
        vocab_size=65,
        d_model=128,
        n_heads=4,
        n_layers=4,
        norm="pre",
        position="learned",
        activation="gelu",
        scaled=False,
        tied=True,
        dropout=0.0,
        max_tokens=TOKENS,
        feed_forward_bias=False,
        norm_bias=False,
    )


class FusedBlock(nn.Module):
    """A pre-norm block from torch's own parts: one matrix for Q, K and V, the fused attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.n_heads = config.n_heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(d_model, bias=False) for _ in range(2))
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.inner = nn.Linear(d_model, 4 * d_model, bias=False)
        self.outer = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the feed-forward network."""
        batch, tokens, width = x.shape
        # Cut before the heads move ahead, as nanoGPT does: the other order copies on the way back.
        parts = self.qkv(self.norm_1(x)).split(width, dim=-1)
        q, k, v = (p.view(batch, tokens, self.n_heads, -1).transpose(1, 2) for p in parts)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(heads.transpose(1, 2).reshape(batch, tokens, width))
        added: Tensor = x + self.outer(F.gelu(self.inner(self.norm_2(x))))
        return added


class LayerBlock(nn.Module):
    """The same block as torch ships it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            config.d_model,
            config.n_heads,
            4 * config.d_model,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            bias=False,
        )
        self.ahead: Tensor
        ahead = nn.Transformer.generate_square_subsequent_mask(config.max_tokens)
        self.register_buffer("ahead", ahead, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """With ``is_causal`` it takes the fused kernel without the mask that it asks for."""
        added: Tensor = self.layer(
            x, src_mask=self.ahead[: x.shape[1], : x.shape[1]], is_causal=True
        )
        return added


class TorchModel(nn.Module):
    """Learned positions, blocks, a norm, and the embedding again as the output layer."""

    def __init__(self, config: ModelConfig, block: Callable[[ModelConfig], nn.Module]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_tokens, config.d_model)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, bias=False)
        self.order: Tensor
        self.register_buffer("order", torch.arange(config.max_tokens), persistent=False)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token."""
        x = self.tokens(ids) + self.positions(self.order[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Trainee:
    """A model with its optimizer."""

    name: str
    model: LanguageModel | TorchModel
    adam: torch.optim.AdamW

    def step(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Forward, loss, backward, update."""
        loss = self.model.loss(ids, targets)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return loss.detach()


PEERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "nn.TransformerEncoderLayer": LayerBlock,
    "nanoGPT's lines": FusedBlock,
}


def trainees(seed: int = 0) -> list[Trainee]:
    """Ours and the peers, from the same weights."""
    torch.manual_seed(seed)
    ours = LanguageModel(config()).float()
    models: dict[str, LanguageModel | TorchModel] = {OURS: ours}
    for name, block in PEERS.items():
        models[name] = peer = TorchModel(config(), block).float()
        copy_weights(ours, peer)
    return [
        Trainee(
            name,
            model.train(),
            torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True),
        )
        for name, model in models.items()
    ]


@torch.no_grad()
def copy_weights(ours: LanguageModel, peer: TorchModel) -> None:
    """Give the peer our weights."""
    assert isinstance(ours.positions, LearnedPositions)
    peer.tokens.weight.copy_(ours.embedding.weight)
    peer.positions.weight.copy_(ours.positions.table)
    peer.norm.weight.copy_(ours.final_norm.get_parameter("weight"))
    for own, other in zip(ours.blocks, peer.blocks, strict=True):
        assert isinstance(own, Block)
        attention = own.attention
        weights = [
            torch.cat([attention.query.weight, attention.key.weight, attention.value.weight]),
            attention.output.weight,
            own.feed_forward.inner.weight,
            own.feed_forward.outer.weight,
            own.attention_residual.norm.get_parameter("weight"),
            own.feed_forward_residual.norm.get_parameter("weight"),
        ]
        for target, weight in zip(_weights(other), weights, strict=True):
            target.copy_(weight)


def _weights(block: nn.Module) -> list[Tensor]:
    """Q, K and V in one, the output's, the feed-forward network's, the norms'."""
    if isinstance(block, FusedBlock):
        parts = [block.qkv, block.output, block.inner, block.outer, block.norm_1, block.norm_2]
        return [part.get_parameter("weight") for part in parts]
    assert isinstance(block, LayerBlock)
    layer, attention = block.layer, block.layer.self_attn
    assert attention.in_proj_weight is not None
    parts = [attention.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2]
    return [attention.in_proj_weight, *(part.get_parameter("weight") for part in parts)]


def batches(n: int = N_BATCHES, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Random tokens and the ones after them."""
    generator = Generator().manual_seed(seed)
    ids = torch.randint(config().vocab_size, (n, BATCH, TOKENS + 1), generator=generator)
    return [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in ids]


def check_equal(participants: list[Trainee], tolerance: float = 1e-4) -> None:
    """Stop unless all have the same loss.

    Raises:
        ValueError: names the one that differs.
    """
    batch = batches(1)[0]
    expected = participants[0].model.loss(*batch).item()
    for trainee in participants:
        loss = trainee.model.loss(*batch).item()
        if not abs(loss - expected) <= tolerance:
            raise ValueError(f"{trainee.name} has a loss of {loss}, {OURS} of {expected}")


def measure(*, quick: bool = False) -> Ratios:
    """The speed of our step divided by each peer's."""
    participants = trainees()
    check_equal(participants)
    calls = {trainee.name: _endless_steps(trainee) for trainee in participants}
    times = race(calls, seconds=0 if quick else 20)
    size = f"{config().d_model} wide, {TOKENS} tokens"
    return {f"training step / {peer}": {size: speed_ratio(times, OURS, peer)} for peer in PEERS}


def _endless_steps(trainee: Trainee) -> Call:
    """One step a call, on the batches in turn."""
    data = itertools.cycle(batches())
    return lambda: trainee.step(*next(data))
