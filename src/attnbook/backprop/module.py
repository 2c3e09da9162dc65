"""Parameters with their gradients, and what holds them."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Parameter:
    """A trained array, and the gradient of the loss with respect to it.

    Backward passes *add* to ``grad``: a matrix used twice gets the sum of both contributions.

    Example:
        >>> Parameter(np.ones((2, 3))).grad.shape
        (2, 3)
    """

    def __init__(self, value: Array) -> None:
        self.value = np.array(value, dtype=np.float64)
        self.grad = np.zeros_like(self.value)


class Module:
    """What has parameters, of its own or in its parts, under the same names as in torch.

    Its parts are the modules and parameters among its attributes, and in lists and tuples there.

    A module's ``forward`` returns its output and what its ``backward`` needs to know of the way
    there; ``backward`` takes the gradient of the output and that, adds to the gradient of each
    parameter, and returns the gradient of the input.
    """

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter, named as in the ``state_dict`` of the torch module."""
        for attribute, held in vars(self).items():
            parts = {attribute: held}
            if isinstance(held, list | tuple):
                parts = {f"{attribute}.{i}": item for i, item in enumerate(held)}
            for name, part in parts.items():
                if isinstance(part, Parameter):
                    yield prefix + name, part
                elif isinstance(part, Module):
                    yield from part.named_parameters(f"{prefix}{name}.")

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, once: what has two names is still one."""
        return iter({id(part): part for _, part in self.named_parameters()}.values())

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        for parameter in self.parameters():
            parameter.grad[...] = 0.0

    def state_dict(self) -> dict[str, Array]:
        """A copy of every value, by name."""
        return {name: parameter.value.copy() for name, parameter in self.named_parameters()}

    def gradients(self) -> dict[str, Array]:
        """A copy of every gradient, by name."""
        return {name: parameter.grad.copy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, values: Mapping[str, object]) -> None:
        """Take over every value: arrays, or what becomes one, as a ``state_dict``'s tensors do.

        Raises:
            ValueError: if a name is missing or unknown, or a shape differs; nothing is changed.
        """
        own = dict(self.named_parameters())
        if missing := sorted(own.keys() - values.keys()):
            raise ValueError(f"there is no value for {', '.join(missing)}")
        if unknown := sorted(values.keys() - own.keys()):
            raise ValueError(f"there is no parameter named {', '.join(unknown)}")
        arrays = {
            name: np.asarray(value, dtype=np.float64).copy() for name, value in values.items()
        }
        for name, array in arrays.items():
            if array.shape != own[name].value.shape:
                raise ValueError(
                    f"{name} has shape {own[name].value.shape}, got one of shape {array.shape}"
                )
        for name, array in arrays.items():
            own[name].value[...] = array
