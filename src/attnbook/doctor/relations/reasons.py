"""Why something depends on what it must not depend on, and where that begins.

One token is changed, and two traces are compared: the first operation at which the change reaches
another token (or sequence) is where they mix, and what this operation does is the cause.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Inputs, Refused, Subject
from attnbook.doctor.stages import locate
from attnbook.doctor.tape.trace import MOVES, PRODUCTS, SOFTMAX, Attention, Node, Trace

Why = tuple[str, str]
"""A cause, and the place where it is, as the end of a sentence."""
NORMS = ("native_layer_norm", "native_group_norm", "mean", "var", "var_mean", "std", "pow", "rsqrt")
ROUNDING = 1e-6
UNKNOWN: Why = ("padding has an effect", "")


def future_leak(subject: Subject, inputs: Inputs, sequence: int, token: int) -> Why:
    """Why a token depends on a later one, and where."""
    leaky = [a for a in locate.own(subject) if locate.support(a).triu(1).any()]
    if leaky:
        cause, open_ = locate.open_mask(subject, leaky), locate.support(leaky[0])
        by_distance = all(len(open_.diagonal(i).unique()) == 1 for i in range(1, len(open_)))
        if cause == "mask of another shape" and not by_distance and not (~open_).tril().any():
            cause = "no causal mask"  # what is closed is closed by another mask
        return cause, locate.in_module(leaky[0].softmax_node)
    for open_ in _behind_others(subject)[:1]:
        return locate.WRONG_MASKS.get(locate.pattern(open_), "no causal mask"), ""
    before, after = _two_traces(subject, inputs, subject.target, sequence, token)
    later = set(range(token, subject.n_tokens))
    node = _first_spread(before, after, subject.n_tokens, later, square=True)
    return _cause_at(node, before) or "tokens mix outside the attention", _at(node)


def _behind_others(subject: Subject) -> list[Tensor]:
    """What the target's tokens attend to among themselves, where others stand before them."""
    n, squares = subject.n_tokens, (locate.support(a) for a in locate.attentions(subject))
    joint = [x[-n:, -n:] for x in squares if len(x) == x.shape[1] > n]
    return [x for x in joint if x.triu(1).any()]


def batch_leak(subject: Subject, inputs: Inputs, name: str, token: int) -> Why:
    """Why a sequence depends on another one, and where."""
    before, after = _two_traces(subject, inputs, name, 0, token)
    n = subject.n_sequences
    if _mixes_single_tokens(subject, inputs, before):
        return "heads and sequences exchanged", ""
    if (at := _over_sequences(before, after, n)) and n != subject.length(name):
        return "batch and tokens exchanged", locate.in_module(at)
    node = _first_spread(before, after, n, {0}, square=n not in (1, subject.n_tokens))
    cause = _cause_at(node, before) or "sequences mixed"
    operation = node.name if node else ""
    if operation in SOFTMAX:
        cause = "softmax over the batch"
    if cause == "norm over the tokens" or "batch_norm" in operation:
        cause = "statistic over the batch"
    return cause, _at(node)


def no_effect(subject: Subject, inputs: Inputs, name: str) -> Why:
    """Why no output depends on an input, and where."""
    at = _over_sequences(*_two_traces(subject, inputs, name, 0, 0), subject.n_sequences)
    cause = "batch and tokens exchanged" if at else "input has no effect"
    return cause, locate.in_module(at) if at else ""


def padding_leak(
    subject: Subject, name: str, inputs: Inputs, allowed: Tensor, cut: Inputs | None
) -> Why:
    """Why a real token depends on padding, and where; ``allowed`` is (batch, keys).

    ``cut`` is the call without padding, if it is not what the padding holds that counts.
    """
    (n_sequences, n_keys), token = allowed.shape, int((~allowed[0]).nonzero()[-1])
    before, after = _two_traces(subject, inputs, name, 0, token)
    attentions = [
        a
        for a in before.attentions
        if a.weights.shape[-1] == n_keys and len(a.weights) % n_sequences == 0
    ]
    for a in attentions:
        if cause := _open_padding(subject, a, allowed):
            return cause, locate.in_module(a.softmax_node)
    if attentions and subject.kind == "pooled":
        return "pooling includes padding", ""
    for softmax in _leaky_softmaxes(before, ~allowed[0]):
        return "masked with a finite number", locate.in_module(softmax)
    node = _first_spread(before, after, n_keys, {token}, square=True)
    if node is None:
        return _padding_by_place(before, subject.trace(cut), n_sequences) if cut else UNKNOWN
    cause = _cause_at(node, before) or "tokens mix outside the attention"
    if cause == "non-causal convolution" and not subject.claims.causal:
        cause = "convolution over padding"
    return cause, _at(node)


