"""Weights to and from other libraries' modules.

``from_*`` takes a module of another library and returns ours, which computes the same function;
``to_*`` goes back. The libraries name, pack and order the same four matrices in their own ways:

====================  =======================================  =============================
library               query, key, value                        output
====================  =======================================  =============================
attnbook              three ``nn.Linear``, (out, in)           ``nn.Linear``, (out, in)
torch                 rows of ``in_proj_weight``, (3d, d)      (out, in)
nanoGPT               rows of ``c_attn``, (3d, d)              (out, in)
transformers, GPT-2   columns of ``c_attn``, (d, 3d)           (in, out)
transformers, BERT    (out, in)                                (out, in), in another module
transformers, Llama   (out, in), rotary half-split             (out, in)
Keras                 (d_model, heads, d_head)                 (heads, d_value, d_model)
x-transformers        (out, in), groups of heads tiled         (out, in), tiled
====================  =======================================  =============================

Weights are copied, never shared, and keep their type and device; so are the dropout probabilities,
and, of modules, whether a part trains or evaluates. All copies may be trained, whatever
``requires_grad`` said, and hooks stay behind. What the other side cannot express raises a
``ValueError`` that names the option and its value. Whether attention is causal is no weight: our
modules are told at each call.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.blocks import Activation, DecoderBlock, EncoderBlock, FeedForward, Residual
from attnbook.checks import check_kind, is_integer
from attnbook.packed import PackedAttention
from attnbook.position import ALiBi, Rotary, convert_rotary_weight

State = dict[str, Float[Tensor, "..."]]  # parameters by name

M = TypeVar("M", bound=nn.Module)

# The four matrices, and the parts of a block: our names and theirs.

_QKV = ("query", "key", "value")
_LLAMA_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
_X_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out"}
_OUR_SCALE = "our logits are scaled by 1/sqrt(d_head)"
_WIDTHS = "our heads' widths add up to that of all queries"
_BERT_NAMES = {name: f"self.{name}" for name in _QKV} | {"output": "output.dense"}
_BERT_PARTS = {
    "attention": "attention",
    "attention_residual.norm": "attention.output.LayerNorm",
    "attention_residual.dropout": "attention.output.dropout",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
    "feed_forward_residual.dropout": "output.dropout",
}
_TORCH_ENCODER_PARTS = {
    "attention": "self_attn",
    "attention_residual.norm": "norm1",
    "attention_residual.dropout": "dropout1",
    "feed_forward.inner": "linear1",
    "feed_forward.dropout": "dropout",
    "feed_forward.outer": "linear2",
    "feed_forward_residual.norm": "norm2",
    "feed_forward_residual.dropout": "dropout2",
}
_TORCH_DECODER_PARTS = _TORCH_ENCODER_PARTS | {
    "cross_attention": "multihead_attn",
    "cross_attention_residual.norm": "norm2",
    "cross_attention_residual.dropout": "dropout2",
    "feed_forward_residual.norm": "norm3",
    "feed_forward_residual.dropout": "dropout3",
}


class _Peer(NamedTuple):
    """What another library's attention can express."""

    name: str
    free: tuple[str, ...] = ()
    """Options of ours that it has too. Of the others it has one value only."""
    bias: Literal["always", "all or none", "never"] = "always"


# PyTorch


@overload
def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> EncoderBlock: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> DecoderBlock: ...
def from_torch(module: nn.Module) -> MultiHeadAttention | EncoderBlock | DecoderBlock:
    r"""Ours from torch's attention, encoder layer or decoder layer.

    ====================================  =====================  ==================================
    torch                                 shape                  ours
    ====================================  =====================  ==================================
    ``in_proj_weight``                    (3d, d)                ``query``, ``key``, ``value``, one
                                                                 below the other
    ``in_proj_bias``                      (3d,)                  their biases
    ``q_proj_weight``                     (d, d)                 ``query``, if ``kdim`` is set
    ``k_proj_weight``, ``v_proj_weight``  (d, d_memory)          ``key``, ``value``, likewise
    ``out_proj``                          (d, d)                 ``output``
    ``self_attn``, ``multihead_attn``                            ``attention``, ``cross_attention``
    ``linear1``, ``linear2``              (d_ff, d), (d, d_ff)   ``feed_forward``
    ``norm1``, ``dropout1``, …                                   the residuals, in torch's order
    ====================================  =====================  ==================================

    Each part keeps its own dropout and eps. Ours takes (batch, tokens, d_model) whatever
    ``batch_first`` says. Our decoder block is always causal, torch's if given a ``tgt_mask``.

    Args:
        module: ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` or
            ``nn.TransformerDecoderLayer``.

    Returns:
        ``MultiHeadAttention``, ``EncoderBlock`` or ``DecoderBlock``, training if ``module`` is.

    Raises:
        TypeError: if ``module``, or a layer's attention, is of another class, derived ones
            included.
        ValueError: if it uses ``add_bias_kv`` or ``add_zero_attn``, ``kdim`` and ``vdim`` differ,
            a layer's activation is neither ReLU nor exact GELU, or a part was replaced, pruned or
            parametrized. (The tanh form is refused because torch itself replaces it by the exact
            one in its fast path.)

    Source: torch 2.13.0, ``nn/modules/activation.py`` and ``nn/modules/transformer.py``.

    Example:
        >>> theirs = nn.MultiheadAttention(64, 4, kdim=48, vdim=48, batch_first=True)
        >>> x, memory = torch.randn(2, 5, 64), torch.randn(2, 7, 48)
        >>> expected, _ = theirs(x, memory, memory)
        >>> torch.allclose(from_torch(theirs)(x, memory), expected, atol=1e-5)
        True
    """
    names = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
    peer = _checked(module, "torch.nn.modules", *names)
    if isinstance(module, nn.MultiheadAttention):
        return _from_torch_attention(module)
    decodes = isinstance(module, nn.TransformerDecoderLayer)
    biased = peer.linear1.bias is not None  # then so is every part
    with torch.device("meta"):
        block = (DecoderBlock if decodes else EncoderBlock)(
            peer.self_attn.embed_dim,
            peer.self_attn.num_heads,
            peer.linear1.out_features,
            norm="pre" if peer.norm_first else "post",
            activation=_torch_activation(peer),
            feed_forward_bias=biased,
            norm_bias=biased,
        )
    parts = _TORCH_DECODER_PARTS if decodes else _TORCH_ENCODER_PARTS
    return _assembled(block, peer, parts, _from_torch_attention)


