"""More right but unusual designs; those of `unusual` are not repeated."""

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.doctor.unusual import CAUSAL, FREE, D, Design, H, ids, two, x

V, T = 23, 6
D_HEAD = D // H


def causal_mask(t: int) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


def heads(y: Tensor) -> Tensor:
    return y.unflatten(-1, (H, -1)).transpose(1, 2)


def merged(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


class Made(nn.Module):
    """Four projections and further parts, used by a function."""

    def __init__(self, use: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in "qkv")
        self.out = nn.Linear(D, D)
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self.use(self, *inputs, **more)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return heads(self.query(x)), heads(self.key(x)), heads(self.value(x))


class Plain(nn.Module):
    """The usual causal attention, to build with."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(D, 3 * D), nn.Linear(D, D), causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (heads(y) for y in self.qkv(x).chunk(3, -1))
        allowed = causal_mask(x.shape[1]) if self.causal else None
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))


# Other weights.


def by_weights(make: Callable[[Made, Tensor, Tensor], Tensor], **parts: Any) -> Callable[[], Made]:
    """Attention whose weights are what a function makes of queries and keys."""

    def use(m: Made, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x)
        return m.out(merged(make(m, q, k) @ v))

    return lambda: Made(use, **{k: v() for k, v in parts.items()})


def logits(q: Tensor, k: Tensor, *, causal: bool = True) -> Tensor:
    s = q @ k.mT * D_HEAD**-0.5
    return s.masked_fill(~causal_mask(s.shape[-1]), -torch.inf) if causal else s


def sparsemax(_: Made, q: Tensor, k: Tensor) -> Tensor:
    s = logits(q, k).clamp(min=-1e4)
    ordered = s.sort(-1, descending=True)[0]
    total = ordered.cumsum(-1)
    count = torch.arange(1, s.shape[-1] + 1)
    size = (1 + count * ordered > total).sum(-1, keepdim=True)
    return (s - (total.gather(-1, size - 1) - 1) / size).clamp(min=0)


def largest_three(_: Made, q: Tensor, k: Tensor) -> Tensor:
    s = logits(q, k)
    least = s.topk(3, -1)[0][..., -1:]
    return s.masked_fill(s < least, -torch.inf).softmax(-1)


def clipped_softmax(_: Made, q: Tensor, k: Tensor) -> Tensor:
    return (logits(q, k).softmax(-1) * 1.04 - 0.02).clamp(0, 1)


def squared_relu(_: Made, q: Tensor, k: Tensor) -> Tensor:
    s = logits(q, k).clamp(min=0).square()
    return s / (s.sum(-1, keepdim=True) + 1e-6)


def powers_of_two(_: Made, q: Tensor, k: Tensor) -> Tensor:
    e = torch.exp2((logits(q, k) * math.log2(math.e)).clamp(min=-1e4))
    return e / e.sum(-1, keepdim=True)


def masked_exponentials(_: Made, q: Tensor, k: Tensor) -> Tensor:
    e = logits(q, k, causal=False).exp() * causal_mask(q.shape[-2])
    return e / e.sum(-1, keepdim=True)


def masked_and_divided(_: Made, q: Tensor, k: Tensor) -> Tensor:
    w = logits(q, k, causal=False).softmax(-1) * causal_mask(q.shape[-2])
    return w / w.sum(-1, keepdim=True)


def additive(m: Made, q: Tensor, k: Tensor) -> Tensor:
    s = m.score(torch.tanh(q[:, :, :, None] + k[:, :, None])).squeeze(-1)
    return s.masked_fill(~causal_mask(s.shape[-1]), -torch.inf).softmax(-1)


def windows_of_heads(_: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    near = (i[:, None] - i)[None] < torch.tensor([2, 99])[:, None, None]
    return logits(q, k).masked_fill(~near, -torch.inf).softmax(-1)


def blocks_of_three(_: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2]) // 3
    return logits(q, k).masked_fill(i[:, None] != i, -torch.inf).softmax(-1)


def global_first(_: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    open_ = ((i[:, None] - i).abs() < 2) | (i[:, None] == 0) | (i == 0)
    return logits(q, k, causal=False).masked_fill(~open_, -torch.inf).softmax(-1)


def forgetting(m: Made, q: Tensor, k: Tensor) -> Tensor:
    decay = F.logsigmoid(m.forget(merged(k))).transpose(1, 2).cumsum(-1)
    return (logits(q, k) + decay[..., None] - decay[..., None, :]).softmax(-1)


def stick_breaking(_: Made, q: Tensor, k: Tensor) -> Tensor:
    s = logits(q, k, causal=False).masked_fill(~causal_mask(q.shape[-2]), -1e4)
    stay = F.logsigmoid(-s)
    later = stay.flip(-1).cumsum(-1).flip(-1) - stay
    return (F.logsigmoid(s) + later).exp()


# Other positions.


def learned_distance(m: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    keys = m.distance((i[:, None] - i).clamp(-3, 3) + 3)  # (queries, keys, d_head)
    s = logits(q, k) + torch.einsum("bhqd,qkd->bhqk", q, keys) * D_HEAD**-0.5
    return s.softmax(-1)


def two_biases(m: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    far = m.distance((i[:, None] - i).clamp(-3, 3) + 3)
    s = (q + m.u) @ k.mT + torch.einsum("bhqd,qkd->bhqk", q + m.v, far)
    return (s * D_HEAD**-0.5).masked_fill(~causal_mask(len(i)), -torch.inf).softmax(-1)


def learned_slopes(m: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    return (logits(q, k) - m.slope.exp() * (i[:, None] - i)).softmax(-1)


def logarithmic(m: Made, q: Tensor, k: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    return (logits(q, k) - m.slope.exp() * (i[:, None] - i).abs().add(1).log()).softmax(-1)


def contextual(m: Made, q: Tensor, k: Tensor) -> Tensor:
    s = logits(q, k)
    gates = s.sigmoid()
    place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=T - 1)
    table = q @ m.table
    low, high = place.floor().long(), place.ceil().long()
    part = place - low
    return (s + table.gather(-1, high) * part + table.gather(-1, low) * (1 - part)).softmax(-1)


def turned(x: Tensor, n: int = D_HEAD, sign: int = 1) -> Tensor:
    """The first n numbers are turned in pairs (i, i + n/2)."""
    angle = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(0, n, 2) / n)
    cos, sin = angle.cos(), sign * angle.sin()
    a, b, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def partial_rotary(_: Made, q: Tensor, k: Tensor) -> Tensor:
    return logits(turned(q, 4), turned(k, 4)).softmax(-1)


def rotary_with_decay(_: Made, q: Tensor, k: Tensor) -> Tensor:
    t = torch.arange(q.shape[-2])[:, None] - 3
    return logits(turned(q) * 0.9**t, turned(k) * 0.9**-t).softmax(-1)


def turned_values(m: Made, x: Tensor) -> Tensor:
    q, k, v = (turned(y) for y in m.qkv(x))
    return m.out(merged(turned(logits(q, k).softmax(-1) @ v, sign=-1)))


def positions_in_queries_and_keys(m: Made, x: Tensor) -> Tensor:
    y = x + m.table[: x.shape[1]]
    q, k, v = heads(m.query(y)), heads(m.key(y)), heads(m.value(x))
    return m.out(merged(F.scaled_dot_product_attention(q, k, v)))


# Other ways to the same: recurrences, loops, memories.


def retention(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    i = torch.arange(x.shape[1])
    decay = torch.tensor([0.9, 0.8])[:, None, None] ** (i[:, None] - i).clamp(min=0)
    y = (q @ k.mT * D_HEAD**-0.5 * decay.tril()) @ v
    return m.out(m.norm(merged(y).flatten(0, 1)).view_as(x) * F.silu(m.gate(x)))


def running_sums(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    q, k = q.softmax(-1), k.exp()
    total = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
    y = torch.einsum("bhtd,bhtde->bhte", q, total)
    return m.out(merged(y / (q * k.cumsum(2)).sum(-1, keepdim=True)))


def delta_rule(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    k, rate = F.normalize(k, dim=-1), m.rate(x).sigmoid().transpose(1, 2)
    state, outs = x.new_zeros(len(x), H, D_HEAD, D_HEAD), []
    for t in range(x.shape[1]):
        now = k[:, :, t, None]
        change = rate[:, :, t, None, None] * (v[:, :, t, None] - now @ state)
        state = state + now.mT @ change
        outs.append((q[:, :, t, None] @ state).squeeze(2))
    return m.out(merged(torch.stack(outs, 2)))


def time_shift(m: Made, x: Tensor) -> Tensor:
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    mixed = x + (before - x) * m.mix
    q, k, v = m.qkv(mixed)
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def token_by_token(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    outs = [
        F.scaled_dot_product_attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        for t in range(x.shape[1])
    ]
    return m.out(merged(torch.cat(outs, 2)))


def online_softmax(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    top, total, y = q.new_full((*q.shape[:3], 1), -1e9), 0.0, 0.0
    for keys, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
        s = q @ keys.mT * D_HEAD**-0.5
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        e, old = (s - new).exp(), (top - new).exp()
        top, total, y = new, total * old + e.sum(-1, keepdim=True), y * old + e @ values
    return m.out(merged(y / total))


def head_after_head(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    outs = [logits(q[:, h], k[:, h]).softmax(-1) @ v[:, h] for h in range(H)]
    return sum(o @ m.out.weight.T[h * D_HEAD :][:D_HEAD] for h, o in enumerate(outs)) + m.out.bias


def latent(m: Made, x: Tensor) -> Tensor:
    shared = m.down(x)  # what would be cached
    q, (k, v) = heads(m.query(x)), (heads(y) for y in m.up(shared).chunk(2, -1))
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def head_gates(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.out(merged(y * m.gates[:, None, None]))


def learned_prefix(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    k, v = (
        torch.cat([p.expand(len(x), -1, -1, -1), y], 2)
        for p, y in zip(m.prefix, (k, v), strict=True)
    )
    open_ = F.pad(causal_mask(x.shape[1]), (3, 0), value=True)
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=open_)))


def registers(m: Made, x: Tensor) -> Tensor:
    y = torch.cat([m.registers.expand(len(x), -1, -1), x], 1)
    q, k, v = m.qkv(y)
    return m.out(merged(F.scaled_dot_product_attention(q, k, v)))[:, 2:]


def class_token(m: Made, x: Tensor) -> Tensor:
    y = torch.cat([m.token.expand(len(x), -1, -1), x], 1)
    q, k, v = m.qkv(y)
    return m.out(merged(F.scaled_dot_product_attention(q, k, v)))


def latents_read(m: Made, x: Tensor) -> Tensor:
    q = heads(m.query(m.latents.expand(len(x), -1, -1)))
    y = F.scaled_dot_product_attention(q, heads(m.key(x)), heads(m.value(x)))
    return m.out(merged(y))


def induced(m: Made, x: Tensor) -> Tensor:
    few = latents_read(m, x)
    y = F.scaled_dot_product_attention(heads(m.query(x)), heads(m.key(few)), heads(m.value(few)))
    return m.out(merged(y))


def fewer_keys(m: Made, x: Tensor) -> Tensor:
    short = m.reduce(x.mT).mT
    q, k, v = heads(m.query(x)), heads(m.key(short)), heads(m.value(short))
    return m.out(merged(F.scaled_dot_product_attention(q, k, v)))


def dense_synthesizer(m: Made, x: Tensor) -> Tensor:
    s = m.score(F.relu(m.query(x)))[..., : x.shape[1]]
    w = s.masked_fill(~causal_mask(x.shape[1]), -torch.inf).softmax(-1)
    return m.out(w @ m.value(x))


def attention_free(m: Made, x: Tensor) -> Tensor:
    e, t = m.key(x).exp(), x.shape[1]
    w = m.pairs[:t, :t].exp() * causal_mask(t)
    return m.out(m.query(x).sigmoid() * (w @ (e * m.value(x))) / (w @ e))


def long_convolution(m: Made, x: Tensor) -> Tensor:
    t = x.shape[1]
    k = torch.fft.rfft(m.filter[:, :t], 2 * t)
    y = torch.fft.irfft(torch.fft.rfft(m.value(x).mT, 2 * t) * k, 2 * t)[..., :t].mT
    return m.out(m.query(x) * y)


def fourier(m: Made, x: Tensor) -> Tensor:
    return m.out(torch.fft.fft2(x).real)


def both_directions(m: Made, x: Tensor) -> Tensor:
    return torch.cat([m.left(x), m.right(x.flip(1)).flip(1)], -1)


def named(m: Made, x: Tensor) -> Any:
    q, k, v = m.qkv(x)
    w = logits(q, k).softmax(-1)
    return namedtuple("Output", "out weights")(m.out(merged(w @ v)), w)


def by_lengths(m: Made, x: Tensor, lengths: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    open_ = torch.arange(x.shape[1]) < lengths[:, None]
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=open_[:, None, None])))


def documents(m: Made, x: Tensor, segment: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    same = (segment[:, :, None] == segment[:, None]) & causal_mask(x.shape[1])
    return m.out(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=same[:, None])))


def channels_first(m: Made, x: Tensor) -> Tensor:
    y = x.mT
    q, k, v = m.qkv(y)
    return x + m.out(merged(F.scaled_dot_product_attention(q, k, v))).mT


def picture(m: Made, x: Tensor) -> Tensor:
    y = x.flatten(2).mT  # (batch, pixels, channels)
    q, k, v = m.qkv(y)
    return x + m.out(merged(F.scaled_dot_product_attention(q, k, v))).mT.view_as(x)


# Blocks and models.


def shared_layers(m: Made, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + m.attention(m.norm(x))
    return x


def value_residual(m: Made, x: Tensor) -> Tensor:
    q, k, first = m.qkv(x)
    x = x + m.out(merged(F.scaled_dot_product_attention(q, k, first, is_causal=True)))
    q, k, v = (heads(y) for y in m.second(x).chunk(3, -1))
    y = F.scaled_dot_product_attention(q, k, 0.5 * (v + first), is_causal=True)
    return x + m.out2(merged(y))


def second_reads_first(m: Made, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x)
    x = x + m.out(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    y = F.scaled_dot_product_attention(heads(m.query2(x)), k, v, is_causal=True)
    return x + m.out2(merged(y))


def rezero(m: Made, x: Tensor) -> Tensor:
    x = x + m.alpha[0] * m.attention(x)
    return x + m.alpha[1] * m.mlp(x)


def centred_gain(m: Made, x: Tensor) -> Tensor:
    return x + (1 + m.gain) * m.attention(x)


def norms_around(m: Made, x: Tensor) -> Tensor:
    x = x + m.norms[1](m.attention(m.norms[0](x)))
    return x + m.norms[3](m.mlp(m.norms[2](x)))


def reversible(m: Made, x: Tensor) -> Tensor:
    a, b = x, x
    a = a + m.attention(m.norms[0](b))
    b = b + m.mlp(m.norms[1](a))
    return (a + b) / 2


def streams(m: Made, x: Tensor) -> Tensor:
    s = torch.stack([x, x])  # two residual streams
    read = (m.read.softmax(0)[:, None, None, None] * s).sum(0)
    s = torch.einsum("ij,jbtd->ibtd", m.mix, s) + m.write[:, None, None, None] * m.attention(read)
    return s.sum(0)


def highway(m: Made, x: Tensor) -> Tensor:
    gate = m.gate(x).sigmoid()
    return gate * m.attention(x) + (1 - gate) * x


def experts(m: Made, x: Tensor) -> Tensor:
    x = x + m.attention(x)
    share, chosen = m.router(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        out = out + ((chosen == i) * share).sum(-1, keepdim=True) * expert(x)
    return x + out


def unchosen_experts(m: Made, x: Tensor) -> Tensor:
    x = x + m.attention(x)
    score, chosen = m.router(x).softmax(-1).max(-1, keepdim=True)
    every = torch.einsum("btd,nde->bnte", x, m.weights).movedim(1, 2)  # (batch, tokens, n, d)
    one = every.gather(2, chosen[..., None].expand(-1, -1, 1, D)).squeeze(2)
    return x + score * one


def stochastic_depth(m: Made, x: Tensor) -> Tensor:
    kept = torch.rand(len(x), 1, 1) > 0.3 if m.training else torch.ones(1)
    return x + m.attention(x) * kept / (0.7 if m.training else 1.0)


def low_rank(m: Made, x: Tensor) -> Tensor:
    return x + m.attention(x + (x @ m.a) @ m.b)


def with_low_rank() -> Made:
    made = Made(
        low_rank, attention=Plain(), a=nn.Parameter(torch.randn(D, 2)), b=nn.Parameter(zeros(2, D))
    )
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name in ("a", "b"))
    for name in ("query", "key", "value", "out"):
        delattr(made, name)
    return made


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def block(use: Callable[..., Any], **parts: Any) -> Callable[[], Made]:
    """A block about an attention of its own; without the four projections."""

    def make() -> Made:
        made = Made(use, **{k: v() for k, v in parts.items()})
        for name in ("query", "key", "value", "out"):
            delattr(made, name)
        return made

    return make


def made(use: Callable[..., Any], without: str = "", **parts: Any) -> Callable[[], Made]:
    def make() -> Made:
        module = Made(use, **{k: v() for k, v in parts.items()})
        for name in without.split():
            delattr(module, name)
        return module

    return make


def parameter(*shape: int, scale: float = 1.0) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(scale * torch.randn(*shape))


def norms(n: int) -> Callable[[], nn.ModuleList]:
    return lambda: nn.ModuleList(nn.LayerNorm(D) for _ in range(n))


class Model(nn.Module):
    """Ids → logits, one causal layer; a function makes positions, another the output."""

    def __init__(self, use: Callable[..., Any], causal: bool = True, **parts: Any) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(V, D), Plain(causal)
        self.norm, self.output = nn.LayerNorm(D), nn.Linear(D, V)
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def body(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x))

    def forward(self, *inputs: Any) -> Any:
        return self.use(self, *inputs)


def model(use: Callable[..., Any], causal: bool = True, **parts: Any) -> Callable[[], Model]:
    return lambda: Model(use, causal, **{k: v() for k, v in parts.items()})


def cos_and_sin_buffers() -> Model:
    def use(m: Model, ids: Tensor) -> Tensor:
        x = m.embedding(ids)
        t = x.shape[1]
        q, k, v = (heads(y) for y in m.attention.qkv(x).chunk(3, -1))

        def turn(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * m.cos[:t] + torch.cat([-b, a], -1) * m.sin[:t]

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        return m.output(m.norm(x + m.attention.out(merged(y))))

    made = Model(use)
    half = 10_000.0 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)
    angle = torch.arange(32)[:, None] * torch.cat([half, half])
    made.register_buffer("cos", angle.cos())
    made.register_buffer("sin", angle.sin())
    return made


def sinusoids_with_zero_row() -> Model:
    """Sines beside cosines; position 0 is the padding's."""
    made = Model(lambda m, ids: m.output(m.body(m.embedding(ids) + m.table[1 : ids.shape[1] + 1])))
    rate = torch.exp(-torch.arange(D // 2) * math.log(1e4) / (D // 2 - 1))
    angle = torch.arange(32)[:, None] * rate
    table = torch.cat([angle.sin(), angle.cos()], -1)
    table[0] = 0
    made.register_buffer("table", table)
    return made


def sinusoids_beside(m: Model, ids: Tensor) -> Tensor:
    t = torch.arange(ids.shape[1])[:, None]
    angle = t * 100.0 ** (-torch.arange(4) / 4)
    extra = torch.cat([angle.sin(), angle.cos()], -1).expand(len(ids), -1, -1)
    return m.output(m.body(m.join(torch.cat([m.embedding(ids), extra], -1))))


def shifted_inside(m: Model, ids: Tensor) -> Tensor:
    x = F.pad(m.embedding(ids), (0, 0, 1, 0))[:, :-1]
    return m.output(m.body(x + m.table[: ids.shape[1]]))


def last_logits_only(m: Model, ids: Tensor) -> Tensor:
    return m.output(m.body(m.embedding(ids) + m.table[: ids.shape[1]])[:, -1])


def masked_mean(m: Model, ids: Tensor) -> Tensor:
    real = ids != 0
    x = m.embedding(ids)
    y = m.norm(x + m.attention(x, real[:, None, None]))
    return m.output((y * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def flat_logits(m: Model, ids: Tensor) -> Tensor:
    return m.output(m.body(m.embedding(ids) + m.table[: ids.shape[1]])).flatten(0, 1)


def next_two(m: Model, ids: Tensor) -> Tensor:
    y = m.body(m.embedding(ids) + m.table[: ids.shape[1]])
    one = F.cross_entropy(m.output(y)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    two_on = F.cross_entropy(m.second(y)[:, :-2].flatten(0, 1), ids[:, 2:].flatten())
    return one + 0.3 * two_on


def smoothed(m: Model, ids: Tensor) -> Tensor:
    y = m.output(m.body(m.embedding(ids) + m.table[: ids.shape[1]]))
    return F.cross_entropy(y[:, :-1].mT, ids[:, 1:], label_smoothing=0.1)


def with_penalty(m: Model, ids: Tensor) -> Tensor:
    y = m.output(m.body(m.embedding(ids) + m.table[: ids.shape[1]]))[:, :-1].flatten(0, 1)
    return F.cross_entropy(y, ids[:, 1:].flatten()) + 1e-4 * y.logsumexp(-1).square().mean()


def in_chunks(m: Model, ids: Tensor) -> Tensor:
    y = m.body(m.embedding(ids) + m.table[: ids.shape[1]])[:, :-1].flatten(0, 1)
    pieces = zip(y.split(4), ids[:, 1:].flatten().split(4), strict=True)
    return sum(F.cross_entropy(m.output(a), b, reduction="sum") for a, b in pieces) / len(y)


def gathered(m: Model, ids: Tensor) -> Tensor:
    y = m.output(m.body(m.embedding(ids) + m.table[: ids.shape[1]]))
    log = y.log_softmax(-1)[:, :-1]
    return -log.gather(-1, ids[:, 1:, None]).mean()


def padded_translation(m: Model, source: Tensor, target: Tensor) -> Tensor:
    real = (source != 0)[:, None, None]
    memory = m.embedding(source) + m.table[: source.shape[1]]
    memory = memory + m.encode(memory, real)
    y = m.embedding(target) + m.table[: target.shape[1]]
    y = y + m.attention(y, (target != 0)[:, None, None])
    q, k, v = heads(m.query(y)), heads(m.key(memory)), heads(m.value(memory))
    y = y + merged(F.scaled_dot_product_attention(q, k, v, attn_mask=real))
    return m.output(m.norm(y))


def optional_memory(m: Model, ids: Tensor, memory: Tensor | None = None) -> Tensor:
    y = m.body(m.embedding(ids) + m.table[: ids.shape[1]])
    if memory is not None:
        y = y + m.cross(y, memory, memory)[0]
    return m.output(y)


def lengths() -> tuple[Any, ...]:
    return torch.randn(2, T, D), torch.tensor([6, 4])


def segments() -> tuple[Any, ...]:
    return torch.randn(2, T, D), torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])


def linear(n: int, m: int, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(n, m, bias=bias)


def positions() -> Callable[[], nn.Parameter]:
    return parameter(32, D)


CAUSAL_WEIGHTS: dict[str, Callable[[], Any]] = {
    "sparsemax": by_weights(sparsemax),
    "the three largest": by_weights(largest_three),
    "clipped softmax": by_weights(clipped_softmax),
    "squared relu": by_weights(squared_relu),
    "powers of two": by_weights(powers_of_two),
    "masked exponentials": by_weights(masked_exponentials),
    "masked, then divided": by_weights(masked_and_divided),
    "additive attention": by_weights(additive, score=linear(D_HEAD, 1)),
    "windows of heads": by_weights(windows_of_heads),
    "blocks of three": by_weights(blocks_of_three),
    "forgetting": by_weights(forgetting, forget=linear(D, H)),
    "stick breaking": by_weights(stick_breaking),
    "learned distance": by_weights(learned_distance, distance=lambda: nn.Embedding(7, D_HEAD)),
    "two biases": by_weights(
        two_biases,
        distance=lambda: nn.Embedding(7, D_HEAD),
        u=parameter(H, 1, D_HEAD),
        v=parameter(H, 1, D_HEAD),
    ),
    "logarithmic bias": by_weights(logarithmic, slope=parameter(H, 1, 1)),
    "contextual positions": by_weights(contextual, table=parameter(D_HEAD, T)),
    "rotary with decay": by_weights(rotary_with_decay),
    "retention": made(retention, norm=lambda: nn.GroupNorm(H, D), gate=linear(D, D)),
    "running sums": made(running_sums),
    "delta rule": made(delta_rule, rate=linear(D, H)),
    "time shift": made(time_shift, mix=parameter(D)),
    "token by token": made(token_by_token),
    "head after head": made(head_after_head),
    "latent keys and values": made(latent, "key value", down=linear(D, 4), up=linear(4, 2 * D)),
    "gates of heads": made(head_gates, gates=lambda: nn.Parameter(torch.ones(H))),
    "learned prefix": made(learned_prefix, prefix=parameter(2, H, 3, D_HEAD)),
    "dense synthesizer": made(dense_synthesizer, "key", score=linear(D, T)),
    "attention free": made(attention_free, pairs=parameter(T, T)),
    "long convolution": made(long_convolution, "key", filter=parameter(D, T)),
    "value residual": made(value_residual, second=linear(D, 3 * D), out2=linear(D, D)),
    "keys of the first layer": made(second_reads_first, query2=linear(D, D), out2=linear(D, D)),
    "shared layers": block(shared_layers, attention=Plain, norm=lambda: nn.LayerNorm(D)),
    "ReZero": block(rezero, attention=Plain, mlp=mlp, alpha=lambda: nn.Parameter(torch.zeros(2))),
    "zero-centred gain": block(
        centred_gain, attention=Plain, gain=lambda: nn.Parameter(-torch.ones(D))
    ),
    "norms around": block(norms_around, attention=Plain, mlp=mlp, norms=norms(4)),
    "reversible": block(reversible, attention=Plain, mlp=mlp, norms=norms(2)),
    "two streams": block(
        streams,
        attention=Plain,
        read=parameter(2),
        write=parameter(2),
        mix=lambda: nn.Parameter(torch.eye(2) + 0.1),
    ),
    "highway": block(highway, attention=Plain, gate=linear(D, D)),
    "two experts of three": block(
        experts,
        attention=Plain,
        router=linear(D, 3),
        experts=lambda: nn.ModuleList(mlp() for _ in range(3)),
    ),
    "experts that nobody chose": block(
        unchosen_experts, attention=Plain, router=linear(D, 8), weights=parameter(8, D, D)
    ),
    "stochastic depth": block(stochastic_depth, attention=Plain),
    "low rank, frozen": with_low_rank,
    "named tuple": made(named),
}
FREE_WEIGHTS: dict[str, Callable[[], Any]] = {
    "global first token": by_weights(global_first),
    "positions in queries and keys": made(positions_in_queries_and_keys, table=positions()),
    "online softmax": made(online_softmax),
    "registers": made(registers, registers=parameter(2, D)),
    "class token": made(class_token, token=parameter(1, D)),
    "fewer keys": made(fewer_keys, reduce=lambda: nn.Conv1d(D, D, 2, 2)),
    "Fourier": made(fourier, "query key value"),
    "both directions": block(both_directions, left=Plain, right=Plain),
}
MORE: tuple[Design, ...] = (
    *(Design(name, make, x, {"causal": True}) for name, make in CAUSAL_WEIGHTS.items()),
    *(Design(name, make, x, {"causal": False}) for name, make in FREE_WEIGHTS.items()),
    Design(
        "learned slopes",
        by_weights(learned_slopes, slope=parameter(H, 1, 1)),
        x,
        {**CAUSAL, "position": "alibi"},
    ),
    Design("partial rotary", by_weights(partial_rotary), x, {**CAUSAL, "position": "rotary"}),
    Design("turned values", made(turned_values), x, {**CAUSAL, "position": "relative"}),
    Design("latents read", made(latents_read, latents=parameter(3, D)), x, {}),
    Design("induced points", made(induced, latents=parameter(3, D)), x, FREE),
    Design("lengths", made(by_lengths), lengths, {"causal": False}),
    Design("documents", made(documents), segments, {"causal": True}),
    Design("channels first", made(channels_first), lambda: (torch.randn(2, D, T),), {}),
    Design("a picture", made(picture), lambda: (torch.randn(2, D, 3, 4),), {}),
    Design(
        "added bias and zero attention",
        lambda: nn.MultiheadAttention(D, H, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        lambda: x() * 3,
        {"causal": False},
    ),
    Design(
        "other widths of keys and values",
        lambda: nn.MultiheadAttention(D, H, kdim=10, vdim=12, batch_first=True),
        lambda: (torch.randn(2, 6, D), torch.randn(2, 5, 10), torch.randn(2, 5, 12)),
        {},
    ),
    Design("double precision", lambda: Plain().double(), lambda: (x()[0].double(),), CAUSAL),
    Design("one sequence", Plain, lambda: (torch.randn(1, T, D),), CAUSAL),
    Design("long sequence", Plain, lambda: (torch.randn(2, 50, D),), CAUSAL),
    Design("more sequences than tokens", Plain, lambda: (torch.randn(9, 5, D),), CAUSAL),
    Design("as many tokens as dimensions", Plain, lambda: (torch.randn(2, D, D),), CAUSAL),
    Design("as many tokens as heads", Plain, lambda: (torch.randn(3, H, D),), CAUSAL),
    Design("as many sequences as tokens", Plain, lambda: (torch.randn(6, 6, D),), CAUSAL),
    Design("cosines beside sines as buffers", cos_and_sin_buffers, ids, {"causal": True}),
    Design("sinusoids with a zero row", sinusoids_with_zero_row, ids, {"causal": True}),
    Design(
        "sinusoids beside the embedding",
        model(sinusoids_beside, join=linear(D + 8, D)),
        ids,
        {"causal": True},
    ),
    Design("shifted inside", model(shifted_inside, table=positions()), ids, {"causal": True}),
    Design("the last logits only", model(last_logits_only, table=positions()), ids, {}),
    Design("masked mean", model(masked_mean, causal=False), ids, {"padding_id": 0}),
    Design("flat logits", model(flat_logits, table=positions()), ids, {}),
    Design(
        "the next two tokens",
        model(next_two, table=positions(), second=linear(D, V)),
        ids,
        {"causal": True},
    ),
    *(
        Design(f"loss: {name}", model(use, table=positions()), ids, {"causal": True})
        for name, use in (
            ("smoothed", smoothed),
            ("with a penalty", with_penalty),
            ("in chunks", in_chunks),
            ("gathered", gathered),
        )
    ),
    Design(
        "padded translation",
        model(
            padded_translation,
            table=positions(),
            encode=lambda: Plain(causal=False),
            query=linear(D, D),
            key=linear(D, D),
            value=linear(D, D),
        ),
        two,
        {"causal": True, "padding_id": 0},
    ),
    Design(
        "memory left out",
        model(
            optional_memory,
            table=positions(),
            cross=lambda: nn.MultiheadAttention(D, H, batch_first=True),
        ),
        ids,
        {"causal": True},
    ),
)
