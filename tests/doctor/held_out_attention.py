# ruff: noqa: N806 (written as people write it)
"""Bugs of attention by which the doctor was scored once; since then it was developed on them.

Each class makes a module with a named bug, or its right twin (``bug=""``); the table says what
each bug is, and where people reported it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.doctor.unseen import Unseen

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
SCALE = "1/sqrt(d_head)"


@dataclass
class Output:
    logits: Tensor


class NanoGPT(nn.Module):
    def __init__(self, bug: str, vocab: int = 19, d: int = 24, n_head: int = 4) -> None:
        super().__init__()
        self.bug, self.n_head = bug, n_head
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.ln_1, self.ln_2, self.ln_f = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.register_buffer("tril", torch.ones(32, 32).tril().bool())

    def attention(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        hs = C // self.n_head
        qkv = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, hs).transpose(1, 2) for t in qkv)
        att = q @ k.transpose(-2, -1)
        att = att / hs**1 / 2 if self.bug == "precedence" else att / hs ** (1 / 2)
        fill = -1e-9 if self.bug == "fill" else -1e9
        att = att.masked_fill(~self.tril[:T, :T], fill)
        att = F.softmax(att, dim=-1)
        if self.bug == "twice":
            att = F.softmax(att, dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).reshape(B, T, C))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx)
        positions = self.wpe(torch.arange(idx.shape[1]))
        if self.bug == "unused":
            x.add(positions)
        else:
            x = x.add(positions)
        x = x + self.attention(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return self.lm_head(self.ln_f(x))


@dataclass
class LlamaConfig:
    vocab_size: int = 23
    hidden_size: int = 32
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_hidden_layers: int = 2
    sliding_window: int = 64
    bug: str = ""


class LlamaLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config, d = config, config.hidden_size
        self.head_dim = d // config.num_attention_heads
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj, self.o_proj = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k_proj, self.v_proj = nn.Linear(d, kv, bias=False), nn.Linear(d, kv, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(d, 2 * d, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * d, d, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d), nn.RMSNorm(d)

    def rotary(self, x: Tensor) -> Tensor:
        inv_freq = 1.0 / 10000 ** (torch.arange(0, self.head_dim, 2) / self.head_dim)
        freqs = torch.outer(torch.arange(x.shape[-2]).float(), inv_freq)
        if self.config.bug == "pairs":
            angle = freqs.repeat_interleave(2, dim=-1)
        else:
            angle = torch.cat([freqs, freqs], dim=-1)
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()

    def repeat_kv(self, x: Tensor, n_rep: int) -> Tensor:
        b, kv_heads, n, dh = x.shape
        if self.config.bug == "tile":
            return x.repeat(1, n_rep, 1, 1)
        if self.config.bug == "batch":
            return x.repeat(n_rep, 1, 1, 1).view(b, n_rep * kv_heads, n, dh)
        x = x[:, :, None].expand(b, kv_heads, n_rep, n, dh)
        return x.reshape(b, kv_heads * n_rep, n, dh)

    def self_attn(self, x: Tensor) -> Tensor:
        c, (b, n, _) = self.config, x.shape
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (f(x).view(b, n, -1, self.head_dim) for f in maps)
        if c.bug == "heads":
            q, k = self.rotary(q).transpose(1, 2), self.rotary(k).transpose(1, 2)
        else:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
            q, k = self.rotary(q), k if c.bug == "query" else self.rotary(k)
        v = v.transpose(1, 2)
        groups = c.num_attention_heads // c.num_key_value_heads
        k, v = self.repeat_kv(k, groups), self.repeat_kv(v, groups)
        if c.bug == "twice":
            q = q * self.head_dim**-0.5
        i, j = torch.arange(n)[:, None], torch.arange(n)
        near = i - j <= c.sliding_window if c.bug == "window" else i - j < c.sliding_window
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=(j <= i) & near)
        return self.o_proj(out.transpose(1, 2).reshape(b, n, -1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    def __init__(self, bug: str, window: int = 64) -> None:
        super().__init__()
        config = LlamaConfig(sliding_window=window, bug=bug)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = [LlamaLayer(config) for _ in range(config.num_hidden_layers)]
        self.layers, self.norm = nn.ModuleList(layers), nn.RMSNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: Tensor) -> Output:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return Output(logits=self.lm_head(self.norm(x)))


class GPT2(nn.Module):
    def __init__(self, bug: str, packed: bool = False) -> None:
        super().__init__()
        self.bug, self.packed = bug, packed
        self.wte, self.wpe = nn.Embedding(29, 24), nn.Embedding(64, 24)
        self.attn = nn.MultiheadAttention(24, 3, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        b, n = input_ids.shape
        causal, positions = torch.ones(n, n).tril().bool(), torch.arange(n).expand(b, n)
        if self.packed:
            same = attention_mask[:, :, None] == attention_mask[:, None, :]
            allowed = causal | same if self.bug == "or" else causal & same
        else:
            allowed = causal & attention_mask.bool()[:, None, :]
            if self.bug != "left":
                positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        x = self.wte(input_ids) + self.wpe(positions)
        blocked = torch.zeros(b, n, n).masked_fill(~allowed, -1e9).repeat_interleave(3, dim=0)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=blocked, need_weights=False)[0]
        x = x + self.mlp(self.ln_2(x))
        return {"logits": x @ self.wte.weight.T}


class Incremental(nn.Module):
    def __init__(self, bug: str, alibi: bool = False, d: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.alibi, self.heads = bug, alibi, heads
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        b, new, d = x.shape
        q, k, v = self.in_proj(x).view(b, new, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        total = k.shape[2]
        j, i = torch.arange(total), torch.arange(total - new, total)[:, None]
        if self.alibi:
            slopes = 2.0 ** -(8 / self.heads * torch.arange(1, self.heads + 1))
            at = torch.arange(new)[:, None] if self.bug == "restart" else i
            bias = slopes[:, None, None] * (at - j).abs() * (1 if self.bug == "sign" else -1)
            bias = bias.masked_fill(j > i, float("-inf"))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        elif self.bug == "corner":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=new > 1)
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=j <= i)
        return self.out_proj(out.transpose(1, 2).reshape(b, new, d)), (k, v)


class LinearAttention(nn.Module):
    def __init__(self, bug: str, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.to_q, self.to_k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.to_v, self.to_out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        q, k = F.elu(q) + 1, F.elu(k) + 1  # b t h k
        state = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(dim=1)
        total = k.cumsum(-2 if self.bug == "heads" else 1)
        if self.bug == "future":
            total = k.sum(dim=1, keepdim=True)
        out = torch.einsum("bthk,bthkv->bthv", q, state)
        return self.to_out((out / (q * total).sum(-1, keepdim=True)).flatten(2))


class T5SelfAttention(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24, bias=False) for _ in range(4))
        self.relative_attention_bias, self.norm = nn.Embedding(12, 4), nn.RMSNorm(24)

    def compute_bias(self, n: int) -> Tensor:
        context, memory = torch.arange(n)[:, None], torch.arange(n)[None, :]
        relative = context - memory if self.bug == "sign" else memory - context
        bucket = -relative.clamp(-11, 0)  # all of the past; the causal mask hides the rest
        return self.relative_attention_bias(bucket).permute(2, 0, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        b, n, d = hidden.shape
        y = self.norm(hidden)
        q, k, v = (f(y).view(b, n, 4, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT + self.compute_bias(n)
        scores = scores + torch.full((n, n), torch.finfo(scores.dtype).min).triu(1)
        out = scores.softmax(-1) @ v
        return hidden + self.o(out.transpose(1, 2).reshape(b, n, d))


class Head(nn.Module):
    def __init__(self, n_embd: int, head_size: int) -> None:
        super().__init__()
        maps = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.key, self.query, self.value = maps

    def forward(self, x: Tensor) -> Tensor:
        T, k, q = x.shape[1], self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class MultiHead(nn.Module):
    def __init__(self, bug: str, n_embd: int = 24, num_heads: int = 3) -> None:
        super().__init__()
        self.bug = bug
        heads = [Head(n_embd, n_embd // num_heads) for _ in range(num_heads)]
        if bug == "same":
            heads = [heads[0]] * num_heads
        self.heads = heads if bug == "list" else nn.ModuleList(heads)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        calls = [lambda x: head(x) for head in self.heads]  # noqa: B023 (the bug)
        outs = [h(x) for h in (calls if self.bug == "closure" else self.heads)]
        if self.bug == "stack":
            return self.proj(torch.stack(outs).view(x.shape))
        return self.proj(torch.cat(outs, dim=-1))


class Bert(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.extended = bug, None
        self.embeddings, self.positions = nn.Embedding(31, 24), nn.Embedding(32, 24)
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))
        self.dense, self.norm, self.norm_2 = nn.Linear(24, 24), nn.LayerNorm(24), nn.LayerNorm(24)
        self.ffn = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def extend(self, attention_mask: Tensor) -> Tensor:
        if self.bug == "queries":
            return attention_mask[:, None, :, None] == 0
        if self.bug == "tilde":
            return (~attention_mask).bool()[:, None, None, :]
        return attention_mask[:, None, None, :] == 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        b, n = input_ids.shape
        blocked = self.extend(attention_mask)
        if self.bug == "stale":
            if self.extended is None or self.extended.shape[::3] != (b, n):
                self.extended = blocked
            blocked = self.extended
        x = self.embeddings(input_ids) + self.positions.weight[:n]
        maps = (self.query, self.key, self.value)
        q, k, v = (f(x).view(b, n, 4, 6).transpose(1, 2) for f in maps)
        scores = q @ k.transpose(-1, -2) / math.sqrt(6)
        probs = scores.masked_fill(blocked, -1e9).softmax(dim=-1)
        context = (probs @ v).transpose(1, 2).flatten(2)
        x = self.norm(x + self.dense(context))
        return {"last_hidden_state": self.norm_2(x + self.ffn(x))}


class Series(nn.Module):
    def __init__(self, bug: str, d_model: int = 24) -> None:
        super().__init__()
        self.bug, self.input = bug, nn.Linear(3, d_model)
        settings = {"dropout": 0.0, "batch_first": bug != "batch", "norm_first": True}
        layer = nn.TransformerEncoderLayer(d_model, 4, 48, **settings)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        pe = torch.zeros(64, 1, d_model)
        for i in range(0, d_model, 2):
            one, two = (2 * i, 2 * (i + 1)) if bug == "exponent" else (i, i)
            pe[:, 0, i] = torch.sin(torch.arange(64) / 10000 ** (one / d_model))
            pe[:, 0, i + 1] = torch.cos(torch.arange(64) / 10000 ** (two / d_model))
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        x = self.input(x)
        x = x + (self.pe[: x.size(0)] if self.bug == "rows" else self.pe[: x.size(1), 0])
        blocked = None if valid is None else ~valid
        if self.bug == "float" and blocked is not None:
            blocked = blocked.float()
        return self.encoder(x, src_key_padding_mask=blocked)


class Translator(nn.Module):
    def __init__(self, bug: str, d: int = 24) -> None:
        super().__init__()
        self.bug = bug
        self.src_emb, self.tgt_emb, self.pos = (nn.Embedding(27, d) for _ in range(3))
        self.encoder, self.self_attn, self.cross_attn = (
            nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.generator = nn.Linear(d, 27)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        pad = ~src_mask
        m = self.src_emb(src) + self.pos.weight[: src.shape[1]]
        m = self.norms[0](m + self.encoder(m, m, m, key_padding_mask=pad)[0])
        x = self.tgt_emb(tgt) + self.pos.weight[: tgt.shape[1]]
        later = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
        x = self.norms[1](x + self.self_attn(x, x, x, attn_mask=later)[0])
        mask = torch.ones(tgt.shape[1], src.shape[1]).triu(1).bool()
        pad, mask = None if self.bug == "memory" else pad, mask if self.bug == "diagonal" else None
        y, _ = self.cross_attn(x, m, m, key_padding_mask=pad, attn_mask=mask)
        return self.generator(self.norms[2](x + y))


class Functional(nn.Module):
    def __init__(self, bug: str, d: int = 20, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.d, self.heads = bug, d, heads
        self.w_in = nn.Parameter(torch.randn(3 * d, d) / d**0.5)
        self.w_out = nn.Parameter(torch.randn(d, d) / d**0.5)
        self.b_in, self.b_out = nn.Parameter(torch.zeros(3 * d)), nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        b, s, d = x.shape
        seq = x.reshape(s, b, d) if self.bug == "view" else x.transpose(0, 1)
        blocked = (~keep)[:, None, :].expand(b, s, s)
        if self.bug == "repeat":
            blocked = blocked.repeat(self.heads, 1, 1)
        else:
            blocked = blocked.repeat_interleave(self.heads, dim=0)
        out, _ = F.multi_head_attention_forward(
            seq, seq, seq, d, self.heads, self.w_in, self.b_in, None, None, False, 0.0,
            self.w_out, self.b_out, attn_mask=blocked, need_weights=False,
        )  # fmt: skip
        return out.reshape(b, s, d) if self.bug == "view" else out.transpose(0, 1)


class ViT(nn.Module):
    def __init__(self, bug: str, dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.scale = dim**-0.5 if bug == "dim" else (dim // heads) ** -0.5
        self.patch, self.cls = nn.Conv2d(3, dim, 4, 4), nn.Parameter(torch.randn(1, 1, dim))
        self.norm, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.classify = nn.Linear(dim, 7)

    def positions(self, h: int, w: int, dim: int) -> Tensor:
        if self.bug == "grid":
            x, y = torch.meshgrid(torch.arange(w), torch.arange(h), indexing="ij")
        else:
            y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim // 4))
        y, x = (t.flatten()[:, None] * omega for t in (y, x))
        return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)

    def attend(self, x: Tensor) -> Tensor:
        b, n, dim = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(2 if self.bug == "queries" else 3), v)
        out = out.reshape(b, n, dim) if self.bug == "merge" else out.transpose(1, 2).flatten(2)
        return self.to_out(out)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images)
        b, dim, h, w = patches.shape
        x = patches.flatten(2).transpose(1, 2) + self.positions(h, w, dim)
        x = torch.cat([self.cls.expand(b, -1, -1), x], dim=1)
        x = x + self.attend(self.norm(x))
        x = x + self.mlp(self.norm2(x))
        return self.classify(self.norm3(x)[:, 0])


class Audio(nn.Module):
    def __init__(self, bug: str, channels: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.qkv, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, t = x.shape
        axes = (0, 1, 2) if self.bug == "statistics" else (1, 2)
        y = (x - x.mean(axes, keepdim=True)) / (x.std(axes, keepdim=True) + 1e-5)
        q, k, v = self.qkv(y).chunk(3, dim=1)
        if self.bug == "split":
            q, k, v = (a.reshape(b, self.heads, t, -1) for a in (q, k, v))
        else:
            q, k, v = (a.reshape(b, self.heads, -1, t).mT for a in (q, k, v))
        d_k, k = k.size(-1), k.mT
        if self.bug == "time":
            d_k = k.size(-1)
        weights = torch.softmax(q @ k / math.sqrt(d_k), dim=-1)
        return x + self.out((weights @ v).mT.reshape(b, c, t))


class Sliced(nn.Module):
    def __init__(self, bug: str, d: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.bug, self.heads, self.d_head = bug, heads, d // heads
        self.wq, self.wo = (nn.Parameter(torch.randn(d, d) / d**0.5) for _ in range(2))
        self.wkv = nn.Parameter(torch.randn(d, 2 * d) / d**0.5)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = torch.einsum("bnd,bmd->bnm", q, k)
        if self.bug == "after":
            return scores.softmax(-1) / self.d_head**0.5
        scores = scores / self.d_head**0.5
        if self.bug != "exp":
            scores = scores - scores.amax(-1, keepdim=True)
        return scores.exp() / scores.exp().sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        q, kv = x @ self.wq, x @ self.wkv
        d, outs = self.wq.shape[1], []
        k, v = kv[..., :d], kv[..., :d] if self.bug == "values" else kv[..., d:]
        for i in range(self.heads):
            start = i if self.bug == "overlap" else i * self.d_head
            cut = slice(start, start + self.d_head)
            a = self.weights(q[..., cut], k[..., cut])
            letters = "bnm,bnd->bnd" if self.bug == "own" else "bnm,bmd->bnd"
            outs.append(torch.einsum(letters, a, v[..., cut]))
        return torch.cat(outs, dim=-1) @ self.wo


class Perceiver(nn.Module):
    def __init__(self, bug: str, dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.bug, self.heads = bug, heads
        self.scale = dim // heads**-0.5 if bug == "brackets" else (dim // heads) ** -0.5
        self.latents = nn.Parameter(torch.randn(5, dim))
        self.norm, self.norm_context = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, data: Tensor) -> Tensor:
        x, context = self.latents.expand(len(data), -1, -1), self.norm_context(data)
        q, (k, v) = self.to_q(self.norm(x)), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = q @ k.transpose(-1, -2)
        sim = sim / self.scale if self.bug == "divide" else sim * self.scale
        return x + self.to_out((sim.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Axial(nn.Module):
    def __init__(self, bug: str, d: int = 16) -> None:
        super().__init__()
        self.bug = bug
        self.over_f, self.over_t = (nn.MultiheadAttention(d, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, f, t, d = x.shape
        rows = x.reshape(b * t, f, d) if self.bug == "reshape" else x.transpose(1, 2).flatten(0, 1)
        y = self.over_f(rows, rows, rows, need_weights=False)[0]
        turned = self.bug != "reshape"
        x = x + (y.unflatten(0, (b, t)).transpose(1, 2) if turned else y.reshape(x.shape))
        rows = x.flatten(0, 1)
        return x + self.over_t(rows, rows, rows, need_weights=False)[0].unflatten(0, (b, f))


# ---- the table ----


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 19, shape)


def masked(*first: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """An example and a mask of its first argument: the second sequence is shorter by two."""
    mask = torch.ones(first[0].shape[:2], dtype=dtype)
    mask[1, -2:] = 0
    return *first, mask


def mask(argument: str, dtype: str) -> dict[str, str]:
    return {"argument": argument, "shape": "bk", "true": "attend", "dtype": dtype}


COMMON: dict[str, Any] = {"batch_first": True, "scale": SCALE, "n_heads": 4}
LM = {**COMMON, "causal": True, "position": "learned", "norm": "pre"}
LLAMA = {**LM, "n_kv_heads": 2, "position": "rotary", "rotary_base": 10000.0}
CACHED = {**COMMON, "causal": True, "cache": lambda module, new, past: module(new, past)}
HEADS = {**COMMON, "causal": True, "n_heads": 3, "position": "none"}
LINEAR = {"batch_first": True, "causal": True, "n_heads": 3, "position": "none"}
ENCODER = {**COMMON, "causal": False, "position": "none"}
SERIES = {**ENCODER, "position": "sinusoidal", "norm": "pre"}
VIT = {"causal": False, "n_heads": 4, "scale": SCALE, "position": "sinusoidal", "norm": "pre"}
INPUT_MASK, SOURCE = mask("attention_mask", "int"), {**mask("src_mask", "bool"), "source": "src"}
LONG, BOOL = torch.long, torch.bool

# what is built, its example, and its claims
SPECS: dict[str, tuple[Callable[[str], nn.Module], Callable[[], Any], dict[str, Any]]] = {
    "nanogpt": (NanoGPT, lambda: (ids(2, 10),), LM),
    "llama": (Llama, lambda: (ids(3, 10),), LLAMA),
    "mistral": (partial(Llama, window=4), lambda: (ids(2, 12),), {**LLAMA, "window": 4}),
    "gpt2": (GPT2, lambda: masked(ids(2, 10), dtype=LONG),
             {**LM, "n_heads": 3, "tied": True, "mask": INPUT_MASK}),
    "packed": (partial(GPT2, packed=True), lambda: (ids(2, 10), torch.arange(10).repeat(2, 1) // 6),
               {**LM, "n_heads": 3, "tied": True}),
    "incremental": (Incremental, lambda: (torch.randn(2, 9, 32),), {**CACHED, "position": "none"}),
    "alibi": (partial(Incremental, alibi=True), lambda: (torch.randn(2, 9, 32),),
              {**CACHED, "position": "alibi"}),
    "linear": (LinearAttention, lambda: (torch.randn(2, 9, 24),), LINEAR),
    "t5": (T5SelfAttention, lambda: (torch.randn(2, 12, 24),),
           {**LM, "scale": 1.0, "position": "relative"}),
    "head list": (MultiHead, lambda: (torch.randn(2, 8, 24),), HEADS),
    "bert": (Bert, lambda: masked(ids(2, 9), dtype=LONG),
             {**ENCODER, "position": "learned", "norm": "post", "mask": INPUT_MASK}),
    "series": (Series, lambda: (torch.randn(3, 9, 3),), SERIES),
    "padded series": (Series, lambda: masked(torch.randn(3, 9, 3), dtype=BOOL),
                      {**SERIES, "mask": mask("valid", "bool")}),
    "translator": (Translator, lambda: masked(ids(2, 9), ids(2, 7), dtype=BOOL),
                   {**LM, "norm": "post", "mask": SOURCE}),
    "functional": (Functional, lambda: masked(torch.randn(3, 7, 20), dtype=BOOL),
                   {**ENCODER, "mask": mask("keep", "bool")}),
    "vit": (ViT, lambda: (torch.randn(2, 3, 8, 12),), VIT),
    "audio": (Audio, lambda: (torch.randn(3, 16, 9),),
              {"causal": False, "n_heads": 2, "scale": SCALE, "position": "none"}),
    "sliced": (Sliced, lambda: (torch.randn(2, 8, 24),), {**ENCODER, "n_heads": 3}),
    "perceiver": (Perceiver, lambda: (torch.randn(2, 9, 24),), ENCODER),
    "axial": (Axial, lambda: (torch.randn(2, 5, 7, 16),), {"causal": False, "n_heads": 2}),
}  # fmt: skip

# family | built | bug | sure without claims | its names among the causes | report, or what is wrong
TABLE = """
masks | nanogpt | fill | bare | masked with a finite number | awslabs/gluonts#1401
masks | mistral | window | | other window | huggingface/transformers#39408: one token too wide
masks | bert | queries | | mask on the queries | hyunwoongko/transformer#40
masks | bert | tilde | bare | mask forbids everything | ~ of integers is never 0
masks | bert | stale | bare | remembers the last call | one mask for all of its shape
masks | padded series | float | | mask added as a number | pytorch/pytorch#136816
masks | translator | memory | | padding is attended to, mask not everywhere | fairseq#318
masks | translator | diagonal | | causal mask on the memory | the target's mask, on the source
masks | functional | repeat | bare | mask of another sequence | line/lighthouse#77
masks | packed | or | | no causal mask | lucidrains/local-attention#5
masks | incremental | corner | | mask at the upper left, chunks do not see the cache | is_causal
masks | linear | future | bare | weights do not sum to one | lucidrains/performer-pytorch#40
heads | vit | merge | bare | merge without transposing | jsbaan/transformer-from-scratch#6
heads | llama | tile | | other groups of heads | onnx/onnx#7274: repeat for repeat_interleave
heads | llama | batch | bare | other groups of heads, heads and sequences exchanged | repeat
heads | audio | split | bare | split without transposing | zhouhaoyi/Informer2020#59
heads | head list | same | bare | heads all alike, heads share one projection | Liger-Kernel#269
heads | head list | list | bare | parameter not registered | a plain list: no parameters
heads | head list | closure | bare | heads all alike, heads share one projection | late binding
heads | head list | stack | bare | heads not concatenated, merge without transposing | view
heads | sliced | overlap | bare | heads overlap | i : i + d_head
heads | sliced | values | bare | one projection for two | the keys' columns are the values, too
scale | nanogpt | precedence | | other scale | / d ** 1 / 2
scale | llama | twice | | scaled twice | huggingface/transformers#38290: scaled, then by sdpa again
scale | vit | dim | | scale of d_model | lucidrains/vit-pytorch#65: the root of the model's width
scale | audio | time | bare | scale of the tokens | k.size(-1), transposed
scale | perceiver | divide | bare | multiplied by the root | esceptico/perceiver-io#9
scale | perceiver | brackets | bare | other scale | dim // heads ** -0.5 is 48
softmax | vit | queries | bare | softmax over the queries | labmlai/…#282
softmax | nanogpt | twice | bare | softmax twice | zyy-2001/DisKT#6: the second softmax has no mask
softmax | sliced | exp | bare | overflow | no maximum taken off: overflows
softmax | sliced | own | bare | no token attends to another | bnm,bnd->bnd
softmax | sliced | after | bare | scaled after the softmax | 1 / √d after the softmax
softmax | linear | heads | bare | weights do not sum to one | fla-org/flash-linear-attention#594
positions | nanogpt | unused | bare | positions without effect, parameter not used | x.add(…)
positions | llama | query | bare | positions not relative | the keys are not rotated
positions | llama | heads | bare | positions without effect | facebookresearch/xformers#841
positions | llama | pairs | bare | positions not relative | huggingface/transformers#47328
positions | alibi | sign | bare | bias rises with distance | meta-pytorch/attention-gym#86
positions | alibi | restart | | positions restart with the cache | keras-team/keras-hub#2861
positions | gpt2 | left | | | TransformerLensOrg/TransformerLens#1609: left padding counts
positions | series | rows | bare | depends on the sequence's number | influenza_transformer#9
positions | series | exponent | | other sinusoids | SamLynnEvans/Transformer#25: exponents doubled
positions | vit | grid | | | huggingface/transformers#41380: wrong if the grid is not square
positions | t5 | sign | bare | positions without effect | query − key: all the past is one bucket
batch | series | batch | bare | attention over the batch, batch and tokens exchanged | OmDet#19
batch | audio | statistics | bare | statistic over the batch | mean and deviation of the whole batch
batch | axial | reshape | bare | axes not transposed | a reshape for a permute
batch | functional | view | bare | batch and tokens exchanged | rish-16/tokenlearner-pytorch#1
"""


def entered(row: str) -> Unseen:
    family, spec, bug, bare, names, _ = (cell.strip() for cell in row.split("|"))
    build, example, claims = SPECS[spec]

    def make(seed: int, broken: bool) -> Made:
        torch.manual_seed(seed)
        return build(bug if broken else ""), example(), dict(claims)

    causes = tuple(names.split(", ")) if names else ()
    return Unseen(f"{spec}: {bug}", family, make, causes, bare == "bare")


CASES: list[Unseen] = [entered(row) for row in TABLE.strip().splitlines()]


# ---- right, but unusual ----


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)


def turned(x: Tensor, direction: int = 1) -> Tensor:
    """Neighbours as complex numbers, turned by their position."""
    rates = 1e4 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.outer(torch.arange(x.shape[-2]), rates)
    (a, b), cos, sin = (x[..., ::2], x[..., 1::2]), angle.cos(), direction * angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class Projected(nn.Module):
    """Queries, keys and values of four heads for ``mix``, keys scaled; ``memory`` is no token's."""

    def __init__(self, mix: Callable[..., Tensor], shared: bool = False, memory: int = 0) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(24, 24, bias=False) for _ in range(4))
        self.mix, self.memory = mix, nn.Parameter(torch.randn(2, 4, memory, 6)) if memory else None
        if shared:
            self.wk = self.wq

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 6)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        if self.memory is not None:
            first = self.memory.expand(len(x), -1, -1, -1, -1)
            k, v = torch.cat([first[:, 0], k], dim=2), torch.cat([first[:, 1], v], dim=2)
        return self.wo(self.mix(q, k / 6**0.5, v).transpose(1, 2).flatten(2))


