"""Which matrices may heads share, on a task of four offsets?

Eight places, eight words; each place names the words that stand some places
further on.
"""

import math

import torch
import torch.nn.functional as F

from attnbook import scaled_dot_product_attention

OFFSETS = (1, 2, 3, 5)
ARRANGEMENTS = {  # matrices for Q, for K, for V, sliced?
    "own matrices (proper)": (4, 4, 4, False),
    "two share K, V (GQA)": (4, 2, 2, False),
    "all share K, V (MQA)": (4, 1, 1, False),
    "all share Q, V": (1, 4, 1, False),
    "all share Q, K": (1, 1, 4, False),
    "own blocks": (4, 4, 4, True),
    "one block (the question)": (1, 1, 1, True),
    "one matrix for all": (1, 1, 1, False),
}


def look_ahead(n, offsets, generator):
    """Make n sequences of words, and the words each place must name."""
    ids = torch.randint(8, (n, 8), generator=generator)
    where = (torch.arange(8)[:, None] + torch.tensor(offsets)) % 8
    return ids, ids[:, where]  # (n, places), (n, places, offsets)


def per_head(W, n_heads):
    """(heads, width, d_head), from fewer or smaller matrices."""
    W = W.repeat_interleave(n_heads // len(W), dim=0)
    width = n_heads * W.shape[2]
    if W.shape[1] == width:
        return W
    return torch.block_diag(*W).view(width, n_heads, -1).transpose(0, 1)


class LookAhead:
    """Words plus places, one attention, and W_O as the output layer."""

    bias = None  # on the logits

    def __init__(self, seed, n_q, n_k, n_v, sliced, n_heads=4, width=32):
        torch.manual_seed(seed)
        vectors = torch.linalg.qr(torch.randn(width, width)).Q
        vectors = vectors * math.sqrt(width / 2)  # word and place: RMS 1
        self.words, self.places = vectors[:8].clone(), vectors[8:16].clone()
        d_head, self.n_heads = width // n_heads, n_heads
        d_in = d_head if sliced else width
        sizes = {"Q": n_q, "K": n_k, "V": n_v}
        self.W = {
            name: torch.randn(n, d_in, d_head) / math.sqrt(d_in)
            for name, n in sizes.items()
        }
        self.W["O"] = torch.randn(width, 32) / math.sqrt(width)

    def __call__(self, ids, dropout=0.0):
        x = (self.words[ids] + self.places)[:, None]  # one head axis more
        q, k, v = (x @ per_head(self.W[name], self.n_heads) for name in "QKV")
        heads = scaled_dot_product_attention(
            q, k, v, bias=self.bias, dropout=dropout
        )
        logits = heads.transpose(1, 2).flatten(-2) @ self.W["O"]
        return logits.unflatten(-1, (4, 8))  # (n, places, offsets, words)


def train(
    model,
    seed,
    steps=200,
    offsets=OFFSETS,
    learned=False,
    dropout=0.0,
    after_step=None,
    wrong=0.0,
):
    """Adam on W_Q, W_K, W_V, W_O; if learned, on words and places too.

    A share ``wrong`` of the words to name is replaced by random ones.
    """
    trained = list(model.W.values())
    trained += [model.words, model.places] if learned else []
    for each in trained:
        each.requires_grad_()
    adam = torch.optim.Adam(trained, lr=0.01, betas=(0.9, 0.98), fused=True)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        ids, targets = look_ahead(32, offsets, generator)
        if wrong:
            spoilt = torch.rand(targets.shape, generator=generator) < wrong
            words = torch.randint(8, targets.shape, generator=generator)
            targets = torch.where(spoilt, words, targets)
        logits = model(ids, dropout)
        loss = F.cross_entropy(logits.flatten(0, 2), targets.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        if after_step:
            after_step(step, model)
    return model


@torch.no_grad()
def right_answers(model, seed, offsets=OFFSETS):
    """In % of all words named, on 200 new sequences."""
    generator = torch.Generator().manual_seed(seed + 500)
    ids, targets = look_ahead(200, offsets, generator)
    found = model(ids).argmax(dim=-1) == targets
    return 100 * found.double().mean().item()


def sharing(arrangement, **how):
    return {"matrices": ARRANGEMENTS[arrangement]} | how


QUESTION = "one block (the question)"
CASES = {name: sharing(name) for name in ARRANGEMENTS}
CASES |= {
    "question, 600 steps": sharing(QUESTION, steps=600),
    "question, width 64": sharing(QUESTION, width=64),
    "own blocks, width 64": sharing("own blocks", width=64),
    "question, width 128": sharing(QUESTION, width=128),
    "proper, inputs learn": sharing("own matrices (proper)", learned=True),
    "question, inputs learn": sharing(QUESTION, steps=600, learned=True),
}
for H, last in ((1, 400), (2, 400), (8, 200), (32, 400)):
    CASES[f"{H} heads"] = {
        "matrices": (H, H, H, False),
        "n_heads": H,
        "steps": last,
    }
SEEDS = dict.fromkeys(CASES, 8)


def run(seed, case, steps=None):
    """Measure the share of right words after 20, 200 and all steps.

    And the step at which 90 % are right.
    """
    how = {"steps": 200, "learned": False} | CASES[case]
    steps = steps or how.pop("steps")
    sizes = {k: how[k] for k in ("n_heads", "width") if k in how}
    model = LookAhead(seed, *how["matrices"], **sizes)
    numbers = {"reached": steps}

    def look(step, model):
        if step in (20, 200, steps):
            numbers[f"after {step}"] = right_answers(model, seed)
        early = how["learned"] and numbers["reached"] == steps
        if early and step % 20 == 0 and right_answers(model, seed) >= 90:
            numbers["reached"] = step
        if step == 20:
            numbers["loss after 20"] = loss_of(model, seed)

    train(model, seed, steps, learned=how["learned"], after_step=look)
    if steps == 20:
        return {"loss after 20": numbers["loss after 20"]}
    return numbers | {"last": numbers[f"after {steps}"]}


@torch.no_grad()
def loss_of(model, seed):
    """On 200 new sequences."""
    generator = torch.Generator().manual_seed(seed + 500)
    ids, targets = look_ahead(200, OFFSETS, generator)
    return F.cross_entropy(model(ids).flatten(0, 2), targets.flatten()).item()
