"""Attention, measured: a small, typed reference implementation of Transformer attention.

Shapes are written in the types, with one vocabulary for the whole package:

============  =============================================================
``batch``     independent sequences
``tokens``    positions of one sequence (self-attention)
``queries``   positions that ask; ``keys``: positions that are asked
``heads``     attention heads, ``d_head`` numbers each
``d_model``   width of a token's vector between the layers
``vocab``     number of different tokens
``...``       any number of leading dimensions, the same in every argument
============  =============================================================

A mask is boolean and ``True`` means *may attend*, as in
``torch.nn.functional.scaled_dot_product_attention``.
"""

from attnbook.attention import (
    MultiHeadAttention,
    attention_logits,
    attention_weights,
    scaled_dot_product_attention,
)
from attnbook.blocks import EncoderBlock, FeedForward
from attnbook.embedding import TokenEmbedding
from attnbook.initialization import SCHEMES, initialize_
from attnbook.masks import causal_mask, padding_mask
from attnbook.position import sinusoidal_positions
from attnbook.transformer import Encoder, LanguageModel, TransformerConfig

__version__ = "0.1.0"

__all__ = [
    "SCHEMES",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "LanguageModel",
    "MultiHeadAttention",
    "TokenEmbedding",
    "TransformerConfig",
    "attention_logits",
    "attention_weights",
    "causal_mask",
    "initialize_",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]
