# ruff: noqa: E501
"""Kinds of public modules that were once judged wrongly, each in its smallest form."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.doctor.specimens import right
from benchmarks.doctor.specimens.museum import settings
from benchmarks.doctor.specimens.right import D_HEAD, SCALE, D, H, V, layer, made, many, parameter


def captioner(m: Any, features: Tensor, ids: Tensor) -> Tensor:
    """Features beside the ids that are judged."""
    late = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
    return m.output(m.decoder(right.embedded(m, ids), features, tgt_mask=late))


def window(m: Any, q: Tensor, k: Tensor) -> Tensor:
    """A relative bias along two axes, as in Swin."""
    rows, columns = torch.arange(3).repeat_interleave(3), torch.arange(3).repeat(3)
    down, across = (at[:, None] - at + 2 for at in (rows, columns))
    return right.scores(q, k) + m.table[down, across].permute(2, 0, 1)


def random_features(m: Any, x: Tensor) -> Tensor:
    """Linear attention whose rows of features need not sum to one."""

    def phi(y: Tensor) -> Tensor:
        y = y * D_HEAD**-0.25
        return (y @ m.w.mT - y.square().sum(-1, keepdim=True) / 2).exp() + 1e-4

    q, k, v = right.qkv(m, x)
    q, k = phi(q), phi(k)
    return m.out(right.merged(q @ (k.mT @ v) / (q @ k.sum(2).unsqueeze(-1))))


def chunks(m: Any, x: Tensor) -> Tensor:
    """A softmax in chunks of keys, as FlashAttention is explained."""
    q, k, v = right.qkv(m, x)
    sums, tops, largest = [], [], []
    for keys, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
        logits = right.scores(q, keys)
        most = logits.amax(-1, keepdim=True)
        e = (logits - most).exp()
        sums.append(e.sum(-1, keepdim=True))
        tops.append(e @ values)
        largest.append(most)
    most = torch.stack(largest)
    f = (most - most.amax(0)).exp()
    return m.out(right.merged((torch.stack(tops) * f).sum(0) / (torch.stack(sums) * f).sum(0)))


def pool(m: Any, x: Tensor) -> Tensor:
    """After pooling one key is left, so queries and keys have no gradient."""
    s = m.seed.expand(len(x), -1, -1)
    s = s + m.read(s, x, x)[0]
    return (s + m.mix(s, s, s)[0])[:, 0]


def codebooks(m: Any, ids: Tensor) -> Tensor:
    """Two streams of a sequence are rows of the batch; their sum is what is read."""
    two = ids.view(-1, 2, ids.shape[1])
    h = sum(embed(two[:, i]) for i, embed in enumerate(m.embed))
    h = m.encoder(h + m.table[: ids.shape[1]])
    return torch.stack([out(h) for out in m.out], 1).flatten(0, 1)


def registers(m: Any, x: Tensor) -> Tensor:
    """None of them, here: an empty parameter."""
    h = torch.cat([m.registers.expand(len(x), -1, -1), x], 1)
    return m.attention(h, h, h)[0][:, m.registers.shape[1] :]


def einsum(m: Any, x: Tensor) -> Tensor:
    y = F.scaled_dot_product_attention(*right.qkv(m, x)).transpose(1, 2).flatten(2)
    return torch.einsum("btd,de->bte", y, m.wo)


def distances(m: Any, q: Tensor, k: Tensor) -> Tensor:
    """A query's product with a vector for each distance, in an encoder."""
    t = q.shape[2]
    r = m.by_distance[20 - t : 19 + t]
    ahead = torch.arange(t) - torch.arange(t)[:, None]
    by_place = (q @ r.mT).gather(-1, (ahead + t - 1).expand(*q.shape[:2], t, t))
    return (q @ k.mT + by_place) * D_HEAD**-0.5


def padded(m: Any, ids: Tensor) -> Tensor:
    """A mask for torch's attention, made for batch × heads."""
    t, h = ids.shape[1], right.embedded(m, ids)
    blocked = (ids == 0)[:, None] | torch.ones(t, t, dtype=torch.bool).triu(1)
    return m.output(h + m.attention(h, h, h, attn_mask=blocked.repeat_interleave(H, 0))[0])


def features_and_ids(t: int) -> tuple[Tensor, Tensor]:
    return torch.randn(4, t, D), right.ids(4, 7)


X, IDS = right.WIDE, lambda: right.ids(4, 7)
CAPTIONER = right.model(captioner, attention=None, norm=None, decoder=lambda: (
    nn.TransformerDecoderLayer(D, H, 64, 0.0, batch_first=True)))  # fmt: skip
SETTINGS = settings({
    "captioner": (CAPTIONER, lambda: features_and_ids(9), {"causal": True}),
    "captioner, as long": (CAPTIONER, lambda: features_and_ids(7), {"causal": True}),
    "window": (right.scored(window, table=parameter(5, 5, H)), right.shaped(3, 9, D),
               {"position": "relative"}),
    "features": (layer(random_features, w=lambda: torch.randn(16, D_HEAD)), X, {"causal": False}),
    "chunks": (layer(chunks), X, {"n_heads": H}),
    "pool": (made(pool, seed=parameter(1, 1, D), read=right.batch_first, mix=right.batch_first),
             X, {}),
    "codebooks": (made(codebooks, embed=many(lambda: nn.Embedding(V, D), 2),
                       table=parameter(20, D), out=many(right.linear(D, V), 2),
                       encoder=lambda: nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True)),
                  IDS, {"causal": False}),
    "registers": (made(registers, registers=parameter(1, 0, D), attention=right.batch_first),
                  X, {"n_heads": H}),
    "einsum": (layer(einsum, out=None, wo=lambda: nn.Parameter(torch.randn(D, D) / D**0.5)), X,
               {"n_heads": H, "scale": SCALE}),
    "distances": (right.scored(distances, by_distance=parameter(39, D_HEAD)), X,
                  {"position": "relative"}),
    "padded": (right.model(padded, attention=right.batch_first, norm=None), IDS,
               {"causal": True, "padding_id": 0}),
})  # fmt: skip

BUGS = r"""
captioner | masks | the target has no causal mask | no causal mask |
    tgt_mask=late → tgt_mask=None
captioner | !masks | mask of the features inverted | inverted mask |
    tgt_mask=late → …, memory_key_padding_mask=torch.ones(features.shape[:2], dtype=torch.bool)
captioner, as long | masks | the target has no causal mask | no causal mask |
    tgt_mask=late → tgt_mask=None
einsum | !heads | a repeated letter takes the diagonal | part of a matrix not used |
    "btd,de->bte" → "btd,dd->btd"
einsum | scale | none | no scale |
    (*right.qkv(m, x)) → (*right.qkv(m, x), scale=1.0)
distances | !positions | shifted by padding, in an encoder | a logit depends on a third token |
    r = m.by_distance[20 - t : 19 + t] → r = m.by_distance[:t]
    (q @ r.mT).gather(-1, (ahead + t - 1).expand(*q.shape[:2], t, t)) → F.pad(q @ r.mT, (1, 0)).view(*q.shape[:2], t + 1, t)[:, :, 1:]
padded | masks | the mask is tiled, not repeated | mask of another sequence |
    blocked.repeat_interleave(H, 0) → blocked.tile(H, 1, 1)
"""
