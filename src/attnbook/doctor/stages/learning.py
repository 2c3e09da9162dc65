"""Training differs from evaluation by dropout only, and every parameter learns."""

import re
from collections.abc import Collection

import torch
from torch import Tensor, nn

from attnbook.doctor.call.manners import restored
from attnbook.doctor.call.subject import Inputs, Subject, seed_all, tensors_in
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.modes import foreign, no_dropout
from attnbook.doctor.stages.observed import Results, in_steps, matrix_of, projected, sides
from attnbook.doctor.tape.compare import DIFFERENT, differ, relative
from attnbook.doctor.tape.trace import MOVES, ON_LOGITS, PRODUCTS, SOFTMAX, Node, Trace, back, walk

Parameters = dict[str, nn.Parameter]
Reason = tuple[set[str], str, str, Level]
"""Parameters, the cause, what is found of them, and how sure it is."""
MEMORY = re.compile("memory|encoder|context|cross|cond|kv|source|src|image")
"""Names of arguments without which some parameters have nothing to do."""
USUAL = re.compile(
    r"(^|[._])(w?_?[qkvo]|query|key|value|out|output|(c|q|k|v|o|out|output)_?proj|proj|to_[qkv]|"
    r"to_out|fc_out|outs|(final_)?(layer_?)?norm_?(f|\d)?|ln_?(f|\d)?)(\.|$)",
    re.IGNORECASE,
)
"""Names of the matrices and norms that every block has."""


def train_and_eval(subject: Subject) -> Results:
    """Training and evaluation differ by dropout only."""
    inputs, causal = subject.fresh(0), subject.claims.causal
    evaluated, in_evaluation = subject.run(inputs), locate.inside(subject)
    norms = [m for m in _parts(subject) if "BatchNorm" in type(m).__name__]
    with subject.mode(training=True), no_dropout():
        for norm in norms if not causal else ():  # by design, it is of the batch in training
            norm.eval()
        trained, again = (subject.run(inputs, seed=seed) for seed in (0, 1))
        in_training = locate.inside(subject)
    if trained.shape != evaluated.shape or differ(trained, again):
        yield NotJudged("train = eval", "training is random without dropout, too")
        return
    off = relative(evaluated, trained)
    if off <= 10 * DIFFERENT:
        return
    one_is_masked = {
        ("causal", "all"): "mask only in training",
        ("all", "causal"): "mask only in evaluation",
    }
    cause = one_is_masked.get((in_training, in_evaluation), "training differs from evaluation")
    if norms and causal:
        cause = "statistic over the batch"  # in training it sees the future
    done = "called it in training with dropout taken out, and in evaluation"
    statistics = cause == "training differs from evaluation" and _keeps_statistics(subject, inputs)
    found = (
        f"outputs differ by {off:.1e}" + "; it keeps statistics of what it has seen" * statistics
    )
    level: Level = "warning" if statistics else "error"
    yield finding(cause, done, found, "the same outputs", level)


def _keeps_statistics(subject: Subject, inputs: Inputs) -> bool:
    """True if a call in training changes buffers: running means are used in evaluation."""
    buffers = [x for m in subject.modules for x in m.buffers() if x.is_floating_point()]
    before = [x.clone() for x in buffers]
    with restored(subject.module), subject.mode(training=True):
        subject.run(inputs)
        return not all(map(torch.equal, before, buffers))


def _parts(subject: Subject) -> list[nn.Module]:
    """All modules that a call may run, large and small."""
    return [part for module in subject.modules for part in module.modules()]


def dropout(subject: Subject) -> Results:
    """There is dropout in training, where and as large as claimed."""
    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.AlphaDropout
    rate = max((m.p for m in _parts(subject) if isinstance(m, kinds)), default=0.0)
    inputs, claimed = subject.fresh(0), subject.claims.dropout
    with subject.mode(training=True):
        outputs = [subject.run(inputs, seed=seed) for seed in (0, 1)]
        trace = subject.trace(inputs)
    if differ(*outputs):
        yield from _wrong_dropout(trace.of("native_dropout", "bernoulli_"), claimed)
    elif claimed or rate > 0:
        level: Level = "error" if claimed else "warning"
        right = f"different outputs, with dropout of {claimed or rate}"
        done, found = "called it twice in training", "the same outputs"
        yield finding("no dropout in training", done, found, right, level)
    elif claimed is None:
        yield NotJudged("dropout", "whether it should have any", "dropout=0.1")


