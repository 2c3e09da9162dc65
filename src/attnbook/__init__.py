"""Attention, measured: a small, typed reference implementation of Transformer attention.

Shapes are written in the types, with one vocabulary for the whole package:

============  =============================================================
``batch``     independent sequences
``tokens``    positions of one sequence (self-attention)
``queries``   positions that ask; ``keys``: positions that are asked
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

from attnbook.attention import (
    KeyValueCache,
    MultiHeadAttention,
    attention_logits,
    attention_weights,
    scaled_dot_product_attention,
)
from attnbook.blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward
from attnbook.draw import DRAWS, draw_
from attnbook.embedding import TokenEmbedding
from attnbook.initialization import SCHEMES, initialize
from attnbook.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
    token_mask,
)
from attnbook.packed import PackedAttention, pack, unpack
from attnbook.position import (
    ALiBi,
    LearnedPositions,
    Rotary,
    SinusoidalPositions,
    alibi_bias,
    alibi_slopes,
    convert_rotary_weight,
    sinusoidal_positions,
)
from attnbook.probes import Probe
from attnbook.tables import Table
from attnbook.transformer import (
    Encoder,
    LanguageModel,
    ModelConfig,
    Transformer,
    TransformerConfig,
)

__version__ = "0.1.0"

__all__ = [
    "DRAWS",
    "SCHEMES",
    "ALiBi",
    "DecoderBlock",
    "DecoderCache",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "KeyValueCache",
    "LanguageModel",
    "LearnedPositions",
    "ModelConfig",
    "MultiHeadAttention",
    "PackedAttention",
    "Probe",
    "Rotary",
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
    "convert_rotary_weight",
    "draw_",
    "initialize",
    "pack",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "sliding_window_mask",
    "token_mask",
    "unpack",
]
