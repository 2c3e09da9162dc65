"""Masks as the author says that the module takes them."""

import torch
from torch import Tensor

from attnbook.doctor.claims import Mask
from attnbook.doctor.subject import Inputs, Subject


def mask_inputs(subject: Subject, inputs: Inputs, allowed: Tensor, n_queries: int) -> Inputs:
    """The inputs with a mask: of the keys, (batch, keys), that the example allowed, too."""
    claim = subject.claims.mask
    assert claim is not None
    name = str(claim.argument)
    n_sequences, n_keys = allowed.shape
    n_heads = subject.claims.n_heads or 1
    sizes = {"b": n_sequences, "h": n_heads, "q": n_queries, "k": n_keys, "1": 1}
    shape = [sizes[letter] for letter in claim.shape]
    one = allowed if "b" in claim.shape else allowed[-1:]
    view = [n_sequences if a == "b" else n_keys if a == "k" else 1 for a in claim.shape]
    mask = one.reshape(view).expand(shape)
    old = inputs.get(name)
    if isinstance(old, Tensor):
        before = decoded(old, claim)
        for axis, size in enumerate(shape[-before.dim() :] if before.dim() else []):
            before = before.narrow(axis, 0, min(size, before.shape[axis]))
        mask = mask & before
    return {**inputs, name: encoded(mask.contiguous(), claim)}


def block(subject: Subject, inputs: Inputs, name: str, allowed: Tensor) -> Inputs:
    """The inputs with tokens of a source as padding: by its id, by the mask, or by both."""
    if subject.claims.padding_id is not None and subject.is_ids(name):
        real = (allowed.T if subject.batch == 1 else allowed).reshape(inputs[name].shape)
        inputs = {**inputs, name: inputs[name].masked_fill(~real, subject.claims.padding_id)}
    if subject.claims.mask is not None:
        inputs = mask_inputs(subject, inputs, allowed, subject.n_tokens)
    return inputs


def encoded(mask: Tensor, claim: Mask) -> Tensor:
    """A mask, ``True`` = may attend, as the module takes it."""
    if claim.true == "add":
        return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    types = {"bool": torch.bool, "int": torch.long, "float": torch.float32}
    return (mask if claim.true == "attend" else ~mask).to(types[claim.dtype])


def decoded(mask: Tensor, claim: Mask) -> Tensor:
    """Where a mask of the module's allows."""
    if claim.true == "add":
        return mask > -1
    return mask.bool() if claim.true == "attend" else ~mask.bool()
