"""One attention layer learns four offsets with Adam, from many starts.

Eight places, eight words; each place names the words 1, 2, 3 and 5 places
further on.
"""

import math

import torch
import torch.nn.functional as F

OFFSETS = torch.tensor([1, 2, 3, 5])


def queries(factor, rate=1.0):
    return {"Q": factor, "K": factor, "rate Q": rate, "rate K": rate}


def values(factor, rate=1.0):
    return {"V": factor, "O": factor, "rate V": rate, "rate O": rate}


half = math.sqrt(0.5)
keras = {"Q": 1 / 6, "K": 1 / 6, "V": 1 / 6, "O": math.sqrt(2 / 9)}
MANY = {
    "separate": {},
    "fused": {"Q": half, "K": half, "V": half},
    "Keras ≤ 3.14": keras,
    "QK × ⅙": queries(1 / 6),
    "VO × ⅙": values(1 / 6),
    "QK × √2": queries(math.sqrt(2)),
    "QK × 2": queries(2),
    "QK × 2, rate too": queries(2, 2),
    "QK × 4": queries(4),
    "QK × 4, rate too": queries(4, 4),
    "QK × 4, logits / 16": queries(4) | {"divisor": 16.0},
    "biases": {"biases": True},
}
FEW = {
    "Q = 0": {"Q": 0.0},
    "K = 0": {"K": 0.0},
    "V = 0": {"V": 0.0},
    "O = 0": {"O": 0.0},
    "VO × √2": values(math.sqrt(2)),
    "VO × 2": values(2),
    "VO × 2, rate too": values(2, 2),
    "VO × 4": values(4),
    "VO × 4, rate too": values(4, 4),
}
NEVER = {"QK = 0": queries(0.0), "VO = 0": values(0.0)}
STARTS = MANY | FEW | NEVER
SEEDS = (
    dict.fromkeys(MANY, 48) | dict.fromkeys(FEW, 24) | dict.fromkeys(NEVER, 8)
)


class Layer:
    """One attention layer; its matrices start as Glorot's, times factors."""

    def __init__(self, start, seed):
        torch.manual_seed(seed)
        self.vectors = torch.linalg.qr(torch.randn(32, 32)).Q[:16] * 4
        self.W, self.b = {}, {}  # the sum of two vectors has RMS 1
        for name in "QKVO":
            W = torch.randn(32, 32) / math.sqrt(32)
            self.W[name] = (start.get(name, 1.0) * W).requires_grad_()
            self.b[name] = torch.zeros(32, requires_grad=True)
        self.divisor = math.sqrt(8) * start.get("divisor", 1.0)

    def __call__(self, ids):  # (n, 8) -> (n, 8, 4, words)
        x = self.vectors[ids] + self.vectors[8:]
        q, k, v = (
            (x @ self.W[name] + self.b[name])
            .view(len(ids), 8, 4, 8)
            .transpose(1, 2)
            for name in "QKV"
        )
        A = (q @ k.mT / self.divisor).softmax(-1)
        o = (A @ v).transpose(1, 2).flatten(-2)
        z = o @ self.W["O"] + self.b["O"]
        return z.view(len(ids), 8, 4, 8)


def learn(start, seed, steps, rate=0.01, adam=True):
    """Steps until 90 % of the words are right, and the loss of each step."""
    layer = Layer(start, seed)
    matrices = list(layer.W.values())
    if start.get("biases"):  # else they stay 0
        matrices += layer.b.values()
    rates = [rate * start.get("rate " + name, 1.0) for name in "QKVO"] * 2
    moments = [[torch.zeros_like(W) for W in matrices] for _ in range(2)]
    g = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(1, steps + 1):
        ids = torch.randint(8, (16, 8), generator=g)
        goal = ids[:, (torch.arange(8)[:, None] + OFFSETS) % 8]
        answers = layer(ids)
        if (answers.argmax(-1) == goal).double().mean() >= 0.9:
            return step - 1, losses
        loss = F.cross_entropy(answers.flatten(0, -2), goal.flatten())
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, matrices)
        with torch.no_grad():
            for each, W, dW, m, v in zip(
                rates, matrices, slopes, *moments, strict=False
            ):
                m.lerp_(dW, 0.1)
                v.lerp_(dW**2, 0.02)
                moved = (
                    m
                    / (1 - 0.9**step)
                    / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
                )
                W -= each * (moved if adam else dW)
    return steps, losses  # never


def run(seed, case, steps=1000):
    took, losses = learn(STARTS[case], seed, steps)
    if steps <= 20:
        return {"first losses": losses}
    return {"steps": took, "first losses": losses[:20]}