@overload
def to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention: ...
@overload
def to_torch(ours: EncoderBlock) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch(ours: DecoderBlock) -> nn.TransformerDecoderLayer: ...
def to_torch(
    ours: MultiHeadAttention | EncoderBlock | DecoderBlock,
) -> nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    """From ours torch's attention, encoder layer or decoder layer, with ``batch_first=True``.

    The layout is that of :func:`from_torch`. Torch's layers have biases everywhere or nowhere: if
    ours has them outside of its attentions alone, theirs become zeros, and would be trained.

    Args:
        ours: ``MultiHeadAttention``, ``EncoderBlock`` or ``DecoderBlock``.

    Returns:
        ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` or
        ``nn.TransformerDecoderLayer``, training if ``ours`` is.

    Raises:
        TypeError: if ``ours`` is none of the three.
        ValueError: if it has grouped heads, heads of another width than d_model / n_heads,
            positions, or biases on some of the four projections; or if a block has no norm, a
            scaled stream, the tanh form of GELU, a memory of another width, or no biases in some
            of its feed-forward network and norms alone.

    Source: torch 2.13.0, ``nn/modules/activation.py`` and ``nn/modules/transformer.py``.

    Example:
        >>> ours = EncoderBlock(64, 4, 256, norm="pre", activation="gelu")
        >>> x = torch.randn(2, 5, 64)
        >>> torch.allclose(to_torch(ours)(x), ours(x), atol=1e-5)
        True
    """
    _check_ours(ours, MultiHeadAttention, EncoderBlock, DecoderBlock)
    if isinstance(ours, MultiHeadAttention):
        return _to_torch_attention(
            ours, _Peer("nn.MultiheadAttention", free=("d_memory",), bias="all or none")
        )
    decodes = isinstance(ours, DecoderBlock)
    layer = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    name = f"nn.{layer.__name__}"
    bare = not any(key.endswith("bias") for key in ours.state_dict())
    _check_block(ours, name, norms=("pre", "post"), activations=("relu", "gelu"), bare=bare)
    theirs = layer(
        ours.attention.d_model,
        ours.attention.n_heads,
        ours.feed_forward.inner.out_features,
        activation=ours.feed_forward.activation,
        norm_first=ours.attention_residual.place == "pre",
        batch_first=True,
        bias=not bare,
        device=torch.device("meta"),
    )
    parts = _TORCH_DECODER_PARTS if decodes else _TORCH_ENCODER_PARTS
    convert = partial(_to_torch_attention, peer=_Peer(name, bias="never" if bare else "always"))
    return _assembled(theirs, ours, _inverse(parts), convert)


def _from_torch_attention(module: nn.MultiheadAttention) -> MultiHeadAttention:
    _checked(module, "torch.nn.modules", "MultiheadAttention")
    no_extra_keys = "our queries attend to the tokens and to nothing else"
    _require(
        "nn.MultiheadAttention",
        add_bias_kv=(module.bias_k is not None, False, no_extra_keys),
        add_zero_attn=(module.add_zero_attn, False, no_extra_keys),
        vdim=(module.vdim, module.kdim, f"ours has one memory, but kdim={module.kdim}"),
    )
    apart = [f"{letter}_proj_weight" for letter in "qkv"]
    packed = ["in_proj_weight", "in_proj_bias", *_parameters(["out_proj"])]
    state = _known(module, *apart, *packed)
    if "in_proj_weight" in state:
        weights = list(state["in_proj_weight"].chunk(3))
    else:
        weights = [state[name] for name in apart]
    return _attention(
        _qkv(weights, state.get("in_proj_bias")) | _renamed(state, {"out_proj": "output"}),
        module.num_heads,
        dropout=module.dropout,
    ).train(module.training)


def _to_torch_attention(ours: MultiHeadAttention, peer: _Peer) -> nn.MultiheadAttention:
    state = _state(ours, peer)
    theirs = nn.MultiheadAttention(
        ours.d_model,
        ours.n_heads,
        dropout=ours.dropout,
        bias="query.bias" in state,
        kdim=ours.d_memory,
        vdim=ours.d_memory,
        batch_first=True,
        device=torch.device("meta"),
    )
    packed = _renamed(state, {"output": "out_proj"})
    if theirs.in_proj_weight is None:
        packed |= {f"{name[0]}_proj_weight": state[f"{name}.weight"] for name in _QKV}
    else:
        packed["in_proj_weight"] = _packed(state, "weight")
    if theirs.in_proj_bias is not None:
        packed["in_proj_bias"] = _packed(state, "bias")
    theirs.load_state_dict(packed, assign=True)
    return theirs.train(ours.training)


