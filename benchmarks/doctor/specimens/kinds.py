"""Designs that taught the doctor what an error needs, each with the mistake that it must tell."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens.museum import settings

D, H = 32, 4
MASK = {"mask": {"argument": "mask", "shape": "bk", "true": "attend"}}


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def merge(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def causal(t: int) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


class Heads(nn.Module):
    """Queries, keys and values of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [split(y) for y in self.qkv(x).chunk(3, -1)]


class Model(nn.Module):
    """Blocks between two tables and logits."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, D), nn.Embedding(32, D)
        self.blocks, self.output = nn.ModuleList(blocks), nn.Linear(D, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def layer(dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(D, H, 64, dropout, batch_first=True)


def mlp(width: int = D) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Offsets(nn.Module):
    """Each place of a step has ids of its own, in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(40, D), nn.Embedding(24, D)
        self.layer, self.output = layer(), nn.Linear(D, 10)

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1])
        x = self.table(ids + at % 4 * 10) + self.places(at)
        return self.output(self.layer(x, src_mask=~causal(len(at))))


class Sink(Heads):
    """A learned logit next to those of the keys, which takes weight and gives no value."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.randn(H))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        sink = self.sink.view(1, H, 1, 1).expand(len(x), -1, x.shape[1], 1)
        logits = torch.cat([q @ k.mT * 8**-0.5, sink], -1)
        return self.out(merge(logits.softmax(-1)[..., :-1] @ v))


class BothMasked(Heads):
    """Queries that are masked attend to nothing, either."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads(x)
        logits = q @ k.mT * 8**-0.5
        if mask is None:
            return self.out(merge(logits.softmax(-1) @ v))
        both = mask[:, None, None] & mask[:, None, :, None]
        weights = logits.masked_fill(~both, -1e30).softmax(-1) * both
        return self.out(merge(weights @ v))


class Inner(nn.Module):
    """A narrower stream within a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.norm1, self.norm2 = (
            *(nn.Linear(D, 16), nn.Linear(16, D)),
            *(nn.LayerNorm(16), nn.LayerNorm(16)),
        )
        self.attention, self.mlp = nn.MultiheadAttention(16, H, batch_first=True), mlp(16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        y = self.norm1(h)
        h = h + self.attention(y, y, y)[0]
        h = h + self.mlp(self.norm2(h))
        return x + self.up(h)


class Unit(Heads):
    """What is silenced gives 0/0 after it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Identity()  # type: ignore[assignment]
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), mlp()
        self.keys = nn.Parameter(torch.randn(24, D) / 6)
        self.values = nn.Parameter(torch.randn(24, D) / 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(self.norm1(x))
        y = merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)) @ self.keys.T
        x = x + F.gelu(y / y.norm(dim=-1, keepdim=True) * 24**0.5) @ self.values
        return x + self.mlp(self.norm2(x))


class Phase(Heads):
    """Keys are turned by a learned phase, which begins as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(H, 1, 8))
        self.register_buffer("f", 10000 ** (-torch.arange(8) / 8))
        self.f: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        a = torch.arange(x.shape[1])[:, None] * self.f
        b, q, k = a + self.phase, F.softplus(q), F.softplus(k)
        q, k = torch.cat([q * a.cos(), q * a.sin()], -1), torch.cat([k * b.cos(), k * b.sin()], -1)
        logits = (q @ k.mT * 16**-0.5).masked_fill(~causal(x.shape[1]), -torch.inf)
        return self.out(merge(logits.softmax(-1) @ v))


class Kernel(Heads):
    """A linear attention."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        total = q @ k.sum(2).unsqueeze(-1)
        return self.out(merge((q @ (k.mT @ v)) / total))


class Exponentials(Heads):
    """A linear attention whose features are made small by a maximum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q = (q - q.amax(-1, keepdim=True)).exp() + 1e-4
        k = (k - k.amax((-2, -1), keepdim=True)).exp() + 1e-4
        return self.out(merge((q @ (k.mT @ v)) / (q @ k.sum(2).unsqueeze(-1))))


class Rows(Heads):
    """Of a row without a key nobody says what it gives."""

    def __init__(self, zeros: bool) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.zeros, self.table = zeros, nn.Embedding(50, D)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads(self.table(ids))
        ok = causal(ids.shape[1])
        ok = ok if mask is None else ok & mask[:, None, None]
        weights = (q @ k.mT * 8**-0.5).masked_fill(~ok, -1e30).softmax(-1)
        return self.out(merge((weights * ok.any(-1, keepdim=True) if self.zeros else weights) @ v))


class Chunked(Heads):
    """A causal linear attention by chunks, which hand on their sums."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()

    def forward(self, x: Tensor, size: int = 16) -> Tensor:
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        out, s, z = [], x.new_zeros(len(x), H, 8, 8), x.new_zeros(len(x), H, 8, 1)
        for a, b, c in zip(q.split(size, 2), k.split(size, 2), v.split(size, 2), strict=True):
            w = (a @ b.mT).tril()
            out.append((w @ c + a @ s) / (w.sum(-1, keepdim=True) + a @ z))
            s, z = s + b.mT @ c, z + b.sum(2).unsqueeze(-1)
        return self.out(merge(torch.cat(out, 2)))


class Whole(Chunked):
    """The same, at once."""

    def forward(self, x: Tensor, size: int = 0) -> Tensor:
        return super().forward(x, x.shape[1])


