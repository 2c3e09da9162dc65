"""Linear maps, activations, LayerNorm and dropout: forward, and backward by hand."""

import math

import numpy as np
from jaxtyping import Bool, Float

from attnbook.backprop.checks import check_boolean, check_broadcast, check_shape
from attnbook.backprop.module import Array, Module, Parameter


def linear(
    x: Float[np.ndarray, "... d_in"],
    weight: Float[np.ndarray, "d_out d_in"],
    bias: Float[np.ndarray, "d_out"] | None = None,
) -> Float[np.ndarray, "... d_out"]:
    r"""A dense layer, with the weight stored as torch stores it.

    .. math:: Y = X W + b, \qquad W = \texttt{weight}^\top

    Example:
        >>> linear(np.array([1.0, 2.0]), np.array([[3.0, 4.0]]), np.array([5.0]))
        array([16.])
    """
    rows = x.reshape(-1, x.shape[-1]) @ weight.T  # one product for all leading dimensions
    if bias is not None:
        check_shape("bias", bias, weight.shape[:1])
        rows += bias
    return rows.reshape(*x.shape[:-1], len(weight))


def linear_backward(
    gradient: Float[np.ndarray, "... d_out"],
    x: Float[np.ndarray, "... d_in"],
    weight: Float[np.ndarray, "d_out d_in"],
) -> tuple[
    Float[np.ndarray, "... d_in"],
    Float[np.ndarray, "d_out d_in"],
    Float[np.ndarray, "d_out"],
]:
    r"""The gradients of input, weight and bias.

    .. math:: dX = dY\, W^\top, \qquad dW = X^\top dY, \qquad db = \textstyle\sum_t dY_t

    with :math:`W` the transpose of ``weight``; sums run over all leading dimensions.

    Example:
        >>> d_x, d_weight, d_bias = linear_backward(np.ones(1), np.ones(2), np.array([[3.0, 4.0]]))
        >>> d_x, d_weight, d_bias
        (array([3., 4.]), array([[1., 1.]]), array([1.]))
    """
    check_shape("gradient", gradient, (*x.shape[:-1], len(weight)))
    rows = gradient.reshape(-1, gradient.shape[-1])
    d_x = (rows @ weight).reshape(x.shape)
    return d_x, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(axis=0)


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    r"""The positive part, :math:`\max(x, 0)`.

    Example:
        >>> relu(np.array([-1.0, 2.0]))
        array([0., 2.])
    """
    return np.maximum(x, 0.0)


