"""To and from ``keras.layers.MultiHeadAttention``."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.attention import MultiHeadAttention
from attnbook.convert import shared

_PARTS = (*shared.QKV, "output")


def from_keras(layer: object) -> MultiHeadAttention:
    """Ours from ``keras.layers.MultiHeadAttention``, or from its ``get_weights()``.

    ======================  ==============================  ==============================
    Keras                   shape                           ours
    ======================  ==============================  ==============================
    query kernel            (d_model, n_heads, d_head)      ``query``: heads joined, transposed
    key kernel              (d_memory, n_heads, d_head)     ``key``, likewise
    value kernel            (d_memory, n_heads, d_value)    ``value``, likewise
    their biases            (n_heads, d_head or d_value)    the same, heads joined
    output kernel           (n_heads, d_value, d_model)     ``output``, likewise
    output bias             (d_model,)                      the same
    ======================  ==============================  ==============================

    Keras drops nothing unless called with ``training=True``, so ours is in evaluation mode. A layer
    in float64 computes in float32 unless asked for its scores: then the two differ by 1e-7.

    Args:
        layer: the layer, built for (batch, tokens, width), on any backend; or the list of arrays
            that ``layer.get_weights()`` gives, which can't be measured.

    Returns:
        A ``MultiHeadAttention``; of a list, on the CPU and without dropout.

    Raises:
        ValueError: if it is not built, has a sliding window of more than 16 tokens, or computes
            another function than ours with its parameters.

    Source: Keras 3.15.1, ``layers/attention/multi_head_attention.py``.

    Example:
        >>> attention = MultiHeadAttention(64, 4, d_value=10, d_memory=48)
        >>> x, memory = torch.randn(2, 5, 64), torch.randn(2, 7, 48)
        >>> again = from_keras(to_keras(attention))
        >>> torch.equal(again(x, memory), attention(x, memory))
        True
    """
    peer: Any = layer
    if isinstance(layer, Sequence):
        return _from_weights([torch.tensor(array, device="cpu") for array in layer])
    shared.kind_of(layer, "MultiHeadAttention")
    weights = [
        v.value.detach() if isinstance(v.value, Tensor) else torch.tensor(v.numpy(), device="cpu")
        for v in peer.weights
    ]
    ours = _from_weights(weights, peer.dropout)
    if (window := peer._sliding_window) is not None and window >= shared.TOKENS:
        raise ValueError(f"ours has no sliding_window of its own, got {window}: pass a mask")

    ops: Any = importlib.import_module("keras.ops")

    def run(*tokens: Tensor) -> Tensor:
        x, memory = (ops.convert_to_tensor(t.detach().cpu().double().numpy()) for t in tokens)
        output = ops.convert_to_numpy(peer(x, memory, training=False))
        return torch.from_numpy(output.astype("float64")).to(weights[0])

    shared.measure(peer, ours, run, ours, *shared.vectors(weights[0], ours.d_model, ours.d_memory))
    return ours.eval()


def to_keras(ours: MultiHeadAttention) -> list[Float[np.ndarray, "..."]]:
    """Arrays for ``keras.layers.MultiHeadAttention.set_weights``, in its order.

    The layout is that of :func:`from_keras`: kernel and, if there are any, bias of query, key,
    value, output. From bfloat16 they are of float32.

    Source: Keras 3.15.1, ``layers/attention/multi_head_attention.py``.

    Example:
        >>> [array.shape for array in to_keras(MultiHeadAttention(64, 4, d_value=10))]
        [(64, 4, 16), (64, 4, 16), (64, 4, 10), (4, 10, 64)]
    """
    needed = {"n_kv_heads": ours.n_heads, "position": None, "query_norm": None}
    shared.require(ours, "keras.layers.MultiHeadAttention", **needed)
    state, heads = shared.with_biases(ours.state_dict()), (ours.n_heads, -1)
    arrays = []
    for part in _PARTS:
        kernel = state[f"{part}.weight"].t()  # (in, out)
        arrays.append(kernel.unflatten(0 if part == "output" else 1, heads))
        if (bias := state.get(f"{part}.bias")) is not None:
            arrays.append(bias if part == "output" else bias.unflatten(0, heads))
    if arrays[0].dtype == torch.bfloat16:  # which NumPy has not, and float32 holds exactly
        arrays = [array.float() for array in arrays]
    return [np.array(array.cpu().numpy(), order="C") for array in arrays]


def _from_weights(weights: Sequence[Tensor], dropout: float = 0.0) -> MultiHeadAttention:
    if len(weights) not in (4, 8) or any(k.dim() != 3 for k in weights[:: len(weights) // 4]):
        raise ValueError(
            "expected 4 kernels of three axes, or with biases 8 arrays, got "
            f"{[tuple(w.shape) for w in weights]}"
        )
    biases = dict(zip(_PARTS, weights[1::2], strict=True)) if len(weights) == 8 else {}
    kernels = dict(zip(_PARTS, weights[:: len(weights) // 4], strict=True))
    state = {f"{part}.bias": bias.flatten() for part, bias in biases.items()}
    for part, kernel in kernels.items():  # to (in, out), then (out, in)
        joined = kernel.flatten(0, 1) if part == "output" else kernel.flatten(1)
        state[f"{part}.weight"] = joined.t()
    return shared.attention(state, kernels["query"].shape[1], dropout=dropout).eval()