# Where a change spreads.


def _two_traces(
    subject: Subject, inputs: Inputs, name: str, sequence: int, token: int
) -> tuple[Trace, Trace]:
    """The traces of a call, and of the same call with one token changed."""
    return subject.trace(inputs), subject.trace(subject.replaced(inputs, name, sequence, token))


def _first_spread(
    before: Trace, after: Trace, size: int, allowed: set[int], *, square: bool
) -> Node | None:
    """The first operation that changes more than the allowed of ``size`` tokens or sequences.

    With ``square``, tensors that have two such axes (the logits and weights) are passed over.
    """
    if [n.name for n in before.nodes] != [n.name for n in after.nodes]:
        return None

    def stays(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape or (square and list(x.shape).count(size) > 1):
            return True
        moved = _moved(x, y)
        return not moved.any() or any(which <= allowed for which in _which(moved, size))

    pairs = zip(before.nodes, after.nodes, strict=True)
    return next((a for a, b in pairs if not all(map(stays, a.outputs, b.outputs))), None)


def _padding_by_place(whole: Trace, cut: Trace, n_sequences: int) -> Why:
    """What lets padding in, whatever it holds, by the first operation that gives something else."""
    node = _first_differs(whole, cut, n_sequences)
    if node is not None and node.name.endswith("convolution"):
        return "convolution over padding", _at(node)
    if any(
        node and a.score_node.index < node.index <= a.softmax_node.index for a in whole.attentions
    ):
        return "mask of another shape", _at(node)
    return UNKNOWN[0], _at(node)


def _first_differs(whole: Trace, cut: Trace, n_sequences: int) -> Node | None:
    """The first operation that gives the first sequence's real tokens something else."""
    for a, b in zip(whole.nodes, cut.nodes, strict=False):
        if a.name != b.name:
            return None
        for x, y in zip(a.outputs, b.outputs, strict=True):
            if (
                x.dim() != y.dim()
                or x.dim() < 2
                or len(x) % n_sequences
                or not x.is_floating_point()
            ):
                continue
            first, alone = x[: len(x) // n_sequences], y[: len(y) // n_sequences]
            real = first[tuple(map(slice, alone.shape))]
            if real.shape == alone.shape and a.depends and _moved(real, alone).any():
                return a
    return None


def _moved(x: Tensor, y: Tensor) -> Tensor:
    """Which numbers differ by more than rounding."""
    moved = (x != y) & ~(x.isnan() & y.isnan())
    if x.is_floating_point() and moved.any():
        moved &= ~((x - y).abs() <= ROUNDING * x.nan_to_num(0, 0, 0).abs().max())
    return moved


def _which(moved: Tensor, size: int) -> Iterator[set[int]]:
    """For every axis that could count ``size`` tokens or sequences, which of them moved."""
    for length, at in zip(moved.shape, moved.nonzero().T, strict=True):
        if length == size:
            yield set(at.tolist())
        elif length > size > 1 and length % size == 0:  # joined with the axis before or after
            yield set((at % size).tolist())
            yield set((at // (length // size)).tolist())
        elif size < length < 2 * size:  # padded before a convolution
            yield set(at.tolist()) & set(range(size))


def _cause_at(node: Node | None, trace: Trace) -> str:
    """What an operation does that mixes tokens or sequences, if it is of a known kind."""
    if node is None:
        return ""
    if node.name in (*MOVES, "cat", "stack") and trace.attentions:
        merges = node.index > trace.attentions[0].context_node.index
        return "merge without transposing" if merges else "split without transposing"
    near = [user.name for n in (node, *node.users) for user in n.users]
    if node.name in NORMS and (node.name != "mean" or {*near} & {"sub", "rsqrt", "sqrt"}):
        return "norm over the tokens"
    return "non-causal convolution" if node.name.endswith("convolution") else ""


def _at(node: Node | None) -> str:
    """The operation and its module, as the end of a sentence."""
    if node is None:
        return ""
    return f"; it spreads at {node.name.strip('_')}{locate.in_module(node).replace(',', '')}"


# Between sequences.


def _over_sequences(before: Trace, after: Trace, n: int) -> Node | None:
    """The first softmax over keys of which there are ``n``, one of which is changed."""
    for a, b in zip(before.attentions, after.attentions, strict=False):
        if a.weights.shape[-1] == n > 1 == (a.key != b.key).any(-1).any(0).sum():
            return a.softmax_node
    return None


def _mixes_single_tokens(subject: Subject, inputs: Inputs, trace: Trace) -> bool:
    """True if sequences of one token mix by a view: of batch × heads, then."""
    if not any(len(a.weights) > subject.n_sequences for a in trace.attentions):
        return False
    try:
        single = subject.sliced(inputs, 1)
        shorter = replace(subject, inputs=single, traces={})
        traces = _two_traces(shorter, single, subject.attended[0], 0, 0)
    except Refused:  # the module takes one length only
        return False
    node = _first_spread(*traces, subject.n_sequences, {0}, square=False)
    return node is not None and node.name in (*MOVES, *PRODUCTS) and not node.between


# Of padding.


def _open_padding(subject: Subject, a: Attention, real: Tensor) -> str:
    """What is wrong with a mask that leaves padding open, if this one does."""
    keys = _attended(subject, a.weights, real)
    if not (keys & ~real[:, None]).any():
        after = (_attended(subject, a.softmax, real) & ~real[:, None]).any()
        return "mask after the softmax" if after else ""
    blocked = ~real[0]
    if a.logits is not None and (a.logits == torch.inf).any():
        return "NaN where the mask forbids"
    if (keys[0] == blocked).all():
        return "inverted mask"
    if keys.all() and (cause := _weak_padding(subject, a, blocked)):
        return cause
    patterns = {tuple(row.tolist()) for row in keys.flatten(0, 1)}
    if len(patterns) > 1 and patterns <= {tuple(row.tolist()) for row in real}:
        return "mask of another sequence"
    return "padding is attended to"


def _attended(subject: Subject, weights: Tensor, real: Tensor) -> Tensor:
    """Which keys a query (of a pool: a real one) attends to: (batch, heads, keys)."""
    open_ = (weights.nan_to_num(1) != 0).view(len(real), -1, *weights.shape[1:])
    if subject.kind == "pooled" and open_.shape[2] == real.shape[1]:
        open_ = open_ & real[:, None, :, None]
    return open_.any(2)


def _weak_padding(subject: Subject, a: Attention, blocked: Tensor) -> str:
    """What was done to the logits of padding that does not close them, if anything was."""
    added = locate.residual(subject, a)
    if a.logits is None or added is None:
        return ""
    heads = slice(len(a.logits) // subject.n_sequences)  # those of the first sequence
    logits, added = a.logits[heads], added[heads]
    if logits.shape[1] == len(blocked) and _constant(logits[:, blocked]):
        return "mask on the queries"
    if _constant(logits[..., blocked]):
        return "masked with a finite number"
    open_ = logits > -1e3
    padding, others = (added[..., x][open_[..., x]] for x in (blocked, ~blocked))
    step, spread = float(padding.mean() - others.mean()), float(padding.std() + others.std())
    if abs(step) > max(1e-3, spread):
        return "masked with a finite number" if step < locate.WEAK else "mask added as a number"
    return ""


def _leaky_softmaxes(trace: Trace, blocked: Tensor) -> Iterator[Node]:
    """Softmaxes over the keys that give padding a weight, though its logits are one number."""
    for softmax in trace.of(*SOFTMAX):
        axis = int(softmax.args[1])
        logits, weights = (x.movedim(axis, -1) for x in (softmax.args[0], softmax.outputs[0]))
        if weights.dim() < 2 or weights.shape[-1] != len(blocked):
            continue
        if weights[0, ..., blocked].any() and _constant(logits[0, ..., blocked]):
            yield softmax


def _constant(logits: Tensor) -> bool:
    """True if all are one number, or all are closed."""
    return bool((logits < -1e3).all() or (logits == logits.flatten()[0]).all())
