# ruff: noqa: E501
"""Kinds of public modules that were once judged wrongly, each in its smallest form."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.doctor.specimens.museum import settings

D, H, V = 32, 4, 23


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


class Captioner(nn.Module):
    """Features beside the ids that are judged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(20, D)
        self.layer = nn.TransformerDecoderLayer(D, H, 64, 0.0, batch_first=True)
        self.out = nn.Linear(D, V)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        late = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.embed(ids) + self.place.weight[:t]
        return self.out(self.layer(h, features, tgt_mask=late))


class Window(nn.Module):
    """A relative bias along two axes, as in Swin."""

    def __init__(self, side: int = 3) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(2 * side - 1, 2 * side - 1, H))
        r, c = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
        self.down, self.across = r[:, None] - r + side - 1, c[:, None] - c + side - 1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        bias = self.table[self.down, self.across].permute(2, 0, 1)
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Features(nn.Module):
    """Linear attention with random features: their rows need not sum to one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.register_buffer("w", torch.randn(16, D // H))

    def phi(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return (x @ self.w.mT - x.square().sum(-1, keepdim=True) / 2).exp() + 1e-4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        q, k = self.phi(q), self.phi(k)
        y = (q @ (k.mT @ v)) / (q @ k.sum(2).unsqueeze(-1))
        return self.out(y.transpose(1, 2).flatten(2))


class Chunks(nn.Module):
    """A softmax in chunks of keys, as FlashAttention is explained."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size, self.qkv, self.out = size, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        sums, tops, largest = [], [], []
        for kc, vc in zip(k.split(self.size, 2), v.split(self.size, 2), strict=True):
            logits = q @ kc.mT * q.shape[-1] ** -0.5
            most = logits.amax(-1, keepdim=True)
            e = (logits - most).exp()
            sums.append(e.sum(-1, keepdim=True))
            tops.append(e @ vc)
            largest.append(most)
        most = torch.stack(largest)
        f = (most - most.amax(0)).exp()
        y = (torch.stack(tops) * f).sum(0) / (torch.stack(sums) * f).sum(0)
        return self.out(y.transpose(1, 2).flatten(2))


class Pool(nn.Module):
    """After pooling one key is left, so queries and keys have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = nn.Parameter(torch.randn(1, 1, D))
        self.read, self.mix = (nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        s = self.seed.expand(len(x), -1, -1)
        s = s + self.read(s, x, x)[0]
        return (s + self.mix(s, s, s)[0])[:, 0]


class Codebooks(nn.Module):
    """Two streams of a sequence are rows of the batch; their sum is what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(V, D) for _ in range(2))
        self.place = nn.Embedding(20, D)
        self.layer = nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True)
        self.out = nn.ModuleList(nn.Linear(D, V) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:  # (batch * 2, tokens)
        two = ids.view(-1, 2, ids.shape[1])
        h = sum(embed(two[:, i]) for i, embed in enumerate(self.embed))
        h = self.layer(h + self.place.weight[: ids.shape[1]])
        return torch.stack([out(h) for out in self.out], 1).flatten(0, 1)


class Registers(nn.Module):
    """None of them, here: an empty parameter."""

    def __init__(self, n: int = 0) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, n, D))
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        return self.attention(h, h, h)[0][:, self.registers.shape[1] :]


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.wo = nn.Linear(D, 3 * D), nn.Parameter(torch.randn(D, D) * D**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return torch.einsum("btd,de->bte", y, self.wo)


class Distances(nn.Module):
    """A query's product with a vector for each distance, in an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.by_distance = nn.Parameter(torch.randn(2 * 20 - 1, D // H))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        t = x.shape[1]
        i = torch.arange(t)
        r = self.by_distance[20 - t : 19 + t]
        by_place = (q @ r.mT).gather(-1, (i - i[:, None] + t - 1).expand(*q.shape[:2], t, t))
        logits = (q @ k.mT + by_place) * q.shape[-1] ** -0.5
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Padded(nn.Module):
    """A mask for torch's attention, made for batch × heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(20, D)
        self.attention, self.out = nn.MultiheadAttention(D, H, batch_first=True), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        h = self.embed(ids) + self.place.weight[:t]
        blocked = (ids == 0)[:, None] | torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.out(h + self.attention(h, h, h, attn_mask=blocked.repeat_interleave(H, 0))[0])


def vectors() -> Tensor:
    return torch.randn(3, 7, D)


def ids() -> Tensor:
    return torch.randint(1, V, (4, 7))


SETTINGS = settings(
    {
        "captioner": (Captioner, lambda: (torch.randn(4, 9, D), ids()), {"causal": True}),
        "captioner, as long": (Captioner, lambda: (torch.randn(4, 7, D), ids()), {"causal": True}),
        "window": (Window, lambda: torch.randn(3, 9, D), {"position": "relative"}),
        "features": (Features, vectors, {"causal": False}),
        "chunks": (Chunks, vectors, {"n_heads": H}),
        "pool": (Pool, vectors, {}),
        "codebooks": (Codebooks, ids, {"causal": False}),
        "registers": (Registers, vectors, {"n_heads": H}),
        "einsum": (Einsum, vectors, {"n_heads": H, "scale": "1/sqrt(d_head)"}),
        "distances": (Distances, vectors, {"position": "relative"}),
        "padded": (Padded, ids, {"causal": True, "padding_id": 0}),
    }
)

BUGS = r"""
captioner | masks | the target has no causal mask | no causal mask |
    tgt_mask=late → tgt_mask=None
captioner, as long | masks | the target has no causal mask | no causal mask |
    tgt_mask=late → tgt_mask=None
einsum | !heads | a repeated letter takes the diagonal | part of a matrix not used |
    "btd,de->bte" → "btd,dd->btd"
distances | !positions | shifted by padding, in an encoder | a logit depends on a third token |
    r = self.by_distance[20 - t : 19 + t] → r = self.by_distance[:t]
    (q @ r.mT).gather(-1, (i - i[:, None] + t - 1).expand(*q.shape[:2], t, t)) → F.pad(q @ r.mT, (1, 0)).view(*q.shape[:2], t + 1, t)[:, :, 1:]
padded | masks | the mask is tiled, not repeated | mask of another sequence |
    blocked.repeat_interleave(H, 0) → blocked.tile(H, 1, 1)
"""
