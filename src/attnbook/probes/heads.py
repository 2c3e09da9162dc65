"""How heads are read: the weights, values and output matrix of each attention that runs."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnbook.probes.attention import KERNEL, MULTI_HEAD, AttentionReader, unasked
from attnbook.probes.probe import Probe
from attnbook.probes.statistics import readable

AGAIN = Tensor.backward, torch.autograd.backward, torch.autograd.grad
"""With activation checkpointing they run modules again, whose heads change again."""

PRODUCTS = {
    "linear": ("input", "weight"),
    "matmul": ("input", "other"),
    "mm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
}
"""Functions that multiply by a matrix, and their arguments, the matrix last."""

N_HEADS = "num_heads", "num_attention_heads", "n_heads", "n_head"
"""What a module, or its configuration, calls its number of heads."""


@dataclass(frozen=True)
class Attended:
    r"""One call of an attention: who attended to whom, and what was there to be read.

    .. math:: \text{what is added to the stream} = \textstyle\sum_h A^h V^h W_O^h + b_O

    unless the model does something to it first, as a norm (Gemma 2), LayerScale or a factor.

    Heads that share a dimension with the batch, or are computed in a call each, are told by the
    matrix that multiplies them next; if none does, by the module's or its configuration's number
    of heads; if there is none, each is an attention of one head.

    Args:
        name: of the module that attended; a model that is one attention is ``"(model)"``.
        weights: :math:`A`, before dropout.
        values: :math:`V`, those of grouped heads repeated for each query head.
        output: :math:`W_O`, by which the heads, side by side, were multiplied next; ``None`` if no
            matrix was, as after a dropout or a gate, or more than one, as with LoRA. Of a product
            of several matrices it is the first.

    Example:
        >>> from attnbook import MultiHeadAttention
        >>> from attnbook.probes import attended
        >>> (call,) = attended(MultiHeadAttention(8, 2), torch.randn(1, 3, 8))
        >>> [ax.get_title() for ax in call.plot("the cat sat".split())]
        ['head 0', 'head 1']
    """

    name: str
    weights: Float[Tensor, "batch heads queries keys"]
    values: Float[Tensor, "batch heads keys d_value"]
    output: Float[Tensor, "heads d_value d_model"] | None

    def plot(
        self, keys: Sequence[str], queries: Sequence[str] | None = None, *, sequence: int = 0
    ) -> list[Any]:
        """Draw the weights, a picture for each head: a row for each query, darker for more.

        Args:
            keys: a word for each token that is attended to.
            queries: likewise for each that attends; if not given, the last ones of the keys.
            sequence: which of the batch.

        Returns:
            matplotlib's Axes, one for each head.

        Raises:
            ValueError: if the words are not as many as the tokens.
        """
        from matplotlib import pyplot

        n_queries, n_keys = self.weights.shape[-2:]
        queries = keys[-n_queries:] if queries is None else queries
        if (len(queries), len(keys)) != (n_queries, n_keys):
            raise ValueError(
                f"expected {n_keys} words, of {n_queries} queries, got {len(keys)} and "
                f"{len(queries)}"
            )
        heads = self.weights[sequence].detach().float().cpu().numpy()  # (heads, queries, keys)
        width, height = 0.6 + 0.25 * n_keys, 1 + 0.25 * n_queries  # inches
        square = math.ceil(len(heads) ** 0.5)
        columns = min(4, len(heads), max(square, int(7 / width)))
        rows = -(-len(heads) // columns)
        scale = min(1, 7 / (columns * width))  # smaller squares and words, where they are many
        size = scale * columns * width, scale * rows * height
        _, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        axes, font = list(grid.flat), scale * pyplot.rcParams["font.size"]
        for head, weights in enumerate(heads):
            axes[head].imshow(weights, vmin=0, vmax=1, cmap="Greys")
            axes[head].set_title(f"head {head}", fontsize="medium")
            axes[head].set_xticks(range(n_keys), keys, rotation=90, fontsize=font)
            axes[head].set_yticks(range(n_queries), queries, fontsize=font)
        for ax in axes[len(heads) :]:
            ax.remove()
        return axes[: len(heads)]


@dataclass(frozen=True)
class _Given:
    """What an attention gave and no matrix has taken yet; if not ``told``, with heads guessed."""

    name: str
    outputs: Float[Tensor, "batch heads queries d_value"]
    told: bool


@dataclass(frozen=True)
class _Taken:
    """What a matrix takes: the heads of calls, how many each, and the order of dimensions."""

    given: list[_Given]
    n_heads: list[int]
    batch_first: bool  # before heads
    tokens_first: bool  # before the batch, in what the matrix takes

    def groups(self) -> Iterator[list[int]]:
        """The calls that are heads of one attention: each by itself, or all of a name."""
        calls = [i if call.told else call.name for i, call in enumerate(self.given)]
        return (list(group) for _, group in groupby(range(len(calls)), calls.__getitem__))

    def together(self, calls: list[int], of_each: Sequence[Tensor]) -> Tensor:
        """A tensor of each call as one, of shape (batch, heads, …)."""
        parts = [_apart(of_each[i], self.n_heads[i], self.batch_first) for i in calls]
        return torch.cat(parts, dim=1)

    def side_by_side(self, by_head: list[Float[Tensor, "batch _ tokens _"]]) -> Tensor:
        """The heads of each call as the matrix takes them."""
        side = torch.cat([x.transpose(1, 2).flatten(2) for x in by_head], dim=-1)
        return side.transpose(0, 1) if self.tokens_first else side

    def gives(self, x: Tensor) -> bool:
        """Whether it is these numbers that the matrix takes."""
        by_head = [
            _apart(call.outputs, n, self.batch_first)
            for call, n in zip(self.given, self.n_heads, strict=True)
        ]
        if len({y.shape[::2] for y in by_head}) > 1:
            return False
        side = self.side_by_side(by_head)
        return side.numel() == x.numel() and x.reshape(side.shape).equal(side)


class _Followed(NamedTuple):
    """A tensor that came from a softmax: of weights, or of what was made of them."""

    tensor: Tensor
    weights: Tensor
    softmaxes: frozenset[int]


class HeadReader(AttentionReader):
    """Keeps what each attention computes; or, with ``change``, changes what its heads give.

    A softmax is followed until it multiplies something, which are the values. The output matrix is
    the one that then multiplies the very numbers that the heads gave, side by side: it tells apart
    heads that are in the batch's dimension, and finds those that are computed by a call each.
    """

    __enter__ = TorchFunctionMode.__enter__  # our definition is read as any softmax
    __exit__ = TorchFunctionMode.__exit__

    def __init__(
        self, running: Callable[[], nn.Module | None], names: dict[nn.Module, str]
    ) -> None:
        super().__init__(running)
        self.names = names
        self.change: Callable[[str, Tensor], Tensor] | None = None
        self.calls: list[Attended] = []
        self.untold: set[str] = set()  # attentions whose heads were to change and were not found
        self._followed: deque[_Followed] = deque(maxlen=8)
        self._softmaxes: list[nn.Module | None] = []  # of whom; None if it multiplied values
        self._given: list[_Given] = []
        self._product: tuple[Tensor, Tensor, int] | None = None  # what a matrix took of how many

    def settle(self) -> None:
        """Find out what has not been read or changed."""
        super().settle()
        self.untold.update(call.name for call in self._given if not call.told)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in AGAIN or function is F.multi_head_attention_forward:
            inner = unasked(function if function in AGAIN else MULTI_HEAD)
            with self:  # see what it calls
                return inner(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in PRODUCTS:
            args, kwargs = self._taken(name, args, kwargs)
        output = super().__torch_function__(function, types, args, kwargs)
        if function is KERNEL or not isinstance(output, Tensor):
            return output
        return self._follow(name, output, args, kwargs)

    def _follow(
        self, name: str, output: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """Follow what comes from a softmax; or return another output, if it was heads'."""
        x, y = (*args, None, None)[:2]
        used = [made for made in self._followed if any(made.tensor is each for each in args)]
        if name == "softmax" and kwargs.get("dim", y) in (-1, output.dim() - 1):
            softmax = frozenset([len(self._softmaxes)])
            self._followed.append(_Followed(output, output, softmax))
            self._softmaxes.append(self.running() if output.dim() > 2 else None)
        elif not used:
            return output
        elif name in ("matmul", "bmm") and used[0].tensor is x and x.dim() == y.dim() > 1:
            for number in used[0].softmaxes:
                self._softmaxes[number] = None
            return self._attended(lambda: (used[0].weights, y), output)
        elif output.shape[-2:] == used[0].weights.shape[-2:]:
            weights = used[0].weights if name == "dropout" else output
            softmaxes = frozenset[int]().union(*(made.softmaxes for made in used))
            self._followed.append(_Followed(output, weights, softmaxes))
        return output

    def _note(self, name: str, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # What came from a softmax needs no note: the softmax has one.
        if not any(made.tensor is x for made in self._followed for x in args):
            super()._note(name, output, args, kwargs)

    def _kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        output = KERNEL(*args, **kwargs)
        return self._attended(partial(_kernel_weights, *args, **kwargs), output)

    def _attended(self, read: Callable[[], tuple[Tensor, Tensor]], output: Tensor) -> Tensor:
        """Keep the weights and values that gave this output; or return another one."""
        if (module := self.running()) is None:
            return output
        outputs, name = _unpacked(_by_head(output, module), module), self.names[module]
        several = output.dim() == 4 and outputs.shape[1] > 1
        told = several or isinstance(module, nn.MultiheadAttention)
        plain = readable(output) or not output.numel()
        if self.change is not None:
            if told:
                outputs = self.change(name, outputs)
                output = outputs.reshape(output.shape)
            elif not plain:
                self.untold.add(name)
            self._given = [call for call in self._given if not call.told]
        elif plain:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self.calls.append(Attended(name, *_of_each(output, *read(), module), None))
            if self.unread.get(module) == "softmax" and module not in self._softmaxes:
                del self.unread[module]
        else:
            self.unread[module] = "a product of other than plain tensors"
        if plain:  # a copy: what follows may be in place
            self._given.append(_Given(name, outputs.clone(), told))
            self._product = None
        return output

    def _taken(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a product with a matrix, changed if it takes heads side by side."""
        *_, left, right = PRODUCTS[name]
        named = dict(zip(PRODUCTS[name], args, strict=False)) | kwargs
        x, matrix = named[left], named[right]
        if not (readable(x) and isinstance(matrix, Tensor) and matrix.dim() == 2):
            return args, kwargs
        new = self._with_heads(x, matrix.mT if name == "linear" else matrix)
        swapped = {key: new if value is x else value for key, value in kwargs.items()}
        return tuple(new if value is x else value for value in args), swapped

    def _with_heads(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Keep the matrix if it takes heads, which it tells apart; or return other ones for it."""
        if self._product is not None:
            before, new, n_calls = self._product
            if x.data_ptr() == before.data_ptr() and x.shape == before.shape:
                for i in range(1, n_calls + 1):  # it is not one matrix
                    self.calls[-i] = replace(self.calls[-i], output=None)
                return new
        with torch._C.DisableTorchFunction(), torch.no_grad():
            taken = self._find(x, len(matrix))
            if taken is not None and self.change is None:
                self._know(taken, matrix.detach())
        if taken is None:
            return x
        new, n_calls = x, len(list(taken.groups()))
        if self.change is not None:
            new, n_calls = self._changed(taken, x), 0
            others = self._given[: -len(taken.given)]
            self.untold.update(call.name for call in others if not call.told)
        self._given, self._product = [], (x, new, n_calls)
        return new

    def _find(self, x: Tensor, width: int) -> _Taken | None:
        """The last calls, if it is their heads that are side by side, batch or tokens first."""
        sizes = accumulate(call.outputs.numel() for call in reversed(self._given))
        n_calls = next((n for n, size in enumerate(sizes, 1) if size >= x.numel()), None)
        if n_calls is None or x.shape[-1] != width:
            return None
        given, rows = self._given[-n_calls:], x.numel() // width
        n_heads = [call.outputs.shape[:3].numel() // rows for call in given]
        for call, n in zip(given, n_heads, strict=True):
            if n == 0 or call.outputs.shape[:2].numel() % n or call.outputs.dtype != x.dtype:
                return None
        orders = product((True, False), (False, True))
        candidates = (_Taken(given, n_heads, *order) for order in orders)
        return next((taken for taken in candidates if taken.gives(x)), None)

    def _know(self, taken: _Taken, matrix: Tensor) -> None:
        """Keep the heads as they are, with their rows of the matrix."""
        calls, known, start = self.calls[-len(taken.given) :], [], 0
        for group in taken.groups():
            weights = taken.together(group, [call.weights for call in calls])
            values = taken.together(group, [call.values for call in calls])
            end = start + values.shape[1] * values.shape[3]
            output = matrix[start:end].unflatten(0, (values.shape[1], -1))
            known.append(Attended(calls[group[0]].name, weights, values, output))
            start = end
        self.calls[-len(calls) :] = known

    def _changed(self, taken: _Taken, x: Tensor) -> Tensor:
        """What the matrix takes instead."""
        assert self.change is not None
        by_head = []
        for group in taken.groups():
            first = taken.given[group[0]]
            outputs = taken.together(group, [given.outputs for given in taken.given])
            if not first.told:
                outputs = self.change(first.name, outputs)
            elif not outputs.equal(first.outputs):  # what was changed were other things than heads
                raise ValueError(
                    f"expected outputs of shape (batch, heads, queries, width) in {first.name!r}, "
                    f"got {tuple(first.outputs.shape)} with {outputs.shape[1]} heads"
                )
            by_head.append(outputs)
        if all(call.told for call in taken.given):
            return x
        return taken.side_by_side(by_head).reshape(x.shape)


def _apart(x: Tensor, n_heads: int, batch_first: bool) -> Float[Tensor, "batch heads tokens width"]:
    """With heads and batch, which were both in the first two dimensions, in one each."""
    apart: Tensor = x.flatten(0, 1).unflatten(0, (-1, n_heads) if batch_first else (n_heads, -1))
    return apart if batch_first else apart.transpose(0, 1)


def _of_each(
    output: Tensor, weights: Tensor, values: Tensor, module: nn.Module
) -> tuple[Float[Tensor, "batch heads queries keys"], Float[Tensor, "batch heads keys d_value"]]:
    """Weights and values of each head, also if heads or sequences share them."""
    leading = output.shape[:-2]
    if values.dim() > 2:
        n_groups = values.shape[-3]
        values = values.repeat_interleave(leading[-1] // n_groups, dim=-3)
    weights, values = (x.expand(*leading, *x.shape[-2:]) for x in (weights, values))
    weights = _unpacked(_by_head(weights, module), module).detach()
    values = _by_head(values, module).detach()
    return weights, values.repeat_interleave(weights.shape[1] // values.shape[1], dim=1)


def _by_head(x: Tensor, module: nn.Module) -> Float[Tensor, "batch heads tokens width"]:
    """With a dimension of batches and one of heads, as many as the module says if both are one."""
    x = x[None] if x.dim() == 2 else x
    if x.dim() > 3:
        return x.flatten(0, -4)
    numbers = (
        getattr(owner, name, None)
        for owner in (module, getattr(module, "config", None))
        for name in N_HEADS
    )
    n_heads = next((n for n in numbers if isinstance(n, int) and n > 0), 1)
    return _apart(x[None], 1 if len(x) % n_heads else n_heads, True)


def _unpacked(
    x: Float[Tensor, "batch some_heads some_queries width"], module: nn.Module
) -> Float[Tensor, "batch heads queries width"]:
    """With all heads as heads: transformers decode one token with a group's heads as queries."""
    n_heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    groups = n_heads, getattr(module, "num_key_value_groups", 1)
    packed = x.shape[1] != n_heads and (x.shape[1] * x.shape[2], x.shape[2]) == groups
    return x.flatten(1, 2)[:, :, None] if packed else x


def _kernel_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weights of torch's kernel, its output for the identity as values; and the values."""
    unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    unit = unit.expand(*key.shape[:-2], -1, -1)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    weights = KERNEL(query, key, unit, attn_mask, 0.0, is_causal, **options)
    return weights, value


class HeadProbe(Probe):
    """A probe that keeps heads and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._read = set()
        self._reader = self.heads = HeadReader(self._innermost, self._modules)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.heads.settle()

    def _watch_parameters(self) -> None:
        pass
