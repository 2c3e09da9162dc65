"""Training differs from evaluation by dropout only, and every parameter learns."""

import re
from collections.abc import Iterator

import torch
from torch import nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.calls import differ, relative
from attnbook.doctor.modes import RANDOM, no_dropout
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, seed_all, tensors_in
from attnbook.doctor.trace import MOVES, Node, Trace, back, scalar

MEMORY = re.compile("memory|encoder|context|cross|cond|kv|source|src|image")
"""Names of arguments without which some parameters have nothing to do."""
ON_RANDOM = ("gt", "ge", "lt", "le", "add", "add_", "floor", "floor_", "logical_not", "bitwise_not")
Results = Iterator[Finding | NotJudged]


def train_and_eval(subject: Subject) -> Results:
    """Training and evaluation differ by dropout only."""
    inputs = subject.fresh(0)
    evaluated = subject.run(inputs)
    with subject.mode(training=True), no_dropout():
        trained, again = subject.run(inputs, seed=0), subject.run(inputs, seed=1)
        patterns = locate.inside(subject)
    if trained.shape != evaluated.shape or differ(trained, again):
        yield NotJudged("train = eval", "training is random without dropout, too")
        return
    off = relative(evaluated, trained)
    if off <= 10 * DIFFERENT:
        return
    names = {type(m).__name__ for part in subject.modules for m in part.modules()}
    norms = sorted(name for name in names if "BatchNorm" in name)
    here = locate.inside(subject)
    cause = "training differs from evaluation"
    if patterns == "causal" and here == "all":
        cause = "mask only in training"
    elif patterns == "all" and here == "causal":
        cause = "mask only in evaluation"
    if norms and subject.claims.causal:
        cause = "statistic over the batch"  # in training it sees the future
    yield finding(
        "warning" if norms and not subject.claims.causal else "error",
        "train = eval",
        cause,
        "called it in training with dropout taken out, and in evaluation",
        f"outputs differ by {off:.1e}" + (f"; it has a {norms[0]}" if norms else ""),
        "the same outputs",
    )


def dropout(subject: Subject) -> Results:
    """There is dropout in training, where and as large as claimed."""
    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.AlphaDropout
    parts = [m for part in subject.modules for m in part.modules()]
    rate = max((m.p for m in parts if isinstance(m, kinds)), default=0.0)
    claimed = subject.claims.dropout
    inputs = subject.fresh(0)
    with subject.mode(training=True):
        outputs = [subject.run(inputs, seed=seed) for seed in (0, 1)]
        seen = locate.dropouts(subject, inputs)
        trace = subject.trace(inputs)
    if not differ(*outputs):
        if claimed or rate > 0:
            yield finding(
                "error" if claimed else "warning",
                "dropout",
                "no dropout in training",
                "called it twice in training",
                "the same outputs",
                f"different outputs, with dropout of {claimed or rate}",
            )
        elif claimed is None:
            yield NotJudged("dropout", "whether it should have any", "dropout=0.1")
        return
    others = sorted({round(p, 4) for p, _ in seen if claimed and abs(p - claimed) > 1e-6})
    if claimed and others:
        yield finding(
            "error" if abs(others[0] - (1 - claimed)) < 1e-6 else "warning",
            "dropout",
            "other dropout",
            "observed dropout in training",
            f"it drops with probability {others}",
            f"{claimed}",
        )
    if claimed and (node := _not_rescaled(subject, trace, claimed)) is not None:
        yield finding(
            "error",
            "dropout",
            "dropout without rescaling",
            "observed dropout in training" + locate.in_module(node),
            "a random mask of zeros and ones, and nothing is divided by what it keeps",
            f"what is kept is divided by {1 - claimed:.4g}",
        )
    if any(where == "logits" for _, where in seen):
        yield finding(
            "error",
            "dropout",
            "dropout before the softmax",
            "observed dropout in training",
            "logits are set to zero, which still gives weight",
            "weights are dropped, after the softmax",
        )


