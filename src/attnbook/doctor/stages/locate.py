"""The attentions of a call: what is open, what was added to the products, whether order counts."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.doctor.call.subject import Inputs, Subject, plain_kernels
from attnbook.doctor.tape.trace import (
    MOVES,
    ON_LOGITS,
    PRODUCTS,
    SOFTMAXES,
    Attention,
    Node,
    Trace,
    back,
)

CLOSED = -1e3
"""A logit below this lets nothing through."""
WRONG_MASKS = {
    "later by one": "causal mask off by one",
    "later": "inverted mask",
    "strictly later": "inverted mask",
}
NOT_A_NORM = ("batch", "instance", "block", "layers", "prenorm", "weight", "spectral")
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
    """True if there is a softmax over as many as there are tokens."""
    sizes = {subject.length(name) for name in subject.sources}
    for node in trace_of(subject).of(*SOFTMAXES):
        shape = node.outputs[0].shape
        if node.name != "exp":
            if shape[int(node.args[1])] in sizes:
                return True
        elif any(n > 1 and shape[1:].count(n) > 1 for n in sizes):
            score = back(node.makers[0], (*MOVES, *ON_LOGITS), PRODUCTS)
            if score is not None and score.between:
                return True
    return False


def own(subject: Subject) -> list[Attention]:
    """The attentions in which the target's tokens attend to each other."""
    n, loss = subject.n_tokens, subject.kind == "loss"
    sizes = [(n, n), (n - 1, n - 1)][: 1 + loss]  # a loss may leave out the last token
    square = [a for a in attentions(subject) if a.weights.shape[-2:] in sizes]
    if subject.kind != "encoder-decoder":
        return square
    if subject.length(subject.sources[0]) == n:  # the encoder has as many tokens
        square = square[len(square) // 3 :]
    return [a for a in square if not support(a).triu(1).any()] or square


def support(attention: Attention) -> Tensor:
    """Which query may attend to which key, in any sequence and head."""
    return (attention.weights.nan_to_num(1) != 0).any(0)


def supports(subject: Subject) -> list[Tensor]:
    """Which keys are open, for each self-attention of the target."""
    return [support(a) for a in own(subject)]


def pattern(open_: Tensor) -> str:
    """What a square mask lets through: all, causal, (strictly) later, later by one, or other."""
    if not open_.triu(1).any():
        own = open_.diagonal()  # the first token has nothing else to attend to
        return "causal" if own[1:].any() or own.all() else "strictly earlier"
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
    """The common mask pattern of the target's self-attentions: or "none", or "several"."""
    patterns = {pattern(open_) for open_ in supports(subject)}
    return "several" if len(patterns) > 1 else next(iter(patterns), "none")


def open_mask(subject: Subject, leaky: list[Attention]) -> str:
    """What is wrong with masks that let a token attend to later ones."""
    first = leaky[0]
    open_ = support(first).cpu()
    kind = pattern(open_)
    if kind in WRONG_MASKS:
        return WRONG_MASKS[kind]
    if kind != "all":
        at = torch.arange(len(open_))
        distance = (at[:, None] - at).abs()
        two_sided = open_.equal(distance <= distance[open_].max())
        return "other window" if two_sided else "mask of another shape"
    partly = any(not head.triu(1).any() for head in first.weights != 0)
    if partly or len(leaky) < len(own(subject)):
        return "mask not everywhere"
    return weak_mask(subject, first) or "no causal mask"


def weak_mask(subject: Subject, attention: Attention) -> str:
    """What kind of causal mask does not close, if there is one."""
    logits = attention.logits
    if logits is None or logits.shape[-1] < 3:
        return ""
    upper = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    later = logits[:, upper]
    equal = later.std() <= 1e-6 * max(1.0, float(later.abs().max()))
    if equal and attention.products[:, upper].std() > 0:
        return "masked with a finite number"
    added = residual(subject, attention)
    step = 0.0 if added is None else _step(added, upper)
    if abs(step) <= 1e-3:
        return ""
    return "masked with a finite number" if step < WEAK else "mask added as a number"


def residual(subject: Subject, attention: Attention) -> Tensor | None:
    """What was added to the scaled products."""
    fitted = slope(subject, attention)
    if fitted is None or attention.logits is None:
        return None
    return attention.logits - fitted * attention.products


def slope(subject: Subject, attention: Attention) -> float | None:
    """The fitted factor from q·k to the logits, ignoring terms that are equal in every sequence."""
    if attention.logits is None:
        return None
    heads = per_sequence(subject, attention)
    x, y = attention.products.double(), attention.logits.double()
    open_ = (y > CLOSED) & y.isfinite()
    if heads is None:  # one sequence: what is added differs by head
        count = open_.sum((1, 2), keepdim=True)
        x, y = (z - z.masked_fill(~open_, 0).sum((1, 2), keepdim=True) / count for z in (x, y))
    else:
        x, y, open_ = x[heads:] - x[:-heads], y[heads:] - y[:-heads], open_[heads:] & open_[:-heads]
    x, y = x[open_], y[open_]
    return float((x @ y) / (x @ x)) if len(x) > 1 and x.norm() > 0 else None


def per_sequence(subject: Subject, attention: Attention) -> int | None:
    """How many of batch × heads belong to a sequence; ``None`` for a single sequence."""
    n = subject.n_sequences
    return len(attention.weights) // n if n > 1 and len(attention.weights) % n == 0 else None


def _step(added: Tensor, upper: Tensor) -> float:
    """How much more is added to later keys than to others; 0 if it is no step."""
    later, others = added[:, upper], added[:, ~upper]
    step, spread = float(later.mean() - others.mean()), float(later.std() + others.std())
    is_mask = len(added.round(decimals=3).unique()) < 3 and bool(later.std() < 1e-3)
    return step if is_mask or spread < 0.1 * abs(step) else 0.0


NormCall = tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]


