"""The model again, in NumPy alone: forward, and every gradient derived by hand.

A function ``f`` has a ``f_backward`` that takes the gradient of the output first (that of
``cross_entropy`` is the last of all, and takes none). Modules hold parameters under the names of
their torch twins, so that weights copy both ways::

    by_hand.load_state_dict(model.state_dict())
    model.load_state_dict({name: torch.from_numpy(w) for name, w in by_hand.state_dict().items()})
"""

from attnbook.backprop.adam import Adam
from attnbook.backprop.attention import (
    MultiHeadAttention,
    multi_head_attention_by_head,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    softmax,
    softmax_backward,
)
from attnbook.backprop.blocks import Block, FeedForward, Residual
from attnbook.backprop.checking import GradientError, check_gradient, numerical_gradient
from attnbook.backprop.embedding import embedding, embedding_backward, sinusoidal_positions
from attnbook.backprop.layers import (
    ACTIVATIONS,
    LayerNorm,
    Linear,
    dropout,
    gelu,
    gelu_backward,
    gelu_tanh,
    gelu_tanh_backward,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
    relu,
    relu_backward,
)
from attnbook.backprop.module import Module, Parameter
from attnbook.backprop.transformer import (
    LanguageModel,
    LearnedPositions,
    TokenEmbedding,
    cross_entropy,
    cross_entropy_backward,
)

__all__ = [
    "ACTIVATIONS",
    "Adam",
    "Block",
    "FeedForward",
    "GradientError",
    "LanguageModel",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "Residual",
    "TokenEmbedding",
    "check_gradient",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "embedding",
    "embedding_backward",
    "gelu",
    "gelu_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "multi_head_attention_by_head",
    "numerical_gradient",
    "relu",
    "relu_backward",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "sinusoidal_positions",
    "softmax",
    "softmax_backward",
]
