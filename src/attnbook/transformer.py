"""Whole models: an encoder with an output layer, and a decoder-only language model."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from attnbook.blocks import EncoderBlock, NormPlace
from attnbook.embedding import TokenEmbedding
from attnbook.initialization import get_scheme, initialize_
from attnbook.position import sinusoidal_positions


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and choices of a model, checked when made.

    Args:
        vocab_size: number of different tokens.
        d_model: width of a token, even (sinusoids come in pairs).
        n_heads: attention heads, a divisor of ``d_model``.
        n_layers: blocks.
        d_ff: inner width of the feed-forward networks; ``4 * d_model`` if not given.
        max_tokens: longest sequence.
        norm: ``"post"`` or ``"pre"``.
        scaled: multiply token embeddings by sqrt(d_model).
        embedding_init: initial values of the embedding, a key of ``SCHEMES``.
        tied: use the embedding matrix as the output layer too.
        dropout: on embeddings, attention weights and what blocks add to the stream.

    Raises:
        ValueError: names the first setting that can't be.

    Example:
        >>> TransformerConfig(vocab_size=1000, d_model=128).d_ff
        512
    """

    vocab_size: int
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 2
    d_ff: int = 0
    max_tokens: int = 256
    norm: NormPlace = "post"
    scaled: bool = True
    embedding_init: str = "inverse_sqrt"
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Fill in ``d_ff`` and check every setting."""
        if self.d_ff == 0:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        for name in ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.d_model % 2:
            raise ValueError(f"d_model must be even, got {self.d_model}")
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model, got {self.n_heads} and {self.d_model}")
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {self.norm!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        get_scheme(self.embedding_init)


class Encoder(nn.Module):
    r"""Embedding plus position, a stack of blocks, and an output layer over the vocabulary.

    .. math::
        X_0 = c\,E_\text{ids} + P, \qquad X_l = \operatorname{block}_l(X_{l-1}), \qquad
        \text{logits} = X_N W_\text{out}

    :math:`W_\text{out} = E^\top` when tied. A pre-norm stack ends with one more LayerNorm.

    Source: Vaswani et al. 2017, sections 3.1 and 3.4.

    Example:
        >>> import torch
        >>> model = Encoder(TransformerConfig(vocab_size=10, d_model=32))
        >>> model(torch.randint(10, (2, 7))).shape
        torch.Size([2, 7, 10])
    """

    causal = False

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(
            config.vocab_size, config.d_model, scaled=config.scaled, init=config.embedding_init
        )
        positions = sinusoidal_positions(config.max_tokens, config.d_model)
        self.register_buffer("positions", positions, persistent=False)
        self.positions: Tensor
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                config.n_heads,
                config.d_ff,
                norm=config.norm,
                dropout=config.dropout,
            )
            for _ in range(config.n_layers)
        )
        self.final_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.output = None
        if not config.tied:
            self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
            initialize_(
                self.output.weight, "glorot", fan_in=config.d_model, fan_out=config.vocab_size
            )

    def forward(
        self, ids: Integer[Tensor, "batch tokens"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch tokens vocab"]:
        """Logits over the vocabulary for each token.

        Args:
            ids: token ids.
            mask: ``True`` = may attend; broadcasts to (batch, heads, tokens, tokens).

        Raises:
            TypeError: if ``ids`` are not integers.
            ValueError: if an id is outside the vocabulary or the sequence is too long.
        """
        x = self.input(ids)
        for block in self.blocks:
            x = block(x, mask, causal=self.causal)
        x = self.final_norm(x)
        logits: Tensor = self.embedding.logits(x) if self.output is None else self.output(x)
        return logits

    def input(self, ids: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens d_model"]:
        """What the first block gets: embedding plus position."""
        n_tokens = ids.shape[-1]
        if n_tokens > self.config.max_tokens:
            raise ValueError(
                f"the model takes at most {self.config.max_tokens} tokens, got {n_tokens}"
            )
        x: Tensor = self.dropout(self.embedding(ids) + self.positions[:n_tokens])
        return x

    def loss(
        self, ids: Integer[Tensor, "batch tokens"], targets: Integer[Tensor, "batch tokens"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats per token."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


class LanguageModel(Encoder):
    r"""The same stack with causal masks: predicts each next token from those before.

    Source: Radford et al. 2019, section 2.3, for the decoder-only form.

    Example:
        >>> import torch
        >>> model = LanguageModel(TransformerConfig(vocab_size=10, d_model=32))
        >>> ids = torch.randint(10, (2, 8))
        >>> model.loss(ids[:, :-1], ids[:, 1:]).shape
        torch.Size([])
    """

    causal = True
