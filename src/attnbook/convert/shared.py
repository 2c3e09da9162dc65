"""What all conversions share: names, copies, and the measurement.

A conversion is a table of names and a measurement. The peer's parameters are renamed, repacked and
copied; then both modules run on the same random tokens, and the conversion is refused where their
outputs differ beyond rounding. So no option of the peer has to be known by name.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from attnbook.attention import MultiHeadAttention
from attnbook.blocks import ACTIVATIONS, Block, Residual
from attnbook.config import Activation, ModelConfig, ProjectionBias
from attnbook.models import Encoder
from attnbook.positions import Position

State = dict[str, Tensor]  # parameters by name
QKV = ("query", "key", "value")
BATCH, TOKENS = 2, 16  # what is measured on
M = TypeVar("M", bound=nn.Module)


# Names


def under(theirs: str, ours: str, names: Mapping[str, str]) -> dict[str, str]:
    """The same names one level deeper: of the parts ``theirs`` and ``ours``."""
    return {f"{theirs}{old}": f"{ours}{new}" for old, new in names.items()}


def inverse(names: Mapping[str, str]) -> dict[str, str]:
    """From ours to theirs."""
    return {ours: theirs for theirs, ours in names.items()}


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str], owner: str) -> State:
    """Every parameter under its module's new name; ``#`` in ``names`` is the number of a layer."""
    known, unknown = {}, []
    for name, tensor in state.items():
        numbers = re.findall(r"\.(\d+)\.", name)
        path, _, kind = re.sub(r"\.\d+\.", ".#.", name).rpartition(".")
        new = names.get(name) or (f"{names[path]}.{kind}" if path in names else None)
        if new is None:
            unknown.append(name)
        else:
            known[new.replace("#", *numbers[:1]) if numbers else new] = tensor
    if unknown:
        raise ValueError(f"{owner} has parameters without a counterpart: {some(unknown)}")
    return known


