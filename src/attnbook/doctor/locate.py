"""Where something happens in a call: which weights are open, and where a change spreads."""

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from attnbook.doctor.subject import Inputs, Subject, plain_kernels
from attnbook.doctor.trace import MOVES, ON_LOGITS, PRODUCTS, Attention, Node, Trace, back

NORMS = ("native_layer_norm", "native_group_norm", "mean", "var", "var_mean", "std", "pow", "rsqrt")
BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
)
USUAL = re.compile(
    r"(^|[._])(w?_?[qkvo]|query|key|value|out|output|(c|q|k|v|o|out|output)_?proj|proj|to_[qkv]|"
    r"to_out|fc_out|outs|(final_)?(layer_?)?norm_?(f|\d)?|ln_?(f|\d)?)(\.|$)",
    re.IGNORECASE,
)
ROUNDING = 1e-6
WEAK = -2.0
"""What is added to close, and does not quite; a boolean that is added counts as 1 or -1."""


def trace_of(subject: Subject) -> Trace:
    """The trace of a call with random inputs, in the mode that the module is in."""
    training = any(m.training for m in subject.modules)
    if training not in subject.traces:
        subject.traces[training] = subject.trace(subject.fresh(0))
    return subject.traces[training]


def attentions(subject: Subject) -> list[Attention]:
    """The attentions that were observed."""
    return trace_of(subject).attentions


def softmaxes(subject: Subject) -> bool:
    """Whether there is a softmax over as many as there are tokens."""
    sizes = {subject.length(name) for name in subject.sources}
    nodes = trace_of(subject).of("_softmax", "_safe_softmax")
    return any(node.outputs[0].shape[int(node.args[1])] in sizes for node in nodes)