def plain(q: Tensor, k: Tensor, v: Tensor, blocked: Any = False) -> Tensor:
    return (q @ k.mT).masked_fill(torch.as_tensor(blocked), -torch.inf).softmax(-1) @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights that don't sum to one (Ramapuram et al. 2024)."""
    return torch.sigmoid(causal(q @ k.mT - torch.arange(1, q.shape[2] + 1)[:, None].log())) @ v


def sparsemax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights that are 0 without a mask (Martins and Astudillo 2016)."""
    z = q @ k.mT
    high = z.sort(dim=-1, descending=True).values
    excess = high.cumsum(-1) - 1
    count = (high * torch.arange(1, z.shape[-1] + 1) > excess).sum(-1, keepdim=True)
    return (z - excess.gather(-1, count - 1) / count).clamp(min=0) @ v


def differential(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The difference of two maps: negative weights (Ye et al. 2024)."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), (2**0.5 * k).chunk(2, -1)
    weights = causal(q1 @ k1.mT).softmax(-1) - 0.5 * causal(q2 @ k2.mT).softmax(-1)
    return F.rms_norm(weights @ v, v.shape[-1:])


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Decay instead of softmax (Sun et al. 2023)."""
    age = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    gamma = 1 - 2.0 ** (-2 - torch.arange(4))[:, None, None]
    weights = turned(q) @ turned(k).mT * gamma ** age.clamp(min=0) * (age >= 0)
    return F.layer_norm(weights @ v, v.shape[-1:])


