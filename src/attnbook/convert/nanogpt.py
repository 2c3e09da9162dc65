"""To and from the weights of nanoGPT, whose names are those of GPT-2."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attnbook.attention import MultiHeadAttention
from attnbook.convert import shared
from attnbook.convert.shared import State
from attnbook.models import LanguageModel

# Names there and here. ``c_attn`` is split when read, joined when written.
ATTENTION = {name: name for name in ("query", "key", "value", "c_attn")} | {"c_proj": "output"}
BLOCK = shared.under("attn.", "attention.", ATTENTION) | {
    "ln_1": "attention_residual.norm",
    "ln_2": "feed_forward_residual.norm",
    "mlp.c_fc": "feed_forward.inner",
    "mlp.c_proj": "feed_forward.outer",
}
MODEL = shared.under("h.#.", "blocks.#.", BLOCK) | {
    "wte": "embedding",
    "wpe.weight": "positions.table",
    "ln_f": "final_norm",
    "lm_head": "output",
}


def from_nanogpt(state: Mapping[str, Any], n_heads: int) -> MultiHeadAttention | LanguageModel:
    r"""Ours from the weights of nanoGPT's ``CausalSelfAttention`` or ``GPT``.

    =======================  ==============  ==================================================
    nanoGPT                  shape           ours
    =======================  ==============  ==================================================
    ``c_attn.weight``        (3d, d)         ``query``, ``key``, ``value``, one below the other
    ``c_attn.bias``          (3d,)           their biases
    ``c_proj.weight``        (d, d)          ``output``
    ``transformer.wte``      (vocab, d)      ``embedding``; ``lm_head`` is the same matrix
    ``transformer.wpe``      (tokens, d)     ``positions.table``
    ``transformer.h.0``                      ``blocks.0``, with ``ln_1``, ``attn``, ``ln_2``, …
    ``mlp.c_fc``             (4d, d)         ``feed_forward.inner``
    ``mlp.c_proj``           (d, 4d)         ``feed_forward.outer``
    ``transformer.ln_f``                     ``final_norm``
    =======================  ==============  ==================================================

    The entry ``bias`` of an attention is the causal mask, which ours does not keep. Nothing can be
    measured on weights alone: they are taken for those of nanoGPT, with exact GELU.

    Args:
        state: the ``state_dict``, with biases or without, also as ``torch.compile`` names it; or
            what nanoGPT's ``ckpt.pt`` holds.
        n_heads: which the weights do not tell.

    Returns:
        A ``MultiHeadAttention`` without dropout, or a ``LanguageModel`` in evaluation mode.

    Source: karpathy/nanoGPT 3adf61e, ``model.py``.

    Example:
        >>> import torch
        >>> state = {"c_attn.weight": torch.randn(192, 64), "c_proj.weight": torch.randn(64, 64)}
        >>> from_nanogpt(state, 4)(torch.randn(2, 10, 64), causal=True).shape
        torch.Size([2, 10, 64])
    """
    if isinstance(weights := state.get("model"), Mapping):  # of a checkpoint
        state, said = weights, state.get("model_args", {}).get("n_head", n_heads)
        if said != n_heads:
            raise ValueError(f"the checkpoint has n_head={said}, got n_heads={n_heads}")
    state = shared.without_prefixes(state)
    if "c_attn.weight" in state:
        return shared.attention(read(state, ATTENTION), n_heads)
    if "transformer.wte.weight" in state:
        settings: dict[str, Any] = {"n_heads": n_heads, "norm": "pre", "activation": "gelu"}
        return shared.whole_model(LanguageModel, read(state, MODEL), **settings)
    raise ValueError(
        "there is neither a c_attn.weight nor a transformer.wte.weight, but "
        f"{shared.some(list(state)) or 'nothing'}"
    )


def to_nanogpt(ours: MultiHeadAttention | LanguageModel) -> State:
    """The weights of nanoGPT's ``CausalSelfAttention`` or ``GPT``, for ``load_state_dict``.

    The layout is that of :func:`from_nanogpt`. With no bias anywhere they are those of the
    configuration ``bias=False``; with some, the others become zeros.

    Source: karpathy/nanoGPT 3adf61e, ``model.py``.

    Example:
        >>> state = to_nanogpt(MultiHeadAttention(64, 4))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'c_attn.weight': (192, 64), 'c_proj.weight': (64, 64)}
    """
    if isinstance(ours, LanguageModel):
        return written_model(ours, "nanoGPT", activation="gelu", d_ff=None)
    shared.require_plain(ours, "nanoGPT")
    return shared.copies(written(shared.with_biases(ours.state_dict()), ATTENTION))


def read(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Under our names, without the causal masks."""
    state = {n.removeprefix("transformer."): t for n, t in shared.without_prefixes(state).items()}
    state = {n: t for n, t in state.items() if not re.search(r"(^|\battn\.)(masked_)?bias$", n)}
    return shared.renamed(shared.unpacked(state, "c_attn"), names, "the state")


def written(state: State, names: Mapping[str, str]) -> State:
    """Ours under nanoGPT's names, with ``c_attn``."""
    return shared.renamed(shared.packed(state, "c_attn"), shared.inverse(names), "ours")


def written_model(ours: LanguageModel, peer: str, *free: str, **needed: object) -> State:
    """The parameters of a whole model, if it is built like GPT-2."""
    shared.require_model(ours, peer, *free, position="learned", norm="pre", scaled=False, **needed)
    state = shared.with_biases(ours.state_dict(), "^(blocks|final_norm)", always=not needed)
    state.setdefault("output.weight", state["embedding.weight"])
    state = shared.copies(written(state, MODEL))
    return {n if n == "lm_head.weight" else f"transformer.{n}": t for n, t in state.items()}
