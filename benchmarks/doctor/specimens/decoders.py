# ruff: noqa: N806, E501, RUF059 (written as people write it)
"""Decoders, their losses and their caches."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens.museum import settings
from benchmarks.doctor.specimens.right import linear, made

SCALE = "1/sqrt(d_head)"


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 29
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 24
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.dropout)
        ones = torch.ones(1, 1, config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mask = self.bias[:, :, :T, :T]
        att = att.masked_fill(mask == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, **config):
        super().__init__()
        config = GPTConfig(**config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx):
        b, t = idx.size()
        pos = torch.arange(t)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class TorchBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x, blocked):
        h = self.norm1(x)
        y, _ = self.attn(h, h, h, attn_mask=blocked, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm2(x))


class TorchGPT(nn.Module):
    """Around torch's attention; a token attends to its own document alone."""

    def __init__(self, vocab=23, d=24, heads=3):
        super().__init__()
        self.heads = heads
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(64, d) * 0.02)
        layers = [TorchBlock(d, heads) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)
        nn.init.normal_(self.emb.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, input_ids, segment_ids=None):
        b, t = input_ids.shape
        blocked = torch.ones(t, t, dtype=torch.bool).triu(1)
        if segment_ids is not None:
            other = segment_ids[:, :, None] != segment_ids[:, None, :]
            blocked = (blocked | other).repeat_interleave(self.heads, dim=0)
        return self.decode(input_ids, blocked)

    def decode(self, input_ids, blocked):
        x = self.emb(input_ids) + self.pos[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, blocked)
        return self.head(self.norm(x))


class PostNorm(nn.Module):
    """As in the first paper: sinusoids, scaled embeddings, norms after the sums."""

    def __init__(self, vocab=23, d=16, heads=2):
        super().__init__()
        self.d, self.emb, self.head = d, nn.Embedding(vocab, d), nn.Linear(d, vocab)
        t, i = torch.arange(64)[:, None], torch.arange(0, d, 2)
        table = torch.zeros(64, d)
        table[:, 0::2] = torch.sin(t / 10000 ** (i / d))
        table[:, 1::2] = torch.cos(t / 10000 ** (i / d))
        self.register_buffer("table", table)
        layers = (nn.TransformerEncoderLayer(d, heads, 32, 0.0, batch_first=True) for _ in "12")
        self.layers = nn.ModuleList(layers)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.emb(ids) * math.sqrt(self.d) + self.table[:t]
        for layer in self.layers:
            x = layer(x, src_mask=torch.ones(t, t, dtype=torch.bool).triu(1))
        return self.head(x)


class PromptDecoder(nn.Module):
    """Prompts padded left or right."""

    def __init__(self, vocab=37, d=32, heads=4, layers=2):
        super().__init__()
        self.h = heads
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(48, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers + 1))
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids, attention_mask):
        b, t = input_ids.shape
        position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        x = self.tok(input_ids) + self.pos(position_ids)
        causal, keep = torch.ones(t, t).tril().bool(), attention_mask.bool()
        allowed = causal & keep[:, None, None, :]
        for qkv, out, norm in zip(self.qkv, self.out, self.norm, strict=False):
            q, k, v = qkv(norm(x)).view(b, t, 3, self.h, -1).unbind(2)
            s = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            s = s.masked_fill(~allowed, torch.finfo(s.dtype).min)
            x = x + out(torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).flatten(2))
        return self.head(self.norm[-1](x))


class MaskedLM(TorchGPT):
    """Sees both sides, but no padding (0)."""

    def forward(self, ids):
        padding = (ids == 0)[:, None].expand(-1, ids.shape[1], -1)
        return self.decode(ids, padding.repeat_interleave(self.heads, dim=0))


# ---- losses


class LMHeadModel(nn.Module):
    """Called as those of Hugging Face are."""

    def __init__(self):
        super().__init__()
        self.transformer = GPT()

    def forward(self, input_ids, labels=None):
        logits = self.transformer(input_ids)
        if labels is None:
            return {"logits": logits}
        labels = labels.masked_fill(labels == 0, -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class LanguageModel(TorchGPT):
    """With a library's function, which shifts by itself, whatever the labels' shape."""

    def loss_function(self, logits, labels):
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:]
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)

    def forward(self, input_ids, labels):
        logits = super().forward(input_ids)
        return self.loss_function(logits, labels)


class TrainingStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = GPT()

    def forward(self, ids):
        logits, targets = self.model(ids)[:, :-1], ids[:, 1:]
        flat = logits.reshape(-1, logits.shape[-1])
        return F.cross_entropy(flat, targets.reshape(-1), ignore_index=0)


class Gathered(nn.Module):
    """``(logits, ids) -> loss``; id 0 is padding."""

    def forward(self, logits, targets):
        logits, targets = logits[:, :-1], targets[:, 1:]
        logp = logits.log_softmax(-1)
        loss = -logp.gather(-1, targets[..., None])[..., 0]
        mask = (targets != 0).float()
        return (loss * mask).sum() / mask.sum().clamp(min=1)


class GatheredStep(TrainingStep):
    def forward(self, ids):
        return Gathered()(self.model(ids), ids)


