"""Training differs from evaluation by dropout only, and every parameter learns."""

import re
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.derivatives import in_steps
from attnbook.doctor.manners import restored
from attnbook.doctor.modes import RANDOM, foreign, no_dropout
from attnbook.doctor.observed import Results, matrix_of, projected
from attnbook.doctor.relations import differ, relative
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, seed_all, tensors_in
from attnbook.doctor.trace import (
    MOVES,
    ON_LOGITS,
    PRODUCTS,
    SOFTMAX,
    Node,
    Trace,
    back,
    scalar,
    walk,
)

MEMORY = re.compile("memory|encoder|context|cross|cond|kv|source|src|image")
"""Names of arguments without which some parameters have nothing to do."""
USUAL = re.compile(
    r"(^|[._])(w?_?[qkvo]|query|key|value|out|output|(c|q|k|v|o|out|output)_?proj|proj|to_[qkv]|"
    r"to_out|fc_out|outs|(final_)?(layer_?)?norm_?(f|\d)?|ln_?(f|\d)?)(\.|$)",
    re.IGNORECASE,
)
"""Names of the matrices and norms that every block has."""
ON_RANDOM = ("gt", "ge", "lt", "le", "add", "add_", "floor", "floor_", "logical_not", "bitwise_not")


def train_and_eval(subject: Subject) -> Results:
    """Training and evaluation differ by dropout only."""
    inputs = subject.fresh(0)
    evaluated, here = subject.run(inputs), locate.inside(subject)
    parts = {m for part in subject.modules for m in part.modules()}
    norms = [m for m in parts if "BatchNorm" in type(m).__name__]
    with subject.mode(training=True), no_dropout():
        if not subject.claims.causal:  # in training a BatchNorm is of the batch, by design
            for norm in norms:
                norm.eval()
        trained, again = subject.run(inputs, seed=0), subject.run(inputs, seed=1)
        patterns = locate.inside(subject), here
    if trained.shape != evaluated.shape or differ(trained, again):
        yield NotJudged("train = eval", "training is random without dropout, too")
        return
    off = relative(evaluated, trained)
    if off <= 10 * DIFFERENT:
        return
    causes = {
        ("causal", "all"): "mask only in training",
        ("all", "causal"): "mask only in evaluation",
    }
    cause = causes.get(patterns, "training differs from evaluation")
    with subject.mode(training=True), no_dropout():
        cause = "mask added as a number" if _adds_a_mask(subject) else cause
    if norms and subject.claims.causal:
        cause = "statistic over the batch"  # in training it sees the future
    done = "called it in training with dropout taken out, and in evaluation"
    found = f"outputs differ by {off:.1e}" + (
        f"; it has a {type(norms[0]).__name__}" if norms else ""
    )
    yield finding(cause, done, found, "the same outputs")


def _adds_a_mask(subject: Subject) -> bool:
    """Whether ones and zeros of a mask are added to logits, which a fused kernel may mend."""
    for a in locate.attentions(subject):
        rest = locate.residual(subject, a)
        if rest is not None and rest.std() > 0.1 and (rest - rest.round()).abs().max() < 0.1:
            values = sorted(rest.round().abs().unique().tolist())
            if values == [0.0, 1.0]:
                return True
    return False


def dropout(subject: Subject) -> Results:
    """There is dropout in training, where and as large as claimed."""
    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.AlphaDropout
    parts = [m for part in subject.modules for m in part.modules()]
    rate = max((m.p for m in parts if isinstance(m, kinds)), default=0.0)
    claimed = subject.claims.dropout
    inputs = subject.fresh(0)
    with subject.mode(training=True):
        outputs = [subject.run(inputs, seed=seed) for seed in (0, 1)]
        trace = subject.trace(inputs)
        dropped = trace.of("native_dropout", "bernoulli_")
    if not differ(*outputs):
        if claimed or rate > 0:
            level: Level = "error" if claimed else "warning"
            done, right = "called it twice in training", f"dropout of {claimed or rate}"
            cause, found = "no dropout in training", "the same outputs"
            yield finding(cause, done, found, f"different ones, with {right}", level)
        elif claimed is None:
            yield NotJudged("dropout", "whether it should have any", "dropout=0.1")
        return
    done = "observed dropout in training"
    rates = {abs(float(n.args[1]) - (n.name == "bernoulli_")) for n in dropped}  # that one keeps
    others = sorted(round(p, 4) for p in rates if claimed and abs(p - claimed) > 1e-6)
    if claimed and others:
        level = "error" if abs(others[0] - (1 - claimed)) < 1e-6 else "warning"
        found = f"it drops with probability {others}"
        yield finding("other dropout", done, found, f"{claimed}", level)
    if claimed and (node := _not_rescaled(subject, trace, claimed)) is not None:
        found = "a random mask of zeros and ones, and nothing is divided by what it keeps"
        right = f"what is kept is divided by {1 - claimed:.4g}"
        where = done + locate.in_module(node)
        yield finding("dropout without rescaling", where, found, right)
    if any(map(_on_logits, dropped)):
        cause, found = "dropout before the softmax", "logits are set to zero, and still get weight"
        yield finding(cause, done, found, "weights are, after the softmax")


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


