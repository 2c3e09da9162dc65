"""Losses that are given logits, and say by their gradient what each position is to predict."""

import torch
from torch import Tensor

from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results
from attnbook.doctor.report import NotJudged
from attnbook.doctor.subject import LABELS, Inputs, Subject, copied, last, output_of

SHIFTS = {0: "loss without shift", 2: "loss shifted twice", -1: "loss shifted backwards"}
WHAT = {0: "the token itself", 2: "the token after the next", -1: "the token before"}


def shift(subject: Subject) -> Results:
    """A loss of logits and ids: none points at the token after the next, or before."""
    given = logits_and_ids(subject)
    if given is None:
        return
    logits, name, ids = given
    points = _gradient(subject, {name: ids})
    hits = {}
    for offset in (-1, 0, 1, 2):
        after = ids.roll(-offset, 1)
        inside = torch.arange(ids.shape[1], device=ids.device) + offset
        counts = (points.abs().amax(-1) > 0) & (inside >= 0) & (inside < ids.shape[1])
        hits[offset] = float((points.argmin(-1) == after)[counts].float().mean())
    best = max(hits, key=lambda offset: hits[offset])
    if hits[best] < 0.5 and _spread(subject, name, ids, points):
        cause, done = "logits reshaped across tokens", f"changed one of {name}"
        found = f"the gradient of two tokens' {logits} changed"
        yield finding(cause, done, found, "that of one token's")
        return
    if hits[best] <= 0.9 or best == 1 or (best == 0 and last(name) in LABELS):
        return
    following = points[:, :-1].gather(-1, ids[:, 1:, None])
    if best == 2 and (following < 0).float().mean() > 0.5:
        return  # it predicts the next token, too
    its_own = last(name).startswith("input") and not masked(subject)
    if best == 0 and not subject.claims.causal and not its_own:
        yield NotJudged("shift", f"whether {name} are shifted already", "causal=True")
    else:
        done = f"took the loss's gradient with respect to {logits}, for random {name}"
        found = f"each position's logits are to predict {WHAT[best]}"
        right = "the next token, or the token itself, if targets are shifted outside"
        yield finding(SHIFTS[best], done, found, right)


def crosses(subject: Subject) -> bool:
    """Whether a sequence whose logits do not count has targets that do."""
    given = logits_and_ids(subject)
    if given is None:
        return False
    _, name, ids = given
    points = _gradient(subject, {name: ids})
    for sequence in torch.nonzero(~points.flatten(1).any(1)).flatten().tolist():
        other = ids.clone()
        other[sequence] = ids[sequence].roll(1)
        if not torch.equal(_gradient(subject, {name: other}), points):
            return True
    return False


def _spread(subject: Subject, name: str, ids: Tensor, points: Tensor) -> bool:
    """Whether a target and the one that it was before act on logits of two tokens."""
    for token in range(1, ids.shape[1] - 1):
        other = ids.clone()
        other[0, token] = ids[0, token - 1]
        moved = (_gradient(subject, {name: other}) - points).abs()
        entries = torch.nonzero(moved > 1e-3 * moved.max())  # (batch, token, id)
        if len(entries) == 2 and entries[0, 1] != entries[1, 1]:
            return True
    return False


def masked(subject: Subject, but: str = "") -> bool:
    """Whether it is given more than logits and ids: targets may be left out by that."""
    held = [n for n, x in subject.inputs.items() if isinstance(x, Tensor) and x.dim() and n != but]
    return len(held) > max(2, len(subject.sources))


def logits_and_ids(subject: Subject) -> tuple[str, str, Tensor] | None:
    """The names of both, and random ids."""
    logits = subject.inputs[subject.sources[0]]
    for name, x in subject.inputs.items():
        ids = isinstance(x, Tensor) and not x.is_floating_point() and x.dtype != torch.bool
        if ids and logits.dim() == 3 and x.shape == logits.shape[:2] and x.shape[1] > 3:
            drawn, padding = torch.Generator().manual_seed(6), subject.claims.padding_id
            first = 1 if padding == 0 else 0
            top = max(int(x.max()), first + 1) + (padding != int(x.max()))
            return subject.sources[0], name, torch.randint(first, top, x.shape, generator=drawn)
    return None


def _gradient(subject: Subject, others: Inputs) -> Tensor:
    """Of the loss, with respect to the logits."""
    inputs = {**copied(subject.fresh(6)), **others}
    logits = inputs[subject.sources[0]].requires_grad_()
    with torch.enable_grad():
        result = subject.apply(inputs)
        gradient: Tensor = torch.autograd.grad(output_of(result, has_labels=True), logits)[0]
    return gradient


def padding(subject: Subject, filler: int) -> Results:
    """The loss of logits and padded ids is that of both without the padding."""
    given = logits_and_ids(subject)
    if given is None:
        return
    logits, name, ids = given
    n, inputs = ids.shape[1] - 2, subject.fresh(6)
    short = {logits: inputs[logits][:, :n], name: ids[:, :n]}
    padded = ids.index_fill(1, torch.arange(n, n + 2, device=ids.device), filler)
    if _gradient(subject, {name: padded})[:, n:].any():
        found = "logits at the padding have a gradient"
    elif (pair := [float(subject.run({**inputs, **x})) for x in ({name: padded}, short)]) and (
        abs(pair[0] - pair[1]) > 1e-4 * abs(pair[1])
    ):
        found = f"the loss is {pair[0]:.4f}, and {pair[1]:.4f} without the padding"
    else:
        return
    done, right = f"put padding at the end of {name}", "it is left out of sum and count"
    cause = "padding counts in the loss"
    yield finding(cause, done, found, right)
