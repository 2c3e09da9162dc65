"""Initial values of whole models: every scheme in one table, and one function that applies one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from torch import Generator, Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual
from attnbook.checks import check_kind, check_sizes
from attnbook.draw import DRAWS, Distribution, fill_
from attnbook.embedding import TokenEmbedding
from attnbook.packed import PackedAttention
from attnbook.position import LearnedPositions
from attnbook.transformer import Encoder, Transformer, deepnorm_constants, deepnorm_pair

# What a matrix is for: the four of an attention, the two of a feed-forward network, the table of
# tokens, a learned table of positions, and an output layer over the vocabulary that is not tied.
Role = Literal[
    "query", "key", "value", "output", "inner", "outer", "embedding", "positions", "unembedding"
]


@dataclass(frozen=True)
class Place:
    """What a scheme may know of a matrix."""

    role: Role
    fan_in: int
    fan_out: int
    d_model: int
    fused_fan_out: int
    """Outputs of W_Q, W_K and W_V together."""
    n_encoder: int
    """Encoder blocks of the model; all its blocks if it has one stack."""
    n_decoder: int
    """Decoder blocks, with attention to a memory; 0 if the model has one stack."""
    in_decoder: bool

    @property
    def branches(self) -> int:
        """How many branches add to this matrix's stream, 2 in a block and 3 in a decoder's."""
        return 3 * self.n_decoder if self.in_decoder else 2 * self.n_encoder


@dataclass(frozen=True)
class Entry:
    """One cell of the table: a distribution with mean zero and its standard deviation."""

    distribution: Distribution
    std: Callable[[Place], float]
    formula: str

    def times(self, factor: Callable[[Place], float], formula: str) -> "Entry":
        """The same, multiplied by a factor."""
        return Entry(
            self.distribution,
            lambda place: factor(place) * self.std(place),
            f"{self.formula}, times {formula}",
        )


@dataclass(frozen=True)
class Scheme:
    """One row of the table: how each matrix of a model starts.

    Biases start as zeros and LayerNorms as the identity, except where ``linear_bias`` says
    otherwise.
    """

    matrices: Entry
    """Every matrix that ``exceptions`` does not name."""
    exceptions: dict[Role, Entry]
    source: str
    linear_bias: bool = False
    """Biases start as those of nn.Linear do, U(±1/sqrt(fan_in))."""

    def __getitem__(self, role: Role) -> Entry:
        """How the matrix with this role is drawn."""
        return self.exceptions.get(role, self.matrices)


def _entry(name: str) -> Entry:
    draw = DRAWS[name]
    return Entry(draw.distribution, lambda p: draw.std(p.fan_in, p.fan_out), draw.formula)


def _deepnorm(n_encoder: int, n_decoder: int, in_decoder: bool) -> tuple[float, float]:
    """α and β; those of a single stack if there is no decoder."""
    if not n_decoder:
        return deepnorm_constants(n_encoder)
    return deepnorm_pair(n_encoder, n_decoder)[in_decoder]


def _deepnorm_gain(place: Place) -> float:
    return _deepnorm(place.n_encoder, place.n_decoder, place.in_decoder)[1]


def _t_fixup_gain(place: Place) -> float:
    if place.role == "embedding":
        return float((9 * (place.n_decoder or place.n_encoder)) ** -0.25)
    if place.in_decoder:
        return float((9 * place.n_decoder) ** -0.25)
    return float(0.67 * place.n_encoder**-0.25)


M = TypeVar("M", bound=nn.Module)

GLOROT, INVERSE_SQRT, GPT2 = _entry("glorot"), _entry("inverse_sqrt"), _entry("gpt2")
NOTHING = Entry("normal", lambda place: 0.0, "0")
FUSED = Entry(
    "uniform",
    lambda place: math.sqrt(2 / (place.fan_in + place.fused_fan_out)),
    "U, variance 2/(fan_in + outputs of W_Q, W_K, W_V together)",
)
SMALL = Entry("normal", lambda place: math.sqrt(2 / (5 * place.d_model)), "N(0, 2/(5 d_model))")
GLOROT_NORMAL = _entry("glorot_normal")
TABLES: dict[Role, Entry] = {"embedding": INVERSE_SQRT, "positions": GPT2}

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
        {
            role: GPT2.times(lambda p: p.branches**-0.5, "1/sqrt(residual branches)")
            for role in ("output", "outer")
        },
        "Radford et al. 2019, section 2.3, as in Hugging Face's GPT-2 and nanoGPT: 2N branches",
    ),
    "deepnorm": Scheme(
        GLOROT_NORMAL,
        TABLES
        | {
            role: GLOROT_NORMAL.times(_deepnorm_gain, "β")
            for role in ("value", "output", "inner", "outer")
        },
        "Wang et al. 2022 (DeepNet), figure 2; β = (8N)^-1/4 for a single stack",
    ),
    "t_fixup": Scheme(
        GLOROT,
        TABLES
        | {"embedding": INVERSE_SQRT.times(_t_fixup_gain, "(9N)^-1/4")}
        | {
            role: GLOROT.times(_t_fixup_gain, "0.67 N^-1/4 in an encoder, (9N)^-1/4 in a decoder")
            for role in ("value", "output", "inner", "outer")
        },
        "Huang et al. 2020 (T-Fixup), section 3.2; a single stack is treated as an encoder",
    ),
    "zero_output": Scheme(
        GLOROT,
        TABLES | {"output": NOTHING, "outer": NOTHING},
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
    attention_bias=True)``. It knows a matrix by its place: the ``value`` of a
    :class:`attnbook.attention.MultiHeadAttention` is W_V, and so on. The depth that some schemes
    need is counted in the model; a block that several layers share counts for each.

    Args:
        model: a model of this package, or a part of one.
        scheme: a key of :data:`SCHEMES`.
        n_layers: blocks of the model that this is a part of; counted if not given. A part without
            its block counts as one of a single stack: for a decoder's ``cross_attention`` alone,
            ``"gpt2"`` divides by the root of 2N branches, not of 3N.
        generator: source of randomness; torch's global one if none is given.

    Returns:
        ``model`` itself.

    Raises:
        ValueError: if the scheme is unknown; if it needs a depth and there is none, or
            ``n_layers`` is no positive int; if ``"deepnorm"`` meets a model without
            ``norm="deepnorm"``, or made for another depth (one stack of an encoder-decoder, too,
            where its α is not that of a single stack); or ``"t_fixup"`` one with LayerNorms; or an
            attention in it is packed.
        TypeError: if ``model`` is no module, or has a parameter that belongs to nothing this
            package knows.

    Source: that of each scheme stands in its row of :data:`SCHEMES`.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=100, d_model=128, n_layers=8))
        >>> model = initialize(model, "gpt2")
        >>> round(model.blocks[0].attention.output.weight.std().item(), 4)   # 0.02/sqrt(16)
        0.005
    """
    check_kind("model", model, nn.Module)
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; known: {', '.join(SCHEMES)}")
    if n_layers is not None:
        check_sizes(n_layers=n_layers)
    if any(isinstance(module, PackedAttention) for module in model.modules()):
        raise ValueError("W_Q, W_K and W_V are one matrix: draw initial values before pack(model)")
    row = SCHEMES[scheme]
    layers = (module for _, module in model.named_modules(remove_duplicate=False))
    blocks = [module for module in layers if isinstance(module, EncoderBlock | DecoderBlock)]
    n_decoder = sum(isinstance(block, DecoderBlock) for block in blocks)
    n_encoder = len(blocks) - n_decoder
    if n_layers is not None:
        n_encoder, n_decoder = n_layers, n_layers if n_decoder else 0
    matrices = list(_matrices(model, n_encoder, n_decoder))
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    known = {id(p) for norm in norms for p in norm.parameters()}
    known |= {id(p) for weight, bias, _ in matrices for p in (weight, bias)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            owner = model.get_submodule(name.rpartition(".")[0])
            raise TypeError(
                f"attnbook does not know how to initialize {name}, of a {type(owner).__name__}"
            )
    try:
        stds = [row[place.role].std(place) for _, _, place in matrices]
    except (ZeroDivisionError, ValueError):  # of no layers
        raise ValueError(
            f"{scheme!r} depends on the model's depth: pass n_layers for a part of a model"
        ) from None
    if scheme == "deepnorm":
        _check_deepnorm(blocks, n_encoder, n_decoder)
    if scheme == "t_fixup" and norms:
        raise ValueError(
            "'t_fixup' belongs to a model without LayerNorms: make the model with norm='none'"
        )

    for (weight, bias, place), std in zip(matrices, stds, strict=True):
        fill_(weight, row[place.role].distribution, std, generator)
        if bias is not None:
            fill_(
                bias, "uniform", (3 * place.fan_in) ** -0.5 if row.linear_bias else 0.0, generator
            )
    for norm in norms:
        norm.reset_parameters()
    return model


def _matrices(
    model: nn.Module, n_encoder: int, n_decoder: int
) -> Iterator[tuple[Tensor, Tensor | None, Place]]:
    """Each matrix of the model with its bias and its place."""
    decoder = {
        id(part)
        for block in model.modules()
        if isinstance(block, DecoderBlock)
        for part in block.modules()
    }
    for module in model.modules():
        place = partial(
            Place, n_encoder=n_encoder, n_decoder=n_decoder, in_decoder=id(module) in decoder
        )
        linears: dict[Role, nn.Linear] = {}
        d_model, fused = 0, 0
        if isinstance(module, MultiHeadAttention):
            linears = {"query": module.query, "key": module.key, "value": module.value}
            fused = sum(getattr(linear, "out_features", 0) for linear in linears.values())
            linears["output"] = module.output
            d_model = module.d_model
        elif isinstance(module, FeedForward):
            linears = {"inner": module.inner, "outer": module.outer}
            d_model = getattr(module.inner, "in_features", 0)
        elif isinstance(module, Encoder | Transformer) and module.output is not None:
            linears = {"unembedding": module.output}
            d_model = module.output.in_features
        elif isinstance(module, TokenEmbedding):
            rows, width = module.weight.shape
            yield module.weight, None, place("embedding", rows, width, width, 0)
        elif isinstance(module, LearnedPositions):
            rows, width = module.table.shape
            yield module.table, None, place("positions", rows, width, width, 0)
        for role, linear in linears.items():
            if not isinstance(linear, nn.Linear):
                continue  # wrapped: its parameters are found to be unknown
            sizes = linear.in_features, linear.out_features
            yield linear.weight, linear.bias, place(role, *sizes, d_model, fused)


def _check_deepnorm(
    blocks: list[EncoderBlock | DecoderBlock], n_encoder: int, n_decoder: int
) -> None:
    """β is one half of a method, whose other half is the α that the model was made with."""
    for block in blocks:
        alpha, _ = _deepnorm(n_encoder, n_decoder, isinstance(block, DecoderBlock))
        for residual in block.children():
            if not isinstance(residual, Residual):
                continue
            if residual.place != "post" or residual.scale == 1:
                raise ValueError(
                    "'deepnorm' belongs to a post-norm stream scaled by α: make the model with "
                    "norm='deepnorm'"
                )
            if not math.isclose(residual.scale, alpha):
                depth = f"{n_encoder} and {n_decoder}" if n_decoder else n_encoder
                raise ValueError(
                    f"'deepnorm' for {depth} blocks belongs to a stream scaled by α = {alpha:.4g}, "
                    f"got a model made with α = {residual.scale:.4g}"
                )