def _on_logits(dropped: Node) -> bool:
    """Whether it goes into the softmax of an attention."""
    through = (*MOVES, *ON_LOGITS)
    later = walk(dropped.users, lambda n: n.users if n.name in through else [])
    softmax = next((n for n in later if n.name in SOFTMAX), None)
    score = softmax and back(softmax.makers[0], (*through, "bernoulli_"), ("bmm", "mm"))
    return score is not None and score.between


def start(subject: Subject) -> Results:
    """Weights that are zeros, or all equal, can become something else."""
    parameters = {n: p for n, p in subject.parameters.items() if p.is_floating_point()}
    matrices = {n: p for n, p in parameters.items() if p.dim() > 1 and min(p.shape[-2:]) > 1}
    equal = [n for n, p in matrices.items() if bool((p == p.flatten()[0]).all())]
    zeros = {n for n in equal if not matrices[n].any()}
    if len(equal) == len(matrices) > 1 and len(zeros) < len(equal):
        cause, done = "weights all equal", "watched the weights as they are"
        found, right = f"all numbers of {_listed(equal)} are equal", "random numbers"
        yield finding(cause, done, found, right)
    learn = {n: p for n, p in parameters.items() if p.requires_grad}
    drawn, inputs, awake = torch.Generator().manual_seed(0), subject.fresh(0), set[str]()
    while zeros & learn.keys() - awake and _backpropagate(subject, inputs, list(learn.values())):
        new = {n for n, p in learn.items() if p.grad is not None and p.grad.any()} - awake
        if not new:
            dead = sorted(zeros & learn.keys() & _used_parameters(subject, inputs)[0] - awake)
            if dead:
                cause, done = (
                    "zeros that stay zeros",
                    "changed what has a gradient, again and again",
                )
                found = f"{_listed(dead)} are zeros, and never get one"
                yield finding(cause, done, found, "a gradient, sooner or later")
            return
        awake |= new
        with torch.no_grad():
            for name in new:
                noise = torch.randn(learn[name].shape, generator=drawn) / 10
                learn[name].add_(noise.to(learn[name]))


def gradients(subject: Subject) -> Results:
    """Every parameter gets a gradient."""
    inputs = subject.fresh(0)
    used, running, others = _used_parameters(subject, inputs)
    if others:
        done = "observed which parameters the call uses"
        found = f"one of shape {tuple(others[0].shape)} is not among module.parameters()"
        cause, right = "parameter not registered", "an optimizer is given every parameter"
        yield finding(cause, done, found, right)
    parameters = {n: p for n, p in subject.parameters.items() if p.requires_grad and p.numel()}
    if not _backpropagate(subject, inputs, list(parameters.values())):
        if parameters:
            yield NotJudged("gradients", "no output has a gradient: is it for inference alone?")
        return
    without = [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().max() > 0]
    without += [n for n, p in parameters.items() if n not in without and _part_without(p)]
    any_layer = partial(re.sub, r"\d+", "0")
    live = {any_layer(n) for n in parameters if n not in without}
    dead = [n for n in without if n in used and not n.endswith("bias")]
    zero = [n for n in dead if parameters[n].grad is not None and any_layer(n) in live]
    dead = [n for n in dead if n not in zero or USUAL.search(n)]
    unused = [n for n in without if n not in used]
    inside = [n for n in unused if _should_run(n, running)]
    if any(MEMORY.search(name) for name in subject.optional):
        inside = []  # cross-attention to what the example leaves out
    alone = max(map(subject.length, subject.attended)) < 2  # the weight of one token is 1
    dead = [n for n in dead if n not in _of_one_key(subject)]
    lost = [n for n in dead if parameters[n].grad is None and not _acts(subject, inputs, n)]
    dead = [n for n in dead if n not in lost]
    if lost and not alone:
        done = "changed them, and backpropagated a random mixture of the outputs"
        found = f"what {_listed(lost)} computed is thrown away: no output changed"
        cause, right = "parameter not used", "what is computed is used"
        yield finding(cause, done, found, right)
    if dead and not alone:
        done = "backpropagated a random mixture of the outputs"
        found = f"{_listed(dead)} computed something and got no gradient"
        cause, right = "parameter gets no gradient", "a gradient, other than for key biases"
        # Zeros may cancel, as where several streams start equal.
        dead_ones = [(n, parameters[n]) for n in dead]
        codes = _looked_up(subject)  # learned by another way, as running means of what they replace
        sure = any(
            (p.grad is None and id(p) not in codes) or _part_without(p) or USUAL.search(n)
            for n, p in dead_ones
        )
        yield finding(cause, done, found, right, "error" if sure else "warning")
    trace = locate.trace_of(subject)
    if parts := [n for n, p in parameters.items() if n not in without and _in_part(trace, p)]:
        done = "backpropagated a random mixture of the outputs"
        gradient = parameters[parts[0]].grad
        zeros = int((gradient == 0).sum()) if gradient is not None else 0
        found = (
            f"{zeros} of the {parameters[parts[0]].numel()} numbers of {_listed(parts)} got none"
        )
        cause, right = "part of a matrix not used", "a gradient for each number of a matrix"
        yield finding(cause, done, found, right)
    if unused:
        level: Level = "error" if inside else "warning"
        done = "observed which parameters the call uses"
        found = f"{_listed(inside or unused)} took no part"
        found += ", though what it belongs to did" if inside else ""
        right = "every parameter takes part, unless it is for another task"
        yield finding("parameter not used", done, found, right, level)


