"""Self-attention with W_Q, W_K and W_V in one matrix: one product in place of three."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.blocks import DecoderBlock
from attnbook.checks import check_kind

M = TypeVar("M", bound=nn.Module)

PARTS = ("query", "key", "value")


class PackedAttention(MultiHeadAttention):
    r"""A self-attention whose W_Q, W_K and W_V are one matrix.

    .. math:: [Q \; K \; V] = X \, [W_Q \; W_K \; W_V]

    The function and the gradients are those of :class:`attnbook.attention.MultiHeadAttention`; what
    differs is that there is one ``nn.Linear``, ``packed``, in the place of ``query``, ``key`` and
    ``value``, and the rows of its weight are those of W_Q, then of W_K, then of W_V. In narrow
    models that is up to a few percent faster (``benchmarks/README.md`` has the numbers).
    What is lost is a W_Q of its own, to freeze, to replace or to put a hook on, and the memory: it
    is for self-attention alone. An optimizer that treats a parameter as a whole, by its norm for
    instance, sees one matrix in the place of three.

    ``state_dict`` has the names of three matrices, and ``load_state_dict`` takes them, so that
    files do not tell a packed attention from another. ``named_parameters`` has ``packed.weight``.

    Args:
        attention: what it is made of, and does as before; its ``output`` then is part of both.

    Raises:
        TypeError: if ``attention`` is no ``MultiHeadAttention``, or a projection no ``nn.Linear``
            with parameters of its own.
        ValueError: if it has a memory of another width, or projections of other sizes than it was
            made with; or they share a parameter, or differ in type, device, biases, or in whether
            they are trained.

    Source: GPT-2 (Radford et al. 2019) stores them so, as ``c_attn``.

    Example:
        >>> attention = MultiHeadAttention(64, 4, n_kv_heads=2)
        >>> packed, x = PackedAttention(attention), torch.randn(2, 5, 64)
        >>> packed.packed.weight.shape                 # 64 rows of W_Q, 32, 32
        torch.Size([128, 64])
        >>> packed.packed.weight[64:96].equal(attention.key.weight)
        True
        >>> torch.allclose(packed(x), attention(x), atol=1e-6)
        True
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        weights, biases = _parameters(attention)
        with torch.device("meta"):  # no memory, and no random numbers, for what is replaced
            super().__init__(
                attention.d_model,
                attention.n_heads,
                n_kv_heads=attention.n_kv_heads,
                d_head=attention.d_head,
                d_value=attention.d_value,
                dropout=attention.dropout,
                position=attention.position,
            )
            self.packed = nn.Linear(attention.d_model, sum(_widths(self)), bias=bool(biases))
        del self.query, self.key, self.value
        self.packed.weight = _joined(weights)
        if biases:
            self.packed.bias = _joined(biases)
        self.output = attention.output
        self.train(attention.training)
        self.register_state_dict_post_hook(_split_state)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_join_state)  # type: ignore[no-untyped-call]

    def unpacked(self) -> MultiHeadAttention:
        """A ``MultiHeadAttention`` with copies of the parameters, and the same ``output``.

        Raises:
            TypeError: if ``packed`` is no longer a plain ``nn.Linear``.

        Example:
            >>> attention = MultiHeadAttention(64, 4)
            >>> again = PackedAttention(attention).unpacked()
            >>> torch.equal(again.query.weight, attention.query.weight)
            True
        """
        _check_plain("packed", self.packed)
        with torch.device("meta"):
            attention = MultiHeadAttention(
                self.d_model,
                self.n_heads,
                n_kv_heads=self.n_kv_heads,
                d_head=self.d_head,
                d_value=self.d_value,
                bias="qkv" if self.packed.bias is not None else False,
                dropout=self.dropout,
                position=self.position,
            )
        for name, parameter in self.packed.named_parameters():
            for part, rows in zip(PARTS, parameter.split(_widths(self)), strict=True):
                trained = parameter.requires_grad
                copied = nn.Parameter(rows.detach().clone(), requires_grad=trained)
                getattr(attention, part).register_parameter(name, copied)
        attention.output = self.output
        return attention.train(self.training)

    def __setattr__(self, name: str, value: Any) -> None:
        """As usual, but a projection that nobody would ask is refused."""
        if name in PARTS and "packed" in self._modules:
            raise AttributeError(f"a packed attention has no {name} to replace: unpack it first")
        super().__setattr__(name, value)

    def _queries_keys_and_values(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> tuple[
        Float[Tensor, "batch heads tokens d_head"],
        Float[Tensor, "batch kv_heads tokens d_head"],
        Float[Tensor, "batch kv_heads tokens d_value"],
    ]:
        # Cut before the heads are moved ahead: the way back then is one copy, and not two.
        q, k, v = self.packed(x).split(_widths(self), dim=-1)
        n_keys = self.n_kv_heads
        return self._split(q, self.n_heads), self._split(k, n_keys), self._split(v, n_keys)

    def _entrance(self) -> nn.Module:
        return self.packed

    def _check_tokens(self, name: str, tokens: Tensor, width: int) -> None:
        if name == "memory":
            raise ValueError("a packed attention has no memory: it attends to its own tokens")
        super()._check_tokens(name, tokens, width)


def pack(module: M) -> M:
    """Put W_Q, W_K and W_V of each self-attention in a module into one matrix.

    The module then computes the same, and its state dictionary and its files stay as they are. It
    is changed in place, unless it is an attention itself: then the packed one is returned. The
    ``cross_attention`` of a decoder block stays as it is, and so do classes derived from
    ``MultiHeadAttention``.

    The parameters are new ones: pack first, then make the optimizer (a saved state of an optimizer
    fits models packed alike). Hooks on an attention or its projections, and gradients that wait for
    a step, are not kept. Initial values are drawn before, and conversions of
    :mod:`attnbook.interop` want an attention as it was (:func:`unpack`). A loaded model is not
    packed.

    Returns:
        The module, with a :class:`PackedAttention` in the place of each
        :class:`attnbook.attention.MultiHeadAttention`.

    Raises:
        TypeError: if ``module`` is no module.
        ValueError: if there is no attention to pack, or one cannot be packed, as in
            :class:`PackedAttention`, or a projection's parameter is used elsewhere, too; then the
            module is as it was.

    Source: as :class:`PackedAttention`.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = pack(LanguageModel(ModelConfig(vocab_size=100)))
        >>> model.blocks[0].attention.packed
        Linear(in_features=64, out_features=192, bias=False)
        >>> model.generate(torch.tensor([[1, 2]]), 3).shape
        torch.Size([1, 5])
    """
    return _replaced(module, MultiHeadAttention, PackedAttention)


def unpack(module: M) -> M:
    """Three matrices again: what :func:`pack` did is undone, with the parameters of today.

    As there, the module is changed in place unless it is an attention itself, and the parameters
    are new ones: make a new optimizer.

    Raises:
        TypeError: if ``module`` is no module, or ``packed`` no plain ``nn.Linear`` any more.
        ValueError: if there is no packed attention in it.

    Source: as :class:`PackedAttention`.

    Example:
        >>> unpack(pack(MultiHeadAttention(64, 4))).query
        Linear(in_features=64, out_features=64, bias=False)
    """
    return _replaced(module, PackedAttention, PackedAttention.unpacked)


def _replaced(module: M, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> M:
    check_kind("module", module, nn.Module)
    if type(module) is kind:
        return cast("M", make(module))
    made: dict[nn.Module, nn.Module] = {}  # an attention in two places stays one
    places = []
    for path, part in module.named_modules(remove_duplicate=False):
        parent, _, name = path.rpartition(".")
        crosses = name == "cross_attention" and isinstance(
            module.get_submodule(parent), DecoderBlock
        )
        if type(part) is kind and not crosses:
            if part not in made:
                made[part] = make(part)
            places.append((path, made[part]))
    if not places:
        packed = kind is not PackedAttention and any(
            isinstance(part, PackedAttention) for part in module.modules()
        )
        hint = " that is not packed" if packed else ""
        raise ValueError(f"there is no {kind.__name__} in this {type(module).__name__}{hint}")
    _check_unshared(module, made)
    for path, new in places:
        module.set_submodule(path, new)
    return module


def _parameters(attention: MultiHeadAttention) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of query, key and value, if they can lie in one matrix."""
    if type(attention) is not MultiHeadAttention:
        raise TypeError(f"expected a MultiHeadAttention, got a {type(attention).__name__}")
    linears = [getattr(attention, part) for part in PARTS]
    for part, linear in zip(PARTS, linears, strict=True):
        _check_plain(part, linear)
    if attention.d_memory != attention.d_model:
        raise ValueError(
            f"keys and values of a memory of width {attention.d_memory} cannot be packed with "
            f"queries of width {attention.d_model}"
        )
    for part, linear, rows in zip(PARTS, linears, _widths(attention), strict=True):
        if linear.weight.shape != (rows, attention.d_model):
            raise ValueError(
                f"{part}.weight must have shape {(rows, attention.d_model)}, got "
                f"{tuple(linear.weight.shape)}"
            )
    ids = [id(p) for _, p in attention.named_parameters(remove_duplicate=False)]
    if len(set(ids)) < len(ids):
        raise ValueError("projections share a parameter: packed, each would have its own")
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if len(biases) not in (0, len(linears)):
        raise ValueError("of query, key and value some have a bias and some have not")
    for parameters in (weights, biases):
        for aspect in ("dtype", "device", "requires_grad"):
            if len(found := {getattr(parameter, aspect) for parameter in parameters}) > 1:
                raise ValueError(f"query, key and value differ in {aspect}: {found}")
    return weights, biases


def _joined(parameters: list[Tensor]) -> nn.Parameter:
    rows = torch.cat([parameter.detach() for parameter in parameters])
    return nn.Parameter(rows, requires_grad=parameters[0].requires_grad)


def _check_plain(name: str, linear: nn.Module) -> None:
    if type(linear) is not nn.Linear:
        raise TypeError(f"{name} must be a plain nn.Linear, got a {type(linear).__name__}")
    if {parameter for parameter, _ in linear.named_parameters()} - {"weight", "bias"}:
        raise TypeError(f"{name} must have its weight as a parameter: it was pruned or rescaled")


def _check_unshared(module: nn.Module, packed: Iterable[nn.Module]) -> None:
    """What is in one matrix afterwards can be nothing else at the same time."""
    owners = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
    for attention in packed:
        for name in PARTS:
            part = getattr(attention, name, None)
            if part is not None and any(owners[id(p)] > 1 for p in part.parameters()):
                raise ValueError(f"{name} shares a parameter with another part of the module")


def _widths(attention: MultiHeadAttention) -> list[int]:
    """How many outputs are queries, keys and values."""
    n_keys = attention.n_kv_heads
    return [
        attention.n_heads * attention.d_head,
        n_keys * attention.d_head,
        n_keys * attention.d_value,
    ]


def _split_state(
    module: PackedAttention, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """Under the names of three matrices, so that files do not tell."""
    for name in ("weight", "bias"):
        if f"{prefix}packed.{name}" in state:
            rows = state.pop(f"{prefix}packed.{name}").split(_widths(module))
            state |= {f"{prefix}{p}.{name}": row for p, row in zip(PARTS, rows, strict=True)}


def _join_state(
    module: PackedAttention,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """The way back; what does not fit is told under the names that it has in the state."""
    for name, parameter in module.packed.named_parameters():
        keys = [f"{prefix}{part}.{name}" for part in PARTS]
        absent = [key for key in keys if key not in state]
        found = [state.pop(key) for key in keys if key in state]
        held = parameter.split(_widths(module))
        wrong = [
            f"size mismatch for {key}: {tuple(given.shape)} in the state, {tuple(rows.shape)} here"
            for key, given, rows in zip(keys, found, held, strict=False)
            if not absent and given.shape != rows.shape
        ]
        missing += absent
        errors += wrong
        fits = not absent and not wrong
        state[f"{prefix}packed.{name}"] = torch.cat(found) if fits else parameter.detach()