def relu_backward(
    gradient: Float[np.ndarray, "..."], x: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """The gradient where ``x`` is positive, zero elsewhere, at zero too.

    At the kink itself finite differences give one half: choose another point to check it at.

    Example:
        >>> relu_backward(np.array([5.0, 5.0, 5.0]), np.array([-1.0, 0.0, 2.0]))
        array([0., 0., 5.])
    """
    check_shape("gradient", gradient, x.shape)
    return np.where(x > 0.0, gradient, 0.0)


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    r"""The exact GELU: ``x`` times the probability that a standard normal is below it.

    .. math:: x\, \Phi(x), \qquad \Phi(x) = \tfrac12 \big(1 + \operatorname{erf}(x / \sqrt2)\big)

    NumPy has no error function: this one is Python's, entry by entry, and therefore slow.

    Source: Hendrycks & Gimpel 2016, section 2.

    Example:
        >>> gelu(np.array([-1.0, 0.0, 1.0])).round(3)
        array([-0.159,  0.   ,  0.841])
    """
    return x * _normal_cdf(x)


def gelu_backward(
    gradient: Float[np.ndarray, "..."], x: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    r"""The gradient times :math:`\Phi(x) + x\,\varphi(x)`, with the normal density φ.

    Example:
        >>> gelu_backward(np.array([1.0]), np.array([0.0]))
        array([0.5])
    """
    check_shape("gradient", gradient, x.shape)
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return gradient * (_normal_cdf(x) + x * density)


def gelu_tanh(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    r"""The GELU of GPT-2, an approximation by a hyperbolic tangent.

    .. math:: \tfrac12\, x\, \Big(1 + \tanh\big(\sqrt{2/\pi}\,(x + 0.044715\, x^3)\big)\Big)

    Source: Hendrycks & Gimpel 2016, section 2.

    Example:
        >>> gelu_tanh(np.array([-1.0, 0.0, 1.0])).round(3)
        array([-0.159,  0.   ,  0.841])
    """
    return 0.5 * x * (1.0 + np.tanh(_GELU_SLOPE * (x + _GELU_CUBE * x * x * x)))


def gelu_tanh_backward(
    gradient: Float[np.ndarray, "..."], x: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    r"""The gradient times :math:`\tfrac12 (1 + t) + \tfrac12 x (1 - t^2)\, u'(x)`.

    Here :math:`t = \tanh u(x)` and :math:`u(x) = \sqrt{2/\pi}\,(x + 0.044715\,x^3)`.

    Example:
        >>> gelu_tanh_backward(np.array([1.0]), np.array([0.0]))
        array([0.5])
    """
    check_shape("gradient", gradient, x.shape)
    square = x * x
    t = np.tanh(_GELU_SLOPE * x * (1.0 + _GELU_CUBE * square))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBE * square)
    return gradient * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


_GELU_SLOPE, _GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715

ACTIVATIONS = {
    "relu": (relu, relu_backward),
    "gelu": (gelu, gelu_backward),
    "gelu_tanh": (gelu_tanh, gelu_tanh_backward),
}
"""Each with its backward pass, under the names of :data:`attnbook.blocks.ACTIVATIONS`."""


def layer_norm(
    x: Float[np.ndarray, "... d_model"],
    weight: Float[np.ndarray, "d_model"],
    bias: Float[np.ndarray, "d_model"],
    *,
    eps: float = 1e-5,
) -> tuple[
    Float[np.ndarray, "... d_model"],
    tuple[Float[np.ndarray, "... d_model"], Float[np.ndarray, "... 1"]],
]:
    r"""Each row shifted to mean zero, divided by its standard deviation, scaled and shifted.

    .. math:: y = \hat x\, \gamma + \beta, \qquad \hat x = \frac{x - \mu}{\sigma}, \quad
              \sigma = \sqrt{\operatorname{var}(x) + \epsilon}

    Returns:
        The output, and :math:`(\hat x, 1/\sigma)` for the backward pass.

    Source: Ba, Kiros & Hinton 2016, section 3.

    Example:
        >>> y, _ = layer_norm(np.array([1.0, 3.0]), np.ones(2), np.zeros(2))
        >>> y.round(3)
        array([-1.,  1.])
    """
    check_shape("weight", weight, x.shape[-1:])
    check_shape("bias", bias, x.shape[-1:])
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    inverse = 1.0 / np.sqrt(variance + eps)
    normed = np.multiply(centred, inverse, out=centred)
    return normed * weight + bias, (normed, inverse)


def layer_norm_backward(
    gradient: Float[np.ndarray, "... d_model"],
    weight: Float[np.ndarray, "d_model"],
    normed: Float[np.ndarray, "... d_model"],
    inverse: Float[np.ndarray, "... 1"],
) -> tuple[
    Float[np.ndarray, "... d_model"], Float[np.ndarray, "d_model"], Float[np.ndarray, "d_model"]
]:
    r"""The gradients of input, weight and bias.

    .. math:: dx = \frac1\sigma \Big(d\hat x - \overline{d\hat x}
              - \hat x\, \overline{d\hat x\, \hat x}\Big), \qquad d\hat x = dy\,\gamma, \\
              d\gamma = \textstyle\sum_t dy_t\, \hat x_t, \qquad d\beta = \textstyle\sum_t dy_t

    The bars are means over the row: mean and deviation depend on every entry, so the gradient has
    no part along the ones and none along :math:`\hat x`.

    Args:
        gradient: of the output.
        weight: γ.
        normed: x̂, from the forward pass.
        inverse: 1/σ, from there too.

    Example:
        >>> y, saved = layer_norm(np.array([1.0, 3.0, 8.0]), np.ones(3), np.zeros(3))
        >>> d_x, _, _ = layer_norm_backward(np.ones(3), np.ones(3), *saved)
        >>> d_x                                            # a shift of all changes nothing
        array([0., 0., 0.])
    """
    check_shape("gradient", gradient, normed.shape)
    check_shape("weight", weight, normed.shape[-1:])
    check_shape("inverse", inverse, (*normed.shape[:-1], 1))
    d_normed = gradient * weight
    d_x = d_normed - d_normed.mean(axis=-1, keepdims=True)
    d_x -= normed * (d_normed * normed).mean(axis=-1, keepdims=True)
    d_x *= inverse
    width = gradient.shape[-1]
    d_weight = (gradient * normed).reshape(-1, width).sum(axis=0)
    return d_x, d_weight, gradient.reshape(-1, width).sum(axis=0)


def dropout(
    x: Float[np.ndarray, "..."], kept: Bool[np.ndarray, "..."], probability: float
) -> Float[np.ndarray, "..."]:
    """What is kept, divided by the probability of being kept; the rest is zero.

    Linear in ``x``: the backward pass is the same function of the gradient.

    Args:
        x: any shape.
        kept: ``True`` = stays, drawn by the caller; broadcasts to ``x``.
        probability: with which an entry is dropped.

    Raises:
        TypeError: if ``kept`` is not boolean.
        ValueError: if ``kept`` does not broadcast to ``x``, or the probability is not in [0, 1).

    Source: Srivastava et al. 2014, section 10, for dividing in training.

    Example:
        >>> dropout(np.array([1.0, 1.0]), np.array([True, False]), 0.5)
        array([2., 0.])
    """
    check_boolean("kept", kept)
    check_broadcast("kept", kept, x.shape)
    if not 0 <= probability < 1:
        raise ValueError(f"probability must be in [0, 1), got {probability}")
    return x * kept / (1.0 - probability)


class Linear(Module):
    """A dense layer; Glorot-uniform weights, and a bias of zeros if asked for.

    Raises:
        ValueError: if a size is not positive.

    Example:
        >>> y, saved = Linear(4, 3).forward(np.ones((2, 4)))
        >>> y.shape
        (2, 3)
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool = True,
        rng: np.random.Generator | None = None,
    ) -> None:
        if min(d_in, d_out) < 1:
            raise ValueError(f"d_in and d_out must be positive, got {d_in} and {d_out}")
        rng = np.random.default_rng(0) if rng is None else rng
        bound = math.sqrt(6.0 / (d_in + d_out))
        self.weight = Parameter(rng.uniform(-bound, bound, (d_out, d_in)))
        self.bias = Parameter(np.zeros(d_out)) if bias else None

    def forward(
        self, x: Float[np.ndarray, "... d_in"]
    ) -> tuple[Float[np.ndarray, "... d_out"], Float[np.ndarray, "... d_in"]]:
        """Output and input."""
        return linear(x, self.weight.value, None if self.bias is None else self.bias.value), x

    def backward(
        self, gradient: Float[np.ndarray, "... d_out"], saved: Float[np.ndarray, "... d_in"]
    ) -> Float[np.ndarray, "... d_in"]:
        """The gradient of the input."""
        d_x, d_weight, d_bias = linear_backward(gradient, saved, self.weight.value)
        self.weight.grad += d_weight
        if self.bias is not None:
            self.bias.grad += d_bias
        return d_x


class LayerNorm(Module):
    """LayerNorm with weight and bias.

    Example:
        >>> y, saved = LayerNorm(3).forward(np.array([[1.0, 3.0, 8.0]]))
        >>> y.round(2)
        array([[-1.02, -0.34,  1.36]])
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5) -> None:
        self.weight, self.bias = Parameter(np.ones(d_model)), Parameter(np.zeros(d_model))
        self.eps = eps

    def forward(
        self, x: Float[np.ndarray, "... d_model"]
    ) -> tuple[Float[np.ndarray, "... d_model"], tuple[Array, Array]]:
        """Output, and what :func:`layer_norm` says is needed backward."""
        return layer_norm(x, self.weight.value, self.bias.value, eps=self.eps)

    def backward(
        self, gradient: Float[np.ndarray, "... d_model"], saved: tuple[Array, Array]
    ) -> Float[np.ndarray, "... d_model"]:
        """The gradient of the input."""
        d_x, d_weight, d_bias = layer_norm_backward(gradient, self.weight.value, *saved)
        self.weight.grad += d_weight
        self.bias.grad += d_bias
        return d_x


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _normal_cdf(x: Array) -> Array:
    result: Array = 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))
    return result