def compute_loss(logits, input_ids):
    shift_logits, shift_labels = logits[:, :-1], input_ids[:, 1:]
    return F.cross_entropy(shift_logits.flatten(0, 1), shift_labels.flatten(), ignore_index=0)


def smoothed_loss(pred, gold):
    n = pred.size(-1)
    one_hot = F.one_hot(gold, n).to(pred.dtype)
    target = one_hot * 0.9 + (1 - one_hot) * 0.1 / (n - 1)
    loss = -(target * pred.log_softmax(-1)).sum(-1)
    keep = gold != 0
    return (loss * keep).sum() / keep.sum()


# ---- with a cache


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(x, n_rep):
    b, h, t, d = x.shape
    return x[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d)


class LlamaAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, window):
        super().__init__()
        self.groups, self.head_dim, self.window = n_heads // n_kv_heads, dim // n_heads, window
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        inv_freq = 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x, positions):
        angles = positions[:, None] * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def forward(self, x, past=None):
        b, t, _ = x.shape
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (f(x).view(b, t, -1, self.head_dim).transpose(1, 2) for f in maps)
        seen = 0 if past is None else past[2]
        positions = torch.arange(seen, seen + t)
        q, k = self.rope(q, positions), self.rope(k, positions)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        cache = k[:, :, -self.window :], v[:, :, -self.window :], seen + t
        k, v = repeat_kv(k, self.groups), repeat_kv(v, self.groups)
        j, i = torch.arange(seen + t - k.size(2), seen + t), torch.arange(seen, seen + t)[:, None]
        mask = (j <= i) & (i - j < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1)), cache


class LlamaLayer(nn.Module):
    def __init__(self, dim, window):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(dim), RMSNorm(dim)
        self.self_attn = LlamaAttention(dim, 4, 2, window)
        self.gate_proj, self.up_proj = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, past=None):
        residual = x
        x, cache = self.self_attn(self.input_layernorm(x), past)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return residual + self.down_proj(x), cache


class Llama(nn.Module):
    def __init__(self, vocab=31, dim=32, window=10**6):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(LlamaLayer(dim, window) for _ in range(2))
        self.norm, self.lm_head = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, past=None):
        x, caches = self.embed_tokens(input_ids), []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, None if past is None else past[i])
            caches.append(cache)
        return self.lm_head(self.norm(x)), caches


class GPT2Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, past=None):
        b, t, d = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        mask = torch.ones(t, k.shape[2], dtype=torch.bool).tril(k.shape[2] - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln_2(x)), (k, v)


class GPT2Model(nn.Module):
    def __init__(self, vocab=37, d=24, heads=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(4096, d)
        self.h, self.ln_f = nn.ModuleList(GPT2Block(d, heads) for _ in range(2)), nn.LayerNorm(d)

    def forward(self, input_ids, past=None):
        start = 0 if past is None else past[0][0].shape[2]
        x = self.wte(input_ids) + self.wpe(torch.arange(start, start + input_ids.shape[1]))
        present = []
        for i, block in enumerate(self.h):
            x, kept = block(x, None if past is None else past[i])
            present.append(kept)
        return self.ln_f(x), present


class GPT2LMHeadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer, self.lm_head = GPT2Model(), nn.Linear(24, 37, bias=False)

    def forward(self, input_ids, past=None, use_cache=False):
        x, present = self.transformer(input_ids, past)
        return (self.lm_head(x), present) if use_cache else self.lm_head(x)


class GPT2ForSequenceClassification(nn.Module):
    """By the last real token; id 0 is padding, on the right."""

    def __init__(self):
        super().__init__()
        self.transformer, self.score = GPT2Model(), nn.Linear(24, 5)

    def forward(self, input_ids):
        logits = self.score(self.transformer(input_ids)[0])
        last = ((input_ids != 0) * torch.arange(input_ids.shape[1])).argmax(-1)
        return logits[torch.arange(len(last)), last]


class AlibiAttention(nn.Module):
    """Fused, with a cache; the mask is kept."""

    def __init__(self, d=32, heads=4, dropout=0.2):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_qkv, self.to_out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.register_buffer("mask", torch.full((heads, 64, 64), -1e9).triu(1))
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, heads + 1) / heads))

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        n = k.shape[2]
        distance = (torch.arange(n - t, n)[:, None] - torch.arange(n)).abs()
        bias = self.mask[:, n - t : n, :n]
        bias = bias - self.slopes[:, None, None] * distance
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p)
        return self.to_out(y.transpose(1, 2).reshape(b, t, d)), (k, v)


def turned(m, x, start):
    key = start, x.shape[2]
    if key not in m.memo:
        angles = torch.outer(torch.arange(start, start + x.shape[2]), m.inv_freq)
        m.memo[key] = torch.cat((angles, angles), dim=-1)
    return x * m.memo[key].cos() + rotate_half(x) * m.memo[key].sin()


def static_cache(m, x, state=None):
    """Buffers of a fixed size; the angles are kept."""
    b, t, _ = x.shape
    q, k, v = m.qkv(x).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
    if state is None:
        state = x.new_zeros(b, 2, 24, 8), x.new_zeros(b, 2, 24, 8), 0
    keys, values, start = state[0].clone(), state[1].clone(), state[2]
    q, k = turned(m, q, start), turned(m, k, start)
    keys[:, :, start : start + t], values[:, :, start : start + t] = k, v
    allowed = torch.arange(24) <= torch.arange(start, start + t)[:, None]
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
    return m.out(y.transpose(1, 2).flatten(2)), (keys, values, start + t)


