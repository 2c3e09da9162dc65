"""Modules of chapter 12: repaired, broken, and repaired wrongly."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class DropoutAttention(nn.Module):
    """Broken, as on the page."""

    def __init__(self, d=32, n_heads=4, dropout=0.1):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def heads(self, x):
        return [
            f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        ]

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)

    def forward(self, x):
        return self.o(self.attend(*self.heads(x)).transpose(1, 2).flatten(2))


def attends(attend):
    """DropoutAttention with another function of queries, keys and values."""
    return type("DropoutAttention", (DropoutAttention,), {"attend": attend})


def fused(p, **how):
    """The fused function, with dropout as p says."""
    how = {"is_causal": True, **how}
    return attends(
        lambda self, *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=p(self), **how)
    )


def by_hand(drop, scale=lambda q: q.shape[-1] ** -0.5):
    """Attention step by step; drop(self, weights) drops weights."""

    def attend(self, q, k, v):
        logits = q @ k.mT * scale(q)
        ahead = torch.ones_like(logits, dtype=torch.bool).triu(1)
        return drop(self, logits.masked_fill(ahead, -torch.inf).softmax(-1)) @ v

    return attends(attend)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def in_training(self):
    return self.dropout if self.training else 0.0


class DropoutLayer(DropoutAttention):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(self.dropout)

    def attend(self, q, k, v):
        mask = torch.ones(q.shape[-2], k.shape[-2]).tril() == 0
        logits = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(mask, -torch.inf)
        return self.drop(logits.softmax(-1)) @ v


class OnePacked(DropoutAttention):
    def __init__(self, d=32):
        super().__init__(d)
        self.qkv = nn.Linear(d, 3 * d)
        del self.q, self.k, self.v

    def heads(self, x):
        return [
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        ]

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=in_training(self), is_causal=True)


class Nothing(DropoutAttention):
    def forward(self, x):
        return x


class Encoder(nn.Module):
    """Broken, as on the page."""

    def __init__(self, vocab=30, d=32, max_len=100):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        t = torch.arange(max_len)[:, None]
        angle = t / 1e4 ** (torch.arange(0, d, 2) / d)
        pe = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        self.register_buffer("pe", pe[:, None])
        layer = nn.TransformerEncoderLayer(d, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(d, vocab)

    def add(self, x):
        return x + self.pe[: x.size(0)]

    def forward(self, ids):
        return self.out(self.encoder(self.add(self.embed(ids))))


def adds(add):
    """Encoder that adds something else."""
    return type("Encoder", (Encoder,), {"add": add})


class InFloat32(Encoder):
    def add(self, x):
        t = torch.arange(x.shape[1], dtype=torch.float32)[:, None]
        frequencies = torch.exp(torch.arange(0, 32, 2).float() * (-math.log(10000.0) / 32))
        pe = torch.zeros(x.shape[1], 32)
        pe[:, 0::2], pe[:, 1::2] = (t * frequencies).sin(), (t * frequencies).cos()
        return x + pe


class SequenceFirst(Encoder):
    """The encoder's layers take (tokens, batch, d), and get (batch, tokens, d)."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64), 2, enable_nested_tensor=False
        )


class SequenceFirstThroughout(SequenceFirst):
    def forward(self, ids):
        return self.out(self.encoder(self.add(self.embed(ids.T)))).transpose(0, 1)


class Learned(Encoder):
    def __init__(self):
        super().__init__()
        self.learned = nn.Embedding(100, 32)

    def add(self, x):
        return x + self.learned(torch.arange(x.size(1)))


