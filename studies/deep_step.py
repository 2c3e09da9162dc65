"""How far one step of Adam, or of gradient descent, moves a deep model."""

import math

import torch
from torch import nn

from attnbook import Encoder, ModelConfig
from attnbook.probes import Probe
from studies.deep_growth import draw


class ReZero(nn.Module):
    """x + a f(x) with a learned number a that starts at zero."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))

    def forward(self, x, sublayer):
        return x + self.a * sublayer(x)


def backwards(batch, generator):
    """Eight different words of 16, and the same words backwards."""
    order = torch.rand(batch, 16, generator=generator).argsort(dim=-1)
    ids = order[:, :8]
    return ids, ids.flip(-1)


def model_of(scheme, norm, n, seed):
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=16,
        d_model=32,
        n_heads=4,
        n_layers=n,
        d_ff=64,
        max_tokens=8,
        norm={"rezero": "none"}.get(norm, norm),
        tied=False,
    )
    model = draw(Encoder(config), scheme, 32)
    for table in (model.embedding.weight, model.output.weight):
        nn.init.normal_(table, std=0.02 * math.sqrt(768 / 32))
    if norm == "rezero":
        for block in model.blocks:
            block.attention_residual = ReZero()
            block.feed_forward_residual = ReZero()
    return model


def one_step(scheme, norm, n, seed, optimizer=torch.optim.Adam, rate=1e-5):
    """How far the first step moves the logits; what it saw."""
    model = model_of(scheme, norm, n, seed)
    generator = torch.Generator().manual_seed(seed)
    ids, targets = backwards(16, generator)
    step = optimizer(model.parameters(), lr=rate)
    before = model(ids)
    with Probe(model, only=("*.query", "*.output", "*.outer")) as probe:
        model.loss(ids, targets).backward()
        step.step()
    with torch.no_grad():
        moved = (model(ids) - before).pow(2).mean().sqrt() / before.std()
    table = probe.parameters
    outer = table.where(part="feed_forward.outer.weight")
    W_O = table.where(part="attention.output.weight")
    W_Q = table.where(part="attention.query.weight")
    return {
        f"moved {n}": moved.item(),
        f"last W_2 {n}": outer["gradient_rms"][-1],
        f"W_O {n}": W_O["update"].mean(),
        f"W_Q {n}": W_Q["update"].mean(),
    }


STEP_DEPTHS = [2, 6, 24]
DESCENT = {"gpt2, descent": "gpt2", "gpt2 plain, descent": "gpt2 plain"}
SEEDS = dict.fromkeys(
    [
        "glorot, pre",
        "gpt2 plain, pre",
        "gpt2, pre",
        "glorot, post",
        "gpt2, post",
        "deepnorm, deepnorm",
        "t_fixup, none",
        "glorot, rezero",
        *DESCENT,
    ],
    32,
)


def run(seed, case):
    numbers = {}
    if case in DESCENT:
        for n in (2, 24):
            numbers |= one_step(
                DESCENT[case], "pre", n, seed, torch.optim.SGD, 1e-4
            )
        return numbers
    scheme, norm = case.split(", ")
    for n in STEP_DEPTHS + ([96] if norm == "rezero" else []):
        numbers |= one_step(scheme, norm, n, seed)
    return numbers