def _not_rescaled(subject: Subject, trace: Trace, p: float) -> Node | None:
    """A product with a random mask of so many zeros, around which nothing makes up for them."""

    def makes_up(node: Node) -> bool:
        number = scalar(node)[0] if node.name.rstrip("_") in ("mul", "div") else None
        return any(number and abs(number / x - 1) < 1e-3 for x in (1 - p, 1 / (1 - p)))

    if any(map(makes_up, locate.trace_of(subject).nodes)):
        return None  # in evaluation, as dropout was at first
    for node in trace.of("mul", "mul_"):
        for made, x in node.inputs:
            random = back(made, (*MOVES, *ON_RANDOM), RANDOM) if x.numel() > 99 else None
            near = [*node.users, *(n for n, _ in node.inputs if n is not None)]
            if random is None or x.shape != node.outputs[0].shape or any(map(makes_up, near)):
                continue
            off, spread = float((x == 0).float().mean()) - p, (p * (1 - p) / x.numel()) ** 0.5
            if bool(((x == 0) | (x == 1)).all()) and abs(off) < 4 * spread:
                return node
    return None


def gradients(subject: Subject) -> Results:
    """Every parameter gets a gradient."""
    inputs = subject.fresh(0)
    used, running, foreign = locate.used_parameters(subject, inputs)
    if foreign:
        yield finding(
            "error",
            "gradients",
            "parameter not registered",
            "observed which parameters the call uses",
            f"one of shape {foreign[0]} is not among module.parameters()",
            "an optimizer is given every parameter",
        )
    parameters = {n: p for n, p in subject.parameters.items() if p.requires_grad}
    if not _backpropagate(subject, inputs, list(parameters.values())):
        if parameters:
            yield NotJudged("gradients", "no output has a gradient: is it for inference alone?")
        return
    without = [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().max() > 0]
    without += [n for n, p in parameters.items() if n not in without and _part_without(p)]
    dead = [n for n in without if n in used and not n.endswith("bias")]
    live = {_any_layer(n) for n in parameters if n not in without}
    zero = [n for n in dead if parameters[n].grad is not None and _any_layer(n) in live]
    dead = [n for n in dead if n not in zero or locate.USUAL.search(n)]
    unused = [n for n in without if n not in used]
    inside = [n for n in unused if locate.should_run(n, running)]
    if any(MEMORY.search(name) for name in subject.optional):
        inside = []  # cross-attention to what the example leaves out
    alone = max(map(subject.length, subject.attended)) < 2  # the weight of one token is 1
    if dead and not alone:
        yield finding(
            "error",
            "gradients",
            "parameter without gradient",
            "backpropagated a random mixture of the outputs",
            f"{_listed(dead)} computed something and got no gradient",
            "a gradient, other than for key biases",
        )
    if unused:
        yield finding(
            "error" if inside else "warning",
            "gradients",
            "parameter not used",
            "observed which parameters the call uses",
            f"{_listed(inside or unused)} took no part"
            + (", though what it belongs to did" if inside else ""),
            "every parameter takes part, unless it is for another task",
        )


def _any_layer(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _backpropagate(subject: Subject, inputs: Inputs, parameters: list[nn.Parameter]) -> bool:
    """A random mixture of all outputs; whether there is one."""
    seed_all(0)
    with torch.enable_grad(), subject.mode(training=True), no_dropout():
        outputs = [x for x in tensors_in(subject.call(inputs)) if x.requires_grad]
        for parameter in parameters:
            parameter.grad = None
        drawn = torch.Generator().manual_seed(0)
        total = torch.zeros(())
        for x in outputs:
            noise = torch.randn(x.shape, generator=drawn)
            total = total + (torch.nan_to_num(x.float()) * noise).sum()
        if outputs:
            total.backward()
    return bool(outputs)


def _part_without(parameter: nn.Parameter) -> bool:
    """Whether queries, keys or values have no gradient in what holds all of them."""
    if parameter.grad is None or parameter.dim() not in (2, 3):
        return False
    if parameter.dim() == 3:
        return len(parameter) == 3 and any(not part.any() for part in parameter.grad)
    wide = parameter.grad if parameter.shape[0] > parameter.shape[1] else parameter.grad.T
    if len(wide) != 3 * wide.shape[1]:
        return False
    return any(not part.any() for part in wide.chunk(3))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
