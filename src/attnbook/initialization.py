"""Every initial value: how one matrix is drawn, and how a scheme draws a whole model."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

Distribution = Literal["normal", "uniform"]


@dataclass(frozen=True)
class Draw:
    """How the entries of one matrix are drawn: independent, with mean zero.

    A matrix takes ``fan_in`` numbers to ``fan_out`` numbers. An embedding table is the matrix
    that a one-hot vector is multiplied with, so its fan-in is the vocabulary and its fan-out is
    ``d_model``.
    """

    distribution: Distribution
    std: Callable[[int, int], float]
    """Standard deviation as a function of (fan_in, fan_out)."""
    source: str
    """Who draws so."""


DRAWS: dict[str, Draw] = {
    "inverse_sqrt": Draw(
        "normal",
        lambda fan_in, fan_out: fan_out**-0.5,
        "embeddings of tensor2tensor and fairseq (fan_out = d_model)",
    ),
    "unit": Draw(
        "normal",
        lambda fan_in, fan_out: 1.0,
        "torch.nn.Embedding; embeddings of Dive into Deep Learning",
    ),
    "gpt2": Draw(
        "normal",
        lambda fan_in, fan_out: 0.02,
        "embeddings and matrices of BERT and GPT-2",
    ),
    "glorot": Draw(
        "uniform",
        lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
        "Glorot and Bengio 2010, eq. 16; matrices of tensor2tensor, and with them the embeddings "
        "of the Annotated Transformer",
    ),
    "glorot_normal": Draw(
        "normal",
        lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
        "Glorot and Bengio 2010, eq. 12; matrices of DeepNet",
    ),
    "he": Draw(
        "normal",
        lambda fan_in, fan_out: math.sqrt(2 / fan_in),
        "He et al. 2015, eq. 10",
    ),
    "lecun": Draw(
        "normal",
        lambda fan_in, fan_out: fan_in**-0.5,
        "LeCun et al. 1998, section 4.6",
    ),
    "torch_linear": Draw(
        "uniform",
        lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
        "torch.nn.Linear",
    ),
}
"""The table by name, with these standard deviations.

``"inverse_sqrt"`` 1/sqrt(fan_out), ``"unit"`` 1, ``"gpt2"`` 0.02, ``"glorot"`` and
``"glorot_normal"`` sqrt(2/(fan_in + fan_out)), ``"he"`` sqrt(2/fan_in), ``"lecun"``
1/sqrt(fan_in), ``"torch_linear"`` 1/sqrt(3 fan_in). ``"glorot"`` and ``"torch_linear"`` are
uniform, the others normal.

:meta hide-value:
"""


def draw_(
    weight: Float[Tensor, "..."],
    name: str,
    *,
    fan_in: int,
    fan_out: int,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Redraw ``weight`` in place by the named row of :data:`DRAWS`, and return it.

    Every entry has mean 0 and the standard deviation :math:`\sigma(\text{fan\_in},
    \text{fan\_out})` of the table: from :math:`\mathcal N(0, \sigma^2)`, or from
    :math:`\mathcal U(-\sqrt3\,\sigma, \sqrt3\,\sigma)`, whose variance is :math:`\sigma^2` too.
    (In bfloat16 torch's own uniform numbers lean to the lower side, by about 1/256 of the bound:
    draw in float32, and cast then.)

    Args:
        weight: the matrix, in any layout: ``nn.Linear`` stores (fan_out, fan_in), an embedding
            (fan_in, fan_out), so the fans are said and not guessed.
        name: a key of :data:`DRAWS`.
        fan_in: how many numbers the matrix takes.
        fan_out: how many it gives.
        generator: source of randomness; torch's global one if none is given.

    Source: that of each draw is in its row of :data:`DRAWS`.

    Example:
        >>> weight = draw_(torch.empty(1000, 100), "inverse_sqrt", fan_in=1000, fan_out=100)
        >>> round(weight.std().item(), 2)   # 1/sqrt(100)
        0.1
    """
    if name not in DRAWS:
        raise ValueError(f"unknown initialization {name!r}; known: {', '.join(DRAWS)}")
    if min(fan_in, fan_out) < 1:
        raise ValueError(f"fan_in and fan_out must be at least 1, got {fan_in} and {fan_out}")
    return fill_(weight, DRAWS[name].distribution, DRAWS[name].std(fan_in, fan_out), generator)


