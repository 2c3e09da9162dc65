"""The blocks that a Transformer stacks."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.initialization import initialize_

NormPlace = Literal["pre", "post"]


class FeedForward(nn.Module):
    r"""The same two-layer network for each token.

    .. math:: \operatorname{FFN}(x) = \max(0,\, x W_1 + b_1)\, W_2 + b_2

    Args:
        d_model: width of the input and of the output.
        d_ff: width in between.

    Source: Vaswani et al. 2017, section 3.3.

    Example:
        >>> FeedForward(64, 256)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        for linear in (self.inner, self.outer):
            initialize_(
                linear.weight, "glorot", fan_in=linear.in_features, fan_out=linear.out_features
            )
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply the network to each token alone."""
        output: Tensor = self.outer(torch.relu(self.inner(x)))
        return output


class EncoderBlock(nn.Module):
    r"""Self-attention, then a feed-forward network, each added to what came in.

    .. math::
        \text{post:}\quad x \leftarrow \operatorname{LN}(x + f(x)) \qquad\qquad
        \text{pre:}\quad x \leftarrow x + f(\operatorname{LN}(x))

    With ``causal=True`` it is the block of a decoder-only model.

    Args:
        d_model: width of a token.
        n_heads: attention heads.
        d_ff: inner width of the feed-forward network.
        norm: ``"post"`` (Vaswani et al. 2017) or ``"pre"`` (most models since GPT-2).
        dropout: on the attention weights and on what is added to the stream.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model`` or ``norm`` is neither of the two.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, figure 1.

    Example:
        >>> EncoderBlock(64, 4, 256)(torch.randn(2, 10, 64), causal=True).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: NormPlace = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
        self.norm = norm
        self.attention = MultiHeadAttention(d_model, n_heads, dropout=dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Run the block on ``x``; ``mask`` and ``causal`` as in ``MultiHeadAttention``."""
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask, causal=causal))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, mask=mask, causal=causal)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x
