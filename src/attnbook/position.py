"""Where a token stands: position encodings."""

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoidal_positions(
    n_positions: int, d_model: int, *, base: float = 10000.0
) -> Float[Tensor, "n_positions d_model"]:
    r"""Sinusoidal position encodings, sines and cosines interleaved.

    .. math::
        P_{p,\,2i} = \sin\!\big(p \cdot \text{base}^{-2i/d}\big), \qquad
        P_{p,\,2i+1} = \cos\!\big(p \cdot \text{base}^{-2i/d}\big)

    Because :math:`\sin^2 + \cos^2 = 1`, every row has the same length :math:`\sqrt{d/2}`, that is
    a root mean square of :math:`1/\sqrt2` per entry, whatever ``d_model``.

    Args:
        n_positions: positions 0 … n_positions − 1.
        d_model: width, an even number.
        base: the longest wavelength is almost ``2π · base`` tokens.

    Returns:
        A table in torch's default dtype, computed in float64.

    Raises:
        ValueError: if ``d_model`` is not positive and even, or ``n_positions`` is negative.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal_positions(50, 64).pow(2).mean().sqrt().item()   # 1/sqrt(2)
        0.707...
    """
    if d_model < 2 or d_model % 2:
        raise ValueError(
            f"sinusoidal positions pair a sine with a cosine: d_model must be even, got {d_model}"
        )
    if n_positions < 0:
        raise ValueError(f"n_positions must not be negative, got {n_positions}")
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    frequency = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = position * frequency  # (n_positions, d_model/2)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (n_positions, d_model/2, 2)
    return pairs.flatten(-2).to(torch.get_default_dtype())
