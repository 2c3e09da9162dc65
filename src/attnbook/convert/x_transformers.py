"""To and from x-transformers' ``Attention``."""

from typing import Any

import torch
from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.convert import shared
from attnbook.convert.shared import State

_NAMES = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "output"}


def from_x_transformers(module: nn.Module) -> MultiHeadAttention:
    r"""Ours from x-transformers' ``Attention``.

    ==============  ========================================  ==========================
    x-transformers  shape                                     ours
    ==============  ========================================  ==========================
    ``to_q``        (heads · dim_head, dim)                   ``query``, heads reordered
    ``to_k``        (kv_heads · dim_head, dim_context)        ``key``
    ``to_v``        (kv_heads · value_dim_head, dim_context)  ``value``
    ``to_out``      (dim, heads · value_dim_head)             ``output``, heads reordered
    ==============  ========================================  ==========================

    Theirs has no biases. Where query heads share key heads, theirs are tiled, ours neighbours:

    .. math:: \text{theirs: } h \mapsto h \bmod H_\text{kv}, \qquad
        \text{ours: } h \mapsto \lfloor h\,H_\text{kv} / H \rfloor

    so the query heads, and with them the inputs of the output, are reordered. ``causal`` is not
    kept: ours is told at each call. Nor is what theirs is passed there: rotary positions, biases.
    ``max_attend_past`` and ``sparse_topk`` are refused by name where 16 tokens don't show them, and
    ``sublayer_dropout`` always.

    Source: x-transformers 2.31.10, ``x_transformers.py`` and ``attend.py``.

    Example:
        >>> from x_transformers import Attention
        >>> theirs = Attention(64, heads=4, dim_head=16, causal=True).eval()
        >>> ours, x = from_x_transformers(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x, causal=True), theirs(x), atol=1e-5)
        True
    """
    shared.kind_of(module, "Attention")
    peer: Any = module
    unseen = {name: getattr(peer, name) for name in ("max_attend_past", "sparse_topk")}
    unseen = {name: n for name, n in unseen.items() if n is not None and n >= shared.TOKENS}
    if peer.sublayer_dropout is not None:
        unseen["sublayer_dropout"] = peer.sublayer_dropout.p
    if unseen:
        raise ValueError(f"x_transformers.Attention has what 16 tokens don't show: {unseen}")
    state = shared.renamed(peer.state_dict(), _NAMES, "x_transformers.Attention")
    ours = shared.attention(
        _reordered(state, peer.heads, peer.groups),
        peer.heads,
        n_kv_heads=peer.kv_heads,
        dropout=peer.attend.dropout,
    )
    widths = {ours.d_model: None, ours.d_memory: None}  # a memory, if it has another width

    def run(*tokens: Tensor) -> Tensor:
        output: Tensor = ours(*tokens, causal=peer.causal)
        return output

    shared.measure(peer, ours, peer, run, *shared.vectors(state["query.weight"], *widths))
    return ours.train(peer.attend.training)


def to_x_transformers(ours: MultiHeadAttention) -> State:
    """Parameters for x-transformers' ``Attention.load_state_dict``, under their names there.

    The layout and the order of the heads are those of :func:`from_x_transformers`.

    Source: x-transformers 2.31.10, ``x_transformers.py`` and ``attend.py``.

    Example:
        >>> state = to_x_transformers(MultiHeadAttention(64, 4, n_kv_heads=2))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'to_q.weight': (64, 64), 'to_k.weight': (32, 64), 'to_v.weight': (32, 64),
         'to_out.weight': (64, 64)}
    """
    state = ours.state_dict()
    shared.require(ours, "x_transformers.Attention", position=None, query_norm=None)
    if biases := [name for name in state if name.endswith("bias")]:
        raise ValueError(f"x_transformers.Attention has no biases, got {', '.join(biases)}")
    state = _reordered(state, ours.n_heads, ours.n_kv_heads)
    return shared.copies(shared.renamed(state, shared.inverse(_NAMES), "ours"))


def _reordered(state: State, n_heads: int, n_blocks: int) -> State:
    """Query heads (a, b) → (b, a), a of ``n_blocks``; the outputs of W_Q, the inputs of W_O."""
    order = torch.arange(n_heads, device="cpu").view(n_blocks, -1).T.flatten()
    state = dict(state)
    query, output = state["query.weight"], state["output.weight"]
    state["query.weight"] = query.unflatten(0, (n_heads, -1))[order].flatten(0, 1)
    state["output.weight"] = output.unflatten(1, (n_heads, -1))[:, order].flatten(1)
    return state