class Packed(nn.Module):
    """All sequences in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        flat, of = x.reshape(1, b * t, d), torch.arange(b).repeat_interleave(t)
        logits = (self.q(flat) @ self.k(flat).mT * D**-0.5).masked_fill(
            of[:, None] != of, -torch.inf
        )
        return self.o(logits.softmax(-1) @ self.v(flat)).view(b, t, d)


class Placed(nn.Module):
    """Positions are an argument, one row of them for all sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.place = nn.MultiheadAttention(D, H, batch_first=True), nn.Linear(D, D)

    def forward(self, src: Tensor, pos: Tensor) -> Tensor:
        h = src + self.place(pos[:, : src.shape[1]])
        return src + self.attention(h, h, src)[0]


class InPlace(nn.Module):
    """A norm for inference, which works on its own copy."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x * self.gain


class Pre(nn.Module):
    """A pre-norm block."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = norm(), norm(), mlp()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h)[0]
        return x + self.mlp(self.norm2(x))


def without_gradients() -> Callable[[Tensor], Tensor]:
    model = Model(Pre(InPlace), Pre(InPlace))

    def call(ids: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = model(ids)
        return result

    return call


class Listed(nn.Module):
    """Layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.output = nn.ModuleList([layer(0.1), layer(0.1)]), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        for each in self.layers:
            x = each(x)
        return self.output(x)


class Experts(nn.Module):
    """Each token's query is made by one of several matrices; some get no token."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.kv, self.out = nn.Linear(D, 6), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        shares, q = self.router(flat).softmax(-1), torch.zeros_like(flat)
        chosen = shares.argmax(-1)
        for i, expert in enumerate(self.experts):
            at = (chosen == i).nonzero().flatten()
            q = q.index_add(0, at, expert(flat[at]) * shares[at, i : i + 1])
        k, v = (split(y) for y in self.kv(x).chunk(2, -1))
        attended = F.scaled_dot_product_attention(split(q.view_as(x)), k, v)
        return self.out(merge(attended))


class Speech(nn.Module):
    """An encoder that is told how long each sequence is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor, x_lens: Tensor) -> Tensor:
        after = torch.arange(x.shape[1]) >= x_lens[:, None]
        encoded: Tensor = self.layer(x, src_key_padding_mask=after)
        return encoded


def noisy(x: Tensor, attention: Any) -> Tensor:
    noise = torch.randn(D, D)
    attended: Tensor = attention(x, x, x)[0]
    return attended + 0.1 * x @ noise


class Hashed(nn.Module):
    """It draws a projection anew in each call, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return noisy(x, self.attention)


def x(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape or (3, 7), D)


def ids() -> Tensor:
    return torch.randint(3, 50, (3, 7))


SETTINGS = settings({
    "shared table": (Offsets, lambda: torch.randint(10, (3, 8)), {"causal": True}),
    "sink": (Sink, x(), {}),
    "both masked": (BothMasked, x(), MASK),
    "inner stream": (lambda: Model(Inner(), Inner()), ids, {}),
    "unit length": (lambda: Model(Unit(), Unit()), ids, {"causal": True}),
    "phase": (Phase, x(), {"causal": True, "position": "rotary"}),
    "kernel": (Kernel, x(), {}),
    "exponentials": (Exponentials, x(), {}),
    "rows without keys": (lambda: Rows(True), ids,
                          {"causal": True, "same_as": Rows(False), **MASK}),
    "chunks": (Chunked, x(2, 40), {"same_as": Whole()}),
    "packed": (Packed, x(), {}),
    "given places": (Placed, x(), {"keywords": {"pos": torch.randn(1, 13, D)}}),
    "in place": (without_gradients, ids, {"norm": "pre"}),
    "listed": (Listed, x(), {"dropout": 0.1}),
    "experts": (Experts, x(2, 4), {}),
    "lengths": (Speech, lambda: (torch.randn(3, 7, D), torch.tensor([7, 5, 6])),
                {"lengths": "x_lens"}),
    "random projection": (Hashed, x(), {}),
})  # fmt: skip

BUGS = """
shared table | masks | open to the future | no causal mask |
    self.layer(x, src_mask=~causal(len(at))) → self.layer(x)
both masked | masks | after the softmax | mask after the softmax |
    logits.masked_fill(~both, -1e30).softmax(-1) → logits.softmax(-1)
inner stream | blocks | the stream is added to itself | residual adds a stale input |
    Inner: h = h + self.mlp(self.norm2(h)) → h = self.down(x) + self.mlp(self.norm2(h))
phase | positions | values are turned, too | values are rotated |
    Phase: @ v)) → @ (v * a.cos())))
kernel | !softmax | multiplied by the sum | weights do not sum to one |
    / total → * total
kernel | !softmax | not divided | weights do not sum to one |
    / total →
exponentials | !heads | a maximum over the batch | sequences mixed; statistic over the batch |
    k.amax((-2, -1), keepdim=True) → k.amax()
rows without keys | masks | masked with a number | masked with a finite number |
    masked_fill(~ok, -1e30).softmax → masked_fill(~ok, -1.0).softmax
chunks | caches | the state is lost | differs from the other |
    s + b.mT @ c, z + b.sum(2).unsqueeze(-1) → b.mT @ c, b.sum(2).unsqueeze(-1)
packed | !heads | sequences are not told apart | sequences mixed; tokens mix outside the attention |
    .masked_fill(↵            of[:, None] != of, -torch.inf↵        ) →
in place | blocks | norm of the branch forgotten | norm not before the branch |
    Pre: h = self.norm1(x) → h = x
listed | !blocks | in a plain list | parameter not registered |
    nn.ModuleList([layer(0.1), layer(0.1)]) → [layer(0.1), layer(0.1)]
lengths | masks | not told to the layer | mask ignored; padding is attended to |
    self.layer(x, src_key_padding_mask=after) → self.layer(x)
lengths | masks | one too long | padding is attended to; mask of another shape |
    >= x_lens → > x_lens
random projection | masks | dropout in evaluation | random in evaluation |
    attended + 0.1 * x @ noise → F.dropout(attended, 0.1)
"""