def norm_calls(subject: Subject) -> list[NormCall]:
    """The first call of each norm module of one's own: name, module, arguments, keywords."""
    parts = {part: name for m in subject.modules for name, part in m.named_modules()}
    calls: dict[nn.Module, NormCall] = {}

    def note(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        """Keep the first call that is given floats."""
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            calls.setdefault(module, (parts[module], module, args, kwargs))

    with ExitStack() as stack, plain_kernels():
        for module in filter(_is_norm, parts):
            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        subject.run(subject.fresh(0))
    return list(calls.values())


def _is_norm(module: nn.Module) -> bool:
    """True if a module's class is called a norm, and has no parts."""
    kind = type(module).__name__.lower()
    is_norm = ("norm" in kind or "rms" in kind) and not any(word in kind for word in NOT_A_NORM)
    return is_norm and not list(module.children())


def has_positions(subject: Subject) -> bool:
    """True if equal tokens have other logits, values or outputs at other positions."""
    trace = subject.trace(constant(subject))
    assert trace.output is not None
    output = subject.by_token(trace.output)
    if output.dim() > 1 and (output - output[:, :1]).abs().max() > 1e-4 * output.abs().max():
        return True
    looked = output.shape[1] > 1
    for a in trace.attentions:
        more = subject.kind == "pictures" or a.weights.shape[-1] > subject.n_tokens
        inner = slice(1, -1) if more else slice(None)  # without a class token
        if a.logits is None or vary(a.logits[:, inner, inner]):
            return True
        looked = looked or a.logits[:, inner, inner].numel() > len(a.logits)
    return not looked  # then nobody knows


def vary(logits: Tensor) -> bool:
    """True if those that are open differ."""
    open_ = logits > CLOSED
    if not open_.any():
        return False
    largest = float(logits[open_].abs().max())
    mean = logits.masked_fill(~open_, 0).sum((1, 2), keepdim=True) / open_.sum((1, 2), keepdim=True)
    return bool((logits - mean)[open_].abs().max() > 1e-4 * max(1e-3, largest))


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