def _torch_activation(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> Activation:
    given: Any = layer.activation
    # What the fast path takes: 0 if it is not to be taken, 1 for ReLU, 2 for GELU; in encoders.
    fast = getattr(layer, "activation_relu_or_gelu", 0)
    if fast in (0, 1) and (given in (F.relu, torch.relu) or type(given) is nn.ReLU):
        return "relu"
    exact = given is F.gelu or (type(given) is nn.GELU and given.approximate == "none")
    if fast in (0, 2) and exact:
        return "gelu"
    raise ValueError(
        f"nn.{type(layer).__name__}(activation={given!r}): it must be ReLU or the exact GELU, and "
        f"in the fast path the same"
    )


# nanoGPT


def from_nanogpt(state: Mapping[str, Float[Tensor, "..."]], n_heads: int) -> MultiHeadAttention:
    r"""Ours from the weights of nanoGPT's ``CausalSelfAttention``.

    =====================  =========  ============================================
    nanoGPT                shape      ours
    =====================  =========  ============================================
    ``c_attn.weight``      (3d, d)    ``query``, ``key``, ``value``, one below the other
    ``c_attn.bias``        (3d,)      their biases
    ``c_proj.weight``      (d, d)     ``output``
    ``c_proj.bias``        (d,)       its bias
    =====================  =========  ============================================

    minGPT's layout is the same. Both have another entry, ``bias``: that is the causal mask, which
    ours does not keep.

    Args:
        state: one attention's ``state_dict``, with the biases or without them.
        n_heads: which the weights do not tell.

    Returns:
        A ``MultiHeadAttention`` without dropout, in training mode.

    Raises:
        TypeError: if ``state`` is no mapping, or holds something else than tensors.
        ValueError: if a matrix is missing or has another shape or type, another entry is there, or
            ``n_heads`` does not divide d.

    Source: karpathy/nanoGPT 3adf61e, ``model.py``.

    Example:
        >>> state = {"c_attn.weight": torch.randn(192, 64), "c_proj.weight": torch.randn(64, 64)}
        >>> from_nanogpt(state, 4)(torch.randn(2, 10, 64), causal=True).shape
        torch.Size([2, 10, 64])
    """
    check_kind("state", state, Mapping)
    state = {name: tensor for name, tensor in state.items() if name != "bias"}
    for name, tensor in state.items():
        check_kind(name, tensor, Tensor)
    d_model = state["c_proj.weight"].shape[0] if "c_proj.weight" in state else 0
    shapes = {
        "c_attn.weight": (3 * d_model, d_model),
        "c_attn.bias": (3 * d_model,),
        "c_proj.weight": (d_model, d_model),
        "c_proj.bias": (d_model,),
    }
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if (
        not {"c_attn.weight", "c_proj.weight"} <= given.keys()
        or not given.items() <= shapes.items()
    ):
        raise ValueError(
            f"nanoGPT's attention has c_attn.weight (3d, d), c_proj.weight (d, d) and perhaps "
            f"c_attn.bias (3d,) and c_proj.bias (d,), got {given}"
        )
    return _attention(_from_packed(state), n_heads)


def to_nanogpt(ours: MultiHeadAttention) -> State:
    """The weights of nanoGPT's ``CausalSelfAttention``.

    The layout is that of :func:`from_nanogpt`; without biases for the configuration
    ``bias=False``.

    Raises:
        TypeError: if ``ours`` is not a ``MultiHeadAttention``.
        ValueError: if it has grouped heads, heads of another width than d_model / n_heads, a
            memory of another width, positions, or biases on some of the four projections.

    Source: karpathy/nanoGPT 3adf61e, ``model.py``.

    Example:
        >>> state = to_nanogpt(MultiHeadAttention(64, 4))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'c_attn.weight': (192, 64), 'c_proj.weight': (64, 64)}
    """
    return _to_packed(_state(ours, _Peer("nanoGPT", bias="all or none")))


# Hugging Face transformers


def from_bert(module: nn.Module) -> MultiHeadAttention | EncoderBlock:
    """Ours from transformers' ``BertAttention`` or ``BertLayer``.

    ================================  ==============  ========================================
    transformers                      shape           ours
    ================================  ==============  ========================================
    ``self.query``, ``.key``, …       (d, d)          ``query``, ``key``, ``value``
    ``output.dense``                  (d, d)          ``output``
    ``output.LayerNorm``                              the block's ``attention_residual``
    ``intermediate.dense``            (d_ff, d)       ``feed_forward.inner``
    ``output.dense`` (the layer's)    (d, d_ff)       ``feed_forward.outer``
    ``output.LayerNorm`` (likewise)                   ``feed_forward_residual``
    ================================  ==============  ========================================

    ``BertAttention`` is more than an attention: its ``output`` adds the input and norms the sum.
    Of that ``MultiHeadAttention`` has the matrix alone; dropout, residual and LayerNorm stay
    outside, in the block. The biases are always there.

    Args:
        module: ``BertAttention``, for self- or cross-attention, or ``BertLayer``, such as
            ``encoder.layer[0]`` of a ``BertModel``.

    Returns:
        ``MultiHeadAttention`` or, of a layer, ``EncoderBlock``; training if ``module`` is.

    Raises:
        TypeError: if ``module`` is of another class.
        ValueError: if it is the decoder's (``is_decoder``, ``is_causal``,
            ``add_cross_attention``), ``hidden_act`` is none of ours, or a part was replaced, pruned
            or parametrized.

    Source: transformers 5.23.0, ``models/bert/modeling_bert.py``.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128)
        >>> theirs = BertModel(config).eval().encoder.layer[0]
        >>> ours, x = from_bert(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x), theirs(x), atol=1e-5)
        True
        >>> from_bert(nn.Linear(2, 2))
        Traceback (most recent call last):
        TypeError: expected BertAttention or BertLayer of transformers, got ...Linear
    """
    peer = _checked(module, "transformers", "BertAttention", "BertLayer")
    name = type(module).__name__
    if name == "BertAttention":
        masks = "it masks what lies ahead by itself, ours when called with causal=True"
        d_head, n_heads = peer.self.attention_head_size, peer.self.num_attention_heads
        _checked(peer.self, "transformers", "BertSelfAttention", "BertCrossAttention")
        _checked(peer.output, "transformers", "BertSelfOutput")
        for part in _BERT_NAMES.values():
            _check_part(peer, part, nn.Linear)
        _check_part(peer, "self.dropout", nn.Dropout)
        _require(
            name,
            is_decoder=(getattr(peer.self, "is_decoder", False), False, masks),
            is_causal=(peer.self.is_causal, False, masks),
            scaling=(peer.self.scaling, d_head**-0.5, _OUR_SCALE),
            attention_head_size=(d_head, Fraction(peer.self.query.out_features, n_heads), _WIDTHS),
        )
        parts = [*_BERT_NAMES.values(), "output.LayerNorm"]
        return _attention(
            _renamed(_known(peer, *_parameters(parts)), _inverse(_BERT_NAMES)),
            n_heads,
            dropout=peer.self.dropout.p,
        ).train(peer.self.training)
    _require(
        name,
        add_cross_attention=(peer.add_cross_attention, False, "an EncoderBlock has one attention"),
    )
    config = peer.attention.self.config
    _checked(peer.intermediate, "transformers", "BertIntermediate")
    _checked(peer.output, "transformers", "BertOutput")
    activations: dict[str, Activation] = {"ReLU": "relu", "GELUActivation": "gelu"}
    activations |= {"NewGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh"}
    activation = type(peer.intermediate.intermediate_act_fn).__name__
    if activation not in activations:
        raise ValueError(
            f"{name}(hidden_act={config.hidden_act!r}), an {activation}: it must be one of relu, "
            f"gelu, gelu_new, gelu_pytorch_tanh"
        )
    with torch.device("meta"):
        block = EncoderBlock(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            activation=activations[activation],
        )
    return _assembled(block, peer, _BERT_PARTS, from_bert)


def to_bert(ours: MultiHeadAttention | EncoderBlock) -> State:
    """Parameters for ``BertAttention`` or ``BertLayer``, under their names there.

    The layout is that of :func:`from_bert`. What no parameter says belongs into the ``BertConfig``:
    ``hidden_act``, ``layer_norm_eps``, and the two dropouts, on the attention weights and on what
    is added to the stream. Biases that ours does not have are zeros.

    Returns:
        Parameters by name. Of a ``MultiHeadAttention``, those of a ``BertAttention`` without its
        LayerNorm (load them with ``strict=False``). Of an ``EncoderBlock``, all of a ``BertLayer``.

    Raises:
        TypeError: if ``ours`` is neither.
        ValueError: if it has grouped heads, heads of another width than d_model / n_heads, a
            memory of another width, or positions; or a block is not post-norm, its stream is
            scaled, it lacks biases in its feed-forward network or norms, it has dropout inside the
            feed-forward network, or the two residuals differ in dropout or eps.

    Source: transformers 5.23.0, ``models/bert/modeling_bert.py``.

    Example:
        >>> list(to_bert(MultiHeadAttention(64, 4)))[:3]
        ['self.query.weight', 'self.query.bias', 'self.key.weight']
        >>> list(to_bert(EncoderBlock(64, 4, 256)))[-2:]
        ['output.LayerNorm.weight', 'output.LayerNorm.bias']
    """
    _check_ours(ours, MultiHeadAttention, EncoderBlock)
    if isinstance(ours, MultiHeadAttention):
        return _renamed(_state(ours, _Peer("BertAttention")), _BERT_NAMES)
    _check_block(ours, "BertLayer", norms=("post",), activations=("relu", "gelu", "gelu_tanh"))
    first, second = ours.attention_residual, ours.feed_forward_residual
    _require(
        "EncoderBlock",
        feed_forward_dropout=(ours.feed_forward.dropout, 0.0, "BertLayer has none there"),
        residual_dropout=(second.dropout, first.dropout, f"the first has {first.dropout}"),
        norm_eps=(_eps(second), _eps(first), f"the first has {_eps(first)}"),
    )
    attention = {f"attention.{name}": t for name, t in to_bert(ours.attention).items()}
    others = [name for name in _BERT_PARTS if name != "attention"]
    inner = [f"attention.{name}" for name in ours.attention.state_dict()]
    return attention | _renamed(_known(ours, *_parameters(others), *inner), _BERT_PARTS)


def from_gpt2(module: nn.Module) -> MultiHeadAttention:
    """Ours from transformers' ``GPT2Attention``.

    ====================  ============  ====================================================
    transformers          shape         ours
    ====================  ============  ====================================================
    ``c_attn.weight``     (d, 3d)       ``query``, ``key``, ``value`` side by side, transposed
    ``c_attn.bias``       (3d,)         their biases
    ``c_proj.weight``     (d, d)        ``output``, transposed
    ``c_proj.bias``       (d,)          its bias
    ``q_attn``            (d, d)        ``query`` in cross-attention; ``c_attn`` then is (d, 2d)
    ====================  ============  ====================================================

    ``Conv1D`` stores (in, out), nanoGPT's layout transposed. The dropout on the output,
    ``resid_dropout``, stays outside: in ours it belongs to the residual connection. Theirs masks
    what lies ahead by itself or not, depending on ``attn_implementation``; ours when called with
    ``causal=True``.

    Args:
        module: a ``GPT2Attention``, such as ``transformer.h[0].attn`` of a ``GPT2LMHeadModel``.
            Its call returns a tuple with the output first, ours the output.

    Returns:
        A ``MultiHeadAttention``, training if ``module`` is.

    Raises:
        TypeError: if ``module`` is of another class.
        ValueError: if it uses ``scale_attn_by_inverse_layer_idx`` or ``reorder_and_upcast_attn``,
            does not use ``scale_attn_weights``, or was pruned or parametrized.

    Source: transformers 5.23.0, ``models/gpt2/modeling_gpt2.py`` and ``pytorch_utils.py``.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> theirs = GPT2Model(GPT2Config(n_embd=64, n_head=4, n_layer=1)).eval().h[0].attn
        >>> ours, x = from_gpt2(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x, causal=True), theirs(x)[0], atol=1e-5)
        True
        >>> from_gpt2(nn.Linear(2, 2))
        Traceback (most recent call last):
        TypeError: expected GPT2Attention of transformers, got ...Linear
    """
    peer = _checked(module, "transformers", "GPT2Attention")
    by_layer = peer.scale_attn_by_inverse_layer_idx
    _require(
        "GPT2Attention",
        scale_attn_weights=(peer.scale_attn_weights, True, _OUR_SCALE),
        scale_attn_by_inverse_layer_idx=(by_layer, False, _OUR_SCALE),
        scaling=(getattr(peer, "scaling", peer.head_dim**-0.5), peer.head_dim**-0.5, _OUR_SCALE),
        reorder_and_upcast_attn=(peer.reorder_and_upcast_attn, False, "ours keeps its type"),
        head_dim=(peer.head_dim, Fraction(peer.embed_dim, peer.num_heads), _WIDTHS),
    )
    _check_part(peer, "attn_dropout", nn.Dropout)
    for part in ("c_attn", "c_proj"):
        _checked(getattr(peer, part), "transformers", "Conv1D")
    state = _transposed(_known(peer, *_parameters(["q_attn", "c_attn", "c_proj"])))
    for kind in ("weight", "bias"):
        if peer.is_cross_attention:
            parts = state.pop(f"q_attn.{kind}"), state[f"c_attn.{kind}"]
            state[f"c_attn.{kind}"] = torch.cat(parts)
    return _attention(_from_packed(state), peer.num_heads, dropout=peer.attn_dropout.p).train(
        peer.training
    )


def to_gpt2(ours: MultiHeadAttention, *, cross_attention: bool = False) -> State:
    """Parameters for ``GPT2Attention.load_state_dict``, under their names there.

    The layout is that of :func:`from_gpt2`. Biases that ours does not have are zeros.

    Args:
        ours: the attention.
        cross_attention: for a ``GPT2Attention`` made with ``is_cross_attention=True``.

    Raises:
        TypeError: if ``ours`` is not a ``MultiHeadAttention``.
        ValueError: if it has grouped heads, heads of another width than d_model / n_heads, a
            memory of another width, or positions.

    Source: transformers 5.23.0, ``models/gpt2/modeling_gpt2.py`` and ``pytorch_utils.py``.

    Example:
        >>> to_gpt2(MultiHeadAttention(64, 4))["c_attn.weight"].shape
        torch.Size([64, 192])
    """
    state = _to_packed(_state(ours, _Peer("GPT2Attention")))
    for kind in ("weight", "bias"):
        if cross_attention:
            name, d_model = f"c_attn.{kind}", ours.d_model
            state[f"q_attn.{kind}"], state[name] = state[name].split([d_model, 2 * d_model])
    return _transposed(state)


def from_llama(module: nn.Module) -> MultiHeadAttention:
    """Ours from transformers' ``LlamaAttention``.

    ======================  ===============================  ==========
    transformers            shape                            ours
    ======================  ===============================  ==========
    ``q_proj``              (n_heads · d_head, d_model)      ``query``
    ``k_proj``              (n_kv_heads · d_head, d_model)   ``key``
    ``v_proj``              (n_kv_heads · d_head, d_model)   ``value``
    ``o_proj``              (d_model, n_heads · d_head)      ``output``
    ======================  ===============================  ==========

    The rotary base is ``rope_theta`` of the module's configuration, the layout half-split. Theirs
    computes angles and softmax in float32 whatever the type: the two differ by about 1e-7.

    Args:
        module: a ``LlamaAttention``, such as ``model.layers[0].self_attn`` of a
            ``LlamaForCausalLM``. Its call returns a tuple with the output first, ours the output.

    Returns:
        A ``MultiHeadAttention`` with ``Rotary("half_split")``, training if ``module`` is.

    Raises:
        TypeError: if ``module`` is of another class.
        ValueError: if the configuration's ``rope_parameters`` name no ``rope_type`` and
            ``rope_theta``, or one other than ``"default"``, or the module has parameters besides
            the four projections'.

    Source: transformers 5.23.0, ``models/llama/modeling_llama.py``.

    Example:
        >>> from transformers import LlamaConfig, LlamaModel
        >>> model = LlamaModel(LlamaConfig(hidden_size=64, num_attention_heads=4,
        ...                                num_key_value_heads=2, num_hidden_layers=1)).eval()
        >>> theirs, x = model.layers[0].self_attn, torch.randn(2, 5, 64)
        >>> output, _ = theirs(x, model.rotary_emb(x, torch.arange(5)[None]), None)
        >>> torch.allclose(from_llama(theirs)(x, causal=True), output, atol=1e-5)
        True
        >>> from_llama(nn.Linear(2, 2))
        Traceback (most recent call last):
        TypeError: expected LlamaAttention of transformers, got ...Linear
    """
    peer = _checked(module, "transformers", "LlamaAttention")
    rope = getattr(peer.config, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not {"rope_type", "rope_theta"} <= rope.keys():
        raise ValueError(
            f"LlamaAttention(rope_parameters={rope!r}): its configuration has to name rope_type "
            f"and rope_theta, as transformers 5 does"
        )
    _require(
        "LlamaAttention",
        rope_type=(rope["rope_type"], "default", "our frequencies are not scaled"),
        scaling=(peer.scaling, peer.head_dim**-0.5, _OUR_SCALE),
    )
    for part in _LLAMA_NAMES.values():
        _check_part(peer, part, nn.Linear)
    return _attention(
        _renamed(_known(peer, *_parameters(_LLAMA_NAMES.values())), _inverse(_LLAMA_NAMES)),
        peer.q_proj.out_features // peer.head_dim,
        n_kv_heads=peer.k_proj.out_features // peer.head_dim,
        dropout=peer.attention_dropout,
        position=Rotary("half_split", base=rope["rope_theta"]),
    ).train(peer.training)


def to_llama(ours: MultiHeadAttention) -> State:
    """Parameters for ``LlamaAttention.load_state_dict``, under their names there.

    The layout is that of :func:`from_llama`; interleaved rotary positions become half-split ones
    (:func:`attnbook.position.convert_rotary_weight`). The base belongs into the ``LlamaConfig``:
    ``rope_parameters={"rope_type": "default", "rope_theta": base}``.

    Raises:
        TypeError: if ``ours`` is not a ``MultiHeadAttention``.
        ValueError: if its positions are not rotary, values are of another width than keys, the
            memory is of another width than the input, or biases are on some of the four
            projections.

    Source: transformers 5.23.0, ``models/llama/modeling_llama.py``.

    Example:
        >>> state = to_llama(MultiHeadAttention(64, 4, n_kv_heads=2, position=Rotary()))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'q_proj.weight': (64, 64), 'k_proj.weight': (32, 64), 'v_proj.weight': (32, 64),
         'o_proj.weight': (64, 64)}
    """
    peer = _Peer("LlamaAttention", ("n_kv_heads", "d_head", "position"), bias="all or none")
    state = _state(ours, peer)
    if not isinstance(ours.position, Rotary):
        raise ValueError(
            f"MultiHeadAttention(position={ours.position!r}): LlamaAttention is always rotary"
        )
    if ours.position.layout == "interleaved":
        for part, n_heads in (("query", ours.n_heads), ("key", ours.n_kv_heads)):
            state |= {
                name: convert_rotary_weight(tensor, n_heads, to="half_split")
                for name, tensor in state.items()
                if name.startswith(f"{part}.")
            }
    return _renamed(state, _LLAMA_NAMES)


# Keras


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

    Keras drops nothing unless called with ``training=True``, so ours is in evaluation mode.
    Initializers, regularizers and constraints are not part of the function and stay behind. A
    layer in float64 computes in float32 unless asked for its scores: then the two differ by 1e-7.

    Args:
        layer: the layer, built for (batch, tokens, width), on any backend; or the list of arrays
            that ``layer.get_weights()`` gives.

    Returns:
        A ``MultiHeadAttention``; of a list, on the CPU and without dropout.

    Raises:
        TypeError: if ``layer`` is of another class.
        ValueError: if it is not built, or is built for more than one axis of tokens; uses
            ``use_gate`` or ``sliding_window``, or an ``output_shape`` other than the query's; keys
            and values are of different widths; computes in another type than it stores; or there
            are neither four nor eight arrays.

    Source: Keras 3.15.1, ``layers/attention/multi_head_attention.py``.

    Example:
        >>> attention = MultiHeadAttention(64, 4, d_value=10, d_memory=48)
        >>> x, memory = torch.randn(2, 5, 64), torch.randn(2, 7, 48)
        >>> same = from_keras(to_keras(attention))
        >>> torch.equal(same(x, memory), attention(x, memory))
        True
    """
    name, dropout = "keras.layers.MultiHeadAttention", 0.0
    if isinstance(layer, Sequence):
        weights = [torch.tensor(array, device="cpu") for array in layer]
    else:
        peer = _checked(layer, "keras", "MultiHeadAttention")
        _require(name, built=(peer.built, True, "it gets its weights when it is built"))
        tokens = "ours attends along the one axis of (batch, tokens, width)"
        _require(
            name,
            attention_axes=(peer.attention_axes, (1,), tokens),
            input_rank=(len(peer.query_dense.equation.split(",")[0]), 3, tokens),
            sliding_window=(peer._sliding_window, None, "ours is told by a mask"),
            use_gate=(peer._use_gate, False, "ours has no gate"),
            scale=(peer._inverse_sqrt_key_dim, 1 / math.sqrt(peer.key_dim), _OUR_SCALE),
            dtype=(peer.compute_dtype, peer.variable_dtype, "ours computes in the weights' type"),
        )
        for part in (*(f"{part}_dense" for part in _QKV), "output_dense"):
            dense = getattr(peer, f"_{part}")
            activation = getattr(dense.activation, "__name__", repr(dense.activation))
            _require(
                f"{name}.{part}",
                dtype=(dense.compute_dtype, peer.variable_dtype, "ours computes in one type"),
                activation=(activation, "linear", "our projections have none"),
            )
        weights, dropout = [_keras_tensor(variable) for variable in peer.weights], peer.dropout
    if len(weights) not in (4, 8):
        raise ValueError(f"{name} has 4 weights or, with biases, 8, got {len(weights)}")
    step = len(weights) // 4
    *kernels, output = weights[::step]
    if not all(kernel.dim() == 3 for kernel in kernels):
        raise ValueError(
            f"{name} has kernels (width, heads, width), got "
            f"{', '.join(str(tuple(kernel.shape)) for kernel in kernels)}"
        )
    query, key, value = kernels
    same = f"the query has {query.shape[1]}, and all have as many"
    _require(
        name,
        heads=([len(output), *(k.shape[1] for k in (key, value))], 3 * [query.shape[1]], same),
        output_shape=(tuple(output.shape[2:]), query.shape[:1], "ours is as wide as the query"),
        value_width=(value.shape[0], key.shape[0], f"ours has one memory, keys {key.shape[0]}"),
    )
    state = {f"{part}.weight": k.flatten(1).T for part, k in zip(_QKV, kernels, strict=True)}
    state["output.weight"] = output.flatten(0, 1).T
    if step == 2:
        parts = (*_QKV, "output")
        state |= {f"{p}.bias": b.flatten() for p, b in zip(parts, weights[1::2], strict=True)}
    return _attention(state, query.shape[1], dropout=dropout).eval()


def to_keras(ours: MultiHeadAttention) -> list[Float[np.ndarray, "..."]]:
    """Arrays for ``keras.layers.MultiHeadAttention.set_weights``, in its order.

    The layout is that of :func:`from_keras`: kernel and, if there is one, bias of query, key,
    value, output. From bfloat16 they are of float32.

    Raises:
        TypeError: if ``ours`` is not a ``MultiHeadAttention``.
        ValueError: if it has grouped heads, positions, or biases on some of the four projections.

    Source: Keras 3.15.1, ``layers/attention/multi_head_attention.py``.

    Example:
        >>> [array.shape for array in to_keras(MultiHeadAttention(64, 4, d_value=10))]
        [(64, 4, 16), (64, 4, 16), (64, 4, 10), (4, 10, 64)]
    """
    peer = _Peer(
        "keras.layers.MultiHeadAttention", ("d_head", "d_value", "d_memory"), bias="all or none"
    )
    state, heads = _state(ours, peer), (ours.n_heads, -1)
    weights = []
    for name in _QKV:
        weights.append(state[f"{name}.weight"].T.unflatten(1, heads))
        if f"{name}.bias" in state:
            weights.append(state[f"{name}.bias"].unflatten(0, heads))
    weights.append(state["output.weight"].T.unflatten(0, heads))
    if "output.bias" in state:
        weights.append(state["output.bias"])
    if weights[0].dtype == torch.bfloat16:  # which NumPy has not, and float32 holds exactly
        weights = [weight.float() for weight in weights]
    return [weight.contiguous().cpu().numpy() for weight in weights]


def _keras_tensor(variable: Any) -> Tensor:
    """A Keras variable's value: on the torch backend as it is, otherwise by way of NumPy."""
    value = variable.value
    if isinstance(value, Tensor):
        return value.detach()
    return torch.tensor(variable.numpy(), device="cpu")


# x-transformers

# Options that change the function, by where the module keeps them, if it has them.
_X_FALSE = (
    "head_scale",
    "qk_norm",
    "laser",
    "orthog_projected_values",
    "orthog_projected_values_per_head",
    "qkv_receive_diff_residuals",
    "use_latent_q",
    "use_latent_kv",
    "attend.l2_distance",
    "attend.selective",
    "attend.cog_signed",
    "attend.add_zero_kv",
    "attend.head_learned_sink",
    "attend.softclamp_logits",
    "attend.inverted_attention",
    "attend.flash_pack_seq",
)
_X_NONE = {
    "pre_talking_heads": "attend.pre_softmax_talking_heads",
    "post_talking_heads": "attend.post_softmax_talking_heads",
    "pre_scale_post_talking_heads": "attend.pre_scale_post_talking_heads",
    "sparse_topk": "sparse_topk",
    "max_attend_past": "max_attend_past",
    "sublayer_dropout": "sublayer_dropout",
    "gate_value_heads": "to_v_head_gate",
    "gate_values": "to_v_gate",
    "output_gate": "to_output_gate",
    "qk_rmsnorm": "q_rmsnorm",
    "k_rmsnorm": "k_rmsnorm",
    "value_rmsnorm": "value_rmsnorm",
    "use_cope": "attend.cope",
    "data_dependent_alibi": "data_dependent_alibi",
    "use_rel_proj_pos_bias": "rel_proj_pos_bias",
    "hybrid_module": "hybrid_module",
    "latent_rope_subheads": "to_rotateable_k",
}
_X_SOFTMAX = {  # what takes its place, by name
    "sigmoid": "sigmoid",
    "one_hot_straight_through": "hard",
    "gumbel_softmax": "gumbel_softmax",
}


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

    so the query heads, and with them the inputs of the output, change places. ``causal`` is not
    kept: ours is told at each call. Nor is what theirs is passed there: rotary positions, biases.

    Args:
        module: an ``x_transformers.x_transformers.Attention``, such as ``layers[0][1]`` of a
            ``Decoder``.

    Returns:
        A ``MultiHeadAttention``, training if ``module`` is.

    Raises:
        TypeError: if ``module`` is of another class.
        ValueError: if any option is set that changes the function and that ours does not have:
            gates, norms, talking heads, memories, sinks, another softmax, and so on. Options of
            initialization, of speed (``flash``) and of sizes are not among them.

    Source: x-transformers 2.31.10, ``x_transformers.py`` and ``attend.py``.

    Example:
        >>> from x_transformers import Attention
        >>> theirs = Attention(64, heads=4, dim_head=16, causal=True).eval()
        >>> ours, x = from_x_transformers(theirs), torch.randn(2, 5, 64)
        >>> torch.allclose(ours(x, causal=True), theirs(x), atol=1e-5)
        True
        >>> from_x_transformers(nn.Linear(2, 2))
        Traceback (most recent call last):
        TypeError: expected Attention of x_transformers, got ...Linear
    """
    name, peer = "x_transformers.Attention", _checked(module, "x_transformers", "Attention")
    none = "ours has no such option"
    found: dict[str, tuple[object, object]] = {"num_mem_kv": (peer.num_mem_kv, 0)}
    found |= {path.split(".")[-1]: (attrgetter(path)(peer), False) for path in _X_FALSE}
    found |= {option: (attrgetter(path)(peer), None) for option, path in _X_NONE.items()}
    found["on_attn"] = peer.attn_on_attn, False
    found["learned_value_residual_mix"] = isinstance(peer.to_value_residual_mix, nn.Module), False
    found["rotate_num_heads"] = peer.rotate_num_heads, peer.heads
    _require(name, **{option: (*values, none) for option, values in found.items()})
    softmax = peer.attend.attn_fn
    kind = getattr(softmax, "func", softmax)
    keywords = {"dtype": None} | getattr(softmax, "keywords", {})
    plain = keywords.pop("dtype") in (None, torch.float32) and keywords == {"dim": -1}
    if kind is not F.softmax or not plain:
        function = getattr(kind, "__name__", repr(kind))
        option = _X_SOFTMAX.get(function, "custom_attn_fn")
        raise ValueError(f"{name}({option}={function}): our weights are a softmax over the keys")
    matrix = isinstance(peer.to_out, nn.Linear)
    _require(name, project_out=(matrix, True, "our output is always a matrix"))
    state = _known(peer, *_parameters(_X_NAMES.values()))
    for part in _X_NAMES.values():
        _check_part(peer, part, nn.Linear)
    d_head = peer.to_q.out_features // peer.heads
    dropouts = peer.attend.attn_dropout.p, peer.attend.dropout
    _require(
        name,
        scale=(peer.attend.scale, d_head**-0.5, _OUR_SCALE),
        attn_dropout=(*dropouts, f"the fused path takes {peer.attend.dropout}"),
    )
    d_model, dim_out = state["to_q.weight"].shape[1], state["to_out.weight"].shape[0]
    _require(name, dim_out=(dim_out, d_model, "ours is as wide as the input"))
    return _attention(
        _reordered(_renamed(state, _inverse(_X_NAMES)), peer.heads, peer.groups),
        peer.heads,
        n_kv_heads=peer.kv_heads,
        dropout=peer.attend.dropout,
    ).train(peer.attend.training)


def to_x_transformers(ours: MultiHeadAttention) -> State:
    """Parameters for x-transformers' ``Attention.load_state_dict``, under their names there.

    The layout and the order of the heads are those of :func:`from_x_transformers`.

    Raises:
        TypeError: if ``ours`` is not a ``MultiHeadAttention``.
        ValueError: if it has biases or positions.

    Source: x-transformers 2.31.10, ``x_transformers.py`` and ``attend.py``.

    Example:
        >>> state = to_x_transformers(MultiHeadAttention(64, 4, n_kv_heads=2))
        >>> {name: tuple(tensor.shape) for name, tensor in state.items()}
        {'to_q.weight': (64, 64), 'to_k.weight': (32, 64), 'to_v.weight': (32, 64),
         'to_out.weight': (64, 64)}
    """
    free = ("n_kv_heads", "d_head", "d_value", "d_memory")
    state = _state(ours, _Peer("x_transformers.Attention", free, bias="never"))
    return _renamed(_reordered(state, ours.n_heads, ours.n_kv_heads), _X_NAMES)


def _reordered(state: State, n_heads: int, n_blocks: int) -> State:
    """Query heads (a, b) → (b, a), a of ``n_blocks``; the outputs of W_Q, the inputs of W_O."""
    output = state["output.weight"]
    order = torch.arange(n_heads, device=output.device).view(n_blocks, -1).T.flatten()
    queries = {
        name: tensor.unflatten(0, (n_heads, -1))[order].flatten(0, 1)
        for name, tensor in state.items()
        if name.startswith("query.")
    }
    outputs = {"output.weight": output.unflatten(1, (n_heads, -1))[:, order].flatten(1)}
    return state | queries | outputs


# What all share


def _attention(
    state: State,
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    dropout: float = 0.0,
    position: Rotary | ALiBi | None = None,
) -> MultiHeadAttention:
    """Ours with copies of these parameters, which say all other sizes."""
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if missing := [name for name in (*_QKV, "output") if f"{name}.weight" not in state]:
        raise ValueError(f"there is no matrix under its usual name for {', '.join(missing)}")
    if len(types := {str(tensor.dtype) for tensor in state.values()}) > 1:
        raise ValueError(f"the weights are of different types: {', '.join(sorted(types))}")
    query, key, value = (state[f"{name}.weight"] for name in _QKV)
    if not is_integer(n_heads) or n_heads < 1 or len(query) % n_heads:
        raise ValueError(f"n_heads must divide the queries' width, got {n_heads} and {len(query)}")
    with torch.device("meta"):  # no memory, and no random numbers, for what is replaced
        ours = MultiHeadAttention(
            query.shape[1],
            n_heads,
            n_kv_heads=n_kv_heads,
            d_head=len(query) // n_heads,
            d_value=len(value) // n_kv_heads,
            d_memory=key.shape[1],
            bias=_BIAS["query.bias" in state, "output.bias" in state],
            dropout=dropout,
            position=position,
        )
    try:
        ours.load_state_dict({name: _copy(tensor) for name, tensor in state.items()}, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"the weights do not fit together: {' '.join(str(error).split())}"
        ) from None
    return ours


_BIAS: dict[tuple[bool, bool], bool | Literal["qkv", "output"]] = {
    (True, True): True,
    (True, False): "qkv",
    (False, True): "output",
    (False, False): False,
}


def _state(ours: MultiHeadAttention, peer: _Peer) -> State:
    """Copies of our parameters, if ``peer`` can express them; with zeros for biases it insists on.

    Raises:
        TypeError: if ``ours`` is of another class.
        ValueError: if ``peer`` lacks one of our options.
    """
    _check_ours(ours, MultiHeadAttention)
    for part in (*_QKV, "output"):
        _check_part(ours, part, nn.Linear)
    d_model, d_head = ours.d_model, ours.d_head
    biased = [part for part in (*_QKV, "output") if getattr(ours, part).bias is not None]
    options: dict[str, tuple[object, object]] = {
        "n_kv_heads": (ours.n_kv_heads, ours.n_heads),
        "d_head": (d_head, Fraction(d_model, ours.n_heads)),
        "d_value": (ours.d_value, d_head),
        "d_memory": (ours.d_memory, d_model),
        "position": (ours.position, None),
    }
    if peer.bias == "never" or (peer.bias == "all or none" and 0 < len(biased) < 4):
        names = {"query key value output": True, "": False, "query key value": "qkv"}
        options["bias"] = (names.get(" ".join(biased), " and ".join(biased)), False)
    _require(
        "MultiHeadAttention",
        **{
            option: (given, needed, f"{peer.name} needs {needed}")
            for option, (given, needed) in options.items()
            if option not in peer.free
        },
    )
    state = _known(ours, *_parameters([*_QKV, "output"]))
    if peer.bias == "always":
        for name in (*_QKV, "output"):
            weight = state[f"{name}.weight"]
            state.setdefault(f"{name}.bias", weight.new_zeros(len(weight)))
    return state


def _check_block(
    ours: EncoderBlock | DecoderBlock,
    peer: str,
    *,
    norms: tuple[str, ...],
    activations: tuple[str, ...],
    bare: bool = False,
) -> None:
    """Refuse what ``peer`` does not do around its attentions; ``bare`` is without any bias."""
    name = type(ours).__name__
    _check_part(ours, "feed_forward", FeedForward)
    for part in ("inner", "outer"):
        _check_part(ours, f"feed_forward.{part}", nn.Linear)
    activation = ours.feed_forward.activation
    layers = ours.feed_forward.inner, ours.feed_forward.outer
    inner_and_outer = [linear.bias is not None for linear in layers]
    norms_biased = all(m.bias is not None for m in ours.modules() if isinstance(m, nn.LayerNorm))
    if not bare:
        _require(
            name,
            feed_forward_bias=(all(inner_and_outer), True, f"{peer} has them"),
            norm_bias=(norms_biased, True, f"{peer} has them"),
        )
    for part, residual in ours.named_children():
        if isinstance(residual, Residual):
            if residual.place not in norms:
                raise ValueError(f"{name}(norm={residual.place!r}): {peer} has {_either(norms)}")
            _check_part(ours, f"{part}.norm", nn.LayerNorm)
            _require(name, residual_scale=(residual.scale, 1, f"{peer} does not scale its stream"))
            if residual.place != ours.attention_residual.place:
                raise ValueError(
                    f"{name}.{part}(norm={residual.place!r}): {peer} has all in one place, and the "
                    f"first is {ours.attention_residual.place!r}"
                )
    if activation not in activations:
        raise ValueError(f"{name}(activation={activation!r}): {peer} has {_either(activations)}")


def _assembled(
    target: M, source: nn.Module, parts: Mapping[str, str], convert: Callable[[Any], nn.Module]
) -> M:
    """``target`` filled part by part from ``source``: attentions converted, the others copied.

    What drops trains or evaluates as it did, whatever the whole does.
    """
    modes: list[tuple[nn.Module, bool]] = []
    origins = tuple(f"{origin}." for origin in parts.values())
    _known(source, *(name for name in source.state_dict() if name.startswith(origins)))
    for name, origin in parts.items():
        part, mine = attrgetter(origin)(source), attrgetter(name)(target)
        if isinstance(mine, MultiHeadAttention | nn.MultiheadAttention):
            setattr(target, name, converted := convert(part))
            modes.append((converted, converted.training))
        elif isinstance(mine, nn.Dropout):  # theirs is a module, ours a number
            mine.p = part
            modes.append((mine, source.get_submodule(origin.rpartition(".")[0]).training))
        elif isinstance(mine, float):
            path, _, attribute = name.rpartition(".")
            owner = target.get_submodule(path)
            _check_part(source, origin, nn.Dropout)
            setattr(owner, attribute, part.p)
            modes.append((owner, part.training))
        else:
            _check_part(source, origin, type(mine))
            state = _known(part, *mine.state_dict(), inside=f"{type(source).__name__}.{origin}")
            if missing := mine.state_dict().keys() - state.keys():
                raise ValueError(
                    f"{type(source).__name__}.{origin} has no {', '.join(sorted(missing))}"
                )
            shapes = [{n: tuple(t.shape) for n, t in s.items()} for s in (state, mine.state_dict())]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{type(source).__name__}.{origin} has {shapes[0]}, the other side {shapes[1]}"
                )
            mine.load_state_dict(state, assign=True)
            if isinstance(mine, nn.LayerNorm):
                mine.eps = part.eps
    target.train(source.training)
    for module, mode in modes:
        module.train(mode)
    return target


def _qkv(weights: Iterable[Tensor], bias: Tensor | None) -> State:
    """Parameters of the three projections: of three matrices and one packed bias."""
    state = {f"{name}.weight": weight for name, weight in zip(_QKV, weights, strict=True)}
    if bias is not None:
        state |= {f"{n}.bias": part for n, part in zip(_QKV, bias.chunk(3), strict=True)}
    return state


def _packed(state: State, kind: Literal["weight", "bias"]) -> Tensor:
    return torch.cat([state[f"{name}.{kind}"] for name in _QKV])


def _from_packed(state: Mapping[str, Tensor]) -> State:
    """From nanoGPT's names and packing."""
    qkv = _qkv(state["c_attn.weight"].chunk(3), state.get("c_attn.bias"))
    return qkv | _renamed(state, {"c_proj": "output"})


def _to_packed(state: State) -> State:
    """To nanoGPT's names and packing."""
    kinds: tuple[Literal["weight", "bias"], ...] = ("weight", "bias")
    packed = {f"c_attn.{kind}": _packed(state, kind) for kind in kinds if f"query.{kind}" in state}
    return packed | _renamed(state, {"output": "c_proj"})


def _transposed(state: Mapping[str, Tensor]) -> State:
    """Every matrix the other way round; ``Conv1D`` against ``nn.Linear``."""
    return {name: _copy(t.T if t.dim() == 2 else t) for name, t in state.items()}


def _renamed(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """The weights and biases of the modules in ``names`` (old: new), under the new names."""
    return {
        f"{new}.{kind}": state[f"{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
        if f"{old}.{kind}" in state
    }


def _eps(residual: Residual) -> float:
    assert isinstance(residual.norm, nn.LayerNorm)  # _check_block refuses others
    return residual.norm.eps


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


def _parameters(modules: Iterable[str]) -> list[str]:
    return [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]


def _known(module: nn.Module, *names: str, inside: str | None = None) -> State:
    """Copies of all that the module's state holds, which must be among these names.

    Raises:
        ValueError: names the others. What was pruned or parametrized is stored under other names.
    """
    state = module.state_dict()
    odd = {name for name, value in state.items() if not isinstance(value, Tensor)}  # quantized
    if unknown := sorted((state.keys() - set(names)) | odd):
        raise ValueError(
            f"{inside or type(module).__name__} holds what the other side has not: "
            f"{', '.join(unknown)}"
        )
    return {name: _copy(tensor) for name, tensor in state.items()}


def _check_part(module: nn.Module, name: str, kind: type[nn.Module]) -> None:
    """Refuse a part that was replaced."""
    part = attrgetter(name)(module)
    if type(part) is not kind:
        raise ValueError(
            f"{type(module).__name__}.{name} must be of class {kind.__name__}, got "
            f"{type(part).__name__}"
        )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _checked(given: object, library: str, *names: str) -> Any:
    """``given``, if it is of one of these classes of ``library``, which need not be installed."""
    kind = type(given)
    if not f"{kind.__module__}.".startswith(f"{library}.") or kind.__name__ not in names:
        raise TypeError(
            f"expected {_either(names)} of {library}, got {kind.__module__}.{kind.__qualname__}"
        )
    return given


def _check_ours(given: object, *kinds: type) -> None:
    if type(given) not in kinds:
        names = [kind.__name__ for kind in kinds]
        hint = ": unpack it first" if isinstance(given, PackedAttention) else ""
        raise TypeError(
            f"expected {_either(names)} of attnbook, got {type(given).__qualname__}{hint}"
        )


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _require(name: str, **options: tuple[object, object, str]) -> None:
    """Each option is (value given, value needed, why).

    Raises:
        ValueError: names the first option with another value.
    """
    for option, (given, needed, why) in options.items():
        if given != needed:
            value = type(given).__name__ if isinstance(given, nn.Module) else repr(given)
            raise ValueError(f"{name}({option}={value}): {why}")