def some(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def without_prefixes(state: Mapping[str, Tensor]) -> State:
    """Without what ``torch.compile`` and ``DistributedDataParallel`` put before each name."""
    return {re.sub(r"^((_orig_mod|module)\.)+", "", name): x for name, x in state.items()}


def n_layers(state: Mapping[str, Tensor]) -> int:
    """How many blocks there are, under our names.

    Raises:
        ValueError: if they are not numbered one by one; a model of that many would be made.
    """
    numbers = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    if numbers != {*range(len(numbers))}:
        raise ValueError(f"expected blocks 0 to {len(numbers) - 1}, got block {max(numbers)}")
    return len(numbers)


def unpacked(state: Mapping[str, Tensor], packed: str) -> State:
    """The rows of each module ``packed`` as ``query``, ``key`` and ``value``."""
    result: State = {}
    for name, tensor in state.items():
        module, _, kind = name.rpartition(".")
        if module.split(".")[-1] == packed:
            stem = module.removesuffix(packed)
            parts = zip(QKV, tensor.chunk(3), strict=True)  # (3d, …) to three times (d, …)
            result |= {f"{stem}{part}.{kind}": rows for part, rows in parts}
        else:
            result[name] = tensor
    return result


def packed(
    state: Mapping[str, Tensor], name: str, kinds: tuple[str, ...] = ("weight", "bias")
) -> State:
    """``query``, ``key`` and ``value`` as one module ``name``, one below the other."""
    result = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        part = module.split(".")[-1]
        if part not in QKV or kind not in kinds:
            result[key] = tensor
        elif part == "query":
            stem = module.removesuffix(part)
            rows = [state[f"{stem}{each}.{kind}"] for each in QKV]
            result[f"{stem}{name}.{kind}"] = torch.cat(rows)  # three times (d, …) to (3d, …)
    return result


def with_biases(state: State, pattern: str = "", *, always: bool = False) -> State:
    """Zeros for the missing biases of modules that fit ``pattern``, if one of them has a bias."""
    stems = [n.rpartition(".")[0] for n in state if re.search(pattern, n) and "." in n]
    if not always and not any(f"{stem}.bias" in state for stem in stems):
        return state
    rows = {stem: state[f"{stem}.weight"][..., 0] for stem in stems}
    zeros = {f"{stem}.bias": torch.zeros_like(row) for stem, row in rows.items()}
    return zeros | state


def refused(read: Callable[[str | Path], M]) -> Callable[[str | Path], M]:
    """A reader of folders that raises ``ValueError`` for all whose parts do not fit together."""

    @wraps(read)
    def reading(folder: str | Path) -> M:
        try:
            return read(folder)
        except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(f"{folder} does not fit together: {error!r}") from error

    return reading


# Copies


def filled(make: Callable[[], M], state: Mapping[str, Tensor]) -> M:
    """A module with copies of these parameters, made without drawing initial values."""
    with torch.device("meta"):
        module = make()
    try:
        module.load_state_dict(copies(state), assign=True)
    except RuntimeError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return module


def copies(state: Mapping[str, Tensor]) -> State:
    """Contiguous tensors, each with memory of its own."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in state.items()
    }


def attention(
    state: Mapping[str, Tensor],
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    dropout: float = 0.0,
    position: Position | None = None,
) -> MultiHeadAttention:
    """Ours with these parameters, which say all other sizes."""
    query, key, value = (state[f"{name}.weight"] for name in QKV)
    if n_heads < 1 or len(query) % n_heads:
        raise ValueError(f"{len(query)} rows of the query are not those of {n_heads} heads")
    return filled(
        lambda: MultiHeadAttention(
            query.shape[1],
            n_heads,
            n_kv_heads=n_kv_heads,
            d_head=len(query) // n_heads,
            d_value=len(value) // (n_kv_heads or n_heads),
            d_memory=key.shape[1],
            bias=attention_bias(state),
            dropout=dropout,
            position=position,
        ),
        state,
    )


def attention_bias(state: Mapping[str, Tensor], stem: str = "") -> ProjectionBias:
    """Which projections have a bias."""
    inner, outer = f"{stem}query.bias" in state, f"{stem}output.bias" in state
    if inner != outer:
        return "qkv" if inner else "output"
    return inner


def block_settings(state: Mapping[str, Tensor], stem: str = "") -> dict[str, Any]:
    """What a block's parameters say of its settings."""
    inner = state[f"{stem}feed_forward.inner.weight"]
    return {
        "d_model": inner.shape[1],
        "d_ff": inner.shape[0],
        "feed_forward_bias": f"{stem}feed_forward.inner.bias" in state,
        "norm_bias": f"{stem}feed_forward_residual.norm.bias" in state,
        "attention_bias": attention_bias(state, f"{stem}attention."),
    }


def whole_model(
    kind: Callable[[ModelConfig], M], state: State, *, tied: bool | None = None, **settings: Any
) -> M:
    """The model with these parameters, in evaluation mode; they say all sizes but the heads'.

    If nothing says whether it is tied, it is if the output layer equals the embedding.
    """
    embedding, table = state["embedding.weight"], state.get("positions.table")
    output = state.get("output.weight")
    if tied is None:
        tied = output is None or output.equal(embedding)
    if tied:
        state = {name: tensor for name, tensor in state.items() if name != "output.weight"}
    if table is not None:
        settings |= {"position": "learned", "max_tokens": len(table)}
    settings |= block_settings(state, "blocks.0.")
    config = ModelConfig(
        vocab_size=len(embedding),
        n_layers=n_layers(state),
        tied=tied,
        **{"scaled": False, **settings},
    )
    return filled(lambda: kind(config), state).eval()


def set_dropout(ours: M, attention: float, residual: float, embedding: float = 0.0) -> M:
    """On attention weights, on what is added to the stream, and on a model's embeddings."""
    for part in ours.modules():
        if isinstance(part, MultiHeadAttention):
            part.dropout = attention
        elif isinstance(part, Residual):
            part.dropout = residual
        elif isinstance(part, Encoder):
            part.dropout = embedding
    return ours


def find_activation(function: Callable[[Tensor], Tensor]) -> Activation:
    """Which of our activations ``function`` is, by its values."""
    x = torch.linspace(-5, 5, 101, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        values = function(x)
    for name in get_args(Activation):
        if torch.allclose(ACTIVATIONS[name](x), values, rtol=0, atol=1e-7):
            return name  # type: ignore[no-any-return]
    raise ValueError(f"the activation must be {', '.join(ACTIVATIONS)}, got {function}")


# What does not fit


def require(ours: object, peer: str, **needed: object) -> None:
    """Refuse a setting that the peer does not have."""
    for name, value in needed.items():
        if (given := getattr(ours, name)) != value:
            raise ValueError(f"{peer} needs {name}={value!r}, got {given!r}")


def require_plain(ours: MultiHeadAttention, peer: str) -> None:
    """Refuse all but square matrices without positions."""
    head = ours.d_model // ours.n_heads
    one_width = {"d_head": head, "d_value": head, "d_memory": ours.d_model}
    require(ours, peer, n_kv_heads=ours.n_heads, **one_width, position=None, query_norm=None)


def require_block(ours: Block, peer: str, norm_position: str, norm: type[nn.Module]) -> None:
    """Refuse another arrangement of norms."""
    for residual in (ours.attention_residual, ours.feed_forward_residual):
        require(residual, peer, norm_position=norm_position, scale=1.0)
        if not isinstance(residual.norm, norm):
            raise ValueError(f"{peer} needs {norm.__name__}, got {type(residual.norm).__name__}")


def require_model(ours: Encoder, peer: str, *free: str, **needed: object) -> None:
    """Refuse settings other than ``needed``, the ``free`` and the defaults."""
    config = ours.config
    free += ("vocab_size", "d_model", "n_heads", "n_layers", "max_tokens", "tied")
    free += ("embedding_init", "attention_bias", "feed_forward_bias", "norm_bias")
    meant = {  # by None
        "n_kv_heads": config.n_heads,
        "d_head": config.d_model // config.n_heads,
        "d_ff": 4 * config.d_model,
        "final_norm": config.norm == "pre",
    }
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), needed.get(field.name, field.default)
        if field.name in free or "dropout" in field.name:
            continue
        if value != default and (default is not None or value != meant.get(field.name)):
            raise ValueError(f"{peer} needs {field.name}={default!r}, got {value!r}")


def kind_of(module: object, *known: str) -> str:
    """The name of a peer's class, which can't be imported where the peer is not installed.

    Of a subclass the base: what it computes is measured.
    """
    given = type(module)
    for base in given.__mro__:
        if base.__name__ in known:
            return base.__name__
    raise TypeError(f"expected a {', '.join(known)}, got {given.__module__}.{given.__name__}")


# The measurement


def vectors(like: Tensor, *widths: int) -> list[Tensor]:
    """Random tokens of these widths, (batch, tokens, width), in the weights' type."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, TOKENS, width) for width in widths]
    return [torch.randn(s, generator=generator, device="cpu").to(like) for s in shapes]


def ids(vocab_size: int, max_tokens: int, device: torch.device) -> Tensor:
    """Random token ids, (batch, tokens)."""
    generator = torch.Generator().manual_seed(0)
    shape = BATCH, min(TOKENS, max_tokens)
    return torch.randint(vocab_size, shape, generator=generator, device="cpu").to(device)


def measure(
    theirs: object,
    ours: nn.Module,
    run_theirs: Callable[..., Tensor],
    run_ours: Callable[..., Tensor],
    *inputs: Tensor,
) -> None:
    r"""Run both on the same random tokens, with gradients and without (torch has paths of its own).

    .. math:: |\text{ours} - \text{theirs}| \le \sqrt{n} \, (\epsilon^{2/3} m + 4 \epsilon M)

    with :math:`\epsilon` of the weights' type, at least float32's, :math:`n` attentions, the
    largest output :math:`M`, and the largest :math:`m` of the same feature, beside which no other
    one hides: of one attention 2e-5, and 4e-2 in bfloat16. Dropout and what acts only beyond 16
    tokens can't be seen.

    Raises:
        ValueError: if the outputs differ, one of them can't be run, or the output is constant.
    """
    name, on = type(theirs).__name__, f"on {inputs[0].shape[1]} random tokens"
    parts = [p for m in (theirs, ours) if isinstance(m, nn.Module) for p in m.modules()]
    n_attentions = sum(isinstance(part, MultiHeadAttention) for part in parts)
    devices = [x.device for x in inputs[:1] if x.device.type == "cuda"]
    try:
        with _evaluating(parts):
            for gradients in (True, False):
                given = [
                    x.detach().requires_grad_(gradients and x.is_floating_point()) for x in inputs
                ]
                with torch.random.fork_rng(devices), torch.set_grad_enabled(gradients):
                    expected, actual = run_theirs(*given).detach(), run_ours(*given).detach()
                if not _agree(actual, expected, n_attentions):
                    break
            else:
                return
    except Exception as error:
        raise ValueError(f"{name} can't be measured {on}: {error!r}") from error
    off = (actual - expected).abs().max().item()
    raise ValueError(f"{name} computes another function: off by {off:.2g} {on}")


@contextmanager
def _evaluating(parts: Sequence[nn.Module]) -> Iterator[None]:
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def _agree(actual: Tensor, expected: Tensor, n_attentions: int) -> bool:
    """Within the rounding that :func:`measure` allows, which is none for a NaN."""
    error, size = (actual - expected).abs(), expected.abs()
    epsilon = max(torch.finfo(expected.dtype).eps, torch.finfo(torch.float32).eps)
    if (expected == expected[:, :1]).all():
        raise ValueError("the same output for all, which says nothing")
    limit = epsilon ** (2 / 3) * size.amax((0, 1)) + 4 * epsilon * size.max()  # (width,)
    return bool((error <= n_attentions**0.5 * limit).all())
