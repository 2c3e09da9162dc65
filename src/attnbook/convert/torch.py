"""To and from PyTorch's own attention, layers and ``nn.Transformer``."""

import copy
import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.blocks import ACTIVATIONS, Block
from attnbook.config import BlockConfig
from attnbook.convert import shared
from attnbook.encoder_decoder import DecoderBlock, Transformer, TransformerConfig
from attnbook.masks import causal_mask

Ours = MultiHeadAttention | Block | Transformer
Theirs = (
    nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer | nn.Transformer
)

# Torch's names and ours. ``in_proj`` is split when read, joined when written.
_ATTENTION = {n: n for n in ("query", "key", "value", "in_proj")} | {"out_proj": "output"}
_APART = {f"{n[0]}_proj": n for n in shared.QKV} | {"in_proj": "in_proj", "out_proj": "output"}
_ENCODER = shared.under("self_attn.", "attention.", _ATTENTION) | {
    "norm1": "attention_residual.norm",
    "linear1": "feed_forward.inner",
    "linear2": "feed_forward.outer",
    "norm2": "feed_forward_residual.norm",
}
_DECODER = {
    **_ENCODER,
    **shared.under("multihead_attn.", "cross_attention.", _ATTENTION),
    "norm2": "cross_attention_residual.norm",
    "norm3": "feed_forward_residual.norm",
}

# Numbers that are not parameters.
_ENCODER_NUMBERS = {
    "self_attn.dropout": "attention.dropout",
    "dropout1.p": "attention_residual.dropout",
    "dropout.p": "feed_forward.dropout",
    "dropout2.p": "feed_forward_residual.dropout",
}
_DECODER_NUMBERS = {
    **_ENCODER_NUMBERS,
    "multihead_attn.dropout": "cross_attention.dropout",
    "dropout2.p": "cross_attention_residual.dropout",
    "dropout3.p": "feed_forward_residual.dropout",
}


def from_torch(module: Theirs, *, vocab_size: int | None = None) -> Ours:
    r"""Ours from torch's attention, encoder layer, decoder layer or ``nn.Transformer``.

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
    ``encoder``, ``decoder``                                     the stacks, each with a final norm
    ====================================  =====================  ==================================

    Ours takes (batch, tokens, d_model) whatever ``batch_first`` says. Our decoder is always
    causal, torch's if given a ``tgt_mask``.

    Args:
        module: the module, which is left as it was.
        vocab_size: for ``nn.Transformer``, which has no embedding: that of ours is drawn anew.

    Returns:
        ``MultiHeadAttention``, ``Block`` or ``DecoderBlock`` in the mode that ``module`` is in; a
        ``Transformer`` in evaluation mode.

    Raises:
        ValueError: if it computes another function than ours with its parameters.

    Source: torch 2.13.0, ``nn/modules/activation.py`` and ``nn/modules/transformer.py``.

    Example:
        >>> import torch
        >>> theirs = nn.MultiheadAttention(64, 4, kdim=48, vdim=48, batch_first=True)
        >>> x, memory = torch.randn(2, 5, 64), torch.randn(2, 7, 48)
        >>> expected, _ = theirs(x, memory, memory)
        >>> torch.allclose(from_torch(theirs)(x, memory), expected, atol=1e-5)
        True
        >>> theirs = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)
        >>> from_torch(theirs, vocab_size=100).config.norm
        'post'
    """
    ours: Ours
    if isinstance(module, nn.Transformer) and vocab_size is not None:
        ours = _from_model(module, vocab_size)
    elif isinstance(module, nn.MultiheadAttention):
        state = shared.renamed(_read(module), _APART | _ATTENTION, type(module).__name__)
        ours = shared.attention(state, module.num_heads, dropout=module.dropout)
    elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        kind = DecoderBlock if isinstance(module, nn.TransformerDecoderLayer) else Block
        names, numbers = _tables(kind)
        state = shared.renamed(_read(module), names, type(module).__name__)
        settings = shared.block_settings(state) | _settings(module)
        ours = shared.filled(lambda: kind(BlockConfig(**settings)), state)
        _copy_numbers(module, ours, numbers)
    else:
        raise TypeError(
            "expected nn.MultiheadAttention, TransformerEncoderLayer, TransformerDecoderLayer, or "
            f"Transformer and vocab_size, got {type(module).__name__}"
        )
    _measure(module, ours)
    return ours.train(module.training and not isinstance(module, nn.Transformer))


