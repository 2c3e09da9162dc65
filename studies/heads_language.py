"""What do sliced and shared heads cost a small language model?"""

import torch
from torch import nn

from attnbook import (
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from attnbook.tasks import TextTask, python_topics, train, word_tokenizer

text = python_topics()
pages = TextTask(text, word_tokenizer(text, 500), length=32)
held_out = pages.validation_windows(100)


class SharedHeads(nn.Module):
    """Cut the input, then apply the same small matrices to each slice."""

    roles = MultiHeadAttention.roles

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, d_head = n_heads, d_model // n_heads
        self.query, self.key, self.value = (
            nn.Linear(d_head, d_head, bias=False) for _ in range(3)
        )
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None, *, causal=False, cache=None):
        slices = x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        heads = scaled_dot_product_attention(
            self.query(slices),
            self.key(slices),
            self.value(slices),
            mask,
            causal=causal,
        )
        return self.output(heads.transpose(1, 2).flatten(-2))


class Slices(nn.Module):
    """A small matrix for each slice, all different: nothing is shared."""

    def __init__(self, n_heads):
        super().__init__()
        d_head = 64 // n_heads
        self.weight = nn.Parameter(torch.empty(n_heads, d_head, d_head))
        for each in self.weight:
            nn.init.xavier_uniform_(each)

    def forward(self, slices):  # (batch, heads, tokens, d_head)
        return slices @ self.weight


def replaced(proper, variant):
    """Make the attention that takes the place of the proper one."""
    shared = SharedHeads(64, proper.n_heads)
    for name in ("query", "key", "value"):
        nn.init.xavier_uniform_(getattr(shared, name).weight)
        if variant == "own blocks":
            setattr(shared, name, Slices(proper.n_heads))
    if variant == "sharing, W_Q = 0":
        nn.init.zeros_(shared.query.weight).requires_grad_(False)
    shared.output = proper.output
    return shared


def language_model(seed, variant, n_heads=8):
    """One pre-norm block of width 64."""
    torch.manual_seed(seed)
    model = LanguageModel(
        ModelConfig(
            vocab_size=500,
            d_model=64,
            n_heads=n_heads,
            n_layers=1,
            d_ff=64,
            norm="pre",
            tied=False,
        )
    )
    block = model.blocks[0]
    if variant == "none":
        nn.init.zeros_(block.attention.output.weight).requires_grad_(False)
    elif variant == "proper, W_Q = 0":
        nn.init.zeros_(block.attention.query.weight).requires_grad_(False)
    elif variant != "proper":
        block.attention = replaced(block.attention, variant)
    return model


VARIANTS = (
    "proper",
    "proper, W_Q = 0",
    "own blocks",
    "sharing",
    "sharing, W_Q = 0",
    "none",
)
CASES = {variant: {"variant": variant} for variant in VARIANTS}
for variant in ("proper", "sharing"):
    CASES[f"two heads, {variant}"] = {"variant": variant, "n_heads": 2}
    CASES[f"rate 0.01, {variant}"] = {"variant": variant, "rate": 0.01}
SEEDS = dict.fromkeys(CASES, 16)


def run(seed, case, steps=300):
    """Held-out loss after 150 and 300 steps, in nats per word."""
    how = {"n_heads": 8, "rate": 3e-3} | CASES[case]
    record = train(
        language_model(seed, how["variant"], how["n_heads"]),
        lambda g: pages.batch(8, g),
        steps=steps,
        learning_rate=how["rate"],
        seed=seed,
        evaluate=lambda model: model.loss(*held_out).item(),
        evaluate_every=150,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps < 150:
        return numbers
    return numbers | {str(n): x for n, x in record.evaluations.items()}
