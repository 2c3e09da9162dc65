"""Tokens to vectors, and back."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from attnbook.initialization import Roles, draw_


class TokenEmbedding(nn.Embedding):
    r"""One learned vector for each token of a vocabulary.

    .. math:: \operatorname{embed}(t) = c\,E_t, \qquad c = \sqrt{d_\text{model}}
              \text{ if scaled, else } 1

    :math:`E` is ``weight``, of shape (vocab, d_model), and :math:`E_t` its row :math:`t`: the same
    number as the one-hot vector of :math:`t` times :math:`E`. :math:`c` is ``factor``.

    Args:
        vocab_size: number of different tokens.
        d_model: numbers in a token's vector.
        scaled: multiply what is looked up by sqrt(d_model). Off here, as in ``nn.Embedding``; a
            whole model has it on, as in the paper (``ModelConfig``).
        init: initial values of ``weight``, a key of :data:`attnbook.initialization.DRAWS`
            (``"inverse_sqrt"``: N(0, 1/d_model), ``"unit"``: N(0, 1), …).

    Source: Vaswani et al. 2017, section 3.4.

    Example:
        >>> embedding = TokenEmbedding(1000, 64, scaled=True)
        >>> embedding(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 3, 64])
    """

    roles: ClassVar[Roles] = {"weight": "embedding"}

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        scaled: bool = False,
        init: str = "inverse_sqrt",
    ) -> None:
        super().__init__(vocab_size, d_model, _weight=torch.empty(vocab_size, d_model))
        self.factor = math.sqrt(d_model) if scaled else 1.0
        draw_(self.weight, init, fan_in=vocab_size, fan_out=d_model)

    def forward(self, ids: Integer[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Look up the vectors of ``ids`` and multiply them by the factor.

        Raises:
            ValueError: if an id is outside the vocabulary (on a GPU: torch's own assertion).
        """
        try:
            vectors = F.embedding(ids, self.weight)
        except IndexError:
            raise ValueError(
                f"token ids must be in 0 … {self.num_embeddings - 1}, got {ids.min().item()} … "
                f"{ids.max().item()}"
            ) from None
        return vectors if self.factor == 1 else vectors * self.factor

    def logits(self, hidden: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocab"]:
        r"""Use the same matrix as the output layer: ``hidden`` times the transpose of ``weight``.

        .. math:: \text{logits} = H E^\top

        This is weight tying. The factor sqrt(d_model) is *not* applied here; it belongs to the
        input side only.

        Source: Press and Wolf 2017; Vaswani et al. 2017, section 3.4.

        Example:
            >>> embedding = TokenEmbedding(1000, 64)
            >>> embedding.logits(torch.zeros(2, 5, 64)).shape
            torch.Size([2, 5, 1000])
        """
        return F.linear(hidden, self.weight)

    def extra_repr(self) -> str:
        """Sizes and factor, for ``print(module)``."""
        return f"{self.num_embeddings}, {self.embedding_dim}, factor={self.factor:g}"
