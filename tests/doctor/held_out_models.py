# ruff: noqa: N806, C408 (written as people write it)
"""Bugs of whole models by which the doctor was scored once; since then it was developed on them.

Each builder makes a module with the bug that it is told, or the right twin (``bug=""``).
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.doctor.unseen import Unseen

SCALE = "1/sqrt(d_head)"
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Model(nn.Module):
    def __init__(self, bug: str = ""):
        super().__init__()
        self.bug = bug


def ids(vocab: int = 37, b: int = 3, t: int = 9) -> Tensor:
    return torch.randint(1, vocab, (b, t))


def twice() -> tuple[Tensor, Tensor]:
    """Ids, and the same as labels."""
    x = ids()
    return x, x.clone()


def small(model: nn.Module) -> nn.Module:
    for m in model.modules():
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)
    return model


# ---------------------------------------------------------------- a Llama
def rotate(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RMSNorm(Model):
    def __init__(self, dim: int, bug: str = ""):
        super().__init__(bug)
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        axes = (0, 1, 2) if self.bug == "rms over the whole batch" else -1
        r = torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + 1e-6)
        return self.weight * (x / r if self.bug == "divided by rsqrt" else x * r)


class LlamaLayer(Model):
    def __init__(self, bug: str, window: int, dim: int = 32):
        super().__init__(bug)
        self.window = window
        self.wq, self.wo = (nn.Linear(dim, dim, bias=False) for _ in "qo")
        self.wk, self.wv = (nn.Linear(dim, dim // 2, bias=False) for _ in "kv")
        self.w1, self.w3 = (nn.Linear(dim, 80, bias=False) for _ in "13")
        self.w2 = nn.Linear(80, dim, bias=False)
        self.norm1, self.norm2 = RMSNorm(dim, bug), RMSNorm(dim, bug)

    def attend(self, x, past):
        B, T, D = x.shape
        q, k, v = (w(x).view(B, T, -1, 8).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        seen = 0 if past is None else past[2]
        if self.bug == "position from the length" and past is not None:
            seen = past[0].shape[2]
        start = 0 if self.bug == "rotary restarts" else seen
        q = rotate(q, torch.arange(T) + start)
        if self.bug != "cached keys rotated again":
            k = rotate(k, torch.arange(T) + start)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if self.bug == "cached keys rotated again":
            k = rotate(k, torch.arange(k.shape[2]))
        at = torch.arange(T)[:, None] + seen
        of = torch.arange(k.shape[2]) + seen + T - k.shape[2]
        mask = (of <= at) & (of > at - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        kept = (k[:, :, -self.window :], v[:, :, -self.window :], seen + T)
        return self.wo(y.transpose(1, 2).reshape(B, T, D)), kept

    def forward(self, x, past=None):
        y, kept = self.attend(self.norm1(x), past)
        x = x + y
        h = self.norm2(x)
        gate, up = self.w1(h), self.w3(h)
        over = self.bug == "silu over the product"
        return x + self.w2(F.silu(gate * up) if over else F.silu(gate) * up), kept


class Llama(Model):
    def __init__(self, bug: str = "", window: int = 10**6):
        super().__init__(bug)
        self.tok_embeddings = nn.Embedding(37, 32)
        self.layers = nn.ModuleList(LlamaLayer(bug, window) for _ in range(2))
        self.norm, self.output = RMSNorm(32, bug), nn.Linear(32, 37, bias=False)
        small(self)

    def forward(self, tokens, state=None, use_cache=False):
        h, new = self.tok_embeddings(tokens), []
        for i, layer in enumerate(self.layers):
            h, kept = layer(h, None if state is None else state[i])
            new.append(kept)
        logits = self.output(self.norm(h))
        return (logits, new) if use_cache else logits


def step(model, new, state):
    return model(new, state, use_cache=True)


# ---------------------------------------------------------------- a small GPT
class Attention(Model):
    def __init__(self, n_embd: int, n_head: int, bug: str):
        super().__init__(bug)
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, past=None):
        B, T, C = x.shape
        heads = (B, T, self.n_head, C // self.n_head)
        q, k, v = (y.view(heads).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            in_front = self.bug == "new values in front"
            v = torch.cat([v, past[1]] if in_front else [past[1], v], dim=2)
        if self.bug == "is_causal with a cache":  # aligned with the upper left corner
            y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        elif self.bug == "no mask with a cache" and past is not None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            mask = torch.ones(T, k.shape[2], dtype=torch.bool).tril(k.shape[2] - T)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)), (k, v)


def mlp(d: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))


class Block(Model):
    def __init__(self, n_embd: int, n_head: int, bug: str):
        super().__init__(bug)
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn, self.mlp = Attention(n_embd, n_head, bug), mlp(n_embd, 4 * n_embd)

    def forward(self, x, past=None):
        h = self.ln_1(x)
        y, present = self.attn(x if self.bug == "norm thrown away" else h, past)
        x = x + y
        return x + self.mlp(self.ln_2(x)), present


class GPT(Model):
    def __init__(self, bug: str = "", tied: bool = False):
        super().__init__(bug)
        self.wte, self.wpe = nn.Embedding(37, 24), nn.Embedding(4096, 24)
        self.h = nn.ModuleList(Block(24, 3, bug) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(24), nn.Linear(24, 37, bias=False)
        self.kept = None
        small(self)
        if bug == "embeddings of size one":
            nn.init.normal_(self.wte.weight)
        if tied and bug == "tied by copying":
            self.lm_head.weight.data.copy_(self.wte.weight.data)
        elif tied:
            self.lm_head.weight = self.wte.weight

    def hidden(self, idx, past=None):
        start = 0 if past is None or self.bug == "positions restart" else past[0][0].shape[2]
        x = self.wte(idx) + self.wpe(torch.arange(start, start + idx.shape[1]))
        present = []
        for i, block in enumerate(self.h):
            layer = 0 if self.bug == "first layer's cache for all" else i
            x, kept = block(x, None if past is None else past[layer])
            present.append(kept)
        return self.ln_f(x), present

    def forward(self, idx, past=None, use_cache=False):
        if self.bug == "old cache kept" and use_cache and past is None:
            past = self.kept if self.kept and len(self.kept[0][0]) == len(idx) else None
        x, present = self.hidden(idx, past)
        if self.bug == "old cache kept" and use_cache:
            self.kept = present
        return (self.lm_head(x), present) if use_cache else self.lm_head(x)


# ---------------------------------------------------------------- losses and steps
class LanguageModel(Model):
    """``(input_ids, labels) -> loss``; labels are the ids, the shift is done here."""

    def __init__(self, bug: str):
        super().__init__(bug)
        self.emb, self.pos = nn.Embedding(37, 24), nn.Embedding(64, 24)
        kind = dict(dropout=0.0, batch_first=True, norm_first=True)
        layers = [nn.TransformerEncoderLayer(24, 3, 64, **kind) for _ in range(2)]
        self.layers = layers if bug == "layers in a list" else nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 37)
        small(self)

    def loss_function(self, logits, labels):
        """As a library has it: shifts by itself, whatever the labels' shape."""
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:]
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)

    def forward(self, input_ids, labels):
        T = input_ids.shape[1]
        x = self.emb(input_ids) + self.pos(torch.arange(T))
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        x = self.norm(x)
        logits = self.head(x.detach() if self.bug == "detached before the head" else x)
        if self.bug == "shifted twice":
            return self.loss_function(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if self.bug == "not shifted":
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if self.bug == "softmax before the loss":
            logits = logits.softmax(-1)
        return self.loss_function(logits, labels)


class Loss(Model):
    """``(logits, ids) -> loss`` per token, batch first; id 0 is padding if ``pads``."""

    def __init__(self, bug: str, pads: bool = True, smoothing: float = 0.0):
        super().__init__(bug)
        self.pads, self.smoothing = pads, smoothing

    def forward(self, logits, targets):
        if self.bug == "shifted over the batch":  # written for (time, batch, vocab)
            logits, targets = logits[:-1], targets[1:]
        else:
            logits, targets = logits[:, :-1], targets[:, 1:]
        by_view = self.bug == "vocabulary by a view"
        logp = (logits.reshape(logits.mT.shape).mT if by_view else logits).log_softmax(-1)
        loss = -logp.gather(-1, targets[..., None])[..., 0]
        loss = (1 - self.smoothing) * loss - self.smoothing * logp.mean(-1)
        if not self.pads or self.bug == "smoothing counts padding":
            return loss.mean()
        mask = (targets != 0).float()
        if self.bug == "mean over padding too":
            return (loss * mask).mean()
        return (loss * mask).sum() / mask.sum().clamp(min=1)


# ---------------------------------------------------------------- blocks of several styles
class PortedEncoderLayer(Model):
    """From a TensorFlow tutorial."""

    def __init__(self, bug: str, keep_prob: float = 1.0, d_model: int = 28):
        super().__init__(bug)
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))
        self.ffn = mlp(d_model, 64)
        self.layernorm1, self.layernorm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.rate = keep_prob if bug == "keep_prob as dropout" else 1 - keep_prob
        self.dropout1, self.dropout2 = nn.Dropout(self.rate), nn.Dropout(self.rate)

    def mha(self, x):
        heads = (*x.shape[:2], 4, x.shape[2] // 4)
        q, k, v = (w(x).reshape(heads).permute(0, 2, 1, 3) for w in (self.wq, self.wk, self.wv))
        w = torch.softmax(torch.matmul(q, k.mT) / math.sqrt(heads[-1]), -1)
        always = self.bug == "functional dropout in eval"
        w = F.dropout(w, self.rate) if always else F.dropout(w, self.rate, self.training)
        return self.dense(torch.matmul(w, v).permute(0, 2, 1, 3).reshape(x.shape))

    def forward(self, inputs):
        out1 = self.layernorm1(inputs + self.dropout1(self.mha(inputs)))
        residual = inputs if self.bug == "first input added again" else out1
        return self.layernorm2(residual + self.dropout2(self.ffn(out1)))


class ChannelNorm(nn.GroupNorm):
    def forward(self, x):
        return F.layer_norm(x.mT, x.shape[1:2], self.weight, self.bias, self.eps).mT


class CausalAudio(Model):
    """(batch, channels, time) -> the same, each sample from earlier ones."""

    def __init__(self, bug: str, channels: int = 16, heads: int = 2):
        super().__init__(bug)
        self.heads = heads
        norm = nn.GroupNorm if bug == "one group over time" else ChannelNorm
        self.norm1, self.norm2 = norm(1, channels), norm(1, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1, bias=False)
        self.proj = nn.Conv1d(channels, channels, 1)
        self.up, self.down = nn.Conv1d(channels, 40, 1), nn.Conv1d(40, channels, 1)

    def forward(self, x):
        b, c, t = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, 3, self.heads, c // self.heads, t).unbind(1)
        sim = torch.einsum("bhdi,bhdj->bhij", q, k) * (c // self.heads) ** -0.5
        sim = sim.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        y = torch.einsum("bhij,bhdj->bhdi", sim.softmax(-1), v).reshape(b, c, t)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SequenceFirst(Model):
    """(time, batch, features), pre-norm."""

    def __init__(self, bug: str, d: int = 24):
        super().__init__(bug)
        self.attn = nn.MultiheadAttention(d, 4, bias=False)
        self.n1, self.n2, self.ff = nn.LayerNorm(d), nn.LayerNorm(d), mlp(d, 50)

    def forward(self, x):
        y = self.n1(x)
        if self.bug == "stream replaced by its norm":
            x = y
        y = self.attn(y, y, y, need_weights=False)[0]
        x = y + y if self.bug == "output added to itself" else x + y
        return x + self.ff(self.n2(x))


class ViT(Model):
    def __init__(self, bug: str, d: int = 24):
        super().__init__(bug)
        self.patch_embed = nn.Conv2d(3, d, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 13, d) * 0.02)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2, self.head = nn.Linear(d, 96), nn.Linear(96, d), nn.Linear(d, 7)

    def forward(self, images):
        x = self.patch_embed(images)  # (b, d, 3, 4)
        B, D = x.shape[:2]
        x = x.view(B, -1, D) if self.bug == "patches by a view" else x.flatten(2).mT
        x = torch.cat([self.cls_token.expand(B, -1, -1), x], 1) + self.pos_embed
        q, k, v = self.qkv(self.norm1(x)).reshape(B, -1, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        hidden = self.fc1(self.norm2(x))
        x = x + self.fc2(hidden if self.bug == "no activation" else F.gelu(hidden))
        return self.head(self.norm(x)[:, 0])


# ---------------------------------------------------------------- modes and state
class Alibi(Model):
    """Fused attention of (b, t, d), ALiBi added to a causal mask that is kept."""

    def __init__(self, bug: str, attention_dropout: float = 0.2, d: int = 32, heads: int = 4):
        super().__init__(bug)
        self.heads, self.dropout_p = heads, attention_dropout
        self.to_qkv, self.to_out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.register_buffer("mask", torch.full((heads, 64, 64), -1e9).triu(1))
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, heads + 1) / heads))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        bias, alibi = self.mask[:, :t, :t], self.slopes[:, None, None] * distance.clamp(max=0)
        if self.bug == "bias grows in its buffer":
            bias += alibi
        else:
            bias = bias + alibi
        if self.bug == "dropout lost":
            self.dropout_p = self.dropout_p if self.training else 0.0
        p = self.dropout_p if self.training else 0.0
        if self.bug == "scaled twice in eval" and not self.training:
            q = q * q.shape[-1] ** -0.5
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p)
        return self.to_out(y.transpose(1, 2).reshape(b, t, d))


