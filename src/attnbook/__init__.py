"""Attention, measured: a small, typed reference implementation of Transformer attention.

Shapes are written in the types, with one vocabulary for the whole package:

============  =============================================================
``batch``     independent sequences
``tokens``    positions of one sequence (self-attention)
``queries``   positions that attend; ``keys``: positions attended to
``heads``     attention heads, ``d_head`` numbers each
``d_model``   width of a token's vector between the layers
``vocab``     number of different tokens
``...``       any number of leading dimensions: the same in query, key and
              value (but for grouped heads), and what broadcasts to them in
              a mask
============  =============================================================

A mask is boolean and ``True`` means *may attend*, as in
``torch.nn.functional.scaled_dot_product_attention``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbook import convert
    from attnbook.attention import (
        KeyValueCache,
        MultiHeadAttention,
        attention_logits,
        attention_weights,
        scaled_dot_product_attention,
    )
    from attnbook.blocks import Block, FeedForward, Residual
    from attnbook.config import BlockConfig, ModelConfig
    from attnbook.embedding import TokenEmbedding
    from attnbook.encoder_decoder import (
        DecoderBlock,
        DecoderCache,
        Transformer,
        TransformerConfig,
    )
    from attnbook.generation import sample
    from attnbook.initialization import DRAWS, SCHEMES, draw_, initialize
    from attnbook.masks import (
        causal_mask,
        combine_masks,
        padding_mask,
        sliding_window_mask,
        token_mask,
    )
    from attnbook.models import Encoder, LanguageModel
    from attnbook.positions import (
        ALiBi,
        LearnedPositions,
        Position,
        Rotary,
        RotaryScaling,
        SinusoidalPositions,
        alibi_bias,
        alibi_slopes,
        convert_rotary_weight,
        sinusoidal_positions,
    )
    from attnbook.probes import Probe, Table
    from attnbook.train import load_run

__version__ = "0.2.0"

__all__ = [
    "DRAWS",
    "SCHEMES",
    "ALiBi",
    "Block",
    "BlockConfig",
    "DecoderBlock",
    "DecoderCache",
    "Encoder",
    "FeedForward",
    "KeyValueCache",
    "LanguageModel",
    "LearnedPositions",
    "ModelConfig",
    "MultiHeadAttention",
    "Position",
    "Probe",
    "Residual",
    "Rotary",
    "RotaryScaling",
    "SinusoidalPositions",
    "Table",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "alibi_bias",
    "alibi_slopes",
    "attention_logits",
    "attention_weights",
    "causal_mask",
    "combine_masks",
    "convert",
    "convert_rotary_weight",
    "draw_",
    "initialize",
    "load_run",
    "padding_mask",
    "sample",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "sliding_window_mask",
    "token_mask",
]

_HOMES = (
    *("masks", "positions", "config", "initialization", "embedding", "attention", "blocks"),
    *("generation", "models", "encoder_decoder", "probes", "train"),
)


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: attnbook.backprop does without torch."""
    if name == "convert":
        return importlib.import_module("attnbook.convert")
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"attnbook.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'attnbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