def to_torch(ours: Ours) -> Theirs:
    """From ours torch's module, with ``batch_first=True``.

    The layout is that of :func:`from_torch`. Torch's modules have biases everywhere or nowhere: if
    ours has some, the others become zeros. Of a ``Transformer`` the stacks are copied, without
    embeddings and output layer.

    Returns:
        The module, training if ``ours`` is.

    Raises:
        ValueError: if torch's module can't hold the parameters (grouped heads, …), or computes
            another function with them (positions, scaled streams, …).

    Source: torch 2.13.0, ``nn/modules/activation.py`` and ``nn/modules/transformer.py``.

    Example:
        >>> import torch
        >>> ours = Block(BlockConfig(d_model=64, norm="pre", activation="gelu"))
        >>> x = torch.randn(2, 5, 64)
        >>> torch.allclose(to_torch(ours)(x), ours(x), atol=1e-5)
        True
    """
    theirs: Theirs
    if isinstance(ours, Transformer):
        theirs = _to_model(ours)
    else:
        theirs = _to_attention(ours) if isinstance(ours, MultiHeadAttention) else _to_layer(ours)
    _measure(theirs, ours)
    return theirs.train(ours.training)


def _tables(kind: type[Block]) -> tuple[dict[str, str], dict[str, str]]:
    """Names of parameters and of numbers."""
    decodes = issubclass(kind, DecoderBlock)
    names, numbers = (_DECODER, _DECODER_NUMBERS) if decodes else (_ENCODER, _ENCODER_NUMBERS)
    epsilons = {f"{t}.eps": f"{o}.eps" for t, o in names.items() if o.endswith(".norm")}
    return names, numbers | epsilons


def _read(module: nn.Module) -> shared.State:
    """The parameters, with a dot before ``weight`` and ``bias``, and ``in_proj`` split."""
    state = {re.sub(r"proj_(?=\w+$)", "proj.", n): t for n, t in module.state_dict().items()}
    return shared.unpacked(state, "in_proj")


def _written(ours: nn.Module, names: Mapping[str, str]) -> shared.State:
    """Our parameters under torch's names, with biases everywhere or nowhere."""
    kinds = ("bias",) if names is _APART else ("weight", "bias")
    state = shared.packed(shared.with_biases(ours.state_dict()), "in_proj", kinds)
    state = shared.renamed(state, shared.inverse(names), type(ours).__name__)
    return {re.sub(r"\b((in|q|k|v)_proj)\.", r"\1_", n): t for n, t in state.items()}


def _settings(layer: Any) -> dict[str, Any]:
    """What no parameter says."""
    activation = shared.find_activation(layer.activation)
    fast = {1: "relu", 2: "gelu"}.get(getattr(layer, "activation_relu_or_gelu", 0), activation)
    if fast != activation:
        raise ValueError(f"without gradients the layer computes {fast}, with them {activation}")
    norm = "pre" if layer.norm_first else "post"
    heads = layer.self_attn.num_heads
    return {"n_heads": heads, "norm": norm, "norm_eps": layer.norm1.eps, "activation": activation}


def _copy_numbers(source: nn.Module, target: nn.Module, names: Mapping[str, str]) -> None:
    for old, new in names.items():
        owner, _, attribute = new.rpartition(".")
        setattr(target.get_submodule(owner), attribute, attrgetter(old)(source))