def _wrong_dropout(dropped: list[Node], claimed: float | None) -> Results:
    """Dropout of another rate, or before the softmax."""
    done = "observed dropout in training"
    # By hand, one draws what is kept.
    rates = {abs(float(n.args[1]) - (n.name == "bernoulli_")) for n in dropped}
    others = sorted(round(p, 4) for p in rates if claimed and abs(p - claimed) > 1e-6)
    if claimed and others:
        keeps = abs(others[0] - (1 - claimed)) < 1e-6
        found = f"it drops with probability {others}"
        yield finding("other dropout", done, found, f"{claimed}", "error" if keeps else "warning")
    if any(map(_on_logits, dropped)):
        cause, found = "dropout before the softmax", "logits are set to zero, and still get weight"
        yield finding(cause, done, found, "weights are dropped, after the softmax")


def _on_logits(dropped: Node) -> bool:
    """True if what is dropped goes into the softmax of an attention."""
    through = (*MOVES, *ON_LOGITS)
    later = walk(dropped.users, lambda n: n.users if n.name in through else [])
    softmax = next((n for n in later if n.name in SOFTMAX), None)
    score = softmax and back(softmax.makers[0], (*through, "bernoulli_"), ("bmm", "mm"))
    return score is not None and score.between


def start(subject: Subject) -> Results:
    """Weights that are zeros, or all equal, can become something else."""
    floats = {n: p for n, p in subject.parameters.items() if p.is_floating_point()}
    matrices = {n: p for n, p in floats.items() if p.dim() > 1 and min(p.shape[-2:]) > 1}
    equal = [n for n, p in matrices.items() if bool((p == p.flatten()[0]).all())]
    zeros = {n for n in equal if not matrices[n].any()}
    if len(equal) == len(matrices) > 1 and len(zeros) < len(equal):
        done, found = "looked at the initial weights", f"all numbers of {_listed(equal)} are equal"
        yield finding("weights all equal", done, found, "random numbers")
    learned = {n: p for n, p in floats.items() if p.requires_grad}
    if stuck := _stuck(subject, learned, zeros & learned.keys()):
        done = "changed every parameter that had a gradient, again and again"
        found = f"{_listed(stuck)} are zeros, and never get one"
        yield finding("zeros that stay zeros", done, found, "a gradient, sooner or later")


def _stuck(subject: Subject, learned: Parameters, zeros: set[str]) -> set[str]:
    """Those of the zeros that get no gradient, however often everything that gets one changes."""
    drawn, inputs, moved = torch.Generator().manual_seed(0), subject.fresh(0), set[str]()
    while zeros - moved and _backpropagate(subject, inputs, learned):
        new = {n for n, p in learned.items() if p.grad is not None and p.grad.any()} - moved
        if not new:
            return zeros & _used(subject, subject.trace(inputs)) - moved
        moved |= new
        for name in sorted(new):
            noise = torch.randn(learned[name].shape, generator=drawn) / 10
            learned[name].data.add_(noise.to(learned[name]))
    return set()


def gradients(subject: Subject) -> Results:
    """Every parameter gets a gradient."""
    inputs = subject.fresh(0)
    trace = subject.trace(inputs)
    for parameter in foreign(subject, trace)[:1]:
        done = "observed which parameters the call uses"
        found = f"one of shape {tuple(parameter.shape)} is not among module.parameters()"
        right = "an optimizer is given every parameter"
        yield finding("parameter not registered", done, found, right)
    learned = {n: p for n, p in subject.parameters.items() if p.requires_grad and p.numel()}
    if not _backpropagate(subject, inputs, learned):
        if learned:
            yield NotJudged("gradients", "no output has a gradient: is it for inference alone?")
        return
    for names, cause, found, level in _reasons(subject, trace, learned):
        if names:
            done = "backpropagated a random mixture of the outputs"
            right = "a gradient for every number, but for key biases and what is for another task"
            yield finding(cause, done, found.format(_listed(names)), right, level)