def _of_one_key(subject: Subject) -> set[str]:
    """Parameters of queries and keys where there is one key: its weight is 1, whatever they are."""
    nodes = (
        projected(node)
        for a in locate.attentions(subject)
        if a.weights.shape[-1] == 1
        for node in (a.query_node, a.key_node)
    )
    matrices = {matrix_of(node) for node in nodes if node is not None}
    return {n for n, p in subject.parameters.items() if p.data_ptr() in matrices}


def _looked_up(subject: Subject) -> set[int]:
    """Tables whose rows are chosen by what was computed of floats."""
    nodes = locate.trace_of(subject).nodes
    if not any(map(in_steps, nodes)):
        return set()
    tables = [n for n in nodes if n.name in ("embedding", "index", "index_select") and n.depends]
    return {id(n.inputs[0][1]) for n in tables if n.inputs[1][0] is not None}


def _acts(subject: Subject, inputs: Inputs, name: str) -> bool:
    """Whether a call gives something else if a parameter is changed."""
    outputs = []
    for factor in (1.0, -1.5):
        with restored(subject.module), torch.no_grad():
            drawn = torch.Generator().manual_seed(0)
            parameter = subject.parameters[name]
            noise = torch.randn(parameter.shape, generator=drawn).to(parameter)
            parameter.add_(noise, alpha=factor)
            seed_all(0)
            outputs.append([x for x in tensors_in(subject.call(inputs)) if x.is_floating_point()])
    return any(differ(x.detach(), y.detach()) for x, y in zip(*outputs, strict=True))


def _used_parameters(
    subject: Subject, inputs: Inputs
) -> tuple[set[str], set[str], list[nn.Parameter]]:
    """Names of the parameters that a call uses, and of the modules that run; foreign parameters."""
    ran: set[nn.Module] = set()

    def note(module: nn.Module, _: Any) -> None:
        ran.add(module)

    hook = register_module_forward_pre_hook(note)
    try:
        trace = subject.trace(inputs)
    finally:
        hook.remove()
    given = {id(x) for node in trace.nodes for _, x in node.inputs}
    named = [x for m in subject.modules for x in m.named_parameters(remove_duplicate=False)]
    running = {n for m in subject.modules for n, part in m.named_modules() if part in ran}
    used = {name for name, parameter in named if id(parameter) in given}
    return used, running, foreign(subject, trace)


def _should_run(name: str, running: set[str]) -> bool:
    """Whether an unused parameter is of a list of which others run, or what every block has."""
    words = name.split(".")
    for depth in range(len(words) - 1, 0, -1):
        around = ".".join(words[: depth - 1])
        if words[depth - 1].isdigit() and ".".join(words[:depth]) not in running:
            return any(n.startswith(f"{around}.") for n in running)
        if ".".join(words[:depth]) in running:
            break
    around = ".".join(words[:-2])  # what never ran is for another setting
    return around in running and bool(USUAL.search(".".join(words[-2:])))


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
    return len(wide) == 3 * wide.shape[1] and any(not part.any() for part in wide.chunk(3))


def _in_part(trace: Trace, parameter: nn.Parameter) -> bool:
    """True if some entries of a multiplied matrix get no gradient, in no whole row or column."""
    if parameter.grad is None or parameter.dim() != 2:
        return False
    zero = parameter.grad == 0
    # Whole rows and columns can be without: a ReLU that is closed, a slice.
    if (zero & ~zero.all(0) & ~zero.all(1)[:, None]).float().mean() < 1 / 8:
        return False
    first = [n for n in trace.nodes if any(x is parameter for _, x in n.inputs)]
    through = (*MOVES, "diagonal")
    users = walk(first, lambda n: n.users if n.name in through else [])
    return any(n.name in (*PRODUCTS, "diagonal") for n in users)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
