"""Attentions in several styles of code, each right, and each with bugs that can be planted."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T_MAX = 32


class Separate(nn.Module):
    """Four linear layers, heads by view and transpose, softmax written out."""

    def __init__(self, bug: str = "", *, d=16, heads=2, causal=True, p=0.0, mask=False, kv=None):
        super().__init__()
        self.bug, self.h, self.dh, self.causal, self.p = bug, heads, d // heads, causal, p
        self.kv = kv or heads
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, self.kv * self.dh)
        self.v_proj = nn.Linear(d, self.kv * self.dh)
        self.out_proj = nn.Linear(d, d)
        self.takes_mask = mask
        self.norm = nn.LayerNorm(6) if bug == "norm over tokens" else None
        self.kept = None
        if bug == "shared query and key":
            self.k_proj = self.q_proj

    def split(self, x, h):
        b, t, _ = x.shape
        if self.bug == "split":
            return x.view(b, h, t, self.dh)
        return x.view(b, t, h, self.dh).transpose(1, 2)

    def forward(self, x, mask=None):
        bug = self.bug
        if bug == "in place":
            x += 0.1
        b, t, d = x.shape
        if bug == "key by query projection":
            q, k, v = self.q_proj(x), self.q_proj(x), self.v_proj(x)
        elif bug == "value is key":
            q, k, v = self.q_proj(x), self.k_proj(x), self.k_proj(x)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if bug == "detached":
            k = k.detach()
        if bug == "norm over tokens":
            v = self.norm(v.transpose(1, 2)).transpose(1, 2)
        if bug == "mean over batch":
            v = v - v.mean(0)
        if bug == "centred over tokens":
            v = v - v.mean(1, keepdim=True)
        q, k, v = self.split(q, self.h), self.split(k, self.kv), self.split(v, self.kv)
        if self.kv < self.h:
            g = self.h // self.kv
            if bug == "groups tiled":
                k, v = k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1)
            elif bug == "groups crossed":
                k, v = k.repeat_interleave(g, 1), v.repeat(1, g, 1, 1)
            else:
                k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        if bug == "remembers keys":
            old, self.kept = self.kept, k.detach()
            k = k if old is None or old.shape != k.shape else (k + old) / 2
        scale = {
            "no scale": 1.0,
            "scale of d_model": d**-0.5,
            "scaled twice": 1 / self.dh,
            "times root": self.dh**0.5,
            "scaled after": 1.0,
        }.get(bug, self.dh**-0.5)
        s = q @ k.transpose(-2, -1) * scale
        allowed = torch.ones(t, t, dtype=torch.bool).tril()
        if bug == "off by one":
            allowed = torch.ones(t, t, dtype=torch.bool).tril(1)
        elif bug == "polarity":
            allowed = ~allowed
        elif bug == "transposed mask":
            allowed = allowed.T
        use = self.causal and bug != "no mask"
        if bug == "mask only in training":
            use = use and self.training
        if use:
            if bug == "small fill":
                s = s.masked_fill(~allowed, 1e-9)
            elif bug == "mask added":
                s = s + allowed.float()
            elif bug != "mask after":
                s = s.masked_fill(~allowed, -torch.inf)
        if mask is not None and bug != "mask ignored":
            m = mask[:, None, None, :]
            if bug == "padding polarity":
                m = ~m
            if bug == "padding on queries":
                m = mask[:, None, :, None]
            if bug == "padding small fill":
                s = s.masked_fill(~m, 1e-9)
            elif bug == "padding of another":
                m = mask.repeat(self.h, 1).view(b, self.h, 1, t)
                s = s.masked_fill(~m, -torch.inf)
            else:
                s = s.masked_fill(~m, -torch.inf)
        if bug == "dropout on logits":
            s = F.dropout(s, 0.3, self.training)
        dim = {"softmax over queries": -2, "softmax over heads": 1, "softmax over batch": 0}.get(
            bug, -1
        )
        w = s.softmax(dim)
        if bug == "mask after":
            w = w * allowed
        if bug == "scaled after":
            w = w / self.dh**0.5
        if bug == "dropout in eval":
            w = F.dropout(w, 0.3)
        elif bug != "no dropout":
            p = 1 - self.p if bug == "keep for drop" else self.p
            w = F.dropout(w, p, self.training)
        o = w @ v
        if bug == "values scaled":
            o = o * self.dh**-0.5
        o = o.reshape(b, t, d) if bug == "merge" else o.transpose(1, 2).reshape(b, t, d)
        return o if bug == "no output projection" else self.out_proj(o)


class Fused(nn.Module):
    """One projection for all three, a registered mask, as in nanoGPT."""

    def __init__(self, bug: str = "", *, d=16, heads=2, causal=True, p=0.0, mask=False):
        super().__init__()
        self.bug, self.n_head, self.p, self.causal = bug, heads, p, causal
        self.c_attn = nn.Linear(d, 3 * d, bias=False)
        self.c_proj = nn.Linear(d, d, bias=False)
        diagonal = 1 if bug == "off by one" else 0
        self.register_buffer("bias", torch.tril(torch.ones(T_MAX, T_MAX), diagonal)[None, None])
        self.takes_mask = mask
        self.attn_dropout = nn.Dropout(p)
        self.bn = nn.BatchNorm1d(d) if bug == "batch norm" else None
        self.memory = None

    def forward(self, x, key_padding_mask=None):
        B, T, C = x.size()  # noqa: N806
        bug = self.bug
        if bug == "in place":
            x.mul_(1.1)
        if bug == "batch as tokens":
            x = x.transpose(0, 1).contiguous()
            B, T = T, B  # noqa: N806
        qkv = self.c_attn(x)
        if bug == "mean over batch":
            qkv = qkv / qkv.std(0, keepdim=True)
        if bug == "norm over tokens":
            qkv = F.layer_norm(qkv, qkv.shape[1:])
        q, k, v = qkv.split(C, dim=2)
        if bug == "key by query projection":
            k = q
        if bug == "value is key":
            v = k
        if bug == "detached":
            v = v.data
        if bug == "split":
            q, k, v = (y.reshape(B, self.n_head, T, C // self.n_head) for y in (q, k, v))
        elif bug == "heads attend":
            q, k, v = (y.view(B, T, self.n_head, C // self.n_head) for y in (q, k, v))
        else:
            q, k, v = (
                y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v)
            )
        root = math.sqrt(k.size(-1))
        if bug == "scale of d_model":
            root = math.sqrt(C)
        att = q @ k.transpose(-2, -1)
        if bug == "times root":
            att = att * root
        elif bug not in ("no scale", "scaled after"):
            att = att / root
        if bug == "scaled twice":
            att = att / root
        if bug == "heads attend":
            att = att.softmax(-1)
            y = (att @ v).reshape(B, T, C)
            return self.c_proj(y)
        low = self.bias[:, :, :T, :T]
        if self.causal and not (bug == "mask only in training" and not self.training):
            if bug == "polarity":
                att = att.masked_fill(low == 1, float("-inf"))
            elif bug == "small fill":
                att = att.masked_fill(low == 0, -1.0)
            elif bug == "mask added":
                att = att + (low == 0)
            elif bug not in ("no mask", "mask after"):
                att = att.masked_fill(low == 0, float("-inf"))
        if key_padding_mask is not None and bug != "mask ignored":  # True = blocked
            blocked = key_padding_mask
            if bug == "padding polarity":
                blocked = ~blocked
            if bug == "padding on queries":
                att = att.masked_fill(blocked[:, None, :, None], -1e9)
            elif bug == "padding small fill":
                att = att.masked_fill(blocked[:, None, None, :], 0.0)
            elif bug == "padding of another":
                att = att.view(B * self.n_head, T, T)
                att = att.masked_fill(blocked.repeat(self.n_head, 1)[:, None], float("-inf"))
                att = att.view(B, self.n_head, T, T)
            else:
                att = att.masked_fill(blocked[:, None, None, :], float("-inf"))
        if bug == "dropout on logits":
            att = self.attn_dropout(att)
        axis = {"softmax over queries": 2, "softmax over heads": 1, "softmax over batch": 0}.get(
            bug, 3
        )
        att = F.softmax(att, dim=axis)
        if bug == "mask after":
            att = att.masked_fill(low == 0, 0.0)
        if bug == "scaled after":
            att = att / root
        if bug == "dropout in eval":
            att = F.dropout(att, 0.1)
        elif bug not in ("dropout on logits", "no dropout"):
            att = self.attn_dropout(att)
        y = att @ v
        if bug == "merge":
            y = y.contiguous().view(B, T, C)
        else:
            y = y.transpose(1, 2).contiguous().view(B, T, C)
        if bug == "batch norm":
            y = self.bn(y.transpose(1, 2)).transpose(1, 2)
        if bug == "no output projection":
            return y
        y = self.c_proj(y)
        if bug == "remembers keys":
            y = y + (self.memory if self.memory is not None and self.memory.shape == y.shape else 0)
            self.memory = y.detach()
        return y.transpose(0, 1) if bug == "batch as tokens" else y


class Einsum(nn.Module):
    """Weights with a head axis, einsum, an added mask."""

    def __init__(self, bug: str = "", *, d=16, heads=2, causal=True, p=0.0, mask=False):
        super().__init__()
        self.bug, self.h, self.k, self.causal, self.p = bug, heads, d // heads, causal, p
        self.wq, self.wk, self.wv = (
            nn.Parameter(torch.randn(heads, d, self.k) * d**-0.5) for _ in "qkv"
        )
        self.wo = nn.Parameter(torch.randn(heads, self.k, d) * d**-0.5)
        self.takes_mask = mask

    def forward(self, x, mask=None):
        bug, t = self.bug, x.shape[1]
        q = torch.einsum("btd,hdk->bhtk", x, self.wq)
        k = torch.einsum(
            "btd,hdk->bhtk", x, self.wq if bug == "key by query projection" else self.wk
        )
        v = torch.einsum("btd,hdk->bhtk", x, self.wk if bug == "value is key" else self.wv)
        if bug == "scaled before as well":
            q = q * self.k**-0.5
        if bug == "mean over batch":
            k = k - k.mean(0, keepdim=True)
        if bug == "centred over tokens":
            q = q - q.mean(2, keepdim=True)
        if bug == "detached":
            with torch.no_grad():
                v = torch.einsum("btd,hdk->bhtk", x, self.wv)
        logits = torch.einsum("bhqk,bhsk->bhqs", q, k)
        factor = {
            "no scale": 1,
            "scale of d_model": x.shape[-1] ** -0.5,
            "scaled twice": 1 / self.k,
            "times root": self.k**0.5,
            "scaled after": 1,
        }.get(bug, self.k**-0.5)
        logits = logits * factor
        added = torch.full((t, t), -torch.inf).triu(0 if bug == "strict" else 1)
        if bug == "off by one":
            added = torch.full((t, t), -torch.inf).triu(2)
        if bug == "polarity":
            added = torch.full((t, t), -torch.inf).tril(-1)
        if bug == "small fill":
            added = torch.full((t, t), -1.0).triu(1)
        if (
            self.causal
            and bug != "no mask"
            and not (bug == "mask only in training" and not self.training)
        ):
            logits = logits + added
        if mask is not None and bug != "mask ignored":  # 0 and -inf
            if bug == "padding on queries":
                logits = logits + mask.clamp(min=-1e9)[:, None, :, None]
            elif bug == "mask added":
                logits = logits + (mask == 0)[:, None, None, :]
            elif bug == "padding of another":
                logits = logits + mask.flip(0)[:, None, None, :]
            else:
                logits = logits + mask[:, None, None, :]
        axis = {"softmax over queries": "q", "softmax over heads": "h", "softmax over batch": "b"}
        w = logits.softmax("bhqs".index(axis.get(bug, "s")))
        if bug == "scaled after":
            w = w * self.k**-0.5
        if bug == "dropout in eval":
            w = F.dropout(w, 0.2, training=True)
        elif bug != "no dropout":
            w = F.dropout(w, self.p, self.training)
        if bug == "transposed weights":
            o = torch.einsum("bhqs,bhqk->bhsk", w, v)
        else:
            o = torch.einsum("bhqs,bhsk->bhqk", w, v)
        if bug == "values scaled":
            o = o / self.k**0.5
        if bug == "merge":
            o = o.reshape(x.shape[0], t, -1)
            return o @ self.wo.flatten(0, 1)
        return torch.einsum("bhqk,hkd->bqd", o, self.wo)


class Head(nn.Module):
    """One head of :class:`PerHead`."""

    def __init__(self, bug, d, k, causal, p):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d, k, bias=False) for _ in "qkv")
        self.bug, self.causal, self.d, self.p = bug, causal, d, p

    def forward(self, x, mask):
        t, bug = x.shape[1], self.bug
        q = self.query(x)
        k = self.query(x) if bug == "key by query projection" else self.key(x)
        v = self.key(x) if bug == "value is key" else self.value(x)
        if bug == "detached":
            q = q.detach()
        size = {
            "no scale": 1,
            "scale of d_model": self.d**0.5,
            "scaled twice": k.shape[-1],
            "times root": k.shape[-1] ** -0.5,
            "scaled after": 1,
        }.get(bug, k.shape[-1] ** 0.5)
        s = torch.bmm(q, k.mT) / size
        now = self.training or bug != "mask only in training"
        if self.causal and now and bug not in ("no mask", "mask after"):
            late = torch.triu(torch.ones(t, t), diagonal=2 if bug == "off by one" else 1).bool()
            late = ~late if bug == "polarity" else late
            s = s.masked_fill(late, 1e-9 if bug == "small fill" else float("-inf"))
        if mask is not None and bug != "mask ignored":
            m = mask.unsqueeze(2) if bug == "padding on queries" else mask.unsqueeze(1)
            m = 1 - m if bug == "padding polarity" else m
            s = s.masked_fill(m == 0, -1e-9 if bug == "padding small fill" else -1e9)
        if bug == "dropout on logits":
            s = F.dropout(s, 0.2, self.training)
        w = torch.softmax(
            s, dim=1 if bug == "softmax over queries" else 0 if bug == "softmax over batch" else 2
        )
        if bug == "mask after":
            w = torch.tril(w)
        if bug == "scaled after":
            w = w / k.shape[-1] ** 0.5
        if bug == "dropout in eval":
            w = nn.Dropout(0.1)(w)  # made anew: always in training
        elif bug != "no dropout":
            w = F.dropout(w, self.p, self.training)
        return torch.bmm(w, v)


class PerHead(nn.Module):
    """A list of heads, concatenated."""

    def __init__(self, bug: str = "", *, d=16, heads=2, causal=True, p=0.0, mask=False):
        super().__init__()
        made = [Head(bug, d, d // heads, causal, p) for _ in range(heads)]
        self.heads = made if bug == "not registered" else nn.ModuleList(made)
        self.proj = nn.Linear(d, d)
        self.bug, self.takes_mask = bug, mask

    def forward(self, x, mask=None):
        outs = [head(x, mask) for head in self.heads]
        if self.bug == "one head only":
            outs = [outs[0] for _ in outs]
        if self.bug == "merge":
            b, t, _ = x.shape
            y = torch.stack(outs, 1).view(b, t, -1)
        else:
            y = torch.cat(outs, dim=-1)
        return y if self.bug == "no output projection" else self.proj(y)


class Functional(nn.Module):
    """F.linear and torch's fused kernel."""

    def __init__(self, bug: str = "", *, d=16, heads=2, causal=True, p=0.0, mask=False):
        super().__init__()
        self.bug, self.h, self.causal, self.p = bug, heads, causal, p
        self.w = nn.Parameter(torch.randn(3, d, d) * d**-0.5)
        self.o = nn.Parameter(torch.randn(d, d) * d**-0.5)
        self.b = nn.Parameter(torch.zeros(d))
        self.takes_mask = mask

    def forward(self, x, mask=None):
        bug, (b, t, d) = self.bug, x.shape
        q, k, v = (F.linear(x, w) for w in self.w)
        if bug == "key by query projection":
            k = F.linear(x, self.w[0])
        if bug == "value is key":
            v = F.linear(x, self.w[1])
        if bug == "split":
            q, k, v = (y.view(b, self.h, t, -1) for y in (q, k, v))
        elif bug == "heads attend":
            q, k, v = (y.unflatten(-1, (self.h, -1)) for y in (q, k, v))
        else:
            q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in (q, k, v))
        if bug == "scaled twice":
            q = q * q.shape[-1] ** -0.5
        if bug == "times root":
            q = q * q.shape[-1]
        scale = {"no scale": 1.0, "scale of d_model": d**-0.5}.get(bug)
        allowed = torch.ones(t, t, dtype=torch.bool).tril() if self.causal else None
        if bug == "polarity":
            allowed = torch.ones(t, t, dtype=torch.bool).triu()
        if bug == "mask added":
            allowed = torch.ones(t, t).tril()
        if bug == "off by one":
            allowed = torch.ones(t, t, dtype=torch.bool).tril(1)
        if mask is not None and bug != "mask ignored":
            m = ~mask if bug == "padding polarity" else mask
            m = m[:, None, :, None] if bug == "padding on queries" else m[:, None, None, :]
            if bug == "padding of another":
                m = mask.roll(1, 0)[:, None, None, :]
            allowed = m if allowed is None else allowed & m
        if bug == "no mask" or (bug == "mask only in training" and not self.training):
            allowed = None
        if bug == "heads attend":
            allowed = None
        p = self.p if self.training or bug == "dropout in eval" else 0.0
        p = 0.0 if bug == "no dropout" else p
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=p, scale=scale)
        y = y.reshape(b, t, d) if bug in ("merge", "heads attend") else y.transpose(1, 2).flatten(2)
        return y if bug == "no output projection" else F.linear(y, self.o, self.b)