class Backbone(nn.TransformerEncoder):
    def __init__(self, bug: str):
        layer = nn.TransformerEncoderLayer(24, 4, 48, 0.3, batch_first=True)
        super().__init__(layer, 2, enable_nested_tensor=False)
        self.bug = bug

    def train(self, mode: bool = True):
        if self.bug == "eval does not reach the layers":
            self.training = mode
            return self
        return super().train(mode)


# ---------------------------------------------------------------- encoders and pairs
class BertEmbedder(Model):
    """``(input_ids, attention_mask)`` -> the mean over real tokens, in a dictionary."""

    def __init__(self, bug: str):
        super().__init__(bug)
        config = SimpleNamespace(vocab_size=37, hidden_size=24, num_attention_heads=4)
        self.config, d = config, config.hidden_size
        self.word, self.position = nn.Embedding(config.vocab_size, d), nn.Embedding(64, d)
        self.query, self.key, self.value, self.dense = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.norm2, self.ff = nn.LayerNorm(d), nn.LayerNorm(d), mlp(d, 60)

    def forward(self, input_ids, attention_mask):
        (B, T), H = input_ids.shape, self.config.num_attention_heads
        x = self.word(input_ids) + self.position(torch.arange(T))
        projections = (self.query, self.key, self.value)
        q, k, v = (f(x).view(B, T, H, -1).permute(0, 2, 1, 3) for f in projections)
        extended = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        if self.bug == "encoder is causal":
            extended = extended + torch.full((T, T), -10000.0).triu(1)
        y = (q @ k.mT / math.sqrt(q.shape[-1]) + extended).softmax(-1) @ v
        x = self.norm1(x + self.dense(y.permute(0, 2, 1, 3).reshape(B, T, -1)))
        x = self.norm2(x + self.ff(x))
        if self.bug == "mean over padding":
            return {"sentence_embedding": x.mean(dim=1)}
        mask = attention_mask[..., None].to(x.dtype)
        return {"sentence_embedding": (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)}