class RingCache(nn.Module):
    """A window of four with a ring buffer and a bias of distance."""

    def __init__(self, dim=10, window=4):
        super().__init__()
        self.window = window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.by_distance = nn.Parameter(torch.randn(window))

    def step(self, x, state):
        q, k, v = self.qkv(x).chunk(3, -1)
        keys, values, n = state[0].clone(), state[1].clone(), state[2]
        slot = n % self.window
        keys[:, slot], values[:, slot] = k, v
        age = (n - torch.arange(self.window)) % self.window
        scores = torch.einsum("bd,bsd->bs", q, keys) / q.size(-1) ** 0.5 + self.by_distance[age]
        scores = scores.masked_fill(torch.arange(self.window) > n, -torch.inf)
        y = torch.einsum("bs,bsd->bd", scores.softmax(-1), values)
        return self.out(y), (keys, values, n + 1)

    def forward(self, x, state=None):
        if state is not None:
            rows = []
            for token in x.unbind(1):
                row, state = self.step(token, state)
                rows.append(row)
            return torch.stack(rows, 1), state
        t, (q, k, v) = x.size(1), self.qkv(x).chunk(3, -1)
        distance = torch.arange(t)[:, None] - torch.arange(t)
        bias = self.by_distance[distance.clamp(0, self.window - 1)]
        blocked = (distance < 0) | (distance >= self.window)
        scores = (q @ k.mT / q.size(-1) ** 0.5 + bias).masked_fill(blocked, -torch.inf)
        return self.out(scores.softmax(-1) @ v), None


def step(module, new, state):
    return module(new, state)


def gpt2_step(module, new, state):
    return module(new, state, use_cache=True)


def ring_step(module, new, state):
    empty = new.new_zeros(len(new), 4, 10)
    return module(new, (empty, empty, 0) if state is None else state)


def ids(vocab: int, *shape: int) -> Tensor:
    return torch.randint(1, vocab, shape)


def padded(vocab: int, b: int, t: int) -> Tensor:
    x = ids(vocab, b, t)
    x[0, -3:] = 0
    return x


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Ids, and the same as labels."""
    return x, x.clone()


def prompts() -> tuple[Tensor, Tensor]:
    return ids(37, 3, 9), (torch.arange(9) < torch.tensor([[9], [6], [5]])).long()


def scored() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 9, 37), padded(37, 3, 9)


HEADS: dict[str, Any] = {"n_heads": 4, "scale": SCALE}
LOSS = {**HEADS, "causal": True, "norm": "pre"}
LM = {**LOSS, "position": "learned"}
TORCH = {**LM, "n_heads": 3, "residual": True}
LLAMA = {**LM, "n_kv_heads": 2, "position": "rotary", "rotary_base": 10000.0, "cache": step}
MASK = {"argument": "attention_mask", "shape": "bk", "true": "attend", "dtype": "int"}
PADS = {"padding_id": 0}

SETTINGS = settings({
    "nanogpt": (GPT, lambda: ids(29, 3, 9), {**LM, "tied": True}),
    "nanogpt, dropout": (partial(GPT, dropout=0.2), lambda: ids(29, 2, 7), {**LM, "dropout": 0.2}),
    "torch": (TorchGPT, lambda: ids(23, 2, 6), TORCH),
    "packed": (TorchGPT, lambda: (ids(23, 2, 10), torch.arange(10).repeat(2, 1) // 6), TORCH),
    "post-norm": (PostNorm, lambda: ids(23, 2, 6),
                  {**LM, "n_heads": 2, "norm": "post", "position": "sinusoidal",
                   "embedding_scale": 4.0}),
    "prompt": (PromptDecoder, prompts, {**LM, "mask": MASK}),
    "masked lm": (MaskedLM, lambda: ids(23, 2, 6), {**TORCH, **PADS, "causal": False}),
    "lm head": (LMHeadModel, lambda: twice(padded(29, 3, 9)), {**LOSS, **PADS}),
    "lm": (LanguageModel, lambda: twice(ids(23, 3, 9)), {**LOSS, "n_heads": 3}),
    "step": (TrainingStep, lambda: ids(29, 2, 6), {**LOSS, **PADS}),
    "step, gathered": (GatheredStep, lambda: ids(29, 2, 6), {**LOSS, **PADS}),
    "loss": (lambda: compute_loss, scored, PADS),
    "loss, gathered": (Gathered, scored, PADS),
    "loss, smoothed": (lambda: smoothed_loss, scored, PADS),
    "llama": (Llama, lambda: ids(31, 3, 9), LLAMA),
    "mistral": (partial(Llama, window=4), lambda: ids(31, 2, 12), {**LLAMA, "window": 4}),
    "gpt2": (GPT2LMHeadModel, lambda: ids(37, 3, 9), {**LM, "n_heads": 3, "cache": gpt2_step}),
    "last token": (GPT2ForSequenceClassification, lambda: ids(37, 3, 9),
                   {**HEADS, **PADS, "n_heads": 3, "position": "learned", "norm": "pre"}),
    "alibi": (AlibiAttention, lambda: torch.randn(2, 9, 32),
              {**HEADS, "causal": True, "position": "alibi", "dropout": 0.2, "cache": step}),
    "static cache": (made(static_cache, qkv=linear(16, 48), out=linear(16, 16), memo=dict,
                          inv_freq=lambda: 10000.0 ** (-torch.arange(0, 8, 2) / 8)),
                     lambda: torch.randn(2, 7, 16),
                     {**HEADS, "causal": True, "n_heads": 2, "position": "rotary", "cache": step}),
    "ring": (RingCache, lambda: torch.randn(2, 9, 10),
             {"causal": True, "n_heads": 1, "window": 4, "cache": ring_step}),
})  # fmt: skip

BUGS = r"""
nanogpt | masks | no causal mask | no causal mask | facebookresearch/xformers#103
    att = att.masked_fill(mask == 0, float("-inf")) →
