"""Why something depends on what it must not depend on, and where that begins."""

from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.observed import path
from attnbook.doctor.subject import Inputs, Subject, changed
from attnbook.doctor.trace import MOVES, PRODUCTS, SOFTMAX, Attention, Node, Trace

NORMS = ("native_layer_norm", "native_group_norm", "mean", "var", "var_mean", "std", "pow", "rsqrt")
ROUNDING = 1e-6


def hits(moved: Tensor, size: int) -> list[set[int]]:
    """For every axis that could count ``size`` things, which of them changed."""
    found, where = [], torch.nonzero(moved)
    for axis, length in enumerate(moved.shape):
        at = where[:, axis].unique().tolist()
        if length == size:
            found.append(set(at))
        elif size > 1 and length % size == 0 and length > size:
            found += [{i % size for i in at}, {i // (length // size) for i in at}]
        elif size < length < 2 * size:  # padded before a convolution
            found.append({i for i in at if i < size})
    return found


def first_spread(
    one: Trace, other: Trace, size: int, allowed: set[int], *, square: bool
) -> Node | None:
    """The first operation that changes more than the allowed of ``size`` tokens or sequences.

    With ``square``, tensors that have two such axes (the logits and weights) are passed over.
    """
    if [n.name for n in one.nodes] != [n.name for n in other.nodes]:
        return None

    def clean(x: Tensor, y: Tensor) -> bool:
        if x.shape != y.shape or (square and list(x.shape).count(size) > 1):
            return True
        moved = (x != y) & ~(x.isnan() & y.isnan())
        if x.is_floating_point() and moved.any():
            moved &= ~((x - y).abs() <= ROUNDING * x.nan_to_num(0, 0, 0).abs().max())
        return not moved.any() or any(found <= allowed for found in hits(moved, size))

    spread: set[int] = set()
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if not all(clean(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)):
            spread.add(a.index)
            if not any(n is not None and n.index in spread for n in a.makers):
                return a
    return None


def future_leak(subject: Subject, inputs: Inputs, sequence: int, token: int) -> tuple[str, str]:
    """Why a token depends on a later one, and where."""
    leaky = [a for a in locate.own(subject) if locate.support(a).triu(1).any()]
    if leaky:
        cause, open_ = locate.open_mask(subject, leaky), locate.support(leaky[0])
        n = len(open_)
        band = all(len(open_.diagonal(i).unique()) == 1 for i in range(1, n))
        if cause == "mask of another shape" and not (band or (~open_).tril().any()):
            cause = "no causal mask"  # another mask opens what it closes
        return cause, locate.in_module(leaky[0].softmax_node)
    one = subject.trace(inputs)
    other = subject.trace(subject.replaced(inputs, subject.target, sequence, token))
    allowed = set(range(token, subject.n_tokens))
    node = first_spread(one, other, subject.n_tokens, allowed, square=True)
    return _cause_of(node, one, "tokens mix outside the attention"), _at(node)


def batch_leak(subject: Subject, inputs: Inputs, name: str, token: int) -> tuple[str, str]:
    """Why a sequence depends on another one, and where."""
    one, other = subject.trace(inputs), subject.trace(subject.replaced(inputs, name, 0, token))
    n = subject.n_sequences
    folded = any(len(a.weights) > n for a in one.attentions)
    if folded and _mixes_single_tokens(subject, inputs):
        return "heads and sequences exchanged", ""
    for a in one.attentions:
        if a.weights.shape[-1] == n and subject.length(name) != n and _mixes_batch(a, other):
            only = _reaches_batch_only(subject, inputs, name)
            cause = "batch and tokens exchanged" if only else "attention over the batch"
            return cause, locate.in_module(a.softmax_node)
    node = first_spread(one, other, n, {0}, square=n not in (1, subject.n_tokens))
    if node is not None and node.name in SOFTMAX:
        return "softmax over the batch", _at(node)
    cause = _cause_of(node, one, "sequences mixed")
    is_norm = cause == "norm over the tokens" or (node is not None and "batch_norm" in node.name)
    return "statistic over the batch" if is_norm else cause, _at(node)


def _mixes_single_tokens(subject: Subject, inputs: Inputs) -> bool:
    """Whether sequences of one token mix where something is moved: among batch × heads."""
    try:
        single = subject.sliced(inputs, 1)
        shorter = replace(subject, inputs=single, traces={})
        other = shorter.trace(shorter.replaced(single, subject.attended[0], 0, 0))
        one = shorter.trace(single)
    except Exception:  # it takes one length only
        return False
    node = first_spread(one, other, subject.n_sequences, {0}, square=False)
    return node is not None and node.name in (*MOVES, *PRODUCTS) and not node.between


def _mixes_batch(a: Attention, other: Trace) -> bool:
    twins = (x for x in other.attentions if x.context_node.index == a.context_node.index)
    return any(int((a.key != twin.key).any(-1).any(0).sum()) == 1 for twin in twins)


def _reaches_batch_only(subject: Subject, inputs: Inputs, name: str) -> bool:
    """Whether tokens reach the same place in other sequences, and no other token in their own."""
    calls = (inputs, subject.replaced(inputs, name, 0, 1))
    moved = changed(*(subject.by_token(subject.run(x)) for x in calls)) > 0
    return int(moved.any(0).sum()) == 1


def _cause_of(node: Node | None, trace: Trace, otherwise: str) -> str:
    if node is None:
        return otherwise
    contexts = [a.context_node.index for a in trace.attentions]
    if node.name in (*MOVES, "cat", "stack") and contexts:
        merged = node.index > contexts[0]
        return "merge without transposing" if merged else "split without transposing"
    near = [node, *node.users]
    centred = any(user.name in ("sub", "rsqrt", "sqrt") for one in near for user in one.users)
    if node.name in NORMS and (node.name != "mean" or centred):
        return "norm over the tokens"
    if node.name in ("convolution", "_convolution"):
        return "non-causal convolution"
    return otherwise


def padding_leak(subject: Subject, name: str, inputs: Inputs, allowed: Tensor) -> tuple[str, str]:
    """Why a real token depends on padding, and where."""
    n_sequences, n_keys = allowed.shape
    token = int((~allowed[0]).nonzero()[-1])
    one, other = subject.trace(inputs), subject.trace(subject.replaced(inputs, name, 0, token))
    longer = _with_more_keys(one, other, allowed, token)

    def columns(weights: Tensor) -> Tensor:
        """Which keys somebody, or a real token of a pool, attends to: (batch, heads, keys)."""
        open_ = (weights.nan_to_num(1) != 0).view(n_sequences, -1, *weights.shape[1:])
        if subject.kind == "pooled" and open_.shape[2] == n_keys:
            open_ = open_ & allowed[:, None, :, None]
        return open_.any(2)

    masked = False
    for a in one.attentions:
        real = longer.get(a.weights.shape[-1])
        if real is None or len(a.weights) % n_sequences:
            continue
        where = locate.in_module(a.softmax_node)
        if (columns(a.weights) & ~real[:, None]).any():
            return _open_padding(subject, a, columns(a.weights), real), where
        if (columns(a.softmax) & ~real[:, None]).any():
            return "mask after the softmax", where
        masked = True
    if masked and subject.kind == "pooled":
        return "pooling includes padding", ""
    for softmax in one.of(*SOFTMAX):
        axis = int(softmax.args[1]) % softmax.outputs[0].dim()
        logits, soft = (x.movedim(axis, -1) for x in (softmax.args[0], softmax.outputs[0]))
        if soft.shape[-1] != n_keys or len(soft) != n_sequences:
            continue
        padding = ~allowed.view(n_sequences, *[1] * (soft.dim() - 2), n_keys).expand_as(soft)
        if soft[padding].any() and _constant(logits[padding]):
            return "masked with a finite number", locate.in_module(softmax)
    node = first_spread(one, other, n_keys, {token}, square=True)
    cause = _cause_of(node, one, "tokens mix outside the attention")
    if cause.endswith("without transposing") and not _at_heads(node, one):
        cause = "padding is attended to"
    if cause == "non-causal convolution" and not subject.claims.causal:
        cause = "convolution over padding"
    return cause, _at(node)


def _with_more_keys(one: Trace, other: Trace, allowed: Tensor, token: int) -> dict[int, Tensor]:
    """What is not padding, (batch, keys), by the number of keys: tokens may be put before it."""
    n_sequences, n_keys = allowed.shape
    found = {n_keys: allowed}
    for a, b in zip(one.attentions, other.attentions, strict=False):
        n = a.key.shape[1]
        if n <= n_keys or n in found or a.key.shape != b.key.shape:
            continue
        moved = (a.key != b.key).any(-1).any(0).nonzero().flatten().tolist()
        if len(moved) == 1 and 0 <= moved[0] - token <= n - n_keys:
            found[n] = torch.ones(n_sequences, n, dtype=torch.bool)
            found[n][:, moved[0] - token :][:, :n_keys] = allowed
    return found


def _at_heads(node: Node | None, trace: Trace) -> bool:
    """Whether an operation views queries, keys, values, or what the attention gave."""
    if node is None or node.name not in MOVES:
        return False
    ends = [n for a in trace.attentions for n in (a.query_node, a.key_node, a.value_node)]
    if any(node is n for end in ends for n, _ in path(end)):
        return True
    contexts, now = {a.context_node.index for a in trace.attentions}, node
    while now.name in MOVES:
        maker = next((n for n in now.makers if n is not None), None)
        if maker is None:
            return False
        now = maker
    return now.index in contexts


def _open_padding(subject: Subject, attention: Attention, columns: Tensor, allowed: Tensor) -> str:
    """What is wrong with a mask that leaves padding open."""
    blocked = ~allowed[0]
    if attention.logits is not None and (attention.logits == torch.inf).any():
        return "NaN where the mask forbids"
    if (columns[0] == blocked).all():
        return "inverted mask"
    rest = locate.residual(subject, attention)
    if attention.logits is not None and rest is not None and columns.all():
        first = slice(len(attention.logits) // len(allowed))  # the heads of a sequence
        logits, rest = attention.logits[first], rest[first]
        if logits.shape[1] == len(blocked) and _constant(logits[:, blocked]):
            return "mask on the queries"
        if _constant(logits[..., blocked]):
            return "masked with a finite number"
        open_ = logits > -1e3
        closed, others = (rest[..., x][open_[..., x]] for x in (blocked, allowed[0]))
        step, spread = float(closed.mean() - others.mean()), float(closed.std() + others.std())
        if abs(step) > max(1e-3, spread):
            weak = step < locate.WEAK
            return "masked with a finite number" if weak else "mask added as a number"
    patterns = {tuple(row.tolist()) for row in columns.flatten(0, 1)}
    if len(patterns) > 1 and patterns <= {tuple(row.tolist()) for row in allowed}:
        return "mask of another sequence"
    return "padding is attended to"


def _constant(logits: Tensor) -> bool:
    """Whether all are one number, or all are closed."""
    return bool((logits < -1e3).all() or (logits == logits.flatten()[0]).all())


def _at(node: Node | None) -> str:
    if node is None:
        return ""
    return f"; it spreads at {node.name.strip('_')}{locate.in_module(node).replace(',', '')}"
