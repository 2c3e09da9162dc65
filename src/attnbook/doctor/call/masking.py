"""Masks as the author says that the module takes them, and those of the example."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from attnbook.doctor.call.claims import Mask
from attnbook.doctor.call.subject import Inputs, Subject
from attnbook.doctor.report import Finding
from attnbook.doctor.tape.compare import DIFFERENT, changed
from attnbook.doctor.tape.trace import Trace

TURNED: dict[str, Literal["attend", "blocked"]] = {"attend": "blocked", "blocked": "attend"}


def without_padding(subject: Subject, masks: set[str]) -> Inputs:
    """The example with its padding open, as other tokens are put there that are none."""
    inputs = dict(subject.inputs)
    for name in masks & inputs.keys():
        mask = inputs[name]
        claim = subject.claims.mask
        counts = claim is not None and claim.shape == "b" and claim.argument == name
        if isinstance(mask, Tensor) and (counts or len(mask.unique()) == 2):
            inputs[name] = _opened(subject, name, mask)
    return inputs


def _opened(subject: Subject, name: str, mask: Tensor) -> Tensor:
    """The mask open everywhere, if it is one of padding and it is known which value opens."""
    claim, n = subject.claims.mask, subject.n_sequences
    if claim is not None and claim.argument == name and claim.shape == "b":
        return torch.full_like(mask, subject.n_tokens)
    if claim is not None and claim.argument == name and "q" not in claim.shape:
        return encoded(torch.ones(mask.shape, dtype=torch.bool), claim).to(mask)
    sources = {subject.length(source): source for source in subject.sources}
    source = sources.get(mask.shape[-1])
    if source is None or n in sources or mask.numel() != n * mask.shape[-1]:
        return mask
    opening = [x for x in mask.unique() if _opens(subject, name, source, x)]
    return torch.full_like(mask, opening[0]) if len(opening) == 1 else mask


def _opens(subject: Subject, name: str, source: str, value: Tensor) -> bool:
    """True if tokens with this value in a mask, and no others, reach those that have it, too."""
    if subject.kind == "loss":
        return False
    mask = subject.inputs[name].reshape(subject.n_sequences, -1) == value
    base, reaching = subject.by_token(subject.run()), set()
    for sequence, row in enumerate(mask):
        tokens = {has_it: row.tolist().index(has_it) for has_it in set(row.tolist())}
        for has_it, token in tokens.items():  # the first with the value, and the first without
            other = subject.run(subject.replaced(subject.inputs, source, sequence, token))
            moved = changed(base, subject.by_token(other))[sequence] > DIFFERENT
            if len(moved) == len(row):
                moved = (moved & row).index_fill(0, torch.tensor(token), False)
            reaching |= {has_it} if moved.any() else set()
    return reaching == {True}


def as_claimed(subject: Subject, found: Finding) -> Finding:
    """A finding on a mask that means the other thing, which may be the claim's mistake."""
    claim = subject.claims.mask
    if claim is None or claim.true not in TURNED or found.cause != "inverted mask":
        return found
    remedy = f'{found.remedy}; or claim "true": "{TURNED[claim.true]}"'
    return replace(found, done=f"{found.done} (True = {claim.true}, as claimed)", remedy=remedy)


def mask_inputs(subject: Subject, inputs: Inputs, allowed: Tensor, n_queries: int = 0) -> Inputs:
    """The inputs with a mask: of the keys, (batch, keys), that the example allowed, too."""
    claim = subject.claims.mask
    assert claim is not None
    name, (n_sequences, n_keys) = str(claim.argument), allowed.shape
    if claim.shape == "b":
        return {**inputs, name: allowed.sum(1)}
    n_queries, n_heads = n_queries or subject.n_tokens, subject.claims.n_heads or 1
    sizes = {"b": n_sequences, "h": n_heads, "q": n_queries, "k": n_keys, "1": 1}
    shape = [sizes[letter] for letter in claim.shape]
    allowed = allowed if "b" in claim.shape else allowed[-1:]
    mask = allowed.reshape([sizes[x] if x in "bk" else 1 for x in claim.shape]).expand(shape)
    old = inputs.get(name)
    if isinstance(old, Tensor) and len(old.unique()) > 1:
        before = decoded(old, claim)
        for axis, size in enumerate(shape[-before.dim() :]):
            before = before.narrow(axis, 0, min(size, before.shape[axis]))
        mask = mask & before
    return {**inputs, name: encoded(mask.contiguous(), claim)}


def block(subject: Subject, inputs: Inputs, name: str, allowed: Tensor) -> Inputs:
    """The inputs with tokens of a source as padding: by its id, by the mask, or by both."""
    if subject.claims.padding_id is not None and subject.is_ids(name):
        real = (allowed.T if subject.batch == 1 else allowed).reshape(inputs[name].shape)
        inputs = {**inputs, name: inputs[name].masked_fill(~real, subject.claims.padding_id)}
    if subject.claims.mask is not None:
        inputs = mask_inputs(subject, inputs, allowed)
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


def forbids_everything(trace: Trace) -> bool:
    """True if an attention has no key that is open to any query."""
    logits = [a.logits for a in trace.attentions if a.logits is not None and a.logits.numel()]
    return any(bool((x < -1e3).all()) for x in logits)