nanogpt | masks | the mask is inverted | inverted mask |
    mask == 0 → mask == 1
nanogpt | masks | the next token is seen | causal mask off by one |
    torch.tril(ones) → torch.tril(ones, 1)
nanogpt | masks | the next two tokens are seen | mask of another shape |
    torch.tril(ones) → torch.tril(ones, 2)
nanogpt | masks | a token does not see itself | a token does not attend to itself |
    torch.tril(ones) → torch.tril(ones, -1)
nanogpt | !masks | weights set to zero after the softmax | mask after the softmax | huggingface/pytorch-image-models#2236
    att = att.masked_fill(mask == 0, float("-inf")) →
    att = self.attn_dropout(att) → att = att * mask↵…
nanogpt | masks | scores multiplied by the mask | masked with a finite number | georg-wolflein/good-features#1
    att.masked_fill(mask == 0, float("-inf")) → att * mask
nanogpt | !masks | filled with -1e-9 for -1e9 | masked with a finite number | awslabs/gluonts#1401
    mask == 0, float("-inf") → mask == 0, -1e-9
nanogpt | masks | the tril of ones is added to the scores | mask added as a number | timeseriesAI/tsai#171
    att.masked_fill(mask == 0, float("-inf")) → att + mask
nanogpt | masks | the first layer is not masked | mask not everywhere |
    self.apply(self._init_weights) → …↵self.h[0].attn.bias.fill_(1)
nanogpt | masks | a leak beside the attention | tokens mix outside the attention | karpathy/nanochat#845
    return x + self.c_proj(F → x = x + 0.1 * x.mean(1, keepdim=True)↵…
nanogpt | masks | the stream is shifted before the head | tokens mix outside the attention |
    GPT: return self.lm_head(self.ln_f(x)) → x = torch.roll(x, -1, 1)↵…
nanogpt | masks | a convolution sees the next token | non-causal convolution |
    Block: self.attn = CausalSelfAttention(config) → …↵self.conv = nn.Conv1d(config.n_embd, config.n_embd, 3, padding=1)
    return x + self.c_proj(F → x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)↵…
nanogpt | heads | heads split by a view without transpose | split without transposing | reczoo/FuxiCTR#30
    y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) → y.reshape(B, self.n_head, T, C // self.n_head)
nanogpt | heads | heads merged without transpose | merge without transposing | jsbaan/transformer-from-scratch#6
    y.transpose(1, 2).contiguous() → y.contiguous()
nanogpt | heads | output projection not applied | parameter not used | Kyubyong/transformer#117
    return self.c_proj(y) → return y
nanogpt | heads | one layer n times | identical heads | espnet/espnet#1278
    [Block(config) for _ in range(config.n_layer)] → [Block(config)] * config.n_layer
nanogpt | heads | layers equal at the start | identical heads; layers start alike | pytorch/pytorch#86274
    self.apply(self._init_weights) → …↵for block in self.h:↵    block.load_state_dict(self.h[0].state_dict())
nanogpt | softmax | softmax over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    att = F.softmax(att, dim=-1) → att = F.softmax(att, dim=-2)
nanogpt | !softmax | softmax twice | softmax twice | zyy-2001/DisKT#6: the second softmax has no mask
    att = self.attn_dropout(att) → att = F.softmax(att, dim=-1)↵…
nanogpt | scale | scale of d_model | scale of d_model | lucidrains/vit-pytorch#65
    math.sqrt(k.size(-1)) → math.sqrt(C)
nanogpt | scale | / d ** 1 / 2 | other scale |
    math.sqrt(k.size(-1)) → k.size(-1) ** 1 / 2
nanogpt | !?scale | k.size(2), the length, for k.size(3) | scale of the tokens |
    math.sqrt(k.size(-1)) → math.sqrt(k.size(2))
nanogpt | positions | one position for all tokens | positions have no effect | psyai-net/DiffPoseTalk#20
    pos = torch.arange(t) → pos = torch.full((t,), t - 1)
nanogpt | positions | positions not added | parameter not used; positions have no effect |
    self.wte(idx) + self.wpe(pos) → self.wte(idx)
nanogpt | !positions | positions added, the sum thrown away | positions have no effect; parameter not used |
    x = self.wte(idx) + self.wpe(pos) → x = self.wte(idx)↵x.add(self.wpe(pos))
nanogpt | positions | positions counted from the end | depends on the length |
    pos = torch.arange(t) → pos = torch.arange(t).flip(0)
nanogpt | batch | positions counted along the batch | depends on the sequence's number | cmu-l3/anlp#1
    self.wpe(pos) → self.wpe(torch.arange(b))[:, None]
nanogpt | blocks | norm over time | norm over the tokens | jadore801120/attention-is-all-you-need-pytorch#17
    self.attn(self.ln_1(x)) → self.attn((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5))
nanogpt | blocks | norm over time and channels | norm over the tokens |
    self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd) → self.ln_1, self.ln_2 = nn.LayerNorm((9, config.n_embd))
