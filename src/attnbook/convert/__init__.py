"""Weights to and from other libraries' modules and models.

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

The matrices are copied, never shared, and keep their type and device. Then both modules run on the
same 16 random tokens in evaluation mode: where their outputs differ beyond rounding, the conversion
is refused with a ``ValueError``; and so is what a peer does not have on the way back. The peer's
module stays as it was. Dropout probabilities carry over, and ours is in the mode that the peer is
in; whole models are in evaluation mode. Whether an attention is causal is not a weight: ours is
told at each call.

``from_pretrained`` reads a folder of Hugging Face's, and ``tokenizer`` the tokenizer in it.
"""

from attnbook.convert.keras import from_keras, to_keras
from attnbook.convert.nanogpt import from_nanogpt, to_nanogpt
from attnbook.convert.torch import from_torch, to_torch
from attnbook.convert.transformers import (
    from_bert,
    from_gpt2,
    from_llama,
    from_pretrained,
    to_bert,
    to_gpt2,
    to_llama,
    tokenizer,
)
from attnbook.convert.x_transformers import from_x_transformers, to_x_transformers

__all__ = [
    "from_bert",
    "from_gpt2",
    "from_keras",
    "from_llama",
    "from_nanogpt",
    "from_pretrained",
    "from_torch",
    "from_x_transformers",
    "to_bert",
    "to_gpt2",
    "to_keras",
    "to_llama",
    "to_nanogpt",
    "to_torch",
    "to_x_transformers",
    "tokenizer",
]
