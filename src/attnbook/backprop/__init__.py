"""The model again, in NumPy alone: forward, and every gradient derived by hand.

A function ``f`` has a ``f_backward`` that takes the gradient of the output first (that of
``cross_entropy`` is the last of all, and takes none). Modules hold parameters under the names of
their torch twins, so that weights copy both ways::

    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict({name: torch.from_numpy(w) for name, w in ours.state_dict().items()})
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
from attnbook.backprop.blocks import EncoderBlock, FeedForward, Residual
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
    "EncoderBlock",
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
