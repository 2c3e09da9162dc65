"""Bugs in other styles: torch's modules, lessons' code, encoder-decoders, classifiers."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, H, V = 16, 2, 23


class PerHeadSlices(nn.Module):
    """As in a well-known lesson: reshape to heads first, project afterwards."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, k = bug, D // H
        if bug == "heads share":
            self.q, self.k, self.v = (nn.Linear(k, k, bias=False) for _ in "qkv")
        else:
            self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in "qkv")
        self.fc_out = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        if self.bug == "heads share":
            x = x.reshape(n, t, H, D // H)
            q, k, v = self.q(x), self.k(x), self.v(x)
        else:
            q, k, v = (f(x).reshape(n, t, H, D // H) for f in (self.q, self.k, self.v))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / (D // H) ** 0.5
        if self.bug == "flat softmax":
            a = energy.flatten(1).softmax(-1).view_as(energy)
        else:
            a = torch.softmax(energy, dim=3)
        if self.bug == "wrong index":
            out = torch.einsum("nhqk,nqhd->nqhd", a, v)
        else:
            out = torch.einsum("nhql,nlhd->nqhd", a, v)
        return self.fc_out(out.reshape(n, t, D))


class OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * (D // H))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


class ListOfHeads(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        made = [OneHead()] * H if bug else [OneHead() for _ in range(H)]
        self.heads, self.o = nn.ModuleList(made), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.cat([head(x) for head in self.heads], -1))


class Norm(nn.Module):
    """RMSNorm or LayerNorm, written by hand."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.weight = bug, nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        axis = 1 if self.bug == "over tokens" else -1
        if self.bug == "layer over tokens":
            return self.weight * (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        size = x.pow(2).mean(axis, keepdim=True) + 1e-6
        return self.weight * (x / size if self.bug == "no root" else x * size.rsqrt())


class TorchBlock(nn.Module):
    """Around torch's own attention."""

    def __init__(self, bug: str, attention: str = "", norm: str = "") -> None:
        super().__init__()
        self.bug = bug
        first = bug not in ("sequence first", "viewed")
        self.attention = nn.MultiheadAttention(D, H, batch_first=first)
        self.n1, self.n2 = Norm(norm), Norm(norm)
        if bug == "batch norm":
            self.n2 = nn.BatchNorm1d(D)
        self.mlp = nn.Sequential(nn.Linear(D, 32), nn.SiLU(), nn.Linear(32, D))

    def forward(self, x: Tensor) -> Tensor:
        bug, (b, t, _) = self.bug, x.shape
        late = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.n1(x)
        if bug == "sequence first":
            late = torch.ones(b, b, dtype=torch.bool).triu(1)
        if bug == "viewed":
            h = h.view(t, b, D)
        mask = ~late if bug == "torch polarity" else late
        mask = None if bug == "hint only" else mask
        y = self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = 0 if bug == "overwritten stream" else x
        x = x + (y.reshape(b, t, D) if bug == "viewed" else y)
        h = self.n2(x.mT).mT if bug == "batch norm" else self.n2(x)
        y = self.mlp(h)
        return x + (F.dropout(y, 0.1) if bug == "dropout in the branch" else y)


class Model(nn.Module):
    """ids → logits."""

    def __init__(self, bug: str = "", block: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.bug = bug
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(torch.randn(32, D) * 0.3)
        self.blocks = nn.Sequential(*(block() if block else TorchBlock(bug) for _ in range(2)))
        self.out = nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        if self.bug == "ids in place":
            ids[ids == 3] = 4
        at = torch.arange(ids.shape[1])
        if self.bug == "from the end":
            at = at.flip(0)
        return self.out(self.blocks(self.emb(ids) + self.pos[at]))


class Masked(nn.Module):
    """Causal attention whose masks come in many ways."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.qkv, self.o = bug, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, -1).permute(2, 0, 3, 1, 4).unbind(0)
        s = q @ k.mT / math.sqrt(D // H)
        i = torch.arange(t)
        allowed = i[:, None] >= i
        if self.bug == "multiplied":
            s = s * allowed
        elif self.bug == "filled with zero":
            s = s.masked_fill(~allowed, 0)
        elif self.bug == "positive infinity":
            s = s.masked_fill(~allowed, 1e4)
        elif self.bug == "both sides":
            s = s.masked_fill((i[:, None] - i).abs() >= 3, -torch.inf)
        elif self.bug == "root of the heads":
            s = (s * math.sqrt(D // H) / math.sqrt(H)).masked_fill(~allowed, -torch.inf)
        else:
            s = s.masked_fill(~allowed, -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LinearAttention(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.qkv, self.o = bug, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q.exp(), k.exp()
        kv = k[..., None] * v[..., None, :]  # (batch, tokens, d, d)
        if self.bug:
            kv, z = kv.sum(1, keepdim=True), k.sum(1, keepdim=True)
        else:
            kv, z = kv.cumsum(1), k.cumsum(1)
        y = (q[..., None, :] @ kv).squeeze(-2) / (q * z).sum(-1, keepdim=True)
        return self.o(y)


class MaskedByHead(nn.Module):
    """A padding mask that meets the wrong axis, where there are as many heads as sequences."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.qkv, self.o = bug, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if mask is not None:
            mask = mask[None, :, None] if self.bug else mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class Cross(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.q, self.kv, self.o = (
            bug,
            nn.Linear(D, D),
            nn.Linear(D, 2 * D),
            nn.Linear(D, D),
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        k, v = self.kv(x if self.bug == "memory ignored" else memory).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in (self.q(x), k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.bug == "causal on memory")
        return self.o(y.transpose(1, 2).flatten(2))


class Seq2Seq(nn.Module):
    """source, target ids → logits, or a loss."""

    def __init__(self, bug: str = "", loss: bool = False) -> None:
        super().__init__()
        self.bug, self.loss = bug, loss
        self.emb, self.pos = nn.Embedding(V, D), nn.Embedding(32, D)
        self.model = nn.Transformer(D, H, 1, 1, 32, batch_first=True)
        self.out = nn.Linear(D, V)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        bug, given = self.bug, target
        if self.loss and bug != "not shifted":
            given, target = target[:, :-1], target[:, 1:]
        s, t = (self.emb(x) + self.pos(torch.arange(x.shape[1])) for x in (source, given))
        late = torch.ones(t.shape[1], t.shape[1], dtype=torch.bool).triu(1)
        if bug == "decoder without mask":
            late = None
        if bug == "source ignored":
            s = torch.zeros_like(s)
        logits = self.out(self.model(s, t, tgt_mask=late))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten()) if self.loss else logits


class Classifier(nn.Module):
    """ids → a class, by a mean over the tokens."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug, self.emb = bug, nn.Embedding(V, D)
        layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1), nn.Linear(D, 3)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        given = None if self.bug == "attends to padding" else padding
        x = self.encoder(self.emb(ids), src_key_padding_mask=given)
        real = (~padding)[..., None].to(x.dtype)
        if self.bug == "pools padding":
            return self.out(x.mean(1))
        return self.out((x * real).sum(1) / real.sum(1))


class GatherLoss(nn.Module):
    """A loss written by hand."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug, self.model = bug, Model()

    def forward(self, ids: Tensor) -> Tensor:
        logp = self.model(ids[:, :-1]).log_softmax(-1)
        losses = -logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        real = (ids[:, 1:] != 0).to(losses.dtype)
        if self.bug == "divided by all":
            return (losses * real).mean()
        if self.bug == "all counted":
            return losses.mean()
        return (losses * real).sum() / real.sum()


class StaticCache(nn.Module):
    """A cache of fixed length."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug, self.qkv, self.o = bug, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, cache: Any = None) -> Any:
        t = x.shape[1]
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        start = 0
        if cache is not None:
            keys, values, start = cache
            at = 0 if self.bug == "overwrites" else start
            keys[:, :, at : at + t], values[:, :, at : at + t] = k, v
            if self.bug == "values not kept":
                values[:, :, :start] = 0
            k, v = keys[:, :, : start + t], values[:, :, : start + t]
            cache = keys, values, start + t
        n = k.shape[2]
        allowed = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        y = self.o(y.transpose(1, 2).flatten(2))
        return y if cache is None else (y, cache)

    @staticmethod
    def step(module: nn.Module, new: Tensor, state: Any) -> Any:
        if state is None:
            shape = new.shape[0], H, 32, D // H
            state = new.new_zeros(shape), new.new_zeros(shape), 0
        return module(new, cache=state)
