"""Attention with one wrong formula: weights, heads, rotary angles, slopes, norms, embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V = 23


class Formula(nn.Module):
    """Attention whose every step can be wrong."""

    def __init__(self, bug="", *, d=16, heads=2, position="none", causal=True, d_head=None):
        super().__init__()
        self.bug, self.h, self.position, self.causal = bug, heads, position, causal
        self.d_head = d_head or d // heads
        inner = heads * self.d_head
        self.wq, self.wk, self.wv = (nn.Linear(d, inner, bias=False) for _ in range(3))
        averaged = bug in ("averaged", "summed", "einsum over heads")
        self.wo = nn.Linear(self.d_head if averaged else inner, d, bias=False)
        width = d if bug == "angles of d_model" else self.d_head
        i = torch.arange(0, self.d_head, 2)
        i = i // 2 if bug == "half the exponent" else i
        self.register_buffer("inv_freq", 10000.0 ** (-i / width))

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        angle = at[:, None] * self.inv_freq
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        bug, (n, t, _) = self.bug, x.shape
        q, k, v = (w(x).view(n, t, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        at = torch.arange(t)
        if self.position == "rotary":
            q, k = self.turn(q, at + (bug == "query ahead")), self.turn(k, at)
        s = torch.einsum("bhid,bhjd->bhij", q, k)
        scale = {
            "per token": t**-0.5,
            "per head": self.h**-0.5,
            "no softmax, unscaled": 1.0,
            "no softmax, by length": 1 / t,
        }.get(bug, self.d_head**-0.5)
        s = s * scale
        if self.position == "alibi":
            h = torch.arange(self.h) + (bug != "slopes from one")
            s = s - 2.0 ** (-8 * h / self.h)[:, None, None] * (at[:, None] - at).abs()
        allowed = torch.ones(t, t, dtype=torch.bool)
        if self.causal:
            allowed = allowed.tril()
        if bug.startswith("no softmax"):
            w = s.masked_fill(~allowed, 0)
        else:
            w = s.masked_fill(~allowed, -torch.inf).softmax(-1)
        if bug == "einsum over heads":
            return self.wo(torch.einsum("bhij,bhjd->bid", w, v))
        y = w @ v
        if bug in ("averaged", "summed"):
            return self.wo(y.mean(1) if bug == "averaged" else y.sum(1))
        return self.wo(y.transpose(1, 2).flatten(2))


class ListOfHeads(nn.Module):
    """Each head a module; their outputs are added up, or put side by side."""

    def __init__(self, bug=""):
        super().__init__()
        self.bug = bug
        self.heads = nn.ModuleList(nn.Linear(16, 24) for _ in range(2))
        self.out = nn.Linear(8 if bug else 16, 16)

    def forward(self, x: Tensor) -> Tensor:
        ys = [F.scaled_dot_product_attention(*head(x).chunk(3, -1)) for head in self.heads]
        return self.out(sum(ys) / len(ys) if self.bug else torch.cat(ys, -1))


class Stack(nn.Module):
    """Blocks with norms before or after, embeddings scaled or not."""

    def __init__(self, bug="", *, norm="pre", d=16):
        super().__init__()
        self.bug, self.norm, self.d = bug, norm, d
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(32, d)
        self.attentions = nn.ModuleList(Formula(d=d) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.head = nn.Linear(d, V)

    def forward(self, ids: Tensor) -> Tensor:
        bug, x = self.bug, self.emb(ids)
        positions = self.pos(torch.arange(ids.shape[1]))
        if bug == "scaled after adding":
            x = (x + positions) * math.sqrt(self.d)
        elif bug == "embedding not scaled":
            x = x + positions
        else:
            x = x * math.sqrt(self.d) + positions
        pre = (self.norm == "pre") != (bug == "other norm order")
        for attention, norm in zip(self.attentions, self.norms, strict=True):
            if bug == "stream normed":
                x = norm(x)
                x = x + attention(x)
            else:
                x = x + attention(norm(x)) if pre else norm(x + attention(x))
        return self.head(x)
