# ruff: noqa: N803, N806 (written as people write it)
"""Planted bugs of all families that the doctor's authors have not read: it is scored by them.

Whoever mends the doctor for one of them has opened the file: it is a held-out set like the others
then, and people who have not seen the doctor write a new one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
SCALE = "1/sqrt(d_head)"


@dataclass(frozen=True)
class Unseen:
    """A bug, with the right twin; ``bare``: an expert would be sure of it without any claim."""

    name: str
    family: str
    make: Callable[[int, bool], Made]
    causes: tuple[str, ...]
    bare: bool


class Planted(nn.Module):
    def __init__(self, bug: str = "", **options: Any):
        super().__init__()
        self.bug = bug
        self.setup(**options)


def same(shape: tuple[int, ...]) -> torch.Generator:
    """For the same example, whatever the module has drawn."""
    return torch.Generator().manual_seed(torch.initial_seed() + sum(shape))


def vec(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=same(shape))


def ids(n: int, *shape: int) -> Tensor:
    return torch.randint(1, n, shape, generator=same(shape))


def real(n: int, *lengths: int) -> Tensor:
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def split(x: Tensor, n: int) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class CausalSelfAttention(Planted):  # nanoGPT
    def setup(self, d, heads, p):
        self.c_attn, self.c_proj, self.n_head = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.register_buffer("bias", torch.ones(64, 64).tril()[None, None])

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        d_k = k.size(2) if self.bug == "length" else k.size(3)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(d_k)
        seen = self.bias[:, :, :T, :T]
        if self.bug == "added":
            y = F.softmax(att + seen, dim=-1) @ v
        elif self.bug == "after":
            y = F.softmax(att, dim=-1).masked_fill(seen == 0, 0.0) @ v
        else:
            y = F.softmax(att.masked_fill(seen == 0, float("-inf")), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class NanoGPT(Planted):
    def setup(self):
        self.wte, self.wpe = nn.Embedding(31, 48), nn.Embedding(64, 48)
        block = {"d": 48, "heads": 4, "p": 0.0, "attention": CausalSelfAttention}
        self.h = nn.ModuleList(PlainLayer(self.bug, **block) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(48), nn.Linear(48, 31, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        if self.bug == "untied":
            self.lm_head.weight.data.copy_(self.wte.weight.data)
        else:
            self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        out = x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            out = block(x if self.bug == "last" else out)
        return self.lm_head(self.ln_f(out))


@dataclass
class EncoderConfig:  # Hugging Face-like, around nn.MultiheadAttention
    vocab_size: int = 29
    hidden_size: int = 36
    num_attention_heads: int = 3
    hidden_dropout_prob: float = 0.0


@dataclass
class EncoderOutput:
    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


class EncoderLayer(Planted):
    def setup(self, config):
        d, self.p, self.kept = config.hidden_size, config.hidden_dropout_prob, {}
        self.attention = nn.MultiheadAttention(d, config.num_attention_heads, batch_first=True)
        self.intermediate, self.output = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.dropout = nn.Dropout(self.p)

    def forward(self, h, attention_mask):
        n, blocked = self.attention.num_heads, attention_mask == 0
        if self.bug == "polarity":
            a, _ = self.attention(h, h, h, key_padding_mask=attention_mask.bool())
        else:
            if self.bug == "kept":
                blocked = self.kept.setdefault(blocked.shape, blocked)
            blocked = blocked[:, None, :].expand(-1, h.shape[1], -1)
            if self.bug == "repeat":
                blocked = blocked.repeat(n, 1, 1)
            else:
                blocked = blocked.repeat_interleave(n, dim=0)
            a, _ = self.attention(h, h, h, attn_mask=blocked, need_weights=False)
        a = nn.Dropout(self.p)(a) if self.bug == "new" else self.dropout(a)
        h = self.norm1(h + a)
        return self.norm2(h + self.dropout(self.output(F.gelu(self.intermediate(h)))))


class TextEncoder(Planted):
    def setup(self, p=0.0):
        config = EncoderConfig(hidden_dropout_prob=p)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(40, config.hidden_size)
        self.layers = nn.ModuleList(EncoderLayer(self.bug, config=config) for _ in "ab")

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = [self.word_embeddings(input_ids) + self.position_embeddings(positions)]
        for layer in self.layers:
            states.append(layer(states[-1], attention_mask))
        return EncoderOutput(states[-1], tuple(states))


class LocalAttention(Planted):  # audio: a block of frames attends to itself and the one before
    def setup(self, dim=24, heads=2, size=4):
        self.heads, self.size = heads, size
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        w = self.size
        qkv = self.to_qkv(F.pad(x, (0, 0, 0, -t % w)))
        q, k, v = qkv.view(b, -1, w, 3, self.heads, c // self.heads).permute(3, 0, 1, 4, 2, 5)
        k, v = (torch.cat([y.roll(1, dims=1), y], dim=-2) for y in (k, v))
        i, j = torch.arange(w)[:, None] + w, torch.arange(2 * w)[None]
        allowed = (j <= i).expand(q.shape[1], w, 2 * w).clone()
        if self.bug != "wrap":
            allowed[0, :, :w] = False  # before the first block is nothing
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[None, :, None])
        return self.to_out(y.permute(0, 1, 3, 2, 4).reshape(b, -1, c)[:, :t])


class PromptDecoder(Planted):  # prompts padded left or right, with einsum
    def setup(self, vocab=37, d=32, heads=4, layers=2):
        self.h = heads
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(48, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers + 1))
        self.head = nn.Linear(d, vocab)

    def forward(self, tokens, mask=None):
        b, t = tokens.shape
        keep = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        counted = torch.ones_like(keep) if self.bug == "arange" else keep
        position = (counted.long().cumsum(-1) - 1).clamp(min=0)
        causal = torch.ones(t, t, dtype=torch.bool).tril()[None]
        keep = keep[:, :, None] if self.bug == "rows" else keep[:, None, :]
        allowed = causal | keep if self.bug == "or" else causal & keep
        x = self.tok(tokens) + self.pos(position)
        for qkv, out, norm in zip(self.qkv, self.out, self.norm, strict=False):
            q, k, v = qkv(norm(x)).view(b, t, 3, self.h, -1).unbind(2)
            s = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            s = s.masked_fill(~allowed[:, None], torch.finfo(s.dtype).min)
            x = x + out(torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).flatten(2))
        return self.head(self.norm[-1](x))


class PlainAttention(Planted):
    def setup(self, d, heads, p):
        self.heads, self.p = heads, p
        self.scaling = (d if self.bug == "width" else d // heads) ** -0.5
        self.q_proj, self.k_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.v_proj, self.out_proj = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        query = split(self.q_proj(x), self.heads) * self.scaling
        key, value = (split(f(x), self.heads) for f in (self.k_proj, self.v_proj))
        if self.training:
            weights = torch.softmax(query @ key.transpose(2, 3), dim=-1)
            out = F.dropout(weights, 0.0 if self.bug == "no dropout" else self.p) @ value
        else:
            scale = None if self.bug == "eval path" else 1.0  # the query is scaled already
            p = self.p if self.bug == "eval" else 0.0
            out = F.scaled_dot_product_attention(query, key, value, dropout_p=p, scale=scale)
        out = out if self.bug == "merge" else out.transpose(1, 2)
        return self.out_proj(out.reshape(x.shape))


class PlainLayer(Planted):
    def setup(self, d, heads, p, attention=PlainAttention):
        self.attn = attention(self.bug, d=d, heads=heads, p=p)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        a = self.attn(self.n1(x))
        x = a if self.bug == "no residual" else x + a
        return x + self.ff((self.n1 if self.bug == "norm" else self.n2)(x))


class ViT(Planted):  # class token and patches
    def setup(self, p=0.0, d=48):
        self.patch = nn.Conv2d(3, d, 2, stride=2)
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.5)
        self.pos = nn.Parameter(torch.randn(1, 24, d) * 0.5)
        self.blocks = nn.Sequential(*(PlainLayer(self.bug, d=d, heads=4, p=p) for _ in "ab"))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, img):
        x = self.patch(img).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        n = x.shape[1]
        x = x + (self.pos[:, n] if self.bug == "one" else self.pos[:, :n])
        return self.head(self.norm(self.blocks(x))[:, 0])


class UNetAttention(Planted):  # pixels, with einsum
    def setup(self, channels=16, n_heads=3, d_k=8):
        self.n_heads, self.d_k = n_heads, d_k
        self.norm = nn.GroupNorm(4, channels)
        self.projection = nn.Linear(channels, n_heads * d_k * 3)
        self.output = nn.Linear(n_heads * d_k, channels)

    def forward(self, x):
        b, c, height, width = x.shape
        y = self.norm(x).view(b, c, -1).permute(0, 2, 1)
        q, k, v = self.projection(y).view(b, -1, self.n_heads, 3 * self.d_k).chunk(3, dim=-1)
        pattern = "bihd,bjgd->bijh" if self.bug == "sum" else "bihd,bjhd->bijh"
        attn = torch.einsum(pattern, q, k) * self.d_k**-0.5
        attn = attn.softmax(dim=1 if self.bug == "queries" else 2)
        res = torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, -1, self.n_heads * self.d_k)
        return x + self.output(res).permute(0, 2, 1).view(b, c, height, width)


class SetBlock(Planted):  # heads beside the batch, as in early code
    def setup(self, d=30, n=3):
        self.n = n
        self.fc_q, self.fc_k, self.fc_v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.fc_o = nn.Linear(d, d)

    def heads(self, x):
        if self.bug == "view":
            return x.view(x.size(0) * self.n, -1, x.size(2) // self.n)
        return torch.cat(x.split(x.size(2) // self.n, dim=2), dim=0)  # (heads * batch, tokens, d)

    def forward(self, queries, keys):
        B, T, C = queries.shape
        Q, K, V = self.heads(self.fc_q(queries)), self.heads(self.fc_k(keys)), self.fc_v(keys)
        V = self.fc_v(queries) if self.bug == "value" else V
        S, root = Q @ K.transpose(1, 2), math.sqrt(Q.size(2))
        S = S * root if self.bug == "times" else S / root
        over = (1, 2) if self.bug == "all" else 2
        E = torch.exp(S - S.amax(over, keepdim=True))
        A = E / E.sum(over, keepdim=True)
        out = A @ self.heads(V)
        if self.bug == "view":
            out = out.view(B, T, C)
        elif self.bug == "order":
            out = out.view(B, self.n, T, -1).permute(0, 2, 1, 3).reshape(B, T, C)
        else:
            out = torch.cat(out.split(B, dim=0), dim=2)
        return queries + F.relu(self.fc_o(out))


class SliceHead(Planted):
    def setup(self, size):
        self.key, self.query, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))

    def forward(self, x):
        k = self.query(x) if self.bug == "query" else self.key(x)
        w = self.query(x) @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return w.masked_fill(later, float("-inf")).softmax(-1) @ self.value(x)


class SlicedHeads(Planted):  # each head has its own part of the channels
    def setup(self, d=36, n=3):
        self.size = d // n
        self.heads = nn.ModuleList(SliceHead(self.bug, size=self.size) for _ in range(n))
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        starts = [0 if self.bug == "first" else i * self.size for i in range(len(self.heads))]
        parts = [h(x[..., i : i + self.size]) for h, i in zip(self.heads, starts, strict=True)]
        return self.proj(torch.cat(parts, dim=-1))


class LlamaLayer(Planted):  # grouped heads, rotary, SwiGLU, a cache
    def setup(self, dim=48, n_heads=4, n_kv_heads=2):
        self.n_heads, self.n_kv, self.hd = n_heads, n_kv_heads, dim // n_heads
        kv = n_kv_heads * self.hd
        sizes = {"wq": (dim, dim), "wo": (dim, dim), "wk": (dim, kv), "wv": (dim, kv)}
        for name, size in {**sizes, "w1": (dim, 64), "w3": (dim, 64), "w2": (64, dim)}.items():
            setattr(self, name, nn.Linear(*size, bias=False))
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)

    def rope(self, x, start):
        n = x.shape[2] if self.bug == "by head" else x.shape[1]
        inv = 10000.0 ** -(torch.arange(0, self.hd, 2).float() / self.hd)
        angle = torch.outer(torch.arange(start, start + n).float(), inv)
        pairs = self.bug == "pairs"
        angle = angle.repeat_interleave(2, -1) if pairs else torch.cat((angle, angle), dim=-1)
        angle = angle if self.bug == "by head" else angle[:, None]
        a, b = x.chunk(2, dim=-1)
        return (x * angle.cos() + torch.cat((-b, a), dim=-1) * angle.sin()).to(x.dtype)

    def attention(self, x, past):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.hd)
        k, v = (w(x).view(B, T, self.n_kv, self.hd) for w in (self.wk, self.wv))
        n_past = 0 if past is None else past[0].shape[1]
        start = 0 if self.bug == "restart" else n_past
        q = self.rope(q, start)
        if self.bug not in ("query only", "again"):
            k = self.rope(k, start)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        if self.bug == "again":
            k = self.rope(k, 0)
        state = (k, v)
        if self.bug == "twice":
            q = q * self.hd**-0.5
        r = self.n_heads // self.n_kv
        if self.bug == "tile":
            k, v = k.repeat(1, 1, r, 1), v.repeat(1, 1, r, 1)
        else:
            k, v = k.repeat_interleave(r, dim=2), v.repeat_interleave(r, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.bug == "top left":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        else:
            mask = torch.ones(T, k.shape[2], dtype=torch.bool).tril(n_past)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(merge(y)), state

    def forward(self, x, past=None):
        h = self.attention_norm(x)
        a, state = self.attention(h, past)
        x = h + a if self.bug == "normed" else x + a
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h)), state


class BiasedAttention(Planted):  # ALiBi or T5
    def setup(self, kind, d=32, heads=4):
        self.kind, self.heads = kind, heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        if kind == "t5":
            self.relative_attention_bias = nn.Embedding(8, heads)

    def bias(self, T):
        distance = torch.arange(T)[:, None] - torch.arange(T)[None]
        distance = -distance if self.bug == "sign" else distance
        if self.kind == "alibi":
            slopes = 2.0 ** (-8.0 / self.heads * torch.arange(1, self.heads + 1))
            return -slopes[:, None, None] * distance
        n = distance.clamp(min=0)
        large = 4 + (n.float().clamp(min=1) / 4).log() / math.log(16 / 4) * 4
        buckets = torch.where(n < 4, n, large.long().clamp(max=7))
        return self.relative_attention_bias(buckets).permute(2, 0, 1)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (split(f(x), self.heads) for f in (self.q, self.k, self.v))
        scale = 1.0 if self.kind == "t5" else q.shape[-1] ** -0.5
        future = torch.full((T, T), float("-inf")).triu(1)
        return self.o(merge(torch.softmax(q @ k.mT * scale + self.bias(T) + future, dim=-1) @ v))


class SeriesModel(Planted):  # (batch, channels, time)
    def setup(self, channels=5, d=24, heads=3):
        self.heads = heads
        self.embed, self.out = nn.Linear(channels, d), nn.Linear(d, 6)
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.softmax = nn.Softmax(dim=1 if self.bug == "heads" else -1)

    def forward(self, series):
        B, C, T = series.shape
        x = series.reshape(B, T, C) if self.bug == "reshape" else series.permute(0, 2, 1)
        x = self.embed(x)
        q, k, v = (split(f(x), self.heads) for f in (self.q, self.k, self.v))
        w = self.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1)))
        return self.out(x + merge(torch.matmul(w, v)))


class SensorNet(Planted):  # torch's own layers
    def setup(self, sensors=4, d=24):
        self.project, self.head = nn.Linear(sensors, d), nn.Linear(d, 2)
        layer = nn.TransformerEncoderLayer(
            d, 3, dim_feedforward=32, dropout=0.0, batch_first=self.bug != "batch"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        angle = torch.arange(100)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        pe = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        self.register_buffer("pe", pe[:, None])  # (positions, 1, d)

    def forward(self, x):
        n = x.size(0) if self.bug == "pe" else x.size(1)
        pe = self.pe[:n] if self.bug == "pe" else self.pe[:n].transpose(0, 1)
        return self.head(self.encoder(self.project(x) + pe))


class StreamingMixer(Planted):  # functional, tokens first inside
    def setup(self, d=32):
        self.qkv, self.out, self.d = nn.Linear(d, 3 * d), nn.Linear(d, d), d

    def forward(self, x):
        y = F.layer_norm(x, x.shape[1:] if self.bug == "time" else x.shape[2:]).transpose(0, 1)
        later = torch.ones(len(y), len(y), dtype=torch.bool).triu(1)
        weights = (self.qkv.weight, self.qkv.bias, None, None, False, 0.0, *self.out.parameters())
        y, _ = F.multi_head_attention_forward(y, y, y, self.d, 4, *weights, attn_mask=later)
        return x + y.transpose(0, 1)


class FrameEncoder(Planted):
    def setup(self, p=0.0, d=40, heads=4):
        layers = [PlainLayer(self.bug, d=d, heads=heads, p=p) for _ in range(2)]
        self.layers = layers if self.bug == "list" else nn.ModuleList(layers)
        self.norm, self.d = nn.LayerNorm(d), d

    def forward(self, frames):
        root = self.d**0.5
        frames = frames.mul_(root) if self.bug == "in place" else frames * root
        for layer in self.layers:
            frames = layer(frames)
        return {"features": self.norm(frames)}


class Translator(Planted):
    def setup(self, vocab=33, d=32, heads=4):
        self.src_emb, self.tgt_emb, self.pos = (nn.Embedding(n, d) for n in (vocab, vocab, 48))
        sizes = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True}
        layer = nn.TransformerEncoderLayer(d, heads, **sizes)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, heads, **sizes), 2)
        self.head = nn.Linear(d, vocab)

    def forward(self, src, tgt, src_mask):
        s = self.src_emb(src) + self.pos.weight[: src.size(1)]
        t = self.tgt_emb(tgt) + self.pos.weight[: tgt.size(1)]
        memory = self.encoder(s, src_key_padding_mask=~src_mask)
        later = torch.ones(t.size(1), t.size(1), dtype=torch.bool).triu(1)
        out = self.decoder(
            t,
            s if self.bug == "embeddings" else memory,
            tgt_mask=None if self.bug == "open" else later,
            memory_key_padding_mask=None if self.bug == "memory" else ~src_mask,
        )
        return self.head(out)


class LMLoss(Planted):
    def setup(self, ignored=-100):
        self.model, self.ignored = NanoGPT(), -100 if self.bug == "padding" else ignored

    def forward(self, input_ids, labels):
        logits = self.model(input_ids)
        predicted, wanted = logits[:, :-1], labels[:, 1:]
        if self.bug == "unshifted":
            predicted, wanted = logits, labels
        elif self.bug == "backwards":
            predicted, wanted = logits[:, 1:], labels[:, :-1]
        loss = F.cross_entropy(predicted.flatten(0, 1), wanted.flatten(), ignore_index=self.ignored)
        return {"loss": loss, "logits": logits}


class Lightning(Planted):  # a training step
    def setup(self):
        self.model = NanoGPT()

    def forward(self, batch):
        logits, y = self.model(batch[:, :-1]), batch[:, 1:]
        if self.bug == "softmax":
            logits = logits.softmax(dim=-1)
        if self.bug == "scrambled":  # classes second, as cross_entropy likes them, then flattened
            logits = logits.transpose(1, 2)
        return F.cross_entropy(logits.reshape(-1, 31), y.reshape(-1))


class Odd(Planted):  # right, like all below
    def setup(self, kind, d=32, heads=4):
        self.kind, self.heads = kind, heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        extra = {"talking": torch.eye(4) + 0.3 * torch.randn(4, 4), "rezero": torch.zeros(d)}
        if kind in (*extra, "difference"):
            self.extra = nn.Parameter(extra.get(kind, torch.full((4, 1, 1), 0.4)))

    def rotated(self, x):  # the first half of each head only, neighbours as pairs
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(0, half, 2) / half)
        a, b = x[..., :half:2], x[..., 1:half:2]
        turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])
        return torch.cat([turned.movedim(0, -1).flatten(-2), x[..., half:]], dim=-1)

    def forward(self, x):
        y = F.layer_norm(x, x.shape[-1:])
        if self.kind == "token shift":  # half of the channels come from the token before
            y = torch.cat([F.pad(y[:, :-1, :16], (0, 0, 1, 0)), y[..., 16:]], dim=-1)
        q, k, v = (split(z, self.heads) for z in self.qkv(y).chunk(3, dim=-1))
        if self.kind == "partial rotary":
            q, k = self.rotated(q), self.rotated(k)
        if self.kind == "squared relu":
            return x + self.out(merge((q @ k.mT / 8**0.5).relu().square() @ v / x.shape[1]))
        if self.kind == "talking":
            s = torch.einsum("bhqk,hg->bgqk", q @ k.mT / 8**0.5, self.extra)
            return x + self.out(merge(torch.einsum("bhqk,hg->bgqk", s.softmax(-1), self.extra) @ v))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.kind == "difference":  # of two softmaxes, each from half of the head
            a, b = (
                (m @ n.mT / 2).masked_fill(later, float("-inf")).softmax(-1)
                for m, n in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
            )
            return x + self.out(merge((a - self.extra * b) @ v))
        w = (q @ k.mT / 8**0.5).masked_fill(later, float("-inf")).softmax(-1)
        y = self.out(merge(w @ v))
        return x + (y * self.extra if self.kind == "rezero" else y)


class Axial(Planted):  # images: along the rows, then along the columns
    def setup(self, d=24):
        self.rows, self.columns = (nn.MultiheadAttention(d, 3, batch_first=True) for _ in "ab")

    def forward(self, x):
        for attention, order in ((self.rows, (0, 2, 3, 1)), (self.columns, (0, 3, 2, 1))):
            y = x.permute(order)
            z = y.flatten(0, 1)
            z = attention(z, z, z, need_weights=False)[0].view(y.shape)
            x = x + z.permute([order.index(i) for i in range(4)])
        return x


class Slots(Planted):  # slots compete for the inputs
    def setup(self, d=20, n=3):
        self.slots, self.gru = nn.Parameter(torch.randn(n, d)), nn.GRUCell(d, d)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x):
        slots = self.slots.expand(len(x), -1, -1)
        for _ in range(2):
            q, k = self.q(F.layer_norm(slots, (20,))), self.k(x)
            w = (q @ k.mT / 20**0.5).softmax(dim=1) + 1e-8
            new = (w / w.sum(-1, keepdim=True)) @ self.v(x)
            slots = self.gru(new.flatten(0, 1), slots.flatten(0, 1)).view(new.shape)
        return slots


class Induced(Planted):  # few learned points between: (tokens, batch, d)
    def setup(self, d=24):
        self.points = nn.Parameter(torch.randn(4, 1, d))
        self.first, self.second = nn.MultiheadAttention(d, 3), nn.MultiheadAttention(d, 3)

    def forward(self, x):
        h, _ = self.first(self.points.expand(-1, x.shape[1], -1), x, x)
        return x + self.second(x, h, h)[0]


class Captioner(Planted):  # text after image features
    def setup(self, d=32):
        self.emb, self.pos = nn.Embedding(31, d), nn.Embedding(40, d)
        self.qkv, self.out, self.head = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 31)

    def forward(self, image, text):
        p, n = image.shape[1], image.shape[1] + text.shape[1]
        x = torch.cat([image, self.emb(text)], dim=1) + self.pos.weight[:n]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        allowed[:p, :p] = True
        q, k, v = (split(y, 4) for y in self.qkv(F.layer_norm(x, (32,))).chunk(3, -1))
        x = x + self.out(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))
        return self.head(F.layer_norm(x, (32,)))[:, p:]


class Masked(Planted):  # a masked language model's loss
    def setup(self):
        self.encoder, self.head = TextEncoder(), nn.Linear(36, 29)

    def forward(self, tokens, labels):
        logits = self.head(self.encoder(tokens).last_hidden_state)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Latent(Planted):  # DeepSeek's: a small latent, one key for all heads
    def setup(self, d=32):
        self.q, self.down, self.shared = nn.Linear(d, 48), nn.Linear(d, 10), nn.Linear(d, 4)
        self.up, self.out = nn.Linear(10, 4 * 16), nn.Linear(d, d)

    def forward(self, x):
        k, v = split(self.up(self.down(x)), 4).chunk(2, dim=-1)
        k = torch.cat([k, self.shared(x)[:, None].expand(-1, 4, -1, -1)], dim=-1)
        q = split(self.q(x), 4)
        return self.out(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


LM = {"causal": True, "n_heads": 4, "scale": SCALE, "position": "learned", "norm": "pre"}
SET = {"causal": False, "n_heads": 3, "scale": SCALE, "position": "none"}
TEXT = {**SET, "position": "learned", "norm": "post"}
FRAMES = {"n_heads": 4, "scale": SCALE, "norm": "pre", "residual": True, "causal": False}
MASK = {"argument": "mask", "shape": "bk", "true": "attend"}
INT_MASK = {**MASK, "argument": "attention_mask", "dtype": "int"}
SRC_MASK = {**MASK, "argument": "src_mask", "source": "src"}
ALIBI = {"causal": True, "n_heads": 4, "scale": SCALE, "position": "alibi"}
T5 = {**ALIBI, "scale": 1.0, "position": "relative"}
SENSORS = {**TEXT, "position": "sinusoidal", "batch_first": True}
LLAMA = {**LM, "n_kv_heads": 2, "position": "rotary", "rotary_base": 10000.0}
LLAMA["cache"] = lambda module, new, state: module(new, state)


def one(*shape):
    return lambda: (vec(*shape),)


def masked():
    hidden = real(7, 1, 2, 1).flip(1)
    return ids(29, 3, 7) * ~hidden, ids(29, 3, 7).where(hidden, -100)


def text():
    return ids(29, 3, 7), real(7, 6, 5, 3).long()


SETUPS: dict[str, tuple[Callable[..., Any], Callable[[], Any], dict[str, Any]]] = {
    "gpt": (NanoGPT, lambda: (ids(31, 3, 9),), {**LM, "tied": True}),
    "text": (TextEncoder, text, {**TEXT, "mask": INT_MASK}),
    "text, dropout": (TextEncoder, text, {**TEXT, "mask": INT_MASK, "dropout": 0.2}),
    "local": (LocalAttention, one(3, 11, 24), {**SET, "n_heads": 2, "causal": True}),
    "prompt": (PromptDecoder, lambda: (ids(37, 3, 9), real(9, 9, 6, 5)), {**LM, "mask": MASK}),
    "vit": (ViT, one(2, 3, 8, 6), {**LM, "causal": False}),
    "vit, dropout": (ViT, one(2, 3, 8, 6), {**LM, "causal": False, "dropout": 0.2}),
    "u-net": (UNetAttention, one(2, 16, 3, 4), SET),
    "set": (SetBlock, lambda: (vec(4, 6, 30), vec(4, 8, 30)), SET),
    "cross": (SetBlock, lambda: (vec(4, 6, 30), vec(4, 6, 31)[..., 1:]), SET),
    "slices": (SlicedHeads, one(2, 7, 36), {**SET, "causal": True}),
    "llama": (LlamaLayer, one(3, 7, 48), LLAMA),
    "alibi": (partial(BiasedAttention, kind="alibi"), one(3, 9, 32), ALIBI),
    "t5": (partial(BiasedAttention, kind="t5"), one(3, 9, 32), T5),
    "series": (SeriesModel, one(2, 5, 7), SET),
    "sensors": (SensorNet, one(3, 8, 4), SENSORS),
    "streaming": (StreamingMixer, one(3, 7, 32), {**LM, "position": "none"}),
    "frames": (FrameEncoder, one(3, 7, 40), FRAMES),
    "frames, dropout": (FrameEncoder, one(3, 7, 40), {**FRAMES, "dropout": 0.2}),
    "translator": (
        Translator,
        lambda: (ids(33, 3, 8), ids(33, 3, 6), real(8, 8, 6, 5)),
        {**LM, "norm": "post", "mask": SRC_MASK},
    ),
    "loss": (LMLoss, lambda: (ids(31, 3, 9),) * 2, LM),
    "loss, padded": (
        partial(LMLoss, ignored=0),
        lambda: (ids(31, 3, 9) * real(9, 9, 6, 5),) * 2,
        {**LM, "padding_id": 0},
    ),
    "step": (Lightning, lambda: (ids(31, 3, 9),), LM),
}

# setup, family ("!": bare), bug, what is done, causes. Public reports of these bugs: onnx/onnx#7274
# (tile), lsdefine/attention-is-all-you-need-keras#36 (repeat), unslothai/unsloth#3803 (arange),
# reczoo/FuxiCTR#30 (view), gazelle93/Transformer-Various-Positional-Encoding#1 (order), labmlai/
# annotated_deep_learning_paper_implementations#133 (one) and #282 (queries), huggingface/
# pytorch-image-models#1978 (eval), mlfoundations/open_lm#4 (by head), Exorust/TorchLeet#5 (batch)
TABLE = """
gpt | masks | added | the tril of ones is added to the scores | mask added as a number
gpt | !masks | after | weights set to zero after the softmax | mask after the softmax
gpt | !scale | length | k.size(2), the length, for k.size(3) | scale of the tokens
gpt | !blocks | last | each block gets the embeddings, the last one counts | parameter not used
gpt | blocks | untied | the head is tied by a copy of the data | copied, not tied; not tied
text | masks | polarity | attention_mask as key_padding_mask | mask of wrong polarity
text | !masks | repeat | mask.repeat for repeat_interleave | mask of another sequence
text | !masks | kept | the padding mask is made once and kept | remembers the last call
text, dropout | !modes | new | nn.Dropout(p) made in forward | random in evaluation
prompt | masks | rows | padding masks the rows, not the columns | mask on the queries
local | masks | wrap | roll wraps: the first block attends to the last |
prompt | masks | or | causal or padding, for causal and padding | no causal mask
prompt | positions | arange | left padding is counted by the positions |
vit | !heads | merge | heads merged without transposing | merge without transposing
vit | positions | one | pos[:, n] for pos[:, :n] | positions without effect
vit | !blocks | norm | norm1 before both branches | parameter not used
vit, dropout | !modes | eval | dropout_p of the fused call in evaluation | random in evaluation
u-net | !softmax | queries | softmax over i, not j | softmax over the queries
u-net | heads | sum | einsum's bjgd sums the keys of all heads |
set | !heads | view | view for transpose | split without transposing; merge without transposing
set | !heads | order | (heads * batch) read as (batch, heads) | heads and sequences exchanged
set | scale | times | times the root of d_head | multiplied by the root
set | !softmax | all | one sum for all queries | weights do not sum to one; softmax over the queries
slices | !heads | first | all take the first slice of the channels | input without effect
slices | !heads | query | keys from the query layer | one projection for two; parameter not used
llama | heads | tile | repeat for repeat_interleave | other groups of heads
llama | !positions | by head | rotary positions count heads | positions without effect
llama | !positions | query only | the keys are not rotated | positions not relative
llama | !positions | pairs | angles of neighbours, rotation of halves | positions not relative
llama | scale | twice | q is scaled, and again in the fused call | scaled twice
llama | blocks | normed | the normed input goes on | norm not before the branch
llama | caches | restart | positions begin at 0 | positions restart with the cache
llama | caches | again | cached keys are rotated again | cached keys turned again
llama | caches | top left | is_causal again | chunks do not see the cache; mask at the upper left
alibi | positions | sign | the bias grows with the distance | bias rises with distance
t5 | positions | sign | every earlier token is in bucket 0 | positions without effect
series | !batch | reshape | reshape for permute | tokens mixed elsewhere
series | !softmax | heads | nn.Softmax(dim=1) | softmax over the heads
sensors | !batch | batch | no batch_first | attention over the batch; batch and tokens exchanged
sensors | !positions | pe | positions along the batch | depends on the sequence's number
streaming | !batch | time | a norm over time and channels | norm over the tokens
frames | !blocks | list | layers in a plain list | parameter not registered
frames | blocks | no residual | the attention replaces the stream | no way around the attention
frames | scale | width | the root of the width, not of the head | scale of d_model
frames | !modes | eval path | scaled again in eval | training differs from evaluation; scaled twice
frames | !modes | in place | the argument is scaled in place | changes its arguments
frames, dropout | modes | no dropout | dropout never applied | no dropout in training
translator | encoders | memory | no memory mask | padding is attended to; mask not everywhere
translator | encoders | open | tgt_mask forgotten | no causal mask
translator | !encoders | embeddings | decoded from the source's embeddings | parameter not used
cross | !encoders | value | keys from the memory, values from the target |
loss | !losses | unshifted | the labels are not shifted | loss without shift
loss | !losses | backwards | shifted backwards | loss shifted backwards
loss, padded | losses | padding | padding is counted | padding counts in the loss
step | !losses | softmax | softmax before cross_entropy | cross-entropy of probabilities
step | !losses | scrambled | (batch, classes, tokens) flattened | logits reshaped across tokens
"""


def made(seed: int, broken: bool, setup: str, bug: str) -> Made:
    torch.manual_seed(seed)
    build, example, claims = SETUPS[setup]
    dropout = {"p": claims["dropout"]} if "dropout" in claims else {}
    return build(bug if broken else "", **dropout), example(), dict(claims)


def case(row: str) -> Unseen:
    setup, family, bug, name, causes = (cell.strip() for cell in row.split("|"))
    return Unseen(
        f"{setup}: {name}",
        family.lstrip("!"),
        partial(made, setup=setup, bug=bug),
        tuple(cause.strip() for cause in causes.split(";") if cause.strip()),
        family.startswith("!"),
    )


CASES = [case(row) for row in TABLE.strip().splitlines()]


def odd(seed: int, build: Callable[[], nn.Module], example: Any, claims: dict[str, Any]) -> Made:
    torch.manual_seed(seed)
    return build(), example(), dict(claims)


PLAIN = {"n_heads": 4, "scale": SCALE, "norm": "pre", "position": "none"}
ODD = {kind: {**PLAIN, "causal": True} for kind in ("rezero", "token shift", "partial rotary")} | {
    "difference": {"causal": True, "norm": "pre"},
    "talking": {"causal": False, "norm": "pre", "n_heads": 4},
    "squared relu": {"causal": False, "norm": "pre", "n_heads": 4},
}
ODD["partial rotary"]["position"] = "rotary"
del ODD["token shift"]["position"]
RIGHT: list[tuple[str, Callable[[int], Made]]] = [
    (name, partial(odd, build=build, example=example, claims=claims))
    for name, build, example, claims in (
        *((kind, partial(Odd, kind=kind), one(3, 7, 32), c) for kind, c in ODD.items()),
        ("axial", Axial, one(2, 24, 3, 5), {"n_heads": 3}),
        ("slots", Slots, one(2, 7, 20), {"causal": False}),
        ("induced", Induced, one(7, 3, 24), {"n_heads": 3, "batch_first": False}),
        ("captions", Captioner, lambda: (vec(2, 4, 32), ids(31, 2, 6)), {"n_heads": 4}),
        ("masked", Masked, masked, {"causal": False, "n_heads": 3}),
        ("latent", Latent, one(3, 7, 32), {"n_heads": 4, "causal": True}),
    )
]
