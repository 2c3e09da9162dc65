"""What the tests of the NumPy room share: a function or module beside its torch twin."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from attnbook import backprop


def assert_same_gradients(
    ours: Callable[..., np.ndarray],
    backward: Callable[..., Mapping[str, np.ndarray]],
    theirs: Callable[..., Tensor],
    *,
    differences: bool = True,
    **tensors: np.ndarray,
) -> None:
    """Same output, and gradients as from autograd (1e-9) and from finite differences (1e-6)."""
    inputs = {name: torch.tensor(x, requires_grad=True) for name, x in tensors.items()}
    expected = theirs(**inputs)
    output = ours(**tensors)
    assert output.shape == tuple(expected.shape)
    assert_close(output, expected, 1e-12)
    upstream = torch.randn(expected.shape)
    reference = torch.autograd.grad(expected, list(inputs.values()), upstream)
    gradients = backward(upstream.numpy(), **tensors)
    for (name, x), gradient in zip(tensors.items(), reference, strict=True):
        assert gradients[name].shape == x.shape, name
        assert_close(gradients[name], gradient, 1e-9)
    if differences:
        backprop.check_gradient(ours, backward, **tensors)


def assert_same_module(
    ours: backprop.MultiHeadAttention | backprop.Block,
    theirs: torch.nn.Module,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, object],
) -> None:
    """Same output and same gradients of inputs and parameters, from the same random weights."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    ours.load_state_dict(theirs.state_dict())
    leaves = [x.clone().requires_grad_() for x in inputs.values()]
    expected = theirs(*leaves, **options)
    arrays = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in options.items()}
    output, saved = ours.forward(*(x.numpy() for x in inputs.values()), **arrays)
    assert_close(output, expected, 1e-12)
    upstream = torch.randn_like(expected)
    expected.backward(upstream)
    returned = ours.backward(upstream.numpy(), saved)
    into = returned[: len(leaves)] if isinstance(returned, tuple) else (returned,)
    for gradient, leaf in zip(into, leaves, strict=True):
        assert_close(gradient, leaf.grad, 1e-9)
    parameters = dict(theirs.named_parameters())
    assert ours.gradients().keys() == parameters.keys()
    for name, gradient in ours.gradients().items():
        assert_close(gradient, parameters[name].grad, 1e-9)


def assert_close(array: np.ndarray, tensor: Tensor, relative: float) -> None:
    """Equal relative to the largest entry; what is exactly zero leaves a little rounding."""
    reference = tensor.detach().numpy()
    scale = max(np.abs(reference).max(initial=0.0), 1e-3)
    assert np.abs(array - reference).max(initial=0.0) <= relative * scale