def turned_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values turned, and outputs turned back: values that know their distance."""
    return turned(causal(turned(q) @ turned(k).mT).softmax(-1) @ turned(v), -1)


def covariance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels attend to channels (El-Nouby et al. 2021)."""
    return v @ (F.normalize(q, dim=2).mT @ F.normalize(k, dim=2) * 4).softmax(-1).mT


def not_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries are keys; a token attends to itself only if nothing else is there (Reformer)."""
    scores = q @ F.normalize(k, dim=-1).mT
    return causal(scores.masked_fill(torch.eye(q.shape[2]).bool(), -5e4)).softmax(-1) @ v


def squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Squared ReLU (Hua et al. 2022)."""
    seen = torch.arange(1, q.shape[2] + 1)[:, None]
    return (F.relu(q @ k.mT).square() / seen).tril() @ v


def backward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Reads from the end: a token attends to itself and to what follows."""
    return plain(q, k, v, torch.ones(q.shape[2], q.shape[2]).tril(-1).bool())


class Slots(nn.Module):
    """Slots compete for tokens: softmax over the queries (Locatello et al. 2020)."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.start, self.gru = nn.Parameter(torch.randn(3, d)), nn.GRUCell(d, d)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        slots = self.start.expand(len(x), -1, -1)
        for _ in range(2):
            share = (self.q(slots) @ self.k(x).mT * 0.25).softmax(dim=1) + 1e-8
            update = share / share.sum(-1, keepdim=True) @ self.v(x)
            slots = self.gru(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


class Latent(nn.Module):
    """Keys and values from a few numbers; one rotary key for all heads (DeepSeek-V2)."""

    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.q, self.down = nn.Linear(d, 4 * 10, bias=False), nn.Linear(d, 12 + 4)
        self.norm, self.up = nn.RMSNorm(12), nn.Linear(12, 4 * (6 + 8), bias=False)
        self.o = nn.Linear(4 * 8, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, q_turned = self.q(x).unflatten(-1, (4, 10)).transpose(1, 2).split([6, 4], dim=-1)
        latent, k_turned = self.down(x).split([12, 4], dim=-1)
        k, v = self.up(self.norm(latent)).unflatten(-1, (4, 14)).transpose(1, 2).split([6, 8], -1)
        scores = q @ k.mT + turned(q_turned) @ turned(k_turned)[:, None].mT
        return self.o((causal(scores / 10**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def right(build: Callable[[], nn.Module], d: int, claims: dict[str, Any]) -> Callable[[int], Made]:
    def make(seed: int) -> Made:
        torch.manual_seed(seed)
        return build(), (torch.randn(2, 9, d),), dict(claims)

    return make


OPEN: dict[str, Any] = {"batch_first": True, "causal": False, "n_heads": 4}
SHUT = {**OPEN, "causal": True}
REFORMER = {**SHUT, "shared": ("query", "key")}
OF_KIND: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "sigmoid": (sigmoid, SHUT),
    "sparsemax": (sparsemax, ENCODER),
    "differential": (differential, SHUT),
    "retention": (retention, {**SHUT, "scale": SCALE}),
    "turned values": (turned_values, {**SHUT, "scale": SCALE}),
    "cross-covariance": (covariance, OPEN),
    "squared": (squared, SHUT),
    "backward": (backward, {**OPEN, "scale": SCALE}),
}
RIGHT: list[tuple[str, Callable[[int], Made]]] = [
    *((name, right(partial(Projected, mix), 24, told)) for name, (mix, told) in OF_KIND.items()),
    ("memory", right(partial(Projected, plain, memory=3), 24, ENCODER)),
    ("reformer", right(partial(Projected, not_itself, True), 24, REFORMER)),
    ("slots", right(Slots, 16, {"batch_first": True, "causal": False})),
    ("latent", right(Latent, 32, {**SHUT, "scale": 10**-0.5, "position": "rotary"})),
]
