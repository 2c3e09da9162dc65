"""The attentions of a call: what is open, what was added to the products, whether order counts."""

from typing import Any

import torch
from torch import Tensor, nn

from attnbook.doctor.subject import Inputs, Subject, plain_kernels
from attnbook.doctor.trace import (
    MOVES,
    ON_LOGITS,
    PRODUCTS,
    SOFTMAX,
    Attention,
    Node,
    Trace,
    back,
)

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
    trace = trace_of(subject)
    for node in trace.of("exp"):  # by hand
        score = back(node.makers[0], (*MOVES, *ON_LOGITS), PRODUCTS)
        among = [n for n in sizes if n > 1 and node.outputs[0].shape[1:].count(n) > 1]
        if among and score is not None and score.between:
            return True
    return any(node.outputs[0].shape[int(node.args[1])] in sizes for node in trace.of(*SOFTMAX))


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
    """What a square mask lets through: all, causal, (strictly) later, later by one, or other."""
    if not open_.triu(1).any():
        return "causal" if open_.diagonal().any() else "strictly earlier"
    if open_.all():
        return "all"
    n = len(open_)
    if n < 3:
        return "other"
    if not open_[1:].triu(1).any():
        return "strictly earlier"  # and the first row is NaN
    # Rows that may attend to nothing come out as NaN, or as weights for all.
    rows = [i for i in range(n) if open_[i].any() and (i == 0 or not open_[i].all())]
    rows = rows[:-1] or rows
    if not open_.tril(-1)[rows].any():
        return "later" if open_.diagonal()[rows].any() else "strictly later"
    next_alone = not open_.triu(2).any() and open_.diagonal(1).all()
    return "later by one" if next_alone and (n == 3 or open_.tril(-2).any()) else "other"


def inside(subject: Subject) -> str:
    """The pattern of all attentions of the target's tokens to each other, if they have one."""
    found = {pattern(s) for s in supports(subject)}
    return found.pop() if len(found) == 1 else "none" if not found else "several"


def open_mask(subject: Subject, leaky: list[Attention]) -> str:
    """What is wrong with masks that let a token attend to later ones."""
    open_ = support(leaky[0])
    kind = pattern(open_)
    if kind == "later by one":
        return "causal mask off by one"
    if kind in ("later", "strictly later"):
        return "inverted mask"
    if kind != "all":
        at = torch.arange(len(open_))
        distance = (at[:, None] - at).abs()
        two_sided = open_.cpu().equal(distance <= distance[open_.cpu()].max())
        return "other window" if two_sided else "mask of another shape"
    partly = any(not one.triu(1).any() for one in leaky[0].weights != 0)
    if partly or len(leaky) < len(own(subject)):
        return "mask not everywhere"
    return weak_mask(subject, leaky[0]) or "no causal mask"


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
    """By how much logits change with the products, apart from what all sequences are added."""
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


def norm_calls(subject: Subject) -> list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """The norms of one's own that a call runs, with what they are given."""
    found: dict[nn.Module, tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = {}
    names = {part: name for m in subject.modules for name, part in m.named_modules()}

    def note(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        kind = type(module).__name__.lower()
        others = any(
            word in kind
            for word in ("batch", "instance", "block", "layers", "prenorm", "weight", "spectral")
        )
        leaf = not any(True for _ in module.children())
        floats = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if ("norm" in kind or "rms" in kind) and leaf and floats and not others:
            found.setdefault(module, (names[module], module, args, kwargs))

    handles = [m.register_forward_hook(note, with_kwargs=True) for m in names]
    try:
        with plain_kernels():
            subject.run(subject.fresh(0))
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def has_positions(subject: Subject) -> bool:
    """Whether equal tokens have other logits, values or outputs at other positions."""
    trace = subject.trace(constant(subject))
    assert trace.output is not None
    output = subject.by_token(trace.output)
    if output.dim() > 1 and (output - output[:, :1]).abs().max() > 1e-4 * output.abs().max():
        return True
    for a in trace.attentions:
        more = subject.kind == "pictures" or a.weights.shape[-1] > subject.n_tokens
        inner = slice(1, -1) if more else slice(None)  # without a class token
        if a.logits is None or _vary(a.logits[:, inner, inner]):
            return True
    return False


def _vary(logits: Tensor) -> bool:
    """Whether those that are open differ."""
    open_ = logits > -1e3
    if not open_.any():
        return False
    first = logits.masked_fill(~open_, 0)
    mean = first.sum((1, 2), keepdim=True) / open_.sum((1, 2), keepdim=True)
    off = (logits - mean)[open_].abs().max()
    return bool(off > 1e-4 * max(1e-3, float(first.abs().max())))


def constant(subject: Subject) -> Inputs:
    """Inputs whose tokens are all the same."""
    inputs = subject.fresh(0)
    tokens = {name: inputs[name] for name in subject.sources}
    first = {name: x.narrow(subject.tokens, 0, 1) for name, x in tokens.items()}
    if subject.kind == "pictures":
        first = {name: x[..., :1] for name, x in first.items()}
    return {**inputs, **{name: first[name].expand_as(x).clone() for name, x in tokens.items()}}


def in_module(node: Node) -> str:
    """The module that an operation is in, for a sentence."""
    return f", in {node.module}" if node.module else ""