def _reasons(subject: Subject, trace: Trace, learned: Parameters) -> list[Reason]:
    """Why parameters have no gradient after a backward pass, reason by reason."""
    without = {n for n, p in learned.items() if _is_zero(p) or _third_is_zero(p)}
    used, codes = _used(subject, trace), _codebooks(subject, trace)
    dead = without & used - _excused(subject, learned, without)
    thrown_away = {n for n in dead if learned[n].grad is None and not _acts(subject, n)}
    cut_off = dead - thrown_away
    partly = {n for n in learned.keys() - without if _scattered_zeros(trace, learned[n])}
    partly |= {n for n in _half_used(subject, learned) if n not in without}
    skipped = _skipped(subject, used, without)

    def must_learn(name: str) -> bool:
        """True unless zeros may cancel in it, as where streams start equal."""
        by_none = learned[name].grad is None and name not in codes
        return by_none or _third_is_zero(learned[name]) or bool(USUAL.search(name))

    used_by_others = learned.keys() - without
    return [
        (
            *(thrown_away, "parameter not used", "what {} computed changes no output"),
            _level(thrown_away, used_by_others, later=True),
        ),
        (
            *(cut_off, "parameter gets no gradient", "{} is used, and got no gradient"),
            _level({n for n in cut_off if must_learn(n)}, used_by_others),
        ),
        (partly, "part of a matrix not used", "many numbers of {} got no gradient", "error"),
        (
            *(skipped, "parameter not used", "{} took no part, though what it belongs to did"),
            _level(skipped, used_by_others, later=True),
        ),
        (set() if skipped else without - used, "parameter not used", "{} took no part", "warning"),
    ]


def _excused(subject: Subject, learned: Parameters, without: set[str]) -> set[str]:
    """Those of the parameters without a gradient that need none."""
    if max(map(subject.length, subject.attended)) < 2:
        return without  # the weight of one token is 1
    live = set(map(_of_any_layer, learned.keys() - without))
    # Zeros that are computed may cancel in one layer of several.
    zeros = {n for n in without if learned[n].grad is not None and _of_any_layer(n) in live}
    cancelled = {n for n in zeros if not USUAL.search(n)}
    return cancelled | _of_one_key(subject) | {n for n in without if n.endswith("bias")}


def _of_any_layer(name: str) -> str:
    """The name that a parameter has in each layer, or of each expert."""
    return ".".join("0" if word.isdigit() else word for word in name.split("."))


def _level(names: set[str], live: Collection[str], *, later: bool = False) -> Level:
    """An error, unless all have siblings that learn, as an expert or a last layer has.

    With ``later``, unless none of these siblings comes after it.
    """
    for name in names:
        siblings = [n for n in live if _of_any_layer(n) == _of_any_layer(name)]
        if not siblings or (later and max(map(_numbers, siblings)) > _numbers(name)):
            return "error"
    return "warning"


def _numbers(name: str) -> list[int]:
    """The numbers of the layers that a parameter is in."""
    return [int(word) for word in name.split(".") if word.isdigit()]


def _of_one_key(subject: Subject) -> set[str]:
    """Parameters of queries and keys where there is one key: its weight is 1, whatever they are."""
    attentions = [a for a in locate.attentions(subject) if a.weights.shape[-1] == 1]
    products = [projected(node) for a in attentions for node in (a.query_node, a.key_node)]
    matrices = {matrix_of(product) for product in products if product is not None}
    return {n for n, p in subject.parameters.items() if p.data_ptr() in matrices}


def _codebooks(subject: Subject, trace: Trace) -> set[str]:
    """Tables that are indexed by rounded values; they may learn as running means."""
    if not any(map(in_steps, trace.nodes)):
        return set()
    lookups = [n for n in trace.of("embedding", "index", "index_select") if n.depends]
    tables = {id(n.inputs[0][1]) for n in lookups if n.inputs[1][0] is not None}
    return {n for n, p in subject.parameters.items() if id(p) in tables}


