"""Two modules compute the same function: same outputs, same gradients."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnbook import causal_mask, combine_masks, padding_mask

BATCH, TOKENS, KEYS = 2, 5, 7
EXACT = 1e-12
"""Where the other library computes in float64 throughout."""
DROPOUT = 0.3
"""What tests drop in training; they evaluate the same modules, which then drop nothing."""


def assert_near(actual: Tensor, expected: Tensor, atol: float = EXACT) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def randomize(module: nn.Module) -> nn.Module:
    """Every parameter at random: biases that are zero and norms that are one hide mistakes.

    They are as small as gradients in float32 have to be to be exact to 1e-5 with any seed.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():  # Keras keeps a dropout's seed among them
                parameter.normal_(0.0, 0.2)
    return module


@dataclass
class Masks:
    """One mask in every form: ours, and from ``allowed`` everyone else's."""

    padding: Tensor | None = None  # (batch, keys), True = a real token
    pattern: Tensor | None = None  # (queries, keys), True = may attend
    causal: bool = False

    def ours(self) -> dict[str, Tensor | bool | None]:
        padding = None if self.padding is None else self.padding[:, None, None]
        return {"mask": combine_masks(padding, self.pattern), "causal": self.causal}

    def per_query(self, queries: int, keys: int) -> Tensor | None:
        """(queries, keys): all but the padding."""
        ahead = causal_mask(queries, keys) if self.causal else None
        return combine_masks(self.pattern, ahead)

    def allowed(self, queries: int, keys: int) -> Tensor | None:
        """(batch, 1, queries, keys): everything."""
        padding = None if self.padding is None else self.padding[:, None, None]
        whole = combine_masks(padding, self.per_query(queries, keys))
        return None if whole is None else whole.expand(BATCH, 1, queries, keys)

    def added(self, queries: int, keys: int, *, always: bool = False) -> Tensor | None:
        """(batch, 1, queries, keys): 0, or the lowest number where attention is forbidden.

        ``always``, also where nothing is: without a mask, some are causal or not, depending on the
        implementation.
        """
        allowed, zero = self.allowed(queries, keys), torch.zeros(BATCH, 1, queries, keys)
        if allowed is None:
            return zero if always else None
        return zero.masked_fill(~allowed, torch.finfo(zero.dtype).min)


def each_pair(*options: Sequence[object]) -> list[tuple[object, ...]]:
    """Few combinations, so that any two choices of different options meet in one of them."""
    every = list(itertools.product(*map(range, map(len, options))))
    met = {one: set(itertools.combinations(enumerate(one), 2)) for one in every}
    chosen, left = [], set().union(*met.values())
    while left:
        chosen.append(max(every, key=lambda one: len(met[one] & left)))
        left -= met[chosen[-1]]
    return [tuple(option[i] for option, i in zip(options, one, strict=True)) for one in chosen]


MASKS = ["none", "padding", "causal", "padding and causal"]
CROSS_MASKS = ["none", "padding", "pattern", "padding and pattern"]


def masks(kind: str, keys: int) -> Masks:
    """Every query may attend to the first key: libraries differ about rows without any."""
    pattern = (torch.rand(TOKENS, keys) < 0.5) | (torch.arange(keys) == 0)
    return Masks(
        padding=padding_mask(torch.tensor([keys - 3, keys]), keys)[:, 0, 0]
        if "padding" in kind
        else None,
        pattern=pattern if "pattern" in kind else None,
        causal="causal" in kind,
    )


class SameDropout(TorchDispatchMode):
    """Inside, the first dropout keeps the same entries in every library; so does the second, ….

    Only torch's draw is replaced, below all libraries, by one that goes by the order of the entries
    and not by how they lie in memory: where and how often they are dropped, and by what the others
    are divided, each library still says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[int] = []
        """How many entries each time."""

    def __torch_dispatch__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if function is not torch.ops.aten.bernoulli_.float:
            return function(*args, **(kwargs or {}))
        tensor, kept = (*args, 0.5)[:2]  # a half is the default, which does not arrive here
        self.drawn.append(tensor.numel())
        generator = torch.Generator().manual_seed(len(self.drawn))
        return tensor.copy_(torch.rand(tensor.shape, generator=generator) < kept)


def assert_same_function(
    ours: nn.Module,
    theirs: nn.Module,
    run_ours: Callable[..., Tensor],
    run_theirs: Callable[..., Tensor],
    inputs: Iterable[Tensor],
    convert: Callable[[nn.Module], nn.Module],
    atol: float = EXACT,
    *,
    drops: int = 0,
) -> None:
    """Outputs, and gradients for each input and each parameter; both drop so often.

    The gradient of a weight lies where the weight lies: put in the place of their weights and
    converted, their gradients are in our layout.
    """
    own = [x.detach().clone().requires_grad_() for x in inputs]
    other = [x.detach().clone().requires_grad_() for x in inputs]
    ours.zero_grad()
    theirs.zero_grad()
    with SameDropout() as here:
        output = run_ours(*own)
    with SameDropout() as there:
        expected = run_theirs(*other)
    assert len(there.drawn) == drops
    assert here.drawn == there.drawn
    assert output.shape == expected.shape
    assert_near(output, expected, atol)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    for x, y in zip(own, other, strict=True):
        assert x.grad.any()
        assert_near(x.grad, y.grad, atol)
    gradients = convert(with_gradients_for_weights(theirs))
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, f"{name} got no gradient"
        assert_near(parameter.grad, gradients.get_parameter(name), atol)


def with_gradients_for_weights(module: nn.Module) -> nn.Module:
    """A copy whose parameters are this one's gradients; those not used have none, and get NaN."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter, original in zip(twin.parameters(), module.parameters(), strict=True):
            parameter.copy_(torch.nan if original.grad is None else original.grad)
    return twin


def assert_copied(converted: Iterable[Tensor], original: Iterable[Tensor]) -> None:
    """Of one type and device, and no two share memory."""
    converted, original = list(converted), list(original)
    kinds = {(t.dtype, t.device) for t in original}
    assert converted
    assert {(t.dtype, t.device) for t in converted} == kinds
    held = {t.untyped_storage().data_ptr() for t in original}
    copied = [t.untyped_storage().data_ptr() for t in converted]
    assert held.isdisjoint(copied)
    assert len(set(copied)) == len(copied)


def assert_equal_parameters(one: nn.Module, other: nn.Module) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