class EinsumAttention(nn.Module):
    """Broken, as on the page."""

    def __init__(self, d=32, h=4):
        super().__init__()
        k = d // h
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(d, h, k) / d**0.5) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(h, k, d) / d**0.5)

    def heads(self, x):
        return [torch.einsum("btd,dhk->bthk", x, w) for w in (self.wq, self.wk, self.wv)]

    def mix(self, q, k, v):
        s = torch.einsum("bihk,bjhk->bijh", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bijh,bjhk->bihk", s.softmax(dim=1), v)

    def forward(self, x):
        return torch.einsum("bihk,hkd->bid", self.mix(*self.heads(x)), self.wo)


def mixes(weights, logits="bihk,bjhk->bijh", values="bijh,bjhk->bihk", power=0.5):
    """EinsumAttention with other indices, or other weights from the logits."""

    def mix(self, q, k, v):
        s = torch.einsum(logits, q, k) / q.shape[-1] ** power
        return torch.einsum(values, weights(s), v)

    return type("EinsumAttention", (EinsumAttention,), {"mix": mix})


class Fused(EinsumAttention):
    def mix(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class DistanceAttention(nn.Module):
    """Broken, as on the page."""

    def __init__(self, d=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def bias(self, n):
        t = torch.arange(n)
        distance = t[:, None] - t
        slope = 2 ** (-8 * torch.arange(1, self.n_heads + 1) / self.n_heads)
        bias = slope[:, None, None] * distance
        return bias.masked_fill(distance < 0, -torch.inf)

    def forward(self, x):
        batch, n, d = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(n))
        return self.out(y.transpose(1, 2).reshape(batch, n, d))


def biased(slope=lambda: 2.0 ** -torch.arange(2, 9, 2), of=lambda t: t - t[:, None]):
    """DistanceAttention with slopes and what they multiply."""

    def bias(self, n):
        t = torch.arange(n)
        both = slope()[:, None, None] * of(t).broadcast_to(n, n)
        return both.masked_fill(t > t[:, None], -torch.inf)

    return type("DistanceAttention", (DistanceAttention,), {"bias": bias})


class NegatedAtLast(DistanceAttention):
    """What was −∞ is +∞ then."""

    def bias(self, n):
        return -super().bias(n)


class KeysAlone(DistanceAttention):
    """As in the authors' code: slope × position of the key, which a softmax can't tell apart."""

    def bias(self, n):
        t = torch.arange(n)
        slope = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])
        return (slope[:, None, None] * t).masked_fill((t > t[:, None]), float("-inf"))