STYLES: dict[str, Callable[..., nn.Module]] = {
    "separate": Separate,
    "fused": Fused,
    "einsum": Einsum,
    "per head": PerHead,
    "functional": Functional,
}


def rotate(x: Tensor, t: Tensor, bug: str = "", pairing: str = "half") -> Tensor:
    """Rotary positions, (…, tokens, d)."""
    d = x.shape[-1]
    angle = t[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)  # (tokens, d / 2)
    if bug == "mixed pairing":
        cos, sin = (f(angle).repeat_interleave(2, -1) for f in (torch.cos, torch.sin))
    elif pairing == "half":
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    else:
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    turned = torch.cat([b, -a] if bug == "one sign" else [-b, a], -1)
    if bug == "one sign":
        turned = torch.cat([b, a], -1)
    return x * cos + turned * sin


class Positioned(nn.Module):
    """Attention with rotary positions, ALiBi, a window, a relative bias; with a cache."""

    def __init__(
        self,
        bug: str = "",
        *,
        kind="rotary",
        pairing="half",
        d=16,
        heads=2,
        window=None,
        causal=True,
    ):
        super().__init__()
        self.bug, self.kind, self.pairing, self.h, self.window = bug, kind, pairing, heads, window
        self.causal = causal
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        if kind == "relative":
            self.relative = nn.Embedding(2 * T_MAX, heads)

    def forward(self, x, cache=None):
        bug, (b, t, d) = self.bug, x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        past = 0 if cache is None else cache[0].shape[2]
        at = torch.arange(0 if bug == "restarts" else past, (0 if bug == "restarts" else past) + t)
        if self.kind == "rotary" and bug != "forgotten":

            def turn(y):
                if bug == "over heads":
                    return rotate(y.transpose(1, 2), torch.arange(self.h)).transpose(1, 2)
                return rotate(y, at, bug, self.pairing)

            q = turn(q)
            k = k if bug == "query only" else turn(k)
            v = turn(v) if bug == "values too" else v
        if cache is not None and bug != "cache ignored":
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        n = k.shape[2]
        i, j = torch.arange(n - t, n)[:, None], torch.arange(n)[None]
        s = q @ k.mT * (d // self.h) ** -0.5
        if self.kind == "alibi" and bug != "forgotten":
            slope = 2.0 ** (-4 * torch.arange(1, self.h + 1))[:, None, None]
            slope = slope[:1] if bug == "one slope" else slope
            s = s + slope * (i - j).abs() * (1 if bug == "sign" else -1)
        if self.kind == "relative" and bug != "forgotten":
            index = (i + j if bug == "sum" else i - j) + T_MAX
            s = s + self.relative(index).permute(2, 0, 1)
        allowed = j <= i if self.causal else torch.ones(t, n, dtype=torch.bool)
        if bug == "chunk mask" and t > 1 and past:
            allowed = torch.ones(t, n, dtype=torch.bool)
        if bug == "start mask" and t > 1 and past:
            allowed = torch.ones(t, n, dtype=torch.bool).tril()
        if self.window:
            width = self.window + (1 if bug == "window + 1" else -1 if bug == "window - 1" else 0)
            allowed = allowed & (i - j < width)
        y = s.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
        y = self.o(y.transpose(1, 2).flatten(2))
        return y if cache is None else (y, (k, v))

    @staticmethod
    def step(module, new, state):
        """One call with the cache."""
        if state is None:
            b, d = new.shape[0], new.shape[-1] // module.h
            state = (torch.empty(b, module.h, 0, d), torch.empty(b, module.h, 0, d))
        return module(new, cache=state)


def sinusoids(bug: str, n: int, d: int) -> Tensor:
    """The table of Vaswani et al."""
    t, i = torch.arange(n)[:, None], torch.arange(0, d, 2)[None]
    angle = t / 100.0 ** (i / d)
    table = torch.zeros(n, d)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.sin() if bug == "sines only" else angle.cos()
    if bug == "other exponent":
        table[:, 1::2] = (t / 100.0 ** ((i + 1) / d)).cos()
    if bug == "wrong product":
        table[:, 1::2] = (t * 100.0 ** (i / d)).cos()
    return table


class Block(nn.Module):
    """Pre-norm block around any attention."""

    def __init__(self, attention, d=16, bug=""):
        super().__init__()
        self.attention, self.bug = attention, bug
        shape = (6, d) if bug == "norm over tokens" else d
        self.norm1, self.norm2 = nn.LayerNorm(shape), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        if bug == "looking convolution":
            self.conv = nn.Conv1d(d, d, 3, padding=1)

    def forward(self, x, **kw):
        x = x + self.attention(self.norm1(x), **kw)
        if self.bug == "looking convolution":
            x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        if self.bug == "pooled":
            x = x + x.mean(1, keepdim=True)
        if self.bug == "norm not used":
            return x + self.mlp(x)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A language model of two blocks."""

    def __init__(
        self,
        bug="",
        style="fused",
        attention_bug="",
        *,
        v=23,
        d=16,
        position="learned",
        tied=False,
        padding_id=None,
        p=0.0,
        causal=True,
    ):
        super().__init__()
        self.bug, self.position, self.padding_id, self.causal = bug, position, padding_id, causal
        self.wte = nn.Embedding(v, d)
        nn.init.normal_(self.wte.weight, std=0.2)
        if position == "sinusoidal":
            self.register_buffer("position_table", sinusoids(bug, T_MAX, d))
        elif bug == "batch positions":
            self.wpe = nn.Embedding(T_MAX, d)
        else:
            self.wpe = nn.Embedding(T_MAX, d)
        make = STYLES[style]
        one = bug in ("first layer unmasked",)
        blocks = [
            Block(
                make(
                    "no mask" if one and i == 0 else attention_bug,
                    d=d,
                    p=p,
                    causal=causal,
                    mask=padding_id is not None,
                ),
                d,
                bug if i == 1 else "",
            )
            for i in range(2)
        ]
        self.blocks = blocks if bug == "plain list" else nn.ModuleList(blocks)
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        self.drop = nn.Dropout(p)
        if tied and bug == "copied":
            self.head.weight = nn.Parameter(self.wte.weight.detach().clone())
        elif tied and bug != "not tied":
            self.head.weight = self.wte.weight

    def forward(self, ids):
        b, t = ids.shape
        x = self.wte(ids)
        if self.position == "sinusoidal":
            x = x + self.position_table[:t]
        elif self.bug == "batch positions":
            x = x + self.wpe(torch.arange(b))[:, None]
        elif self.bug == "one position":
            x = x + self.wpe(torch.tensor(t - 1))
        elif self.bug != "no positions":
            x = x + self.wpe(torch.arange(t))
        x = self.drop(x)
        kw = {}
        if self.padding_id is not None and self.bug != "padding attended":
            kw = {"mask": ids != self.padding_id}
            if self.bug == "padding inverted":
                kw = {"mask": ids == self.padding_id}
        blocks = list(self.blocks)
        if self.bug == "layer skipped":
            blocks = blocks[:-1]
        for block in blocks:
            if self.bug == "input forgotten":
                block(x, **kw)
            else:
                x = block(x, **kw)
        if self.bug == "shifted input":
            x = torch.roll(x, -1, 1)
        return self.head(self.ln_f(x))


class Loss(nn.Module):
    """A step of training: ids, or ids and targets, → loss."""

    def __init__(
        self,
        bug="",
        *,
        way="ids",
        padding_id=None,
        style="fused",
        loss="cross_entropy",
        attention_bug="",
    ):
        super().__init__()
        self.model = Decoder(style=style, attention_bug=attention_bug)
        self.bug, self.way, self.padding_id, self.loss = bug, way, padding_id, loss

    def forward(self, ids, targets=None):
        bug = self.bug
        if self.way == "ids":
            logits = self.model(ids)
            if bug == "no shift":
                targets = ids
            elif bug == "twice":
                logits, targets = logits[:, :-2], ids[:, 2:]
            elif bug == "backwards":
                logits, targets = logits[:, 1:], ids[:, :-1]
            else:
                logits, targets = logits[:, :-1], ids[:, 1:]
        else:
            logits = self.model(ids)
            if bug == "twice":
                logits, targets = logits[:, :-1], targets[:, 1:]
            if bug == "no shift":
                targets = ids
        if bug == "softmax first":
            logits = logits.softmax(-1)
        v = logits.shape[-1]
        targets = targets.reshape(-1)
        flat = logits.transpose(1, 2).reshape(-1, v) if bug == "reshaped" else logits.reshape(-1, v)
        ignore = (
            {"ignore_index": self.padding_id}
            if self.padding_id is not None and bug != "padding counts"
            else {}
        )
        if bug == "nll of logits":
            return F.nll_loss(flat, targets, **ignore)
        if self.loss == "nll":
            return F.nll_loss(flat.log_softmax(-1), targets, **ignore)
        return F.cross_entropy(flat, targets, **ignore)