def _acts(subject: Subject, name: str) -> bool:
    """True if a call gives something else when a parameter is changed."""
    with restored(subject.module), torch.no_grad():
        before, parameter = _floats(subject, subject.fresh(0)), subject.parameters[name]
        drawn = torch.Generator().manual_seed(0)
        parameter.add_(torch.randn(parameter.shape, generator=drawn).to(parameter))
        return any(map(differ, before, _floats(subject, subject.fresh(0))))


def _used(subject: Subject, trace: Trace) -> set[str]:
    """Names of the parameters that a call uses, all names of those with several."""
    given = {id(x) for node in trace.nodes for _, x in node.inputs}
    named = (m.named_parameters(remove_duplicate=False) for m in subject.modules)
    return {name for parameters in named for name, p in parameters if id(p) in given}


def _skipped(subject: Subject, used: set[str], without: set[str]) -> set[str]:
    """Unused parameters of a list of which others are used, or that every block uses."""
    if any(MEMORY.search(name) for name in subject.optional):
        return set()  # cross-attention to what the example leaves out
    paths = [name.split(".")[:-1] for name in used]
    ran = {".".join(path[:depth]) for path in paths for depth in range(len(path) + 1)}
    parts = [pair for module in subject.modules for pair in module.named_modules()]
    lists = {name for name, part in parts if isinstance(part, nn.ModuleDict | nn.ModuleList)}
    return {n for n in without - used if _should_run(n, ran, lists)}


def _should_run(name: str, ran: set[str], lists: set[str]) -> bool:
    """True if an unused parameter is in a list's item that did not run, or of a block that did."""
    words = name.split(".")
    modules = (".".join(words[:depth]) for depth in range(1, len(words)))
    outermost = next((module for module in modules if module not in ran), "")
    _, in_list, number = outermost.rpartition(".")
    if in_list and number.isdigit():
        return True
    around = ".".join(words[:-2])  # if nothing in it is used, it is for another setting
    return around in ran - lists and bool(USUAL.search(".".join(words[-2:])))


def _floats(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """All tensors of floats that a call returns, always with the same random numbers."""
    seed_all(0)
    return [x for x in tensors_in(subject.call(inputs)) if x.is_floating_point()]


def _backpropagate(subject: Subject, inputs: Inputs, learned: Parameters) -> bool:
    """Backpropagate a random mixture of all outputs; true if one has a gradient."""
    with torch.enable_grad(), subject.mode(training=True), no_dropout():
        outputs = [x for x in _floats(subject, inputs) if x.requires_grad]
        for parameter in learned.values():
            parameter.grad = None
        drawn = torch.Generator().manual_seed(0)
        mixture = [torch.randn(x.shape, generator=drawn) * x.float().nan_to_num() for x in outputs]
        if mixture:
            torch.stack([x.sum() for x in mixture]).sum().backward()
    return bool(outputs)


def _is_zero(parameter: nn.Parameter) -> bool:
    """True if it has no gradient, or nothing but zeros and NaN."""
    return parameter.grad is None or not parameter.grad.abs().max() > 0


def _third_is_zero(parameter: nn.Parameter) -> bool:
    """True if queries, keys or values have no gradient in the matrix that makes all of them."""
    gradient = parameter.grad
    if gradient is None or gradient.dim() != 2:
        return False
    wide = gradient if len(gradient) > gradient.shape[1] else gradient.T
    return len(wide) == 3 * wide.shape[1] and not all(part.any() for part in wide.chunk(3))


def _scattered_zeros(trace: Trace, parameter: nn.Parameter) -> bool:
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


def _half_used(subject: Subject, learned: Parameters) -> set[str]:
    """Matrices of queries, keys and values that make numbers which nobody uses."""
    nodes = [node for a in locate.attentions(subject) for _, node in sides(a).values()]
    made = {matrix_of(node): node for node in nodes if node and not node.between}
    unused = set()
    for name, p in learned.items():
        node, gradient = made.get(p.data_ptr()), p.grad
        if node is None or gradient is None or p.numel() != node.args[-1].numel() or p.dim() != 2:
            continue
        by_output = gradient if len(p) == node.outputs[0].shape[-1] else gradient.T
        if int((~by_output.any(1)).sum()) >= len(by_output) / 8:
            unused.add(name)
    return unused


def _listed(names: Collection[str]) -> str:
    """Three of the names, and how many there are besides."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