class Seq2Seq(Model):
    """``(src, tgt, src_key_padding_mask) -> logits`` of torch's layers."""

    def __init__(self, bug: str, d: int = 24):
        super().__init__(bug)
        self.src_emb, self.tgt_emb, self.pos = (nn.Embedding(n, d) for n in (37, 31, 64))
        self.encoder = nn.TransformerEncoderLayer(d, 3, 48, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(d, 3, 48, 0.0, batch_first=True)
        self.out = nn.Linear(d, 31)

    def forward(self, src, tgt, src_key_padding_mask):
        x = self.src_emb(src) + self.pos(torch.arange(src.shape[1]))
        y = self.tgt_emb(tgt) + self.pos(torch.arange(tgt.shape[1]))
        memory = self.encoder(x, src_key_padding_mask=src_key_padding_mask)
        cross = None if self.bug == "memory's padding forgotten" else src_key_padding_mask
        mask = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        return self.out(self.decoder(y, memory, tgt_mask=mask, memory_key_padding_mask=cross))


class HeadList(nn.Module):
    """One small attention a head; keys and values from a context if there is one."""

    def __init__(self, d: int, heads: int, causal: bool = False):
        super().__init__()
        self.causal, e = causal, d // heads
        self.qs, self.ks, self.vs = (
            nn.ModuleList(nn.Linear(d, e, bias=False) for _ in range(heads)) for _ in "qkv"
        )
        self.out = nn.Linear(d, d)

    def forward(self, x, context=None):
        c, heads = x if context is None else context, []
        for q, k, v in zip(self.qs, self.ks, self.vs, strict=True):
            s = q(x) @ k(c).mT / q.out_features**0.5
            if self.causal:
                s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            heads.append(s.softmax(-1) @ v(c))
        return self.out(torch.cat(heads, -1))


class T5Like(Model):
    """``(input_ids, labels) -> loss``, or logits of ``(input_ids, decoder_input_ids)``."""

    def __init__(self, bug: str, loss: bool = True, d: int = 24):
        super().__init__(bug)
        self.loss = loss
        self.shared, self.pos = nn.Embedding(37, d), nn.Embedding(64, d)
        self.enc, self.dec, self.cross = HeadList(d, 4), HeadList(d, 4, True), HeadList(d, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(5))
        self.head = nn.Linear(d, 37, bias=False)
        small(self)

    def forward(self, input_ids, labels):
        n = self.norms
        m = self.shared(input_ids) + self.pos(torch.arange(input_ids.shape[1]))
        m = n[1](m + self.enc(n[0](m)))
        shift = self.loss and self.bug != "decoder fed its labels"
        ids = F.pad(labels, (1, 0))[:, :-1] if shift else labels
        x = self.shared(ids) + self.pos(torch.arange(ids.shape[1]))
        x = x + self.dec(n[2](x))
        h = n[3](x)
        y = self.cross(h, h if self.bug == "context not handed on" else m)
        x = y if self.bug == "no skip over the cross-attention" else x + y
        logits = self.head(n[4](x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) if self.loss else logits


class LastToken(Model):
    """A classifier on a GPT's last real token; id 0 is padding, on the right."""

    def __init__(self, bug: str):
        super().__init__(bug)
        self.gpt = GPT()
        del self.gpt.lm_head
        self.score = nn.Linear(24, 5)

    def forward(self, input_ids):
        logits = self.score(self.gpt.hidden(input_ids)[0])
        last = ((input_ids != 0) * torch.arange(input_ids.shape[1])).argmax(-1)
        if self.bug == "last position pooled":
            last = torch.full_like(last, input_ids.shape[1] - 1)
        return logits[torch.arange(len(last)), last]


class Sensors(Model):
    """(batch, time, features) -> classes; fixed random codes as positions, batch norm."""

    def __init__(self, bug: str, d: int = 18):
        super().__init__(bug)
        first = bug != "batch taken for time"
        layer = nn.TransformerEncoderLayer(d, 3, 40, 0.0, batch_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.bn = nn.BatchNorm1d(d, track_running_stats=bug != "batch's statistics in eval")
        self.w, self.head = nn.Linear(d, 1), nn.Linear(d, 6)

    def forward(self, x):
        seeded = torch if self.bug == "global seed set in forward" else torch.Generator()
        code = torch.randn(256, x.shape[-1], generator=seeded.manual_seed(0))[: x.shape[1]]
        if self.bug == "codes added in place":
            x += code
        else:
            x = x + code
        x = self.bn(self.encoder(x).mT).mT
        weights = F.softmax(self.w(x), dim=-1 if self.bug == "pooling's softmax over one" else 1)
        return self.head((weights * x).sum(1))


# ---------------------------------------------------------------- right designs
class Odd(nn.Module):
    """Causal attentions of four heads that are right and unlike others."""

    def __init__(self, kind: str, d: int = 24):
        super().__init__()
        self.kind, self.qkv, self.o = kind, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        if kind == "talking heads":
            self.before, self.after = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if kind == "convolved":
            self.conv = nn.Conv1d(3 * d, 3 * d, 3, groups=3 * d)
        if kind == "differential":
            self.lam = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        (b, t, d), y, n = x.shape, self.qkv(x), torch.arange(x.shape[1])
        if self.kind == "convolved":
            y = self.conv(F.pad(y.mT, (2, 0))).mT
        q, k, v = y.view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        s, past = q @ k.mT * (d // 4) ** -0.5, n[:, None] >= n
        if self.kind == "talking heads":
            s = self.before(s.movedim(1, -1)).movedim(-1, 1)
        if self.kind == "capped":
            s = 5 * torch.tanh(s / 5)
        w = s.masked_fill(~past, -torch.inf).softmax(-1)
        if self.kind == "talking heads":
            w = self.after(w.movedim(1, -1)).movedim(-1, 1)
        if self.kind == "retention":
            decay = 1 - 2.0 ** -torch.arange(2, 6)[:, None, None]
            w = s * decay ** (n[:, None] - n).clamp(min=0) * past
        if self.kind == "squared relu":
            w = s.relu().square() * past / (n[:, None] + 1)
        if self.kind == "differential":
            w, v = w[:, ::2] - self.lam * w[:, 1::2], torch.cat([v[:, ::2], v[:, 1::2]], -1)
        return self.o(F.rms_norm(w @ v, (v.shape[-1],)).transpose(1, 2).flatten(2))


class Sandwich(nn.Module):
    """As in Gemma 2: norms before and after, logits capped, embeddings scaled and tied."""

    def __init__(self, d: int = 24):
        super().__init__()
        self.emb, self.attn, self.ff = nn.Embedding(37, d), Odd("capped"), mlp(d, 64)
        self.gain = nn.Parameter(torch.zeros(5, d))
        nn.init.normal_(self.emb.weight, std=0.02)

    def forward(self, ids):
        norms = [lambda x, g=g: F.rms_norm(x, (24,)) * (1 + g) for g in self.gain]
        x = self.emb(ids) * 24**0.5
        x = x + norms[1](self.attn(norms[0](x)))
        x = x + norms[3](self.ff(norms[2](x)))
        return 30 * torch.tanh(F.linear(norms[4](x), self.emb.weight) / 30)


class Slots(nn.Module):
    """Slot attention: a softmax over the slots, then a mean over the inputs."""

    def __init__(self, d: int = 24):
        super().__init__()
        self.slots, self.gru = nn.Parameter(torch.randn(5, d)), nn.GRUCell(d, d)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in "qkv")

    def forward(self, x):
        s = self.slots.expand(len(x), -1, -1)
        for _ in range(3):
            a = (self.q(s) @ self.k(x).mT / s.shape[-1] ** 0.5).softmax(1) + 1e-8
            y = a / a.sum(-1, keepdim=True) @ self.v(x)
            s = self.gru(y.flatten(0, 1), s.flatten(0, 1)).view(s.shape)
        return s


class TwoAhead(GPT):
    """Also predicts the token after the next, with a head of its own."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(24, 37)

    def forward(self, idx, labels):
        h = self.hidden(idx)[0]
        next_one = F.cross_entropy(self.lm_head(h[:, :-1]).mT, labels[:, 1:])
        return next_one + 0.3 * F.cross_entropy(self.second(h[:, :-2]).mT, labels[:, 2:])


class ZLoss(Loss):
    def forward(self, logits, targets):
        real = (targets[:, 1:] != 0).float()
        z = (logits[:, :-1].logsumexp(-1).pow(2) * real).sum() / real.sum().clamp(min=1)
        return super().forward(logits, targets) + 1e-3 * z


class WordDropout(GPT):
    def forward(self, idx):
        if self.training:
            idx = torch.where(torch.rand(idx.shape) < 0.15, 1, idx)
        return super().forward(idx)


class Albert(GPT):
    """One block, applied twice."""

    def __init__(self):
        super().__init__(tied=True)
        self.h = nn.ModuleList([self.h[0]] * 2)


# ---------------------------------------------------------------- what there is
# a family; then: setting | bug (* shows bare) | causes | report (hf: huggingface/transformers)
TABLE = """
blocks
llama | * divided by rsqrt | norm that does not normalise | mosaicml/llm-foundry#371
llama | * rms over the whole batch | statistic over the batch; norm over the tokens
llama | silu over the product | | Nijikadesu/breakdown-minimind#3
gpt | * norm thrown away | norm not before the branch; parameter not used
time first | * output added to itself | no way around the attention | kyegomez/BitNet#32
time first | stream replaced by its norm | norm not before the branch
ported | first input added again | a sum with an older x | strutive07/transformer-tensorflow2.0#14
audio | one group over time | norm over the tokens
vit | * no activation | no activation
modes
ported | * functional dropout in eval | random in evaluation | deepchem/deepchem#5120
ported | keep_prob as dropout | other dropout
alibi | * bias grows in its buffer | changes its buffers; remembers the last call
alibi | * dropout lost | no dropout in training; remembers the last call | NVIDIA/Megatron-LM#411
alibi | * scaled twice in eval | scaled twice; training differs from evaluation
backbone | * eval does not reach the layers | random in evaluation
sensors | * codes added in place | changes its arguments | NVIDIA-NeMo/Speech#7440
sensors | * batch's statistics in eval | statistic over the batch
sensors | * global seed set in forward | seeds the generator | huggingface/diffusers#175
losses
lm | * shifted twice | loss shifted twice | hf#47394
lm | * not shifted | loss without shift; targets are copied | hf#27517
lm | * softmax before the loss | cross-entropy of probabilities | bkitano/llama-from-scratch#5
lm | * layers in a list | parameter not registered | maruya24/pytorch_robotics_transformer#3
lm | * detached before the head | parameter without gradient
loss | * shifted over the batch | batch and tokens exchanged; loss without shift
loss | * vocabulary by a view | logits reshaped across tokens
padded loss | mean over padding too | padding counts in the loss | IBM/pytorch-seq2seq#125
smoothed loss | smoothing counts padding | padding counts in the loss | k-tahiro/bert-summarizer#41
tied gpt | tied by copying | copied, not tied | mosaicml/examples#11
tied gpt | embeddings of size one | first loss is not ln V
caches
cached gpt | positions restart | positions restart with the cache
cached gpt | is_causal with a cache | chunks do not see the cache | hyprstream/hyprstream#1521
cached gpt | no mask with a cache | chunks see their future | Mikyx-1/TinyLLM#18
cached gpt | new values in front | slots of the cache exchanged; cache in another order
cached gpt | first layer's cache for all | layers share one cache
cached gpt | old cache kept | remembers the last call
cached llama | rotary restarts | positions restart with the cache | RobertCsordas/moeut#6
cached llama | cached keys rotated again | cached keys turned again | NeuraLegion/shainet#110
window | position from the length | positions restart with the cache | rajveer43/VeloxQuant-MLX#389
encoders
bert | mean over padding | padding is pooled | HKUDS/LightRAG#3675
bert | encoder is causal | causal against the claim
seq2seq | memory's padding forgotten | padding is attended to; mask not everywhere | hf#47946
t5 | * context not handed on | input without effect
t5 | no skip over the cross-attention | no way around the attention | lucidrains/audiolm-pytorch#150
t5 loss | * decoder fed its labels | targets are copied; loss without shift
last token | last position pooled | padding is pooled | hf#35909
vit | * patches by a view | tokens mixed elsewhere; channels not transposed
sensors | * batch taken for time | attention over the batch; batch and tokens exchanged
sensors | * pooling's softmax over one | softmax over an axis of one
"""


def vectors(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def scored() -> tuple[Tensor, Tensor]:
    """Logits and ids, the first row padded."""
    y = ids()
    y[0, -3:] = 0
    return torch.randn(*y.shape, 37), y


def claims(n_heads: int, norm: str, position: str, **others: Any) -> dict[str, Any]:
    return dict(n_heads=n_heads, scale=SCALE, norm=norm, position=position) | others


GPT2 = claims(3, "pre", "learned", causal=True)
LLAMA = claims(4, "pre", "rotary", causal=True, n_kv_heads=2, rotary_base=10000.0)
BERT_MASK = dict(argument="attention_mask", shape="bk", true="attend", dtype="int")
BERT = claims(4, "post", "learned", causal=False, mask=BERT_MASK)
PADDING = dict(argument="src_key_padding_mask", shape="bk", true="blocked", source="src")
PAIR = claims(3, "post", "learned", mask=PADDING)
PORTED = claims(4, "post", "none", causal=False, dropout=0.1)
T5 = claims(4, "pre", "learned", residual=True)
FIRST = claims(4, "pre", "none", causal=False, batch_first=False, residual=True)
ALIBI = dict(causal=True, n_heads=4, scale=SCALE, position="alibi", dropout=0.2)
SENSORS = dict(causal=False, n_heads=3, scale=SCALE, norm="post")
CACHED, TIED, PADS = dict(cache=step), dict(tied=True), dict(padding_id=0)

# setting: what builds the module, an example, claims
SETTINGS: dict[str, tuple[Callable[[str], nn.Module], Callable[[], Any], dict[str, Any]]] = {
    "llama": (Llama, ids, LLAMA),
    "cached llama": (Llama, ids, LLAMA | CACHED),
    "window": (lambda bug: Llama(bug, 4), ids, LLAMA | CACHED | dict(window=4)),
    "gpt": (GPT, ids, GPT2),
    "cached gpt": (GPT, ids, GPT2 | CACHED),
    "tied gpt": (lambda bug: GPT(bug, tied=True), ids, GPT2 | TIED),
    "last token": (LastToken, ids, GPT2 | PADS),
    "lm": (LanguageModel, twice, GPT2),
    "loss": (lambda bug: Loss(bug, pads=False), scored, {}),
    "padded loss": (Loss, scored, PADS),
    "smoothed loss": (lambda bug: Loss(bug, smoothing=0.1), scored, PADS),
    "time first": (SequenceFirst, vectors(9, 3, 24), FIRST),
    "ported": (lambda bug: PortedEncoderLayer(bug, 0.9), vectors(3, 9, 28), PORTED),
    "audio": (CausalAudio, vectors(3, 16, 11), claims(2, "pre", "none", causal=True)),
    "vit": (ViT, vectors(3, 3, 12, 16), claims(4, "pre", "learned", causal=False)),
    "alibi": (Alibi, vectors(3, 9, 32), ALIBI),
    "backbone": (Backbone, vectors(3, 9, 24), claims(4, "post", "none", causal=False, dropout=0.3)),
    "sensors": (Sensors, vectors(4, 9, 18), SENSORS),
    "bert": (BertEmbedder, lambda: (ids(), torch.ones(3, 9, dtype=torch.long)), BERT),
    "seq2seq": (Seq2Seq, lambda: (ids(), ids(31, t=7), torch.zeros(3, 9, dtype=torch.bool)), PAIR),
    "t5": (lambda bug: T5Like(bug, loss=False), lambda: (ids(), ids(t=7)), T5),
    "t5 loss": (T5Like, lambda: (ids(), ids(t=7)), T5),
}
X, CAUSAL = vectors(3, 9, 24), dict(causal=True)
ODD = dict(causal=True, n_heads=4, position="none")
DESIGNS: dict[str, tuple[Callable[[str], nn.Module], Callable[[], Any], dict[str, Any]]] = {
    "talking heads": (lambda _: Odd("talking heads"), X, ODD),
    "convolved queries, keys, values": (lambda _: Odd("convolved"), X, CAUSAL | dict(n_heads=4)),
    "capped scores": (lambda _: Odd("capped"), X, ODD | dict(scale=SCALE)),
    "retention": (lambda _: Odd("retention"), X, CAUSAL),
    "squared relu": (lambda _: Odd("squared relu"), X, ODD),
    "differential": (lambda _: Odd("differential"), X, CAUSAL),
    "norms on both sides": (lambda _: Sandwich(), ids, ODD | TIED | dict(embedding_scale=24**0.5)),
    "slots": (lambda _: Slots(), X, dict(causal=False)),
    "two tokens ahead": (lambda _: TwoAhead(), twice, GPT2),
    "z-loss and smoothing": (lambda _: ZLoss("", smoothing=0.1), scored, PADS),
    "word dropout": (WordDropout, ids, GPT2),
    "one block twice": (lambda _: Albert(), ids, GPT2 | TIED),
}


def made(setting: tuple[Any, ...], bug: str = "") -> Callable[..., Made]:
    build, example, claimed = setting

    def make(seed: int, broken: bool = False) -> Made:
        torch.manual_seed(seed)
        module = build(bug if broken else "")
        torch.manual_seed(seed + 1000)
        given = example()
        return module, given if isinstance(given, tuple) else (given,), dict(claimed)

    return make


CASES: list[Unseen] = []
for line in TABLE.strip().splitlines():
    setting, *rest = [cell.strip() for cell in line.split("|")]
    if rest:
        bug, causes = rest[0].removeprefix("* "), [c for c in "".join(rest[1:2]).split("; ") if c]
        make = made(SETTINGS[setting], bug)
        CASES.append(Unseen(bug, family, make, tuple(causes), rest[0] != bug))
    else:
        family = setting
RIGHT = [(name, made(setting)) for name, setting in DESIGNS.items()]
