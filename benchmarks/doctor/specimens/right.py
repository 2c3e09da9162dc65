"""Right designs that few people write: none of them may raise an error."""

import math
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens.museum import settings

D, H, V, T = 16, 2, 23, 6
D_HEAD = D // H
SCALE = "1/sqrt(d_head)"
Build = Callable[[], Any]


class Made(nn.Module):
    """Parts, and the function that uses them."""

    def __init__(self, use: Callable[..., Any], parts: dict[str, Build | None]) -> None:
        super().__init__()
        self.use = use
        for name, build in parts.items():
            part = build() if build else None
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.use(self, *inputs)


class Plain(nn.Module):
    """The usual attention, to build with."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(D, 3 * D), nn.Linear(D, D), causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (heads(y) for y in self.qkv(x).chunk(3, -1))
        allowed = distance(x.shape[1]) >= 0 if self.causal else None
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
        return attend(self, q, k, v, attn_mask=allowed)


def heads(y: Tensor, n: int = H) -> Tensor:
    return y.unflatten(-1, (n, -1)).transpose(1, 2)


def merged(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def qkv(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return heads(m.query(x)), heads(m.key(x)), heads(m.value(x))


def attend(m: Any, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, **how)))


def distance(t: int) -> Tensor:
    """How far back a key is."""
    return torch.arange(t)[:, None] - torch.arange(t)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * D_HEAD**-0.5


def shut(s: Tensor, where: Tensor) -> Tensor:
    return s.masked_fill(where, -torch.inf)


def past(s: Tensor, fill: float = -torch.inf) -> Tensor:
    return s.masked_fill(distance(s.shape[-1]) < 0, fill)


def divided(e: Tensor) -> Tensor:
    return e / e.sum(-1, keepdim=True)


def turned(x: Tensor, n: int | None = None, sign: int = 1) -> Tensor:
    """The first n numbers are turned in pairs (i, i + n/2)."""
    n = n or x.shape[-1]
    angle = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(0, n, 2) / n)
    cos, sin = angle.cos(), sign * angle.sin()
    a, b, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


# What they are made of.


norm: Build = partial(nn.LayerNorm, D)
both_ways: Build = partial(Plain, causal=False)
tokens_first: Build = partial(nn.MultiheadAttention, D, H)
batch_first: Build = partial(nn.MultiheadAttention, D, H, batch_first=True)


def linear(n: int = D, m: int = D, bias: bool = True) -> Build:
    return lambda: nn.Linear(n, m, bias)


def parameter(*shape: int) -> Build:
    return lambda: nn.Parameter(torch.randn(*shape))


def full(value: float, *shape: int) -> Build:
    return lambda: nn.Parameter(torch.full(shape, value))


def zero_weight() -> nn.Module:
    layer = nn.Linear(D, D)
    nn.init.zeros_(layer.weight)
    return layer


def small() -> nn.Module:
    return nn.Embedding.from_pretrained(torch.randn(V, D) / 50, freeze=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))


def many(build: Build, n: int) -> Build:
    return lambda: nn.ModuleList(build() for _ in range(n))


def made(use: Callable[..., Any], **parts: Build | None) -> Build:
    return lambda: Made(use, parts)


def layer(use: Callable[..., Any], **parts: Build | None) -> Build:
    """With four projections, but for those that are None."""
    return made(use, **{name: linear() for name in ("query", "key", "value", "out")} | parts)


def weighed(weights: Callable[[Any, Tensor, Tensor], Tensor], **parts: Build) -> Build:
    """Attention whose weights are what a function makes of queries and keys."""

    def use(m: Any, x: Tensor) -> Tensor:
        q, k, v = qkv(m, x)
        return m.out(merged(weights(m, q, k) @ v))

    return layer(use, **parts)


def scored(scores: Callable[[Any, Tensor, Tensor], Tensor], **parts: Build) -> Build:
    """A softmax of what a function makes of queries and keys."""
    return weighed(lambda m, q, k: scores(m, q, k).softmax(-1), **parts)


def model(use: Callable[..., Any], **parts: Build | None) -> Build:
    """Of ids: one causal layer between an embedding and an output."""
    usual = {"embedding": lambda: nn.Embedding(V, D), "table": parameter(32, D)}
    usual |= {"attention": Plain, "norm": norm, "output": linear(D, V)}
    return made(use, **usual | parts)


def embedded(m: Any, ids: Tensor) -> Tensor:
    return m.embedding(ids) + m.table[: ids.shape[1]]


def body(m: Any, x: Tensor) -> Tensor:
    return m.norm(x + m.attention(x))


def logits(m: Any, ids: Tensor) -> Tensor:
    return m.output(body(m, embedded(m, ids)))


# Other scores and weights.


def softmax_plus_one(_: Any, q: Tensor, k: Tensor) -> Tensor:
    s = past(scores(q, k))
    top = s.amax(-1, keepdim=True).clamp(min=0)
    e = (s - top).exp()
    return e / (e.sum(-1, keepdim=True) + (-top).exp())


def by_hand(_: Any, q: Tensor, k: Tensor) -> Tensor:
    s = past(scores(q, k))
    return divided((s - s.amax(-1, keepdim=True)).exp())


def sparsemax(_: Any, q: Tensor, k: Tensor) -> Tensor:
    """Weights that are 0 without a mask (Martins and Astudillo 2016)."""
    s = past(scores(q, k), -1e4)
    ordered = s.sort(-1, descending=True)[0]
    total = ordered.cumsum(-1)
    size = (1 + torch.arange(1, s.shape[-1] + 1) * ordered > total).sum(-1, keepdim=True)
    return (s - (total.gather(-1, size - 1) - 1) / size).clamp(min=0)


def squared_relu(_: Any, q: Tensor, k: Tensor) -> Tensor:
    """Divided by how many are seen (Hua et al. 2022)."""
    seen = torch.arange(1, q.shape[2] + 1)[:, None]
    return (scores(q, k).relu().square() / seen).tril()


def squared_relu_of_one(_: Any, q: Tensor, k: Tensor) -> Tensor:
    s = past(scores(q, k)).relu().square()
    return s / (s.sum(-1, keepdim=True) + 1e-6)


def talking_heads(m: Any, q: Tensor, k: Tensor) -> Tensor:
    s = torch.einsum("bhqk,hg->bgqk", scores(q, k), m.before)
    return torch.einsum("bhqk,hg->bgqk", past(s).softmax(-1), m.after)


def global_first(_: Any, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[2])
    return shut(scores(q, k), (distance(len(i)).abs() > 1) & (i[:, None] > 0) & (i > 0))


def forgetting(m: Any, q: Tensor, k: Tensor) -> Tensor:
    decay = F.logsigmoid(m.forget(merged(k))).transpose(1, 2).cumsum(-1)
    return past(scores(q, k) + decay[..., None] - decay[..., None, :])


def stick_breaking(_: Any, q: Tensor, k: Tensor) -> Tensor:
    s = past(scores(q, k), -1e4)
    stay = F.logsigmoid(-s)
    later = stay.flip(-1).cumsum(-1).flip(-1) - stay
    return (F.logsigmoid(s) + later).exp()


# Other positions.


def learned_distance(m: Any, q: Tensor, k: Tensor) -> Tensor:
    keys = m.distance(distance(q.shape[2]).clamp(-3, 3) + 3)  # (queries, keys, d_head)
    return past(scores(q, k) + torch.einsum("bhqd,qkd->bhqk", q, keys) * D_HEAD**-0.5)


def two_biases(m: Any, q: Tensor, k: Tensor) -> Tensor:
    """As in Transformer-XL."""
    keys = m.distance(distance(q.shape[2]).clamp(-3, 3) + 3)
    s = (q + m.u) @ k.mT + torch.einsum("bhqd,qkd->bhqk", q + m.v, keys)
    return past(s * D_HEAD**-0.5)


def contextual(m: Any, q: Tensor, k: Tensor) -> Tensor:
    s = past(scores(q, k))
    place = s.sigmoid().flip(-1).cumsum(-1).flip(-1).clamp(max=T - 1)
    table = q @ m.table
    low, high = place.floor().long(), place.ceil().long()
    part = place - low
    return s + table.gather(-1, high) * part + table.gather(-1, low) * (1 - part)


def rotary_with_decay(_: Any, q: Tensor, k: Tensor) -> Tensor:
    t = torch.arange(q.shape[2])[:, None] - 3
    return past(scores(turned(q) * 0.9**t, turned(k) * 0.9**-t))


def turned_values(m: Any, x: Tensor) -> Tensor:
    """Outputs are turned back: values know their distance."""
    q, k, v = (turned(y) for y in qkv(m, x))
    return m.out(merged(turned(past(scores(q, k)).softmax(-1) @ v, sign=-1)))


def rotary_in_the_second_layer(m: Any, x: Tensor) -> Tensor:
    """The first knows of no positions, as some layers of Llama 4."""
    x = x + m.first(x)
    q, k, v = qkv(m, x)
    return x + attend(m, turned(q), turned(k), v, is_causal=True)


def positions_in_queries_and_keys(m: Any, x: Tensor) -> Tensor:
    y = x + m.table[: x.shape[1]]
    return attend(m, heads(m.query(y)), heads(m.key(y)), heads(m.value(x)))


# Other queries, keys, values and heads.


def grouped(n: int, kv: int, *, tiled: bool = False) -> Build:
    def use(m: Any, x: Tensor) -> Tensor:
        q, k, v = heads(m.query(x), n), heads(m.key(x), kv), heads(m.value(x), kv)
        if tiled:  # head h reads group h % kv
            k, v = (y.repeat(1, n // kv, 1, 1) for y in (k, v))
        else:
            k, v = (y.repeat_interleave(n // kv, 1) for y in (k, v))
        return attend(m, q, k, v, is_causal=True)

    return layer(use, key=linear(D, kv * D // n), value=linear(D, kv * D // n))


def reformer(m: Any, x: Tensor) -> Tensor:
    """Queries are keys; a token attends to itself only if nothing else is there."""
    q, v = heads(m.query(x)), heads(m.value(x))
    s = scores(q, F.normalize(q, dim=-1)).masked_fill(distance(x.shape[1]) == 0, -5e4)
    return m.out(merged(past(s).softmax(-1) @ v))


def differential(m: Any, x: Tensor) -> Tensor:
    """The difference of two maps: negative weights (Ye et al. 2024)."""
    q, k, v = qkv(m, x)
    a, b = (
        past(q @ k.mT / 2).softmax(-1) for q, k in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    )
    return m.out(merged(F.rms_norm((a - m.lam * b) @ v, v.shape[-1:])))


def pairs_of_heads(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    w = past(scores(q, k)).softmax(-1)
    w, v = w[:, ::2] - m.lam * w[:, 1::2], torch.cat([v[:, ::2], v[:, 1::2]], -1)
    return m.out(merged(F.rms_norm(w @ v, v.shape[-1:])))


def covariance(m: Any, x: Tensor) -> Tensor:
    """Channels attend to channels (El-Nouby et al. 2021)."""
    q, k, v = qkv(m, x)
    w = (F.normalize(q, dim=2).mT @ F.normalize(k, dim=2) * 4).softmax(-1)
    return m.out(merged(v @ w.mT))


def latent_rotary(m: Any, x: Tensor) -> Tensor:
    """One rotary key for all heads, beside the latent ones (DeepSeek-V2)."""
    q, q_turned = heads(m.query(x)).split([6, 4], -1)
    few, k_turned = m.down(x).split([12, 4], -1)
    k, v = heads(m.up(F.rms_norm(few, (12,)))).split([6, 8], -1)
    s = q @ k.mT + turned(q_turned) @ turned(k_turned)[:, None].mT
    return m.out(merged(past(s / 10**0.5).softmax(-1) @ v))


def learned_prefix(m: Any, x: Tensor) -> Tensor:
    """Keys and values of no token."""
    q, k, v = qkv(m, x)
    first_k, first_v = m.prefix[:, None].expand(-1, len(x), -1, -1, -1)
    k, v = torch.cat([first_k, k], 2), torch.cat([first_v, v], 2)
    allowed = F.pad(distance(x.shape[1]) >= 0, (3, 0), value=True) if m.causal else None
    return attend(m, q, k, v, attn_mask=allowed)


def linformer(m: Any, x: Tensor) -> Tensor:
    """Keys and values of six tokens, projected to three."""
    k, v = (m.fewer(f(x).mT).mT for f in (m.key, m.value))
    return m.out((m.query(x) @ k.mT / D**0.5).softmax(-1) @ v)


def fewer_keys(m: Any, x: Tensor) -> Tensor:
    short = m.reduce(x.mT).mT
    return attend(m, heads(m.query(x)), heads(m.key(short)), heads(m.value(short)))


def induced(m: Any, x: Tensor) -> Tensor:
    """By few learned points; tokens first."""
    few, _ = m.first(m.points.expand(-1, x.shape[1], -1), x, x)
    return x + m.second(x, few, few)[0]


def slots(m: Any, x: Tensor) -> Tensor:
    """Slots compete for tokens: a softmax over the queries (Locatello et al. 2020)."""
    s = m.slots.expand(len(x), -1, -1)
    for _ in range(3):
        share = (m.query(s) @ m.key(x).mT / D**0.5).softmax(1) + 1e-8
        s = m.gru((divided(share) @ m.value(x)).flatten(0, 1), s.flatten(0, 1)).view_as(s)
    return s


def named(m: Any, x: Tensor) -> Any:
    q, k, v = qkv(m, x)
    w = past(scores(q, k)).softmax(-1)
    return namedtuple("Output", "out weights")(m.out(merged(w @ v)), w)


# Other ways to the same: recurrences, loops; and no attention.


def retention(m: Any, x: Tensor) -> Tensor:
    """Decay instead of a softmax (Sun et al. 2023)."""
    q, k, v = qkv(m, x)
    decay = torch.tensor([0.9, 0.8])[:, None, None] ** distance(x.shape[1]).clamp(min=0)
    y = (scores(turned(q), turned(k)) * decay).tril() @ v
    return m.out(merged(F.layer_norm(y, y.shape[-1:])) * F.silu(m.gate(x)))


def linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return m.out(merged(q @ (k.mT @ v) / (q @ k.sum(2)[..., None])))


def delta_rule(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    k, rate = F.normalize(k, dim=-1), m.rate(x).sigmoid().transpose(1, 2)
    state, outs = x.new_zeros(len(x), H, D_HEAD, D_HEAD), []
    for t in range(x.shape[1]):
        now = k[:, :, t, None]
        change = rate[:, :, t, None, None] * (v[:, :, t, None] - now @ state)
        state = state + now.mT @ change
        outs.append((q[:, :, t, None] @ state).squeeze(2))
    return m.out(merged(torch.stack(outs, 2)))


def time_shift(m: Any, x: Tensor) -> Tensor:
    y = F.layer_norm(x, (D,))
    before = F.pad(y, (0, 0, 1, 0))[:, :-1]
    return x + attend(m, *qkv(m, y + (before - y) * m.mix), is_causal=True)


def token_by_token(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    outs = [
        F.scaled_dot_product_attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        for t in range(x.shape[1])
    ]
    return m.out(merged(torch.cat(outs, 2)))


def online_softmax(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    top, total, y = q.new_full((*q.shape[:3], 1), -1e9), 0.0, 0.0
    for keys, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
        s = scores(q, keys)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        e, old = (s - new).exp(), (top - new).exp()
        top, total, y = new, total * old + e.sum(-1, keepdim=True), y * old + e @ values
    return m.out(merged(y / total))


def head_after_head(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    outs = [past(scores(q[:, h], k[:, h])).softmax(-1) @ v[:, h] for h in range(H)]
    return sum(o @ m.out.weight.T[h * D_HEAD :][:D_HEAD] for h, o in enumerate(outs)) + m.out.bias


def attention_free(m: Any, x: Tensor) -> Tensor:
    e, t = m.key(x).exp(), x.shape[1]
    w = m.pairs[:t, :t].exp().tril()
    return m.out(m.query(x).sigmoid() * (w @ (e * m.value(x))) / (w @ e))


def long_convolution(m: Any, x: Tensor) -> Tensor:
    t = x.shape[1]
    k = torch.fft.rfft(m.filter[:, :t], 2 * t)
    y = torch.fft.irfft(torch.fft.rfft(m.value(x).mT, 2 * t) * k, 2 * t)[..., :t].mT
    return m.out(m.query(x) * y)


# Blocks.


def post_norm(m: Any, x: Tensor) -> Tensor:
    x = m.norms[0](x + m.attention(x))
    return m.norms[1](x + m.mlp(x))


def value_residual(m: Any, x: Tensor) -> Tensor:
    q, k, first = qkv(m, x)
    x = x + attend(m, q, k, first, is_causal=True)
    q, k, v = (heads(y) for y in m.second.qkv(x).chunk(3, -1))
    return x + attend(m.second, q, k, 0.5 * (v + first), is_causal=True)


def second_reads_first(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    x = x + attend(m, q, k, v, is_causal=True)
    y = F.scaled_dot_product_attention(heads(m.query2(x)), k, v, is_causal=True)
    return x + m.out2(merged(y))


def rezero(m: Any, x: Tensor) -> Tensor:
    x = x + m.alpha[0] * m.attention(x)
    return x + m.alpha[1] * m.mlp(x)


def reversible(m: Any, x: Tensor) -> Tensor:
    a = x + m.attention(m.norms[0](x))
    return (a + x + m.mlp(m.norms[1](a))) / 2


def streams(m: Any, x: Tensor) -> Tensor:
    s = torch.stack([x, x])  # two residual streams
    read = (m.read.softmax(0)[:, None, None, None] * s).sum(0)
    s = torch.einsum("ij,jbtd->ibtd", m.mix, s) + m.write[:, None, None, None] * m.attention(read)
    return s.sum(0)


def experts(m: Any, x: Tensor) -> Tensor:
    x = x + m.attention(x)
    share, chosen = m.router(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        out = out + ((chosen == i) * share).sum(-1, keepdim=True) * expert(x)
    return x + out


def unchosen_experts(m: Any, x: Tensor) -> Tensor:
    x = x + m.attention(x)
    score, chosen = m.router(x).softmax(-1).max(-1, keepdim=True)
    every = torch.einsum("btd,nde->btne", x, m.weights)
    one = every.gather(2, chosen[..., None].expand(-1, -1, 1, D)).squeeze(2)
    return x + score * one


def stochastic_depth(m: Any, x: Tensor) -> Tensor:
    kept = torch.rand(len(x), 1, 1) > 0.3 if m.training else torch.ones(1)
    return x + m.attention(x) * kept / (0.7 if m.training else 1.0)


def drawn_gain(m: Any, x: Tensor) -> Tensor:
    """Its first inputs set a gain."""
    if not m.is_set:
        m.gain.data.copy_(1 / x.std((0, 1)))
        m.is_set.fill_(True)
    return m.attention(x * m.gain)


def documents(m: Any, x: Tensor, segment: Tensor) -> Tensor:
    same = (segment[:, :, None] == segment[:, None]) & (distance(x.shape[1]) >= 0)
    return attend(m, *qkv(m, x), attn_mask=same[:, None])


# Models of ids, and losses.


def cos_and_sin_buffers(m: Any, ids: Tensor) -> Tensor:
    def turn(y: Tensor) -> Tensor:
        (a, b), t = y.chunk(2, -1), y.shape[2]
        return y * m.cos[:t] + torch.cat([-b, a], -1) * m.sin[:t]

    x = m.embedding(ids)
    q, k, v = (heads(y) for y in m.attention.qkv(x).chunk(3, -1))
    return m.output(m.norm(x + attend(m.attention, turn(q), turn(k), v, is_causal=True)))


def sines_then_cosines() -> Tensor:
    """Position 0 is the padding's."""
    rate = torch.exp(-torch.arange(D // 2) * math.log(1e4) / (D // 2 - 1))
    angle = torch.arange(32)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1) * (torch.arange(32)[:, None] > 0)


def frozen_sines() -> nn.Module:
    """A table as Marian and Pegasus have one for each of two stacks."""
    return nn.Embedding.from_pretrained(sines_then_cosines()[1:], freeze=True)


def two_frozen_tables(m: Any, ids: Tensor) -> Tensor:
    at = torch.arange(ids.shape[1])
    return m.output(body(m, m.embedding(ids) + (m.left(at) + m.right(at)) / 2))


def joined_values(m: Any, x: Tensor) -> Tensor:
    """Four heads, two groups of keys; each pair of heads has the values of both groups."""
    q, k, v = heads(m.query(x), 4), m.key(x)[..., :8], m.value(x)[..., :8]
    k, v = (heads(y, 2).repeat_interleave(2, 1) for y in (k, v))
    v = torch.cat(v.chunk(2, 1), -1).repeat(1, 2, 1, 1)
    return attend(m, q, k, v)


def latents_read(m: Any, x: Tensor) -> Tensor:
    """Learned queries read the tokens, and are read by them."""
    read = m.read(m.latents.expand(len(x), -1, -1), x, x)[0]
    return m.norm(x + m.write(x, read, read)[0])


def sinusoids_beside(m: Any, ids: Tensor) -> Tensor:
    angle = torch.arange(ids.shape[1])[:, None] * 100.0 ** (-torch.arange(4) / 4)
    extra = torch.cat([angle.sin(), angle.cos()], -1).expand(len(ids), -1, -1)
    return m.output(body(m, m.join(torch.cat([m.embedding(ids), extra], -1))))


def masked_mean(m: Any, ids: Tensor) -> Tensor:
    real, x = ids != 0, m.embedding(ids)
    y = m.norm(x + m.attention(x, real[:, None, None]))
    return m.output((y * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def one_block_twice(m: Any, ids: Tensor) -> Tensor:
    x = embedded(m, ids)
    for _ in range(2):
        x = x + m.attention(m.norm(x))
    return F.linear(x, m.embedding.weight)


def gemma(m: Any, ids: Tensor) -> Tensor:
    """Norms before and after, (1 + gain), embeddings scaled and tied, logits capped (Gemma 2)."""

    def normed(x: Tensor, i: int) -> Tensor:
        return F.rms_norm(x, (D,)) * (1 + m.gain[i])

    x = m.embedding(ids) * D**0.5
    x = x + normed(m.attention(normed(x, 0)), 1)
    x = x + normed(m.mlp(normed(x, 2)), 3)
    return 30 * torch.tanh(F.linear(normed(x, 4), m.embedding.weight) / 30)


def captions(m: Any, image: Tensor, text: Tensor) -> Tensor:
    """Text after what is seen of a picture."""
    p, n = image.shape[1], image.shape[1] + text.shape[1]
    x = torch.cat([image, m.embedding(text)], 1) + m.table[:n]
    allowed = (distance(n) >= 0) | (torch.arange(n) < p)
    return m.output(m.norm(x + m.attention(x, allowed)))[:, p:]


def padded_translation(m: Any, source: Tensor, target: Tensor) -> Tensor:
    real = (source != 0)[:, None, None]
    memory = embedded(m, source)
    memory = memory + m.encode(memory, real)
    y = embedded(m, target)
    y = y + m.attention(y, (target != 0)[:, None, None])
    q, k, v = heads(m.query(y)), heads(m.key(memory)), heads(m.value(memory))
    y = y + merged(F.scaled_dot_product_attention(q, k, v, attn_mask=real))
    return m.output(m.norm(y))


def optional_memory(m: Any, ids: Tensor, memory: Tensor | None = None) -> Tensor:
    y = body(m, embedded(m, ids))
    if memory is not None:
        y = y + m.cross(y, memory, memory)[0]
    return m.output(y)


def with_penalty(m: Any, ids: Tensor) -> Tensor:
    y = logits(m, ids)[:, :-1]
    return F.cross_entropy(y.mT, ids[:, 1:]) + 1e-4 * y.logsumexp(-1).square().mean()


def two_tokens_ahead(m: Any, ids: Tensor) -> Tensor:
    y = body(m, embedded(m, ids))
    next_one = F.cross_entropy(m.output(y)[:, :-1].mT, ids[:, 1:])
    return next_one + 0.3 * F.cross_entropy(m.second(y)[:, :-2].mT, ids[:, 2:])


def one_and_two_tokens_ahead(m: Any, ids: Tensor) -> Tensor:
    y, ahead = body(m, embedded(m, ids)), ((m.second, 2), (m.output, 1))
    return sum(0.5 * F.cross_entropy(head(y)[:, :-n].flatten(0, 1), ids[:, n:].flatten())
               for head, n in ahead)  # fmt: skip


def in_chunks(m: Any, ids: Tensor) -> Tensor:
    y = body(m, embedded(m, ids))[:, :-1].flatten(0, 1)
    pieces = zip(y.split(4), ids[:, 1:].flatten().split(4), strict=True)
    return sum(F.cross_entropy(m.output(a), b, reduction="sum") for a, b in pieces) / len(y)


def z_loss(_: Any, logits: Tensor, ids: Tensor) -> Tensor:
    """Of given logits: smoothed, with a penalty, without padding."""
    logits, ids = logits[:, :-1], ids[:, 1:]
    log, real = logits.log_softmax(-1), (ids != 0).float()
    loss = -0.9 * log.gather(-1, ids[..., None])[..., 0] - 0.1 * log.mean(-1)
    return ((loss + 1e-3 * logits.logsumexp(-1).square()) * real).sum() / real.sum().clamp(min=1)


# Examples.


def x(b: int = 2, t: int = T) -> Tensor:
    return torch.randn(b, t, D)


def ids(b: int = 2, t: int = T) -> Tensor:
    return torch.randint(1, V, (b, t))


def shaped(*shape: int) -> Build:
    return lambda: torch.randn(*shape)


def given_logits() -> tuple[Tensor, Tensor]:
    y = ids(3, 9)
    y[0, -3:] = 0
    return torch.randn(3, 9, V), y


def hidden_words() -> tuple[Tensor, Tensor]:
    """One or two words at the end are 0, and asked for."""
    asked, y = torch.arange(7) >= torch.tensor([6, 5, 6])[:, None], ids(3, 7)
    return y * ~asked, y.where(asked, -100)


WIDE = shaped(3, 7, D)
CAUSAL, FREE = {"causal": True, "n_heads": H}, {"causal": False, "n_heads": H}
PLAIN, LM = {**CAUSAL, "scale": SCALE, "position": "none"}, {**CAUSAL, "position": "learned"}
ZEROS, SLOPES = full(0.0, H, 1, 1), parameter(H, 1, 1)
ANGLES = torch.arange(32)[:, None] * 10_000.0 ** (-torch.arange(0, D_HEAD, 2).repeat(2) / D_HEAD)
DISTANCES: Build = partial(nn.Embedding, 7, D_HEAD)
BY_HEAD = {name: linear(D_HEAD, D_HEAD) for name in ("query", "key", "value")}
SOFTCAP = scored(lambda m, q, k: past(5 * torch.tanh(scores(q, k) / 5)))

# causal, of two heads, with the usual example
OF_CAUSAL: dict[str, Build] = {
    "cosine": scored(lambda m, q, k: past(
        F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * m.scale.exp() * 10), scale=ZEROS),
    "softmax plus one": weighed(softmax_plus_one),
    "sink": weighed(lambda m, q, k: torch.cat([past(scores(q, k)), m.sink.expand(
        *q.shape[:3], 1)], -1).softmax(-1)[..., :-1], sink=ZEROS),
    "by hand": weighed(by_hand),
    "clipped softmax": weighed(
        lambda m, q, k: (past(scores(q, k)).softmax(-1) * 1.04 - 0.02).clamp(0, 1)),
    "powers of two": weighed(lambda m, q, k: divided(
        torch.exp2(past(scores(q, k) * math.log2(math.e), -1e4)))),
    "masked exponentials": weighed(
        lambda m, q, k: divided(scores(q, k).exp() * (distance(q.shape[2]) >= 0))),
    "masked, then divided": weighed(
        lambda m, q, k: divided(scores(q, k).softmax(-1) * (distance(q.shape[2]) >= 0))),
    "the three largest": scored(lambda m, q, k: shut(
        s := past(scores(q, k)), s < s.topk(3, -1)[0][..., -1:])),
    "squared relu, sum of one": weighed(squared_relu_of_one),
    "additive attention": scored(lambda m, q, k: past(m.score(torch.tanh(
        q[:, :, :, None] + k[:, :, None])).squeeze(-1)), score=linear(D_HEAD, 1)),
    "linear, causal": weighed(lambda m, q, k: divided(
        ((F.elu(q) + 1) @ (F.elu(k) + 1).mT) * (distance(q.shape[2]) >= 0))),
    "dilated": scored(lambda m, q, k: shut(past(scores(q, k)), distance(q.shape[2]) % 2 == 1)),
    "windows of heads": scored(lambda m, q, k: shut(
        past(scores(q, k)), distance(q.shape[2]) >= torch.tensor([2, 99])[:, None, None])),
    "blocks of three": scored(lambda m, q, k: shut(past(scores(q, k)), torch.arange(
        q.shape[2])[:, None] // 3 != torch.arange(q.shape[2]) // 3)),
    "forgetting": scored(forgetting, forget=linear(D, H)),
    "stick breaking": weighed(stick_breaking),
    "learned distance": scored(learned_distance, distance=DISTANCES),
    "two biases": scored(two_biases, distance=DISTANCES, u=parameter(H, 1, D_HEAD),
                         v=parameter(H, 1, D_HEAD)),
    "logarithmic bias": scored(lambda m, q, k: past(
        scores(q, k) - m.slope.exp() * distance(q.shape[2]).abs().add(1).log()), slope=SLOPES),
    "contextual positions": scored(contextual, table=parameter(D_HEAD, T)),
    "rotary with decay": scored(rotary_with_decay),
    "latent keys and values": layer(lambda m, x: attend(m, *map(heads, (
        m.query(x), *m.up(m.down(x)).chunk(2, -1))), is_causal=True), key=None, value=None,
        down=linear(D, 4), up=linear(4, 2 * D)),
    "learned prefix": layer(learned_prefix, prefix=parameter(2, H, 3, D_HEAD), causal=lambda: True),
    "gate": layer(lambda m, x: m.out(merged(F.scaled_dot_product_attention(
        *qkv(m, x), is_causal=True)) * m.gate(x).sigmoid()), gate=linear()),
    "gates of heads": layer(lambda m, x: m.out(merged(F.scaled_dot_product_attention(
        *qkv(m, x), is_causal=True) * m.gates)), gates=full(1.0, H, 1, 1)),
    "named tuple": layer(named),
    "token by token": layer(token_by_token),
    "head after head": layer(head_after_head),
    "causal convolution": made(lambda m, x: m.attention(x + m.conv(F.pad(x.mT, (2, 0))).mT),
                               attention=Plain, conv=lambda: nn.Conv1d(D, D, 3)),
    "post-norm": made(post_norm, attention=Plain, mlp=mlp, norms=many(norm, 2)),
    "parallel block": made(lambda m, x: x + m.attention(y := m.norm(x)) + m.mlp(y),
                           attention=Plain, mlp=mlp, norm=norm),
    "value residual": layer(value_residual, second=Plain),
    "keys of the first layer": layer(second_reads_first, query2=linear(), out2=linear()),
    "zero-centred gain": made(lambda m, x: x + (1 + m.gain) * m.attention(x), attention=Plain,
                              gain=full(-1.0, D)),
    "reversible": made(reversible, attention=Plain, mlp=mlp, norms=many(norm, 2)),
    "two streams": made(streams, attention=Plain, read=parameter(2), write=parameter(2),
                        mix=lambda: nn.Parameter(torch.eye(2) + 0.1)),
    "highway": made(lambda m, x: (gate := m.gate(x).sigmoid()) * m.attention(x) + (1 - gate) * x,
                    attention=Plain, gate=linear()),
    "two experts of three": made(experts, attention=Plain, router=linear(D, 3),
                                 experts=many(mlp, 3)),
    "experts that nobody chose": made(unchosen_experts, attention=Plain, router=linear(D, 8),
                                      weights=parameter(8, D, D)),
    "stochastic depth": made(stochastic_depth, attention=Plain),
    "low rank, frozen": made(lambda m, x: x + m.attention(x + (x @ m.a) @ m.b), a=parameter(D, 2),
                             b=full(0.0, 2, D), attention=lambda: Plain().requires_grad_(False)),
    "gain drawn from the first inputs": made(drawn_gain, attention=Plain, gain=full(1.0, D),
                                             is_set=lambda: torch.tensor(False)),
    "delta rule": layer(delta_rule, rate=linear(D, H)),
}  # fmt: skip
# no number of heads is claimed
CAUSAL_ONLY: dict[str, Build] = {
    "dense synthesizer": layer(lambda m, x: m.out(past(
        m.score(F.relu(m.query(x)))[..., : x.shape[1]]).softmax(-1) @ m.value(x)), key=None,
        score=linear(D, T)),
    "attention free": layer(attention_free, pairs=parameter(T, T)),
    "long convolution": layer(long_convolution, key=None, filter=parameter(D, T)),
    "gru": made(lambda m, x: m.gru(x)[0], gru=lambda: nn.GRU(D, D, batch_first=True)),
}  # fmt: skip
OF_FREE: dict[str, Build] = {
    "no scale": scored(lambda m, q, k: q @ k.mT),
    "mup": scored(lambda m, q, k: q @ k.mT / D_HEAD),
    "temperature": scored(lambda m, q, k: scores(q, k) / m.tau, tau=full(1.5)),
    "quarter": scored(lambda m, q, k: (q * D_HEAD**-0.25) @ (k * D_HEAD**-0.25).mT),
    "distance": scored(lambda m, q, k: -torch.cdist(q.contiguous(), k.contiguous()).square() / 2),
    "qk norm": scored(lambda m, q, k: scores(m.qn(q), m.kn(k)), qn=lambda: nn.RMSNorm(D_HEAD),
                      kn=lambda: nn.RMSNorm(D_HEAD)),
    "relu": weighed(lambda m, q, k: scores(q, k).relu() / k.shape[2]),
    "float32 softmax": weighed(lambda m, q, k: scores(q, k).float().softmax(-1).to(q.dtype)),
    "prefix mask": scored(lambda m, q, k: shut(
        scores(q, k), (distance(k.shape[2]) < 0) & (torch.arange(k.shape[2]) > 2))),
    "band": scored(lambda m, q, k: shut(scores(q, k), distance(k.shape[2]).abs() > 1)),
    "global first token": scored(global_first),
    "positions in queries and keys": layer(positions_in_queries_and_keys, table=parameter(32, D)),
    "interleaved heads": layer(lambda m, x: attend(m, *(
        f(x).unflatten(-1, (D_HEAD, H)).movedim(3, 1) for f in (m.query, m.key, m.value)))),
    "registers": layer(lambda m, x: attend(m, *qkv(m, torch.cat(
        [m.registers.expand(len(x), -1, -1), x], 1)))[:, 2:], registers=parameter(2, D)),
    "fewer keys": layer(fewer_keys, reduce=lambda: nn.Conv1d(D, D, 2, 2)),
    "zero gate": layer(lambda m, x: m.out(merged(F.scaled_dot_product_attention(
        *qkv(m, x))) * m.gate(x)), gate=zero_weight),
    "zero output": weighed(lambda m, q, k: scores(q, k).softmax(-1), out=zero_weight),
    "layer scale": made(lambda m, x: x + m.gamma * m.attention(x), attention=both_ways,
                        gamma=full(1e-6, D)),
    "linear, both ways": layer(linear_attention),
    "latents that are read": made(latents_read, latents=parameter(3, D), read=batch_first,
                                  write=batch_first, norm=norm),
    "online softmax": layer(online_softmax),
}  # fmt: skip
FREE_ONLY: dict[str, Build] = {
    "class token": layer(lambda m, x: attend(m, *qkv(m, torch.cat(
        [m.token.expand(len(x), -1, -1), x], 1))), token=parameter(1, D)),
    "joined values": layer(joined_values, out=linear(32)),
    "fourier": made(lambda m, x: m.out(torch.fft.fft2(x).real), out=linear()),
    "both directions": made(lambda m, x: torch.cat([m.left(x), m.right(x.flip(1)).flip(1)], -1),
                            left=Plain, right=Plain),
}  # fmt: skip
OF_SHAPE = {
    "one sequence": (1, T), "long sequence": (2, 50), "more sequences than tokens": (9, 5),
    "as many tokens as dimensions": (2, D), "as many tokens as heads": (3, H),
    "as many sequences as tokens": (6, 6),
}  # fmt: skip
OF_IDS: dict[str, Build] = {
    "no positions": model(lambda m, ids: m.output(body(m, m.embedding(ids))), table=None),
    "cosines beside sines as buffers": model(
        cos_and_sin_buffers, table=None, cos=lambda: ANGLES.cos(), sin=lambda: ANGLES.sin()),
    "sinusoids with a zero row": model(lambda m, ids: m.output(body(
        m, m.embedding(ids) + m.table[1 : ids.shape[1] + 1])), table=sines_then_cosines),
    "two frozen tables": model(two_frozen_tables, table=None, left=frozen_sines,
                               right=frozen_sines),
    "sinusoids beside the embedding": model(sinusoids_beside, table=None, join=linear(D + 8)),
    "gradient made smaller": model(lambda m, ids: m.output(body(
        m, 0.1 * (y := embedded(m, ids)) + 0.9 * y.detach()))),
    "memory left out": model(optional_memory, cross=batch_first),
    "loss, nll": model(lambda m, ids: F.nll_loss(logits(m, ids)[:, :-1].log_softmax(-1).mT,
                                                 ids[:, 1:])),
    "loss, smoothed": model(lambda m, ids: F.cross_entropy(logits(m, ids)[:, :-1].mT, ids[:, 1:],
                                                           label_smoothing=0.1)),
    "loss, with a penalty": model(with_penalty),
    "loss, in chunks": model(in_chunks),
}  # fmt: skip
SETTINGS = settings({
    **{name: (build, x, CAUSAL) for name, build in OF_CAUSAL.items()},
    **{name: (build, x, {"causal": True}) for name, build in CAUSAL_ONLY.items()},
    **{name: (build, x, FREE) for name, build in OF_FREE.items()},
    **{name: (build, x, {"causal": False}) for name, build in FREE_ONLY.items()},
    **{name: (Plain, shaped(*shape, D), PLAIN) for name, shape in OF_SHAPE.items()},
    **{name: (build, ids, CAUSAL) for name, build in OF_IDS.items()},
    # weights and positions
    "softcap": (SOFTCAP, WIDE, PLAIN),
    "minus 1e9": (scored(lambda m, q, k: past(scores(q, k), -1e9)), x, PLAIN),
    "finfo": (scored(lambda m, q, k: past(scores(q, k), torch.finfo(q.dtype).min)), x, PLAIN),
    "added float": (scored(lambda m, q, k: scores(q, k) + (
        1.0 - (distance(q.shape[2]) >= 0).float()) * -1e4), x, PLAIN),
    "mask again": (weighed(lambda m, q, k: past(past(scores(q, k)).softmax(-1), fill=0)), x, PLAIN),
    "sigmoid": (weighed(lambda m, q, k: past(scores(q, k) - torch.arange(
        1, q.shape[2] + 1)[:, None].log()).sigmoid()), WIDE, CAUSAL),
    "sparsemax": (weighed(sparsemax), x, PLAIN),
    "squared relu": (weighed(squared_relu), WIDE, {**CAUSAL, "position": "none"}),
    "talking heads": (weighed(talking_heads, before=parameter(H, H), after=parameter(H, H)),
                      WIDE, {**CAUSAL, "position": "none"}),
    "backward": (scored(lambda m, q, k: shut(scores(q, k), distance(k.shape[2]) > 0)), WIDE,
                 {**FREE, "scale": SCALE}),
    "alibi, both ways": (scored(lambda m, q, k: scores(q, k) - 2.0 ** (
        -4 * torch.arange(1, H + 1))[:, None, None] * distance(q.shape[2]).abs()), x,
        {**FREE, "position": "alibi"}),
    "learned slopes": (scored(lambda m, q, k: past(
        scores(q, k) - m.slope.exp() * distance(q.shape[2])), slope=SLOPES), x,
        {**CAUSAL, "position": "alibi"}),
    "partial rotary": (scored(lambda m, q, k: past(scores(turned(q, 4), turned(k, 4)))), WIDE,
                       {**PLAIN, "position": "rotary"}),
    "rotary in the second layer": (layer(rotary_in_the_second_layer, first=Plain), WIDE,
                                   {**PLAIN, "position": "rotary"}),
    "turned values": (layer(turned_values), x, {**PLAIN, "position": "relative"}),
    # queries, keys, values and heads
    "multi-query": (grouped(4, 1), x, {"causal": True, "n_heads": 4, "n_kv_heads": 1}),
    "groups tiled": (grouped(4, 2, tiled=True), x,
                     {"causal": True, "n_heads": 4, "n_kv_heads": 2}),
    "one head": (grouped(1, 1), x, {"causal": True, "n_heads": 1}),
    "one projection for all heads": (layer(lambda m, x: attend(m, *(
        f(heads(x)) for f in (m.query, m.key, m.value))), **BY_HEAD), x,
        {"n_heads": H, "shared": ("heads",)}),
    "shared query and key": (layer(lambda m, x: attend(m, *(
        heads(f(x)) for f in (m.query, m.query, m.value)), is_causal=True), key=None), x,
        {**CAUSAL, "shared": ("query", "key")}),
    "reformer": (layer(reformer, key=None), WIDE, {**CAUSAL, "shared": ("query", "key")}),
    "convolved queries, keys, values": (made(lambda m, x: attend(m, *map(
        heads, m.conv(F.pad(m.qkv(x).mT, (2, 0))).mT.chunk(3, -1)), is_causal=True),
        qkv=linear(D, 3 * D), out=linear(),
        conv=lambda: nn.Conv1d(3 * D, 3 * D, 3, groups=3 * D)), WIDE, CAUSAL),
    "differential": (layer(differential, lam=full(0.5)), WIDE, CAUSAL),
    "differential, pairs of heads": (layer(pairs_of_heads, lam=full(0.5)), WIDE,
                                     {"causal": True}),
    "cross-covariance": (layer(covariance), WIDE, FREE),
    "latent, rotary": (layer(latent_rotary, query=linear(D, 10 * H), key=None, value=None,
                             down=linear(D, 16), up=linear(12, 14 * H)), WIDE,
                       {**CAUSAL, "scale": 10**-0.5, "position": "rotary"}),
    "null key": (layer(learned_prefix, prefix=parameter(2, H, 1, D_HEAD), causal=None), WIDE,
                 {**PLAIN, "causal": False}),
    "linformer": (layer(linformer, fewer=linear(T, 3, False)), x, {}),
    "induced": (made(induced, points=parameter(4, 1, D), first=tokens_first,
                     second=tokens_first), shaped(7, 3, D),
                {"n_heads": H, "batch_first": False}),
    "slots": (layer(slots, out=None, slots=parameter(5, D), gru=lambda: nn.GRUCell(D, D)), WIDE,
              {"batch_first": True, "causal": False}),
    "retention": (layer(retention, gate=linear()), WIDE, {**CAUSAL, "scale": SCALE}),
    "time shift": (layer(time_shift, mix=parameter(D)), WIDE,
                   {**CAUSAL, "scale": SCALE, "norm": "pre"}),
    # blocks and other examples
    "rezero": (made(rezero, attention=Plain, mlp=mlp, alpha=full(0.0, 2)), WIDE, PLAIN),
    "weight norm": (made(lambda m, x: x + m.attention(x + m.conv(x.mT).mT), attention=both_ways,
                         conv=lambda: nn.utils.parametrizations.weight_norm(
                             nn.Conv1d(D, D, 3, padding=1))), x, FREE),
    "a picture": (layer(lambda m, x: x + attend(m, *qkv(m, x.flatten(2).mT)).mT.view_as(x)),
                  shaped(2, D, 3, 4), {}),
    "lengths": (layer(lambda m, x, n: attend(m, *qkv(m, x), attn_mask=(
        torch.arange(x.shape[1]) < n[:, None])[:, None, None])), lambda: (
            x(), torch.tensor([6, 4])), FREE),
    "documents": (layer(documents), lambda: (x(), torch.tensor(
        [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])), CAUSAL),
    "double precision": (lambda: Plain().double(), lambda: x().double(), CAUSAL),
    # models and losses
    "for inference alone": (model(torch.inference_mode()(logits)), ids,
                            {"causal": True, "position": "learned"}),
    "shifted inside": (model(lambda m, ids: m.output(body(m, F.pad(
        m.embedding(ids), (0, 0, 1, 0))[:, :-1] + m.table[: ids.shape[1]]))), ids,
        {"causal": True}),
    "the last logits only": (model(lambda m, ids: m.output(body(m, embedded(m, ids))[:, -1])),
                             ids, {}),
    "flat logits": (model(lambda m, ids: logits(m, ids).flatten(0, 1)), ids, {}),
    "masked mean": (model(masked_mean, table=None, attention=both_ways), ids, {"padding_id": 0}),
    "word dropout": (model(lambda m, ids: logits(m, ids.where(
        torch.rand(ids.shape) > 0.15, 1) if m.training else ids)), lambda: ids(3, 9),
        {**LM, "scale": SCALE}),
    "one block twice": (model(one_block_twice, embedding=small, output=None), lambda: ids(3, 9),
                        {**LM, "scale": SCALE, "norm": "pre", "tied": True}),
    "gemma": (model(gemma, embedding=small, table=None, attention=SOFTCAP, norm=None, output=None,
                    mlp=mlp, gain=full(0.0, 5, D)), lambda: ids(3, 9),
              {**PLAIN, "tied": True, "embedding_scale": D**0.5}),
    "captions": (model(captions, attention=both_ways), lambda: (torch.randn(2, 4, D), ids()),
                 {"n_heads": H}),
    "padded translation": (model(padded_translation, encode=both_ways, query=linear(),
                                 key=linear(), value=linear()), lambda: (ids(2, 7), ids()),
                           {"causal": True, "padding_id": 0}),
    "two tokens ahead": (model(two_tokens_ahead, second=linear(D, V)), lambda: ids(3, 9),
                         {**LM, "scale": SCALE}),
    "two tokens ahead, equal weights": (model(one_and_two_tokens_ahead, second=linear(D, V)),
                                        lambda: ids(3, 9), {**LM, "scale": SCALE}),
    "z-loss and smoothing": (made(z_loss), given_logits, {"padding_id": 0}),
    "masked words": (model(lambda m, ids, labels: F.cross_entropy(
        logits(m, ids).mT, labels, ignore_index=-100), attention=both_ways), hidden_words, FREE),
})  # fmt: skip

BUGS = ""
