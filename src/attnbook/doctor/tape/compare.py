"""What equals what."""

import torch
from torch import Tensor

DIFFERENT = 1e-5
"""A relative change of the output that is not rounding."""
ROUNDING = 10 * DIFFERENT
"""How far outputs may differ that are computed in other shapes, or in another order."""


def changed(before: Tensor, after: Tensor) -> Tensor:
    """How much each token's output differs, (batch, tokens), relative to the largest output."""
    size = torch.nan_to_num(before.float(), posinf=0, neginf=0).abs().max().clamp(min=1e-30)
    difference = (before.float() - after.float()).abs()
    rounding = torch.finfo(before.dtype).eps
    if rounding > 1e-4:  # half precision
        difference = difference.masked_fill(difference < 8 * rounding * size, 0.0)
    same = (before == after) | (before.isnan() & after.isnan())
    difference = torch.nan_to_num(difference, nan=torch.inf).masked_fill(same, 0.0)
    return difference.flatten(2).amax(-1) / size if before.dim() > 2 else difference / size


def differ(one: Tensor, other: Tensor) -> bool:
    """True if two tensors differ by more than rounding."""
    return one.shape != other.shape or relative(one, other) > DIFFERENT


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number."""
    if not one.is_floating_point():
        return float((one != other).float().max())
    return float(changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max())