def _from_model(module: nn.Transformer, vocab_size: int) -> Transformer:
    encoder, decoder = module.encoder, module.decoder
    blocks = [[from_torch(layer) for layer in stack.layers] for stack in (encoder, decoder)]
    settings = shared.block_settings(blocks[0][0].state_dict()) | _settings(encoder.layers[0])
    config = TransformerConfig(
        vocab_size=vocab_size,
        n_layers=len(blocks[0]),
        n_decoder_layers=len(blocks[1]),
        final_norm=encoder.norm is not None,
        dropout=encoder.layers[0].dropout.p,
        **settings,
    )
    ours = Transformer(config).to(next(encoder.parameters()))
    ours.encoder_blocks, ours.decoder_blocks = (nn.ModuleList(stack) for stack in blocks)
    ours.encoder_norm = copy.deepcopy(encoder.norm) or nn.Identity()
    ours.decoder_norm = copy.deepcopy(decoder.norm) or nn.Identity()
    return ours


def _to_attention(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    apart = ours.d_memory != ours.d_model
    state = _written(ours, _APART if apart else _ATTENTION)
    width = ours.d_memory if apart else None
    return shared.filled(
        lambda: nn.MultiheadAttention(
            ours.d_model,
            ours.n_heads,
            ours.dropout,
            bias="out_proj.bias" in state,
            kdim=width,
            vdim=width,
            batch_first=True,
        ),
        state,
    )


def _to_layer(ours: Block) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    decodes = isinstance(ours, DecoderBlock)
    layer = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    names, numbers = _tables(type(ours))
    state = _written(ours, names)
    name, inner = ours.feed_forward.activation, ours.feed_forward.inner
    theirs = shared.filled(
        lambda: layer(
            inner.in_features,
            ours.attention.n_heads,
            inner.out_features,
            activation=name if name in ("relu", "gelu") else ACTIVATIONS[name],
            norm_first=ours.attention_residual.norm_position == "pre",
            batch_first=True,
            bias="linear1.bias" in state,
        ),
        state,
    )
    _copy_numbers(ours, theirs, shared.inverse(numbers))
    return theirs


def _to_model(ours: Transformer) -> nn.Transformer:
    empty: dict[str, Any] = {"custom_encoder": nn.Identity(), "custom_decoder": nn.Identity()}
    config = ours.config
    theirs = nn.Transformer(config.d_model, config.n_heads, batch_first=True, **empty)
    layers: list[Any] = []
    for blocks in (ours.encoder_blocks, ours.decoder_blocks):
        layers.append([to_torch(block) for block in blocks])  # type: ignore[arg-type]
    norms = [
        None if isinstance(norm, nn.Identity) else copy.deepcopy(norm)
        for norm in (ours.encoder_norm, ours.decoder_norm)
    ]
    first = layers[0][0], 0, norms[0]  # torch would copy the first
    theirs.encoder = nn.TransformerEncoder(*first, enable_nested_tensor=False)
    theirs.decoder = nn.TransformerDecoder(layers[1][0], 0, norms[1])
    for stack, own in zip((theirs.encoder, theirs.decoder), layers, strict=True):
        stack.layers, stack.num_layers = nn.ModuleList(own), len(own)
    return theirs


def _measure(theirs: Any, ours: Any) -> None:
    like = next(theirs.parameters())
    ahead = ~causal_mask(shared.TOKENS, device=like.device)  # torch's True forbids
    first = getattr(theirs, "self_attn", theirs).batch_first
    run_ours = ours
    if isinstance(ours, MultiHeadAttention):
        widths = [ours.d_model] if ours.d_memory == ours.d_model else [ours.d_model, ours.d_memory]
    elif isinstance(ours, Block):
        widths = [ours.attention.d_model] * (2 if isinstance(ours, DecoderBlock) else 1)
    else:  # source and target
        widths = [ours.config.d_model] * 2
        run_ours = lambda x, y: ours.decode_vectors(y, ours.encode_vectors(x))  # noqa: E731

    def run(*tokens: Tensor) -> Tensor:
        x, *more = (t if first else t.transpose(0, 1) for t in tokens)
        memory = more[0] if more else x
        if isinstance(ours, MultiHeadAttention):
            output = theirs(x, memory, memory, need_weights=False)[0]
        else:
            output = theirs(x, memory, tgt_mask=ahead) if more else theirs(x)
        turned: Tensor = output if first else output.transpose(0, 1)
        return turned

    shared.measure(theirs, ours, run, run_ours, *shared.vectors(like, *widths))