class Layer(nn.Module):
    """Broken, as on the page."""

    def __init__(self, d=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.attn = nn.MultiheadAttention(d, n_heads, batch_first=True)
        self.norm = nn.LayerNorm(d)

    def masks(self, blocked):
        return {"attn_mask": blocked.repeat(self.n_heads, 1, 1)}

    def forward(self, x, real):
        blocked = ~real[:, None, :].expand(-1, x.shape[1], -1)  # (batch, queries, keys)
        y, _ = self.attn(x, x, x, **self.masks(blocked))
        return self.norm(x + y)


def masked(mask, name="attn_mask"):
    """Layer with another mask."""
    return type("Layer", (Layer,), {"masks": lambda self, blocked: {name: mask(blocked)}})


def filled(value):
    """Layer whose mask is this number and not −∞."""
    return masked(lambda b: torch.zeros(b.shape).masked_fill(b, value).repeat_interleave(4, 0))


class OutputsAlone(Layer):
    def forward(self, x, real):
        y, _ = self.attn(x, x, x)
        return self.norm(x + y * real[..., None])


class ZerosAtPadding(Layer):
    def forward(self, x, real):
        y, _ = self.attn(x, x, x, key_padding_mask=~real)
        return self.norm(x + y) * real[..., None]


class WithoutSkip(Layer):
    def forward(self, x, real):
        y, _ = self.attn(x, x, x, key_padding_mask=~real)
        return self.norm(y)


RIGHT = [
    ("repaired_dropout", fused(in_training)),
    ("repaired_dropout", by_hand(lambda self, w: F.dropout(w, self.dropout, self.training))),
    ("repaired_dropout", DropoutLayer),
    ("repaired_positions", adds(lambda self, x: x + self.pe[: x.size(1), 0])),
    ("repaired_positions", InFloat32),
    ("repaired_positions", SequenceFirstThroughout),
    ("repaired_einsum", mixes(lambda s: s.softmax(2))),
    ("repaired_einsum", mixes(lambda s: s.softmax(-1), "bihk,bjhk->bhij", "bhij,bjhk->bihk")),
    ("repaired_einsum", Fused),
    ("repaired_distances", biased()),
    ("repaired_distances", biased(of=lambda t: -(t[:, None] - t).abs())),
    ("repaired_distances", KeysAlone),
    ("repaired_mask", masked(lambda b: b.repeat_interleave(4, 0))),
    ("repaired_mask", masked(lambda b: b[:, None].expand(-1, 4, -1, -1).flatten(0, 1))),
    ("repaired_mask", masked(lambda b: b.repeat(1, 4, 1).view(-1, *b.shape[1:]))),
    ("repaired_mask", filled(-1e9)),
    ("repaired_mask", ZerosAtPadding),
    ("repaired_mask", masked(lambda b: b[:, 0], "key_padding_mask")),
]

# Check, wrong repair, words of the message.
DOCTOR = "the doctor finds\nERROR"
OUTPUT = "no error, but .* should be"
MISTAKES = [
    ("repaired_dropout", DropoutAttention, DOCTOR),
    ("repaired_dropout", fused(lambda self: 0.0), DOCTOR),
    ("repaired_dropout", fused(lambda self: 0.0 if self.training else 0.1), DOCTOR),
    ("repaired_dropout", fused(in_training, is_causal=False), DOCTOR),
    ("repaired_dropout", by_hand(lambda self, w: F.dropout(w, self.dropout)), DOCTOR),
    (
        "repaired_dropout",
        by_hand(lambda self, w: F.dropout(w, self.dropout, self.training), lambda q: 32**-0.5),
        DOCTOR,
    ),
    (
        "repaired_dropout",
        attends(lambda self, *qkv: F.dropout(causal(*qkv), self.dropout, self.training)),
        "drops numbers elsewhere",
    ),
    ("repaired_dropout", OnePacked, "keep the parameters as they were: 'q.weight'"),
    ("repaired_dropout", Nothing, DOCTOR),
    ("repaired_positions", Encoder, DOCTOR),
    ("repaired_positions", adds(lambda self, x: x), DOCTOR),
    ("repaired_positions", adds(lambda self, x: x + self.pe[1 : x.size(1) + 1, 0]), "from 1"),
    ("repaired_positions", SequenceFirst, DOCTOR),
    ("repaired_positions", Learned, OUTPUT),
    ("repaired_einsum", EinsumAttention, DOCTOR),
    ("repaired_einsum", mixes(lambda s: s.softmax(3)), DOCTOR),
    ("repaired_einsum", mixes(lambda s: s.softmax(1) / s.softmax(1).sum(2, True)), OUTPUT),
    ("repaired_einsum", mixes(lambda s: s.softmax(1), values="bjih,bjhk->bihk"), OUTPUT),
    ("repaired_einsum", mixes(lambda s: s.softmax(2), power=0), DOCTOR),
    ("repaired_distances", DistanceAttention, DOCTOR),
    ("repaired_distances", NegatedAtLast, DOCTOR),
    ("repaired_distances", biased(of=lambda t: 0 * t), DOCTOR),
    ("repaired_distances", biased(lambda: 2.0 ** -torch.arange(1, 5)), "should be|ERROR"),
    ("repaired_distances", biased(lambda: torch.full((4,), 0.25)), DOCTOR),
    ("repaired_mask", Layer, DOCTOR),
    ("repaired_mask", masked(lambda b: ~b.repeat_interleave(4, 0)), DOCTOR),
    ("repaired_mask", masked(lambda b: b.mT.repeat_interleave(4, 0)), DOCTOR),
    (
        "repaired_mask",
        masked(lambda b: b.repeat_interleave(4, 0).to(torch.get_default_dtype())),
        DOCTOR,
    ),
    *(("repaired_mask", filled(value), "correct for small inputs") for value in (-30, -100)),
    ("repaired_mask", OutputsAlone, DOCTOR),
    ("repaired_mask", WithoutSkip, OUTPUT),
]