def fill_(
    weight: Float[Tensor, "..."],
    distribution: Distribution,
    std: float,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Redraw ``weight`` in place with mean 0 and the given standard deviation; zeros if that is 0.

    Example:
        >>> fill_(torch.empty(2), "uniform", 0.0)
        tensor([0., 0.])
    """
    if distribution not in get_args(Distribution):
        raise ValueError(f"distribution must be 'normal' or 'uniform', got {distribution!r}")
    with torch.no_grad():
        if std == 0:
            return weight.zero_()
        if distribution == "normal":
            return weight.normal_(0.0, std, generator=generator)
        bound = math.sqrt(3) * std
        return weight.uniform_(-bound, bound, generator=generator)


# What a matrix is for: the four of an attention, the two of a feed-forward network (the gate of a
# gated one counts as inner), the table of tokens, a learned table of positions, and an output layer
# over the vocabulary that is not tied, or what a prediction head has before it.
Role = Literal[
    "query", "key", "value", "output", "inner", "outer", "embedding", "positions", "unembedding"
]
Roles = dict[str, Role]
"""A module's ``roles``: what each of its linear layers and tables is, by name."""


class Depth(NamedTuple):
    """How many blocks a model has."""

    n_encoder: int
    """Encoder blocks; all blocks if there is one stack."""
    n_decoder: int
    """Decoder blocks, with attention to a memory; 0 if there is one stack."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of a model, and what a scheme may know of it."""

    role: Role
    weight: Tensor
    fan_in: int
    fan_out: int
    bias: Tensor | None
    d_model: int
    fused_fan_out: int
    """Outputs of W_Q, W_K and W_V together."""
    depth: Depth
    """Of the whole model."""
    in_decoder: bool

    @property
    def n_layers(self) -> int:
        """Blocks of the stack that it is in."""
        return self.depth.n_decoder if self.in_decoder else self.depth.n_encoder

    @property
    def branches(self) -> int:
        """How many branches add to this matrix's stream, 2 in a block and 3 in a decoder's."""
        return (3 if self.in_decoder else 2) * self.n_layers


@dataclass(frozen=True)
class Entry:
    """One cell of the table: a distribution with mean zero and its standard deviation."""

    distribution: Distribution
    std: Callable[[Matrix], float]
    gain: Callable[[Matrix], float] | None = None
    """A factor that depends on the depth of the model."""

    def std_of(self, matrix: Matrix) -> float:
        """The standard deviation of the matrix's entries."""
        return self.std(matrix) if self.gain is None else self.gain(matrix) * self.std(matrix)


@dataclass(frozen=True)
class Scheme:
    """One row of the table: how each matrix of a model is drawn.

    Biases are zeros and norms the identity, except where ``linear_bias`` says otherwise.
    """

    matrices: Entry
    """Every matrix that ``exceptions`` does not name."""
    exceptions: dict[Role, Entry]
    source: str
    linear_bias: bool = False
    """Biases are drawn as those of nn.Linear, U(±1/sqrt(fan_in))."""

    def __getitem__(self, role: Role) -> Entry:
        """How the matrix with this role is drawn."""
        return self.exceptions.get(role, self.matrices)


def deepnorm_constants(n_layers: int) -> tuple[float, float]:
    r"""DeepNorm's α (scale of the stream) and β (gain of the matrices) for a single stack.

    .. math:: \alpha = (2N)^{1/4}, \qquad \beta = (8N)^{-1/4}

    Source: Wang et al. 2022 (DeepNet), figure 2.

    Example:
        >>> alpha, beta = deepnorm_constants(8)
        >>> round(alpha, 3), round(beta, 3)
        (2.0, 0.354)
    """
    return (2 * n_layers) ** 0.25, (8 * n_layers) ** -0.25


def deepnorm_pair(
    n_encoder: int, n_decoder: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    r"""DeepNorm's (α, β) for the encoder and for the decoder of an encoder-decoder.

    .. math::
        \alpha_e = 0.81\,(N^4 M)^{1/16}, \quad \beta_e = 0.87\,(N^4 M)^{-1/16}, \qquad
        \alpha_d = (3M)^{1/4}, \quad \beta_d = (12M)^{-1/4}

    with :math:`N` encoder and :math:`M` decoder layers.

    Source: Wang et al. 2022 (DeepNet), figure 2.

    Example:
        >>> [[round(x, 2) for x in pair] for pair in deepnorm_pair(6, 6)]
        [[1.42, 0.5], [2.06, 0.34]]
    """
    both = (n_encoder**4 * n_decoder) ** (1 / 16)
    return (0.81 * both, 0.87 / both), ((3 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25)


def _deepnorm(depth: Depth, in_decoder: bool) -> tuple[float, float]:
    if not depth.n_decoder:
        return deepnorm_constants(depth.n_encoder)
    return deepnorm_pair(max(1, depth.n_encoder), depth.n_decoder)[in_decoder]


def _deepnorm_gain(matrix: Matrix) -> float:
    return _deepnorm(matrix.depth, matrix.in_decoder)[1]


def _t_fixup_gain(matrix: Matrix) -> float:
    if matrix.role == "embedding":
        return float((9 * (matrix.depth.n_decoder or matrix.depth.n_encoder)) ** -0.25)
    if matrix.in_decoder:
        return float((9 * matrix.n_layers) ** -0.25)
    return float(0.67 * matrix.n_layers**-0.25)


def _entry(name: str) -> Entry:
    draw = DRAWS[name]
    return Entry(draw.distribution, lambda m: draw.std(m.fan_in, m.fan_out))


GLOROT, INVERSE_SQRT, GPT2 = _entry("glorot"), _entry("inverse_sqrt"), _entry("gpt2")
GLOROT_NORMAL = _entry("glorot_normal")
ZERO = Entry("normal", lambda matrix: 0.0)
FUSED = Entry("uniform", lambda m: math.sqrt(2 / (m.fan_in + m.fused_fan_out)))
SMALL = Entry("normal", lambda m: math.sqrt(2 / (5 * m.d_model)))
TABLES: dict[Role, Entry] = {"embedding": INVERSE_SQRT, "positions": GPT2}
CONTENT: tuple[Role, ...] = ("value", "output", "inner", "outer")

SCHEMES: dict[str, Scheme] = {
    "glorot": Scheme(
        GLOROT, TABLES, "Glorot and Bengio 2010, eq. 16; tensor2tensor, each matrix by itself"
    ),
    "glorot_fused": Scheme(
        GLOROT,
        TABLES | {"query": FUSED, "key": FUSED, "value": FUSED},
        "torch.nn.Transformer: W_Q, W_K and W_V in one matrix, and Glorot on that",
    ),
    "he": Scheme(_entry("he"), TABLES, "He et al. 2015, eq. 10"),
    "lecun": Scheme(_entry("lecun"), TABLES, "LeCun et al. 1998, section 4.6"),
    "torch_default": Scheme(
        _entry("torch_linear"),
        {"embedding": _entry("unit"), "positions": _entry("unit")},
        "what torch.nn.Linear and torch.nn.Embedding start with",
        linear_bias=True,
    ),
    "gpt2": Scheme(
        GPT2,
        dict.fromkeys(("output", "outer"), replace(GPT2, gain=lambda m: m.branches**-0.5)),
        "Radford et al. 2019, section 2.3, as in Hugging Face's GPT-2 and nanoGPT: 2N branches",
    ),
    "deepnorm": Scheme(
        GLOROT_NORMAL,
        TABLES | dict.fromkeys(CONTENT, replace(GLOROT_NORMAL, gain=_deepnorm_gain)),
        "Wang et al. 2022 (DeepNet), figure 2; β = (8N)^-1/4 for a single stack",
    ),
    "t_fixup": Scheme(
        GLOROT,
        TABLES
        | {"embedding": replace(INVERSE_SQRT, gain=_t_fixup_gain)}
        | dict.fromkeys(CONTENT, replace(GLOROT, gain=_t_fixup_gain)),
        "Huang et al. 2020 (T-Fixup), section 3.2; a single stack is treated as an encoder",
    ),
    "zero_output": Scheme(
        GLOROT,
        TABLES | {"output": ZERO, "outer": ZERO},
        "each branch adds nothing at first: the idea of Zhang et al. 2019 (Fixup), section 3",
    ),
    "small": Scheme(
        SMALL, TABLES, "Nguyen and Salazar 2019, section 3.2 (SmallInit): all as a d × 4d matrix"
    ),
}
r"""The table, one row a scheme.

=================  ================================  ===================================
scheme             most matrices                     exceptions
=================  ================================  ===================================
``glorot``         U, variance 2/(fan_in + fan_out)
``glorot_fused``   the same                          W_Q, W_K, W_V: fan_out of all three
``he``             N(0, 2/fan_in)
``lecun``          N(0, 1/fan_in)
``torch_default``  U(±1/sqrt(fan_in)), biases too    tokens and positions N(0, 1)
``gpt2``           N(0, 0.02²), tables too           W_O, W_2: ÷ sqrt(residual branches)
``deepnorm``       N(0, 2/(fan_in + fan_out))        W_V, W_O, W_1, W_2: × β
``t_fixup``        U, variance 2/(fan_in + fan_out)  W_V, W_O, W_1, W_2, tokens: scaled
``zero_output``    U, variance 2/(fan_in + fan_out)  W_O, W_2: 0
``small``          N(0, 2/(5 d_model))
=================  ================================  ===================================

Where nothing else is said, token embeddings start as N(0, 1/d_model), a learned table of positions
as N(0, 0.02²), biases as zeros.

:meta hide-value:
"""

M = TypeVar("M", bound=nn.Module)


def initialize(
    model: M,
    scheme: str,
    *,
    n_layers: int | None = None,
    generator: Generator | None = None,
) -> M:
    r"""Redraw every parameter of ``model`` in place by the named row of :data:`SCHEMES`.

    Only initial values are drawn: the rest of GPT-2, say, is
    ``ModelConfig(…, norm="pre", position="learned", activation="gelu_tanh", scaled=False,
    attention_bias=True)``. Each module says in ``roles`` which of its matrices is W_V, and so on.
    The depth that some schemes need is counted in the model; a block that several layers share
    counts for each.

    Args:
        model: a model of this package, or a part of one.
        scheme: a key of :data:`SCHEMES`.
        n_layers: blocks of the model that this is a part of; counted if not given. A decoder's
            ``cross_attention`` alone counts as one of a single stack.
        generator: source of randomness; torch's global one if none is given.

    Returns:
        ``model`` itself.

    Raises:
        ValueError: if ``"deepnorm"`` meets a model without ``norm="deepnorm"``, or made for another
            depth; ``"t_fixup"`` one with norms; or a scheme needs a depth and there is none.
        TypeError: if a parameter has no role.

    Source: that of each scheme is in its row of :data:`SCHEMES`.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=100, d_model=128, n_layers=8))
        >>> model = initialize(model, "gpt2")
        >>> round(model.blocks[0].attention.output.weight.std().item(), 4)   # 0.02/sqrt(16)
        0.005
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; known: {', '.join(SCHEMES)}")
    row, depth = SCHEMES[scheme], _depth(model, n_layers)
    matrices = list(_matrices(model, depth))
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
    output_bias = getattr(model, "output_bias", None)  # BERT's, on the logits
    _check_known(model, matrices, norms)
    if any(row[matrix.role].gain and not matrix.n_layers for matrix in matrices):
        raise ValueError(
            f"{scheme!r} depends on the model's depth: pass n_layers for a part of a model"
        )
    if scheme == "deepnorm":
        _check_deepnorm(model, depth)
    if scheme == "t_fixup" and norms:
        raise ValueError("'t_fixup' is for a model without norms: make it with norm='none'")

    for matrix in matrices:
        entry = row[matrix.role]
        fill_(matrix.weight, entry.distribution, entry.std_of(matrix), generator)
        if matrix.bias is not None:
            bound = (3 * matrix.fan_in) ** -0.5 if row.linear_bias else 0.0
            fill_(matrix.bias, "uniform", bound, generator)
    for norm in norms:
        norm.reset_parameters()
    if output_bias is not None:
        nn.init.zeros_(output_bias)
    return model


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Each block, as often as it runs."""
    modules = [m for _, m in model.named_modules(remove_duplicate=False)]
    return [m for m in modules if hasattr(m, "attention") and hasattr(m, "feed_forward")]


def _decodes(block: nn.Module) -> bool:
    return hasattr(block, "cross_attention")


def _depth(model: nn.Module, n_layers: int | None) -> Depth:
    """Counted, unless it is given."""
    decode = [_decodes(block) for block in _blocks(model)]
    if n_layers is not None:
        return Depth(n_layers, n_layers if any(decode) else 0)
    return Depth(decode.count(False), decode.count(True))


def _matrices(model: nn.Module, depth: Depth) -> Iterator[Matrix]:
    """Each matrix of the model whose module says what it is."""
    decoders = [block for block in _blocks(model) if _decodes(block)]
    in_decoder = {part for block in decoders for part in block.modules()}
    for module in model.modules():
        roles: Roles = getattr(type(module), "roles", {})  # its own, not those of what it wraps
        parts = {name: part for name in roles if (part := _part(module, name)) is not None}
        d_model = next((part.weight.shape[1] for part in parts.values()), 0)
        fused = sum(parts[name].fan_out for name in ("query", "key", "value") if name in parts)
        for name, part in parts.items():
            yield Matrix(roles[name], *part, d_model, fused, depth, module in in_decoder)


class _Part(NamedTuple):
    weight: Tensor
    fan_in: int
    fan_out: int
    bias: Tensor | None = None


def _part(module: nn.Module, name: str) -> _Part | None:
    """The linear layer or the table with this name, if it is there and nothing is around it."""
    part = getattr(module, name)
    if isinstance(part, nn.Linear):
        return _Part(part.weight, part.in_features, part.out_features, part.bias)
    return _Part(part, *part.shape) if isinstance(part, nn.Parameter) else None


def _check_known(model: nn.Module, matrices: list[Matrix], norms: Iterable[nn.Module]) -> None:
    """Nothing may be left as it was."""
    known = {id(p) for matrix in matrices for p in (matrix.weight, matrix.bias)}
    known |= {id(p) for norm in norms for p in norm.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known and name != "output_bias":
            raise TypeError(
                f"attnbook does not know how to initialize {name}: its module says in `roles`, as "
                "MultiHeadAttention does, which of its matrices is which"
            )


def _check_deepnorm(model: nn.Module, depth: Depth) -> None:
    """β is one half of a method, whose other half is the α that the model was made with."""
    for block in _blocks(model):
        alpha, _ = _deepnorm(depth, _decodes(block))
        for residual in block.children():
            scale = getattr(residual, "scale", None)
            if scale is not None and not math.isclose(scale, alpha):
                raise ValueError(
                    f"'deepnorm' for {depth.n_encoder} + {depth.n_decoder} blocks is for a stream "
                    f"scaled by α = {alpha:.4g}, got a model with α = {scale:.4g}: make it with "
                    f"norm='deepnorm'"
                )
