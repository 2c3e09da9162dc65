"""What can be chosen: sizes and choices of a block, and of a model made of such blocks."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from attnbook.positions import RotaryScaling

NormPosition = Literal["pre", "post", "none"]
NormChoice = Literal["pre", "post", "none", "deepnorm"]
NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu"]
ProjectionBias = bool | Literal["qkv", "output"]
PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "none"]


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Sizes and choices of a block, by keyword.

    Args:
        d_model: width of a token.
        n_heads: attention heads, a divisor of ``d_model``.
        d_ff: inner width of the feed-forward network; ``4 * d_model`` if not given.
        norm: ``"post"`` (Vaswani et al. 2017), ``"pre"`` (most models since GPT-2), ``"none"``, or
            ``"deepnorm"``: post-norm with a scaled stream; its initial values are drawn by
            ``initialize(model, "deepnorm")``, and a block alone takes its α as ``residual_scale``.
        dropout: on attention weights, inside the feed-forward network, on what is added to the
            stream, and on a model's embeddings.
        n_kv_heads: key and value heads, a divisor of ``n_heads``; as many as there are heads if
            not given.
        activation: ``"relu"``, ``"gelu"`` (exact), ``"gelu_tanh"``, ``"swiglu"`` or ``"geglu"``.
        attention_bias: biases of the attentions' projections: ``True`` for all four, ``False``,
            ``"qkv"`` or ``"output"``.
        feed_forward_bias: biases in the feed-forward network.
        norm_bias: biases in the LayerNorms.
        norm_kind: ``"layer"`` or ``"rms"`` (Llama).
        norm_eps: added to the variance in every norm.
        d_head: width of a head; d_model / n_heads if not given.
        qk_norm: an RMSNorm on each head's queries and keys (Qwen3), as in
            :class:`attnbook.attention.MultiHeadAttention`.

    Source: the defaults are the choices of Vaswani et al. 2017, sections 3.1 to 3.3.

    Example:
        >>> config = BlockConfig(d_model=64, n_heads=4, norm="pre", activation="gelu")
    """

    d_model: int = 64
    n_heads: int = 4
    d_ff: int | None = None
    norm: NormChoice = "post"
    dropout: float = 0.0
    n_kv_heads: int | None = None
    activation: Activation = "relu"
    attention_bias: ProjectionBias = False
    feed_forward_bias: bool = True
    norm_bias: bool = True
    norm_kind: NormKind = "layer"
    norm_eps: float = 1e-5
    d_head: int | None = None
    qk_norm: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown words, and numbers of which torch would make an empty or broken block."""
        check_choice("norm", self.norm, NormChoice)
        check_choice("norm_kind", self.norm_kind, NormKind)
        check_choice("activation", self.activation, Activation)
        check_choice("attention_bias", self.attention_bias, Literal[True, False, "qkv", "output"])
        check_sizes(d_model=self.d_model, n_heads=self.n_heads, d_ff=self.d_ff)
        check_sizes(n_kv_heads=self.n_kv_heads, d_head=self.d_head)
        check_shares(norm_eps=self.norm_eps)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")


@dataclass(frozen=True)
class ModelConfig(BlockConfig):
    """Sizes and choices of a model: those of its blocks, :class:`BlockConfig`, and its own.

    Args:
        vocab_size: number of different tokens.
        n_layers: blocks.
        max_tokens: longest sequence.
        scaled: multiply token embeddings by sqrt(d_model).
        embedding_init: initial values of the embedding, a key of
            :data:`attnbook.initialization.DRAWS`.
        tied: use the embedding matrix as the output layer too.
        position: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` (half-split), ``"alibi"``
            (bidirectional in an encoder) or ``"none"``.
        rotary_base: of rotary positions, as in :class:`attnbook.positions.Rotary`; and so are
            ``rotary_fraction`` and ``rotary_scaling``.
        final_norm: end each stack with a norm; if not given, pre-norm stacks do.
        window: how many tokens each may attend to on its left, itself included (and as many on its
            right in an encoder); all if not given.
        embedding_norm: a norm on the sum of embedding and position (BERT).
        prediction_head: BERT's: a linear layer, the activation and a norm before the output layer,
            and a bias on the logits.

    Source: the defaults of ``position``, ``scaled`` and ``tied`` are the choices of Vaswani et al.
    2017, sections 3.4 and 3.5.

    Example:
        >>> config = ModelConfig(vocab_size=1000, d_model=128, position="rotary")
    """

    vocab_size: int
    _: KW_ONLY
    n_layers: int = 2
    max_tokens: int = 256
    scaled: bool = True
    embedding_init: str = "inverse_sqrt"
    tied: bool = True
    position: PositionKind = "sinusoidal"
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: RotaryScaling | None = None
    final_norm: bool | None = None
    window: int | None = None
    embedding_norm: bool = False
    prediction_head: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown position, and sizes of which torch would make an empty model."""
        super().__post_init__()
        check_choice("position", self.position, PositionKind)
        check_sizes(vocab_size=self.vocab_size, n_layers=self.n_layers)
        check_sizes(max_tokens=self.max_tokens, window=self.window)


def check_choice(name: str, given: object, choices: object) -> None:
    """Refuse an unknown word.

    Raises:
        ValueError: names what was given and what is known.

    Example:
        >>> check_choice("norm", "before", NormPosition)
        Traceback (most recent call last):
        ValueError: norm must be 'pre', 'post' or 'none', got 'before'
    """
    known = get_args(choices)
    if given not in known:
        *others, last = map(repr, known)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {given!r}")


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes of which torch would make an empty module.

    Example:
        >>> check_sizes(n_heads=2, d_head=0)
        Traceback (most recent call last):
        ValueError: d_head must be at least 1, got 0
    """
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_shares(*, dropout: float = 0.0, **eps: float) -> None:
    """Refuse a dropout that is no probability, and a negative ``eps`` in a norm.

    Example:
        >>> check_shares(dropout=1.5)
        Traceback (most recent call last):
        ValueError: dropout must be from 0 to 1, got 1.5
    """
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout must be from 0 to 1, got {dropout}")
    for name, number in eps.items():
        if not number >= 0:
            raise ValueError(f"{name} must not be negative, got {number}")