def own(subject: Subject) -> list[Attention]:
    """Those in which the target's tokens attend to each other."""
    n = subject.n_tokens
    # A loss may leave out the last token.
    sizes = [(n, n), (n - 1, n - 1)] if subject.kind == "loss" else [(n, n)]
    found = [a for a in attentions(subject) if a.weights.shape[-2:] in sizes]
    if subject.kind == "encoder-decoder":  # the encoder may have as many tokens
        last = found[len(found) // 3 :] if subject.length(subject.sources[0]) == n else found
        return [a for a in last if not bool((support(a).triu(1)).any())] or last
    return found


def support(attention: Attention) -> Tensor:
    """Which query may attend to which key, for any sequence and head."""
    return (attention.weights.nan_to_num(1) != 0).any(0)


def supports(subject: Subject) -> list[Tensor]:
    """Of the attentions of the target's tokens to each other."""
    return [support(a) for a in own(subject)]


def all_closed(subject: Subject) -> bool:
    """Whether an attention forbids everything, though no token is padding."""
    return any(a.logits is not None and (a.logits < -1e3).all() for a in attentions(subject))


def pattern(open_: Tensor) -> str:
    """What a square mask lets through.

    Returns:
        ``"all"``, ``"causal"``, ``"later by one"``, ``"later"``, ``"strictly later"``,
        ``"strictly earlier"`` or ``"other"``.
    """
    if not open_.triu(1).any():
        return "causal" if open_.diagonal().any() else "strictly earlier"
    if open_.all():
        return "all"
    n = len(open_)
    if n > 2 and not open_[1:].triu(1).any():
        return "strictly earlier"  # and the first row is NaN
    empty = ~open_.any(-1)
    # Rows that may attend to nothing come out as NaN, or as weights for all.
    full = open_.all(-1)
    rows = [i for i in range(n) if not empty[i] and (not full[i] or i in (0,))]
    early = open_.tril(-1)[rows[:-1] if len(rows) > 1 else rows]
    if not early.any() and n > 2:
        inner = open_.diagonal()[rows[:-1]] if len(rows) > 1 else open_.diagonal()
        return "later" if inner.any() else "strictly later"
    if not open_.triu(2).any() and open_.diagonal(1).all() and n > 2:
        return "later by one" if open_.tril(-2).any() or n == 3 else "other"
    return "other"


def inside(subject: Subject) -> str:
    """The pattern of all attentions of the target's tokens to each other, if they have one."""
    found = {pattern(s) for s in supports(subject)}
    return found.pop() if len(found) == 1 else "none" if not found else "several"


# Where a change spreads.


def hits(changed: Tensor, size: int) -> list[set[int]]:
    """For every axis that could count ``size`` things, which of them changed."""
    found = []
    for axis, length in enumerate(changed.shape):
        others = [i for i in range(changed.dim()) if i != axis]
        flat = changed.amax(others) if others else changed
        at = torch.nonzero(flat).flatten().tolist()
        if length == size:
            found.append(set(at))
        elif size > 1 and length % size == 0 and length > size:
            found += [{i % size for i in at}, {i // (length // size) for i in at}]
    return found


def first_spread(
    one: Trace, other: Trace, size: int, allowed: set[int], *, square: bool
) -> Node | None:
    """The first operation whose inputs changed only where allowed, and whose output did not.

    Args:
        one: trace of a call.
        other: of one that differs in some tokens.
        size: how many things there are (tokens or sequences).
        allowed: those that may change.
        square: pass over tensors that have two such axes (the logits and weights).
    """
    if [n.name for n in one.nodes] != [n.name for n in other.nodes]:
        return None
    clean: dict[int, bool] = {}
    for a, b in zip(one.nodes, other.nodes, strict=True):
        ok = True
        for x, y in zip(a.outputs, b.outputs, strict=True):
            if x.shape != y.shape or x.numel() == 0:
                continue
            size_of = x.float().nan_to_num(0, 0, 0).abs().max()
            moved = ((x != y) & ~(x.isnan() & y.isnan())).to(torch.uint8)
            if x.is_floating_point():
                moved *= ((x - y).abs() > ROUNDING * size_of).to(torch.uint8) | (
                    x.isnan() != y.isnan()
                )
            if not moved.any() or (square and list(x.shape).count(size) > 1):
                continue
            ok = ok and any(found <= allowed for found in hits(moved, size))
        clean[a.index] = ok
        if not ok and all(clean.get(n.index, True) for n, _ in a.inputs if n is not None):
            return a
    return None


def _traces(
    subject: Subject, inputs: Inputs, name: str, token: int, sequence: int = 0
) -> tuple[Trace, Trace]:
    other = subject.replaced(inputs, name, sequence, token)
    return subject.trace(inputs), subject.trace(other)


def future_leak(subject: Subject, inputs: Inputs, sequence: int, token: int) -> tuple[str, str]:
    """Why a token depends on a later one, and where."""
    leaky = [a for a in own(subject) if support(a).triu(1).any()]
    if leaky:
        cause = open_mask(subject, leaky)
        return cause, in_module(leaky[0].softmax_node)
    one, other = _traces(subject, inputs, subject.target, token, sequence)
    allowed = set(range(token, subject.n_tokens))
    node = first_spread(one, other, subject.n_tokens, allowed, square=True)
    return _cause_of(node, one, "tokens mixed elsewhere"), _at(node)


def batch_leak(subject: Subject, inputs: Inputs, name: str, token: int) -> tuple[str, str]:
    """Why a sequence depends on another one, and where."""
    one, other = _traces(subject, inputs, name, token)
    n = subject.n_sequences
    folded = any(len(a.weights) > n for a in one.attentions)
    if folded and _mixes_single_tokens(subject, inputs):
        return "heads and sequences exchanged", ""
    for a in one.attentions:
        if a.weights.shape[-1] == n and subject.length(name) != n and _mixes_batch(a, one, other):
            only = influence_is_only_batch(subject, inputs, name)
            return "batch and tokens exchanged" if only else "attention over the batch", in_module(
                a.softmax_node
            )
    node = first_spread(one, other, n, {0}, square=n not in (1, subject.n_tokens))
    if node is not None and node.name in BATCH_NORMS:
        return "statistic over the batch", _at(node)
    if node is not None and node.name in ("_softmax", "_safe_softmax"):
        return "softmax over the batch", _at(node)
    cause = _cause_of(node, one, "sequences mixed")
    return ("statistic over the batch" if cause == "norm over the tokens" else cause), _at(node)


def _mixes_single_tokens(subject: Subject, inputs: Inputs) -> bool:
    """Whether sequences of one token mix where something is moved: among batch × heads."""
    try:
        single = subject.sliced(inputs, 1)
        shorter = replace(subject, inputs=single, traces={})
        one, other = _traces(shorter, single, subject.attended[0], 0)
    except Exception:  # it takes one length only
        return False
    node = first_spread(one, other, subject.n_sequences, {0}, square=False)
    return node is not None and node.name in (*MOVES, *PRODUCTS) and not node.between


def _mixes_batch(attention: Attention, one: Trace, other: Trace) -> bool:
    index = attention.context_node.index
    if len(other.nodes) <= index:
        return False
    moved = (attention.key - _key_of(other, index)).abs().amax(-1) > 0
    return int(moved.any(0).sum()) == 1


def _key_of(trace: Trace, index: int) -> Tensor:
    return next(a.key for a in trace.attentions if a.context_node.index == index)


def influence_is_only_batch(subject: Subject, inputs: Inputs, name: str) -> bool:
    """Whether tokens reach the same place in other sequences, and no other token in their own."""
    base = subject.by_token(subject.run(inputs))
    other = subject.by_token(subject.run(subject.replaced(inputs, name, 0, 1)))
    moved = (base != other).flatten(2).any(-1) if base.dim() > 2 else base != other
    return int(moved.any(0).sum()) == 1


def _cause_of(node: Node | None, trace: Trace, otherwise: str) -> str:
    if node is None:
        return otherwise
    contexts = [a.context_node.index for a in trace.attentions]
    if node.name in (*MOVES, "cat", "stack"):
        if contexts and node.index > contexts[0]:
            return "merge without transposing"
        return "split without transposing" if contexts else otherwise
    if node.name in NORMS and (node.name != "mean" or _then_norm(node)):
        return "norm over the tokens"
    if node.name in ("convolution", "_convolution"):
        return "convolution into the future"
    return otherwise


def _then_norm(node: Node) -> bool:
    after = [node, *node.users]
    return any(user.name in ("sub", "rsqrt", "sqrt") for one in after for user in one.users)


def open_mask(subject: Subject, leaky: list[Attention]) -> str:
    """What is wrong with masks that let a token attend to later ones."""
    attention = leaky[0]
    open_ = support(attention)
    everywhere = own(subject)
    kind = pattern(open_)
    if kind == "later by one":
        return "causal mask off by one"
    if kind in ("later", "strictly later"):
        return "mask of wrong polarity"
    partly = any(not one.triu(1).any() for one in attention.weights != 0)
    if kind == "all" and (partly or len(leaky) < len(everywhere)):
        return "mask not everywhere"
    if kind == "all":
        return weak_mask(subject, attention) or "no causal mask"
    at = torch.arange(len(open_))
    distance = (at[:, None] - at).abs()
    two_sided = open_.cpu().equal(distance <= distance[open_.cpu()].max())
    return "other window" if two_sided else "mask of another shape"


def weak_mask(subject: Subject, attention: Attention) -> str:
    """What kind of causal mask does not close, if there is one."""
    if attention.logits is None or attention.logits.shape[-1] < 3:
        return ""
    upper = torch.ones(attention.logits.shape[-2:], dtype=torch.bool).triu(1)
    here, products = attention.logits[:, upper], attention.products[:, upper]
    if here.std() <= 1e-6 * max(1.0, float(here.abs().max())) and products.std() > 0:
        return "masked with a finite number"
    rest = residual(subject, attention)
    step = 0.0 if rest is None else _step(rest, upper)
    if step < WEAK:
        return "masked with a finite number"
    return "mask added as a number" if abs(step) > 1e-3 else ""


def residual(subject: Subject, attention: Attention) -> Tensor | None:
    """What was added to the scaled products."""
    fitted = slope(subject, attention)
    if fitted is None or attention.logits is None:
        return None
    return attention.logits - fitted * attention.products


def slope(subject: Subject, attention: Attention) -> float | None:
    """By how much logits change with the products, from a sequence to the next.

    What is added to all sequences alike (a mask, positions) plays no part then.
    """
    if attention.logits is None:
        return None
    heads = per_sequence(subject, attention)
    x, y = attention.products.double(), attention.logits.double()
    open_ = (y > -1e3) & y.isfinite()
    if heads is None:  # one sequence: what is added differs by head
        count = open_.sum((1, 2), keepdim=True)
        x, y = (z.masked_fill(~open_, 0) for z in (x, y))
        x, y = (z - z.sum((1, 2), keepdim=True) / count for z in (x, y))
        both = open_
    else:
        x, y, both = x[heads:] - x[:-heads], y[heads:] - y[:-heads], open_[heads:] & open_[:-heads]
    x, y = x[both], y[both]
    if x.numel() < 2 or not x.norm() > 0:
        return None
    return float((x @ y) / (x @ x))


def per_sequence(subject: Subject, attention: Attention) -> int | None:
    """How many of batch × heads belong to a sequence; ``None`` for a single sequence."""
    n = subject.n_sequences
    return len(attention.weights) // n if n > 1 and len(attention.weights) % n == 0 else None


def _step(rest: Tensor, upper: Tensor) -> float:
    above, below = rest[:, upper], rest[:, ~upper]
    spread = float(above.std() + below.std())
    step = float(above.mean() - below.mean())
    is_mask = len(rest.round(decimals=3).unique()) < 3 and bool(above.std() < 1e-3)
    return step if is_mask or spread < 0.1 * abs(step) else 0.0


def padding_leak(subject: Subject, name: str, inputs: Inputs, allowed: Tensor) -> tuple[str, str]:
    """Why a real token depends on padding, and where."""
    n_sequences, n_keys = allowed.shape

    def columns(weights: Tensor) -> Tensor:
        """Which keys somebody attends to: (batch, heads, keys)."""
        return (weights.nan_to_num(1) != 0).view(n_sequences, -1, *weights.shape[1:]).any(2)

    masked = False
    for a in subject.trace(inputs).attentions:
        if a.weights.shape[-1] != n_keys or len(a.weights) % n_sequences:
            continue
        where = in_module(a.softmax_node)
        if (columns(a.weights) & ~allowed[:, None]).any():
            return _open_padding(subject, a, columns(a.weights), allowed), where
        if (columns(a.softmax) & ~allowed[:, None]).any():
            return "mask after the softmax", where
        masked = True
    if masked and subject.kind == "pooled":
        return "padding is pooled", ""
    for softmax in subject.trace(inputs).of("_softmax", "_safe_softmax"):
        axis = int(softmax.args[1]) % softmax.outputs[0].dim()
        logits, soft = (x.movedim(axis, -1) for x in (softmax.args[0], softmax.outputs[0]))
        if soft.shape[-1] != n_keys or len(soft) != n_sequences:
            continue
        padding = ~allowed.view(n_sequences, *[1] * (soft.dim() - 2), n_keys).expand_as(soft)
        if soft[padding].any() and _constant(logits[padding]):
            return "masked with a finite number", in_module(softmax)
    token = int((~allowed[0]).nonzero()[-1])
    one, other = _traces(subject, inputs, name, token)
    node = first_spread(one, other, n_keys, {token}, square=True)
    cause = _cause_of(node, one, "tokens mixed elsewhere")
    if cause == "convolution into the future" and not subject.claims.causal:
        cause = "convolution over padding"
    return cause, _at(node)


def _open_padding(subject: Subject, attention: Attention, columns: Tensor, allowed: Tensor) -> str:
    """What is wrong with a mask that leaves padding open."""
    blocked = ~allowed[0]
    if attention.logits is not None and (attention.logits == torch.inf).any():
        return "NaN where the mask forbids"
    if (columns[0] == blocked).all():
        return "mask of wrong polarity"
    rest = residual(subject, attention)
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
            return "masked with a finite number" if step < WEAK else "mask added as a number"
    patterns = {tuple(row.tolist()) for row in columns.flatten(0, 1)}
    if len(patterns) > 1 and patterns <= {tuple(row.tolist()) for row in allowed}:
        return "mask of another sequence"
    return "padding is attended to"


def _constant(logits: Tensor) -> bool:
    """Whether all are one number, or all are closed."""
    return bool((logits < -1e3).all() or (logits == logits.flatten()[0]).all())


def dropouts(subject: Subject, inputs: Inputs) -> list[tuple[float, str]]:
    """The probabilities of the dropouts of a call, and whether one is on the logits."""
    trace = subject.trace(inputs)
    found = []
    for node in trace.of("native_dropout", "bernoulli_"):
        p = float(node.args[1])
        p = p if node.name == "native_dropout" else 1 - p
        found.append((p, "logits" if _reaches_softmax(node) else "elsewhere"))
    return found


def _reaches_softmax(node: Node) -> bool:
    """Whether what it gives is the logits, through nothing but operations on single numbers."""
    queue, seen = list(node.users), set()
    while queue:
        user = queue.pop()
        if user.index in seen:
            continue
        seen.add(user.index)
        if user.name in ("_softmax", "_safe_softmax"):
            score = back(user.inputs[0][0], (*MOVES, *ON_LOGITS, "bernoulli_"), ("bmm", "mm"))
            return score is not None and score.between
        if user.name in (*MOVES, *ON_LOGITS):
            queue += user.users
    return False


def used_parameters(
    subject: Subject, inputs: Inputs
) -> tuple[set[str], set[str], list[tuple[int, ...]]]:
    """Names of the parameters that a call uses, and of the modules that run; foreign parameters."""
    names: dict[int, list[str]] = {}
    for module in subject.modules:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
    ran: set[nn.Module] = set()

    def note(module: nn.Module, _: Any) -> None:
        ran.add(module)

    hook = register_module_forward_pre_hook(note)
    try:
        trace = subject.trace(inputs)
    finally:
        hook.remove()
    used: set[str] = set()
    foreign: dict[int, tuple[int, ...]] = {}
    known = {id(b) for m in subject.modules for b in m.buffers()}
    for node in trace.nodes:
        for _, tensor in node.inputs:
            if id(tensor) in names:
                used.update(names[id(tensor)])
            elif isinstance(tensor, nn.Parameter) and id(tensor) not in known:
                foreign[id(tensor)] = tuple(tensor.shape)
    running = {n for m in subject.modules for n, part in m.named_modules() if part in ran}
    return used, running, list(foreign.values())


def norm_calls(subject: Subject) -> list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """The norms of one's own that a call runs, with what they are given."""
    found: dict[nn.Module, tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = {}
    names = {part: name for m in subject.modules for name, part in m.named_modules()}

    def note(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        kind = type(module).__name__.lower()
        others = any(word in kind for word in ("batch", "instance", "block", "layers", "prenorm"))
        leaf = not any(True for _ in module.children())
        floats = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if "norm" in kind and leaf and floats and not others:
            found.setdefault(module, (names[module], module, args, kwargs))

    handles = [m.register_forward_hook(note, with_kwargs=True) for m in names]
    try:
        with plain_kernels():
            subject.run(subject.fresh(0))
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def should_run(name: str, running: set[str]) -> bool:
    """Whether a parameter that is not used should be, since what is around it runs.

    Judged are the matrices and norms that every block has, by their usual names, and the members
    of a list of which others run. What else is not used may be for another setting.
    """
    words = name.split(".")
    for depth in range(len(words) - 1, 0, -1):
        around = ".".join(words[: depth - 1])
        if words[depth - 1].isdigit() and ".".join(words[:depth]) not in running:
            return any(n.startswith(f"{around}.") for n in running)
        if ".".join(words[:depth]) in running:
            break
    around = ".".join(words[:-2])  # what never ran is for another setting
    return around in running and bool(USUAL.search(".".join(words[-2:])))


def has_positions(subject: Subject) -> bool:
    """Whether equal tokens have other logits, values or outputs at other positions."""
    inputs = constant(subject)
    trace = subject.trace(inputs)
    assert trace.output is not None
    output = subject.by_token(trace.output)
    if output.dim() > 1 and (output - output[:, :1]).abs().max() > 1e-4 * output.abs().max():
        return True
    for a in trace.attentions[:1]:
        if a.logits is not None:
            open_ = a.logits > -1e3
            first = a.logits.masked_fill(~open_, 0)
            mean = first.sum((1, 2), keepdim=True) / open_.sum((1, 2), keepdim=True)
            off = (a.logits - mean)[open_].abs().max()
            return bool(off > 1e-4 * max(1e-3, float(first.abs().max())))
    return False


def constant(subject: Subject) -> Inputs:
    """Inputs whose tokens are all the same."""
    inputs = subject.fresh(0)
    changed: dict[str, Any] = {}
    for name in subject.sources:
        x = inputs[name]
        changed[name] = x.narrow(subject.tokens, 0, 1).expand_as(x).clone()
    if subject.same:
        changed = dict.fromkeys(subject.same, changed[subject.same[0]])
    return {**inputs, **changed}


def in_module(node: Node) -> str:
    """The module that an operation is in, for a sentence."""
    return f", in {node.module}" if node.module else ""


def _at(node: Node | None) -> str:
    if node is None:
        return ""
    return f"; it spreads at {node.name.strip('_')}{in_module(node).replace(',', '')}"