nanogpt | blocks | residual taken after the norm | norm not before the branch |
    x = x + self.attn(self.ln_1(x)) → x = self.ln_1(x)↵x = x + self.attn(x)
nanogpt | blocks | norm after the sum | norm not before the branch |
    x + self.attn(self.ln_1(x)) → self.ln_1(x + self.attn(x))
nanogpt | !blocks | first norm not used | norm not before the branch; parameter not used |
    self.attn(self.ln_1(x)) → self.attn(x)
nanogpt | blocks | second norm not used | parameter not used |
    Block: self.ln_2(x) → x
nanogpt | blocks | last norm missing | parameter not used | PaddlePaddle/PaddleNLP#571
    GPT: self.lm_head(self.ln_f(x)) → self.lm_head(x)
nanogpt | blocks | no activation | no activation | stanfordnlp/stanza#1610
    F.gelu(self.c_fc(self.ln_2(x))) → self.c_fc(self.ln_2(x))
nanogpt | blocks | no way around the feed-forward layers | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    return x + self.c_proj(F → return self.c_proj(F
nanogpt | blocks | last layer skipped | parameter not used |
    in self.h: → in self.h[:-1]:
nanogpt | !?blocks | each block gets the embeddings, the last one counts | parameter not used |
    for block in self.h:↵    x = block(x) → for block in self.h:↵    out = block(x)↵x = out
nanogpt | losses | not tied | not tied | huggingface/transformers#43429
    self.lm_head.weight = self.wte.weight →
nanogpt | losses | tie broken by a new parameter | copied, not tied | huggingface/transformers#43429
    self.lm_head.weight = self.wte.weight → self.lm_head.weight = nn.Parameter(self.wte.weight.detach().clone())
nanogpt | losses | tied by copying the data | copied, not tied | mosaicml/examples#11
    self.lm_head.weight = self.wte.weight → self.lm_head.weight.data.copy_(self.wte.weight.data)
nanogpt | losses | embeddings too large at the start | first loss is not ln V | espnet/espnet#3454
    self.lm_head.weight = self.wte.weight → …↵nn.init.normal_(self.wte.weight)
nanogpt | losses | all weights alike at the start | weights all equal; zeros that stay zeros |
    nn.init.normal_(module.weight, std=0.02) → nn.init.constant_(module.weight, 0.02)
nanogpt, dropout | modes | dropout before the softmax | dropout before the softmax |
    att = self.attn_dropout(att) →
    att = att.masked_fill(mask == 0, float("-inf")) → att = self.attn_dropout(att)↵…
torch | masks | inverted mask | inverted mask |
    attn_mask=blocked → attn_mask=~blocked
torch | masks | mask not given to the attention | no causal mask |
    attn_mask=blocked → attn_mask=None
packed | masks | causal or of the same document | no causal mask | lucidrains/local-attention#5
    blocked | other → blocked & other
torch | batch | sequence first for batch first | batch and tokens exchanged |
    heads, batch_first=True → heads
    TorchGPT: torch.ones(t, t, → torch.ones(b, b,
torch | batch | sequence first by a view | sequences mixed; split without transposing; batch and tokens exchanged |
    heads, batch_first=True → heads
    h = self.norm1(x) → h = self.norm1(x).view(x.shape[1], x.shape[0], -1)
    x = x + y → x = x + y.reshape(x.shape)
torch | batch | batch norm | statistic over the batch |
    self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d) → self.norm1, self.norm2 = nn.LayerNorm(d), nn.BatchNorm1d(d)
    TorchBlock: self.mlp(self.norm2(x)) → self.mlp(self.norm2(x.mT).mT)
torch | blocks | missing residual connection | missing residual connection |
    TorchBlock: x = x + y → x = y
torch | modes | dropout in the branch, in evaluation too | random in evaluation |
    TorchBlock: self.mlp(self.norm2(x)) → F.dropout(self.mlp(self.norm2(x)), 0.1)
torch | modes | ids changed in place | changes its arguments |
    x = self.emb(input_ids) → input_ids[input_ids == 3] = 4↵…
post-norm | positions | other exponents for the cosines | other sinusoids | zju3dv/LoFTR#41
    torch.cos(t / 10000 ** (i / d)) → torch.cos(t / 10000 ** ((i + 1) / d))
post-norm | positions | multiplied, not divided | other sinusoids | zju3dv/LoFTR#41
    torch.cos(t / 10000 ** → torch.cos(t * 10000 **
post-norm | blocks | embeddings not scaled | other embedding scale |
    self.emb(ids) * math.sqrt(self.d) → self.emb(ids)
post-norm | blocks | scaled after adding the positions | other embedding scale |
    self.emb(ids) * math.sqrt(self.d) + self.table[:t] → (self.emb(ids) + self.table[:t]) * math.sqrt(self.d)
prompt | ?masks | padding masks the rows, not the columns | mask on the queries |
    keep[:, None, None, :] → keep[:, None, :, None]
prompt | ?masks | causal or padding, for causal and padding | no causal mask |
    causal & keep → causal | keep
prompt | masks | the causal mask alone | mask ignored; padding is attended to | FGA-DIKU/BONSAI#344
    causal & keep[:, None, None, :] → causal
prompt | masks | the padding mask alone | no causal mask | FGA-DIKU/BONSAI#344
    causal & keep[:, None, None, :] → keep[:, None, None, :].expand(-1, -1, t, -1)
prompt | positions | positions count the padding on the left |  | TransformerLensOrg/TransformerLens#1609, unslothai/unsloth#3699
    (attention_mask.cumsum(-1) - 1).clamp(min=0) → torch.arange(t)
prompt | batch | the first row's length for all | mask of another sequence | rasbt/reasoning-from-scratch#33
    position_ids = (attention_mask.cumsum → position_ids = (attention_mask[:1].cumsum
masked lm | masks | padding is attended to | padding is attended to |
    self.decode(ids, padding.repeat_interleave(self.heads, dim=0)) → self.decode(ids, None)
masked lm | masks | a convolution reads the padding | convolution over padding |
    TorchGPT: self.heads = heads → …↵self.conv = nn.Conv1d(d, d, 3, padding=1)
    TorchGPT: for layer in self.layers: → x = x + self.conv(x.mT).mT↵…
masked lm | masks | the padding mask is inverted | inverted mask |
    ids == 0 → ids != 0
lm head | !losses | labels not shifted | loss without shift | huggingface/transformers#404
    logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten() → logits.flatten(0, 1), labels.flatten()
lm head | losses | labels shifted twice | loss shifted twice | huggingface/transformers#37830
    logits[:, :-1].flatten(0, 1), labels[:, 1:] → logits[:, :-2].flatten(0, 1), labels[:, 2:]
lm head | !losses | labels shifted backwards | loss shifted backwards | huggingface/transformers#404
    logits[:, :-1].flatten(0, 1), labels[:, 1:] → logits[:, 1:].flatten(0, 1), labels[:, :-1]
lm head | losses | padding counts | padding counts in the loss | lucidrains/DALLE-pytorch#57
    labels = labels.masked_fill(labels == 0, -100) →
lm head | modes | the caller's labels are changed | changes its arguments | huggingface/transformers#47741
    labels = labels.masked_fill(labels == 0, -100) → labels[labels == 0] = -100
lm | !losses | shifted twice | loss shifted twice | huggingface/transformers#47394
    self.loss_function(logits, labels) → self.loss_function(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
lm | !losses | not shifted | loss without shift; targets are copied | huggingface/transformers#27517
    self.loss_function(logits, labels) → F.cross_entropy(logits.flatten(0, 1), labels.flatten())
lm | !losses | softmax before the loss | cross-entropy of probabilities | bkitano/llama-from-scratch#5
    self.loss_function(logits, labels) → self.loss_function(logits.softmax(-1), labels)
lm | !losses | layers in a list | parameter not registered | maruya24/pytorch_robotics_transformer#3
    TorchGPT: nn.ModuleList(layers) → layers
lm | !losses | detached before the head | parameter gets no gradient |
    self.head(self.norm(x)) → self.head(self.norm(x).detach())
step | masks | no causal mask | no causal mask |
    att = att.masked_fill(mask == 0, float("-inf")) →
step | masks | the next token is seen | causal mask off by one |
    torch.tril(ones) → torch.tril(ones, 1)
step | losses | not shifted | loss without shift | huggingface/transformers#3711
    self.model(ids)[:, :-1], ids[:, 1:] → self.model(ids), ids
step | losses | shifted twice | loss shifted twice | huggingface/transformers#3711
    self.model(ids)[:, :-1], ids[:, 1:] → self.model(ids)[:, :-2], ids[:, 2:]
step | losses | shifted backwards | loss shifted backwards | huggingface/transformers#3711
    self.model(ids)[:, :-1], ids[:, 1:] → self.model(ids)[:, 1:], ids[:, :-1]
step | !losses | softmax before the loss | cross-entropy of probabilities | huggingface/transformers#3711
    F.cross_entropy(flat, → F.cross_entropy(flat.softmax(-1),
step | !losses | (batch, classes, tokens) flattened | logits reshaped across tokens | huggingface/transformers#3711
    logits.reshape(-1, → logits.transpose(1, 2).reshape(-1,
step | losses | nll_loss of logits | nll_loss of logits | huggingface/transformers#3711
    F.cross_entropy(flat, → F.nll_loss(flat,
step | losses | padding counts | padding counts in the loss | huggingface/transformers#3711
    targets.reshape(-1), ignore_index=0 → targets.reshape(-1)
step, gathered | losses | the sum divided by all tokens | padding counts in the loss |
    (loss * mask).sum() / mask.sum().clamp(min=1) → (loss * mask).mean()
step, gathered | losses | the mean of all tokens | padding counts in the loss |
    (loss * mask).sum() / mask.sum().clamp(min=1) → loss.mean()
loss | losses | not shifted | loss without shift | huggingface/transformers#404
    logits[:, :-1], input_ids[:, 1:] → logits, input_ids
loss | losses | shifted twice | loss shifted twice | huggingface/transformers#37830
    logits[:, :-1], input_ids[:, 1:] → logits[:, :-2], input_ids[:, 2:]
loss | losses | padding counts | padding counts in the loss | lucidrains/DALLE-pytorch#57
    shift_labels.flatten(), ignore_index=0 → shift_labels.flatten()
loss | losses | the end of a text is not learned | real targets are ignored |
    input_ids[:, 1:] → input_ids[:, 1:].masked_fill(input_ids[:, 1:] == 3, 0)
loss | losses | the first sequence alone counts | real targets are ignored |
    logits[:, :-1], input_ids[:, 1:] → logits[:1, :-1], input_ids[:1, 1:]
loss | losses | softmax before the loss | cross-entropy of probabilities | bkitano/llama-from-scratch#5
    shift_logits.flatten(0, 1) → shift_logits.softmax(-1).flatten(0, 1)
loss, gathered | !losses | shifted over the batch | batch and tokens exchanged; loss without shift |
    logits[:, :-1], targets[:, 1:] → logits[:-1], targets[1:]
loss, gathered | !losses | vocabulary by a view | logits reshaped across tokens |
    Gathered: logits.log_softmax(-1) → logits.reshape(logits.mT.shape).mT.log_softmax(-1)
loss, gathered | losses | the sum divided by all tokens | padding counts in the loss | IBM/pytorch-seq2seq#125
    (loss * mask).sum() / mask.sum().clamp(min=1) → (loss * mask).mean()
loss, smoothed | losses | smoothing counts padding | padding counts in the loss | k-tahiro/bert-summarizer#41
    (loss * keep).sum() / keep.sum() → loss.mean()
loss, smoothed | losses | the sum divided by all tokens | padding counts in the loss |
    keep.sum() → keep.numel()
loss, smoothed | losses | softmax before the loss | cross-entropy of probabilities | bkitano/llama-from-scratch#5
    pred.log_softmax(-1) → pred.softmax(-1).log_softmax(-1)
llama | masks | the mask is at the upper left with a cache | mask at the upper left | pytorch/executorch#21749
    mask = (j <= i) & (i - j < self.window) → mask = torch.ones(t, k.size(2), dtype=torch.bool).tril()
llama | heads | repeat for repeat_interleave | other groups of heads | onnx/onnx#7274
    x[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d) → x.repeat(1, n_rep, 1, 1)
llama | !heads | repeated along the batch | other groups of heads; heads and sequences exchanged |
    x[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d) → x.repeat(n_rep, 1, 1, 1).view(b, h * n_rep, t, d)
llama | scale | scaled, and again in the fused call | scaled twice | huggingface/transformers#38290
    LlamaAttention: attention(q, k, v → attention(q * self.head_dim**-0.5, k, v
llama | scale | scale of another width | other scale | NVIDIA/Megatron-LM#1501
    LlamaAttention: attn_mask=mask → attn_mask=mask, scale=(self.head_dim * self.groups) ** -0.5
llama | !positions | angles of neighbours, rotation of halves | positions not relative | huggingface/transformers#47328, raiyanyahya/how-to-train-your-gpt#6
    LlamaAttention: torch.cat((angles, angles), dim=-1) → angles.repeat_interleave(2, dim=-1)
llama | !positions | rotary positions count heads | positions have no effect | facebookresearch/xformers#841, mlfoundations/open_lm#4
    q, k = self.rope(q, positions), self.rope(k, positions) → q, k = (self.rope(y.transpose(1, 2), torch.arange(y.size(1))).transpose(1, 2) for y in (q, k))
llama | positions | frequencies of d_model | rotary angles of d_model | junfanz1/MiniGPT-MLA#1
    (0, self.head_dim, 2) / self.head_dim → (0, self.head_dim, 2) / dim
llama | positions | values are rotated | values are rotated | labmlai/annotated_deep_learning_paper_implementations#251
    q, k = self.rope(q, positions), → v = self.rope(v, positions)↵…
llama | !positions | the keys are not rotated | positions not relative |
    q, k = self.rope(q, positions), self.rope(k, positions) → q = self.rope(q, positions)
llama | !blocks | divided by rsqrt | norm that does not normalise | mosaicml/llm-foundry#371
    x * torch.rsqrt → x / torch.rsqrt
llama | !blocks | the root of a mean that is not of squares | NaN or infinity |
    x.pow(2).mean → x.mean
llama | blocks | RMSNorm without a root | norm that does not normalise | mosaicml/llm-foundry#371
    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) → x / (x.pow(2).mean(-1, keepdim=True) + self.eps)
llama | blocks | RMSNorm by the deviation | norm that does not normalise | mosaicml/llm-foundry#371
    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) → x / (x.std(-1, keepdim=True) + self.eps)
llama | blocks | RMSNorm over time | norm over the tokens | jadore801120/attention-is-all-you-need-pytorch#17
    mean(-1, keepdim=True) → mean(1, keepdim=True)
llama | !blocks | RMSNorm over the whole batch | statistic over the batch; norm over the tokens |
    mean(-1, keepdim=True) → mean((0, 1, 2), keepdim=True)
llama | blocks | the second residual is the first | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    x = residual + x↵residual = x → x = residual + x
llama | ?blocks | the normed input goes on | norm not before the branch |
    residual = x↵x, cache = self.self_attn(self.input_layernorm(x), past) → x = residual = self.input_layernorm(x)↵x, cache = self.self_attn(x, past)
llama | blocks | one norm used twice | parameter not used |
    x = self.post_attention_layernorm(x) → x = self.input_layernorm(x)
llama | blocks | last norm missing | parameter not used | PaddlePaddle/PaddleNLP#571
    self.lm_head(self.norm(x)), caches → self.lm_head(x), caches
llama | blocks | silu over the product |  | Nijikadesu/breakdown-minimind#3
    F.silu(self.gate_proj(x)) * self.up_proj(x) → F.silu(self.gate_proj(x) * self.up_proj(x))
llama | caches | positions restart with the cache | positions restart with the cache | ml-explore/mlx-lm#93, RobertCsordas/moeut#6
    positions = torch.arange(seen, seen + t) → positions = torch.arange(t)
mistral | caches | positions counted by the cache's length | positions restart with the cache | rajveer43/VeloxQuant-MLX#389
    past[2] → past[0].size(2)
llama | caches | cached keys are rotated again | cached keys turned again | NeuraLegion/shainet#110
    q, k = self.rope(q, positions), self.rope(k, positions) → q = self.rope(q, positions)
    cache = k[ → k = self.rope(k, torch.arange(k.size(2)))↵…
llama | caches | is_causal with a cache | chunks do not see the cache; mask at the upper left |
    LlamaAttention: attn_mask=mask → is_causal=t > 1
llama | caches | chunks are not masked | chunks see their future | Mikyx-1/TinyLLM#17
    mask = (j <= i) & (i - j < self.window) → …↵if past is not None:↵    mask[:] = True
llama | caches | the cache is put behind | cache in another order |
    torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2) → torch.cat((k, past[0]), dim=2), torch.cat((v, past[1]), dim=2)
llama | caches | the first layer's cache for all | layers share one cache |
    Llama: past[i] → past[0]
gpt2 | caches | positions restart with the cache | positions restart with the cache |
    0 if past is None else past[0][0].shape[2] → 0
gpt2 | caches | no mask with a cache | chunks see their future | Mikyx-1/TinyLLM#18
    GPT2Block: attn_mask=mask → attn_mask=mask if past is None else None
gpt2 | caches | the cached values are put behind | slots of the cache exchanged; cache in another order |
    GPT2Block: torch.cat([past[1], v], dim=2) → torch.cat([v, past[1]], dim=2)
gpt2 | caches | the last call's cache goes on | remembers the last call |
    self.transformer, self.lm_head = GPT2Model(), nn.Linear(24, 37, bias=False) → …↵self.kept = None
    x, present = self.transformer(input_ids, past) → if use_cache and past is None and self.kept and len(self.kept[0][0]) == len(input_ids):↵    past = self.kept↵x, present = self.transformer(input_ids, past)↵self.kept = present if use_cache else self.kept
last token | encoders | the last position is pooled | pooling includes padding | huggingface/transformers#35909
    last = ((input_ids != 0) * torch.arange(input_ids.shape[1])).argmax(-1) → last = torch.full((len(input_ids),), input_ids.shape[1] - 1)
alibi | !positions | the bias grows with the distance | bias rises with distance | meta-pytorch/attention-gym#86
    bias - self.slopes → bias + self.slopes
alibi | positions | distances restart with the cache | positions restart with the cache | keras-team/keras-hub#2861
    torch.arange(n - t, n)[:, None] → torch.arange(t)[:, None]
alibi | !modes | the bias grows in its buffer | remembers the last call |
    bias = bias - self.slopes → bias -= self.slopes
alibi | !modes | dropout is lost after an evaluation | no dropout in training; remembers the last call | NVIDIA/Megatron-LM#411
    p = self.dropout if → p = self.dropout = self.dropout if
alibi | !modes | scaled twice in evaluation | scaled twice; training differs from evaluation |
    p = self.dropout if self.training else 0.0 → …↵q = q if self.training else q * q.shape[-1] ** -0.5
static cache | positions | angles kept by the length alone | positions restart with the cache | lucidrains/rotary-embedding-torch#11
    key = start, x.shape[2] → key = x.shape[2]
static cache | caches | new keys overwrite the first | the cache is not attended to; cached differs from full |
    keys[:, :, start : start + t], values[:, :, start : start + t] → keys[:, :, :t], values[:, :, :t]
static cache | caches | old values are not kept | the cache is not attended to; cached differs from full |
    static_cache: state[1].clone() → torch.zeros_like(state[1])
static cache | caches | free slots are read | free slots are attended to | tenstorrent/tt-metal#41215
    static_cache: attn_mask=allowed → attn_mask=allowed | (torch.arange(24) >= start + t)
ring | caches | slots not read by their age | slots of the cache exchanged | ml-explore/mlx-examples#1000
    (n - torch.arange(self.window)) % self.window → (min(n, self.window - 1) - torch.arange(self.window)).clamp(min=0)
ring | caches | the last slot is written again | slots of the cache exchanged | ml-explore/mlx-examples#1000
    slot = n % self.window → slot = min(n, self.window - 1)
"""
