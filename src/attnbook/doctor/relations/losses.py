"""What a loss compares with what: which tokens, which numbers, and whether all of them count."""

import math
import time
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbook.doctor.call.manners import restored
from attnbook.doctor.call.masking import mask_inputs
from attnbook.doctor.call.subject import (
    LABELS,
    Inputs,
    Subject,
    copied,
    last,
    output_of,
    plain_kernels,
    seed_all,
)
from attnbook.doctor.causes import finding
from attnbook.doctor.report import NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.modes import no_dropout
from attnbook.doctor.stages.observed import Results, mixed, origins
from attnbook.doctor.tape.trace import MOVES, PRODUCTS, Trace, back

STEPS, SECONDS, RATE = 60, 4.0, 1e-2
MOST = 60
"""Ids that are tried as targets."""
LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
AIMS = {
    "": (0, 1, "the next token"),
    "loss without shift": (0, 0, "the token itself"),
    "loss shifted twice": (0, 2, "the token after the next"),
    "loss shifted backwards": (0, -1, "the token before"),
    "batch and tokens exchanged": (1, 0, "a token of the next sequence"),
}
"""What a token's logits are to predict, by cause: so many sequences and tokens further on."""
Prediction = tuple[Tensor, Tensor]
"""Logits of a loss, (sequences, tokens, ids), and its gradient there: below zero at the targets."""


def of_ids(subject: Subject) -> bool:
    """True if the loss is given ids, and makes its logits itself."""
    return subject.is_ids(subject.sources[0])


def sequences(subject: Subject, seed: int) -> tuple[Inputs, dict[str, Tensor]]:
    """Fresh inputs whose targets are related to the ids as in the example; and all ids, by name."""
    inputs, first, final = subject.fresh(seed), subject.sources[0], subject.sources[-1]
    drawn = torch.Generator().manual_seed(seed)
    if not of_ids(subject):
        targets = _targets_beside_logits(subject, drawn)
        return inputs | targets, targets
    targets = {name: inputs[name] for name in subject.sources}
    ids, labels = subject.inputs[first], subject.inputs[final]
    longer = subject.random_ids(torch.cat([ids, ids[..., :1]], -1), drawn)
    shorter, later = longer[..., :-1], longer[..., 1:]
    if first != final and torch.equal(ids, labels):
        targets |= {first: shorter, final: shorter.clone()}  # one may be written into
        inputs |= targets
    elif first != final and torch.equal(ids[..., 1:], labels[..., :-1]):
        targets |= {first: longer, final: later}
        inputs |= {first: shorter, final: later}
    return inputs, targets


def _targets_beside_logits(subject: Subject, drawn: torch.Generator) -> dict[str, Tensor]:
    """Random targets in place of those that are given beside logits, if there are any."""
    logits = subject.inputs[subject.sources[0]]
    for name, x in subject.inputs.items():
        whole = isinstance(x, Tensor) and not x.is_floating_point() and x.dtype != torch.bool
        if whole and logits.dim() == 3 and x.shape == logits.shape[:2] and x.shape[1] > 3:
            return {name: subject.random_ids(x, drawn, name)}
    return {}


def masked(subject: Subject) -> bool:
    """True if more than logits and ids is given, and no claim says what that is."""
    claim = subject.claims.mask
    known = str(claim.argument) if claim is not None else ""
    tensors = [n for n, x in subject.inputs.items() if isinstance(x, Tensor) and x.dim()]
    return len(set(tensors) - {known}) > max(2, len(subject.sources))


def predictions(subject: Subject, inputs: Inputs) -> list[Prediction]:
    """The logits that a loss is given, or that its output layers make, with their gradients."""
    inputs, n = copied(inputs), subject.n_sequences
    sources = [inputs[name] for name in subject.sources]
    seed_all(0)
    with torch.enable_grad(), plain_kernels(), Trace(sources) as trace:
        floats = [x.requires_grad_() for x in sources if x.is_floating_point()]
        loss = output_of(subject.apply(inputs), has_labels=True)
    logits = [x for x in floats or _output_layers(trace) if x.requires_grad and len(x) % n == 0]
    if not logits:
        return []
    gradients = torch.autograd.grad(loss, logits, allow_unused=True, materialize_grads=True)
    return [
        (x.detach().reshape(n, -1, x.shape[-1]), gradient.reshape(n, -1, x.shape[-1]))
        for x, gradient in zip(logits, gradients, strict=True)
    ]


def _output_layers(trace: Trace) -> Iterator[Tensor]:
    """What the products give that are the logits of a loss."""
    through = (*MOVES, "_log_softmax", "mul", "div", "add", "tanh")
    nodes = trace.of("_log_softmax", *LOSSES)
    found = (back(node.inputs[0][0], through, PRODUCTS) for node in nodes)
    for head in {node.index: node for node in found if node is not None}.values():
        yield next(x for maker, x in head.users[0].inputs if maker is head)


def _aim(gradient: Tensor, ids: Tensor) -> str | None:
    """The row of ``AIMS`` that says what most logits are to predict, if there is one."""
    ids = ids.reshape(len(gradient), -1)
    gradient = gradient[:, : ids.shape[1]]
    lowest = gradient.argsort(-1)[..., :2]  # two, as a loss may predict the token after it, too
    below, place = gradient.gather(-1, lowest) < 0, torch.arange(gradient.shape[1]).to(ids)
    for cause, (sequence, token, _) in AIMS.items():
        wanted = ids.roll((-sequence, -token), (0, 1))[:, : len(place), None]
        inside = (place + token >= 0) & (place + token < ids.shape[1])
        right = ((lowest == wanted) & below).any(-1)[gradient.any(-1) & inside]
        if right.float().mean() > 0.9:
            return cause
    return None


def _aligned(subject: Subject, inputs: Inputs, name: str) -> Iterator[Tensor]:
    """Gradients at logits that depend on a source's tokens, from the first one's logits on.

    Logits that depend on later tokens are left out, unless causality is claimed.
    """
    before = predictions(subject, inputs)
    if not of_ids(subject):
        yield from (gradient for _, gradient in before)
        return
    token = 2 if subject.length(name) > 3 else 0
    after = predictions(subject, subject.replaced(inputs, name, 0, token))
    for (logits, gradient), (others, _) in zip(before, after, strict=False):
        rows = (logits != others)[0].any(-1).nonzero().flatten().tolist()
        if rows and (rows[0] >= token or subject.claims.causal):
            yield gradient[:, max(rows[0] - token, 0) :]  # a model may shift its input


def shift(subject: Subject) -> Results:
    """Each token's logits are compared with the next token."""
    inputs, targets = sequences(subject, 3)
    if subject.claims.causal is False or not targets:
        return
    aims = {
        aim: name
        for name, ids in targets.items()
        for gradient in _aligned(subject, inputs, name)
        if (aim := _aim(gradient, ids)) is not None
    }
    if not aims:
        why = "no cross-entropy of logits with tokens that they depend on was observed"
        yield NotJudged("shift", why, "causal=True" * (subject.claims.causal is None))
        return
    (cause, name), *others = aims.items()
    may_be_outside = cause == "loss without shift" and not of_ids(subject)
    if others or not cause or (may_be_outside and last(name) in LABELS):
        return
    its_own = subject.claims.causal or (last(name).startswith("input") and not masked(subject))
    if may_be_outside and not its_own:
        yield NotJudged("shift", f"whether {name} are shifted already", "causal=True")
        return
    done = f"took the loss's gradient with respect to the logits, for random {name}"
    found = f"each token's logits are to predict {AIMS[cause][2]}"
    outside = ", or the token itself, if targets are shifted outside"
    yield finding(cause, done, found, AIMS[""][2] + outside * (not of_ids(subject)))


def future(subject: Subject) -> Results:
    """What predicts the next token does not attend to it (an encoder beside it may)."""
    attentions, claimed = locate.own(subject), subject.claims.causal
    if claimed is False or len(set(map(subject.length, subject.sources))) > 1:
        return  # two stacks, and which is which is not known
    if not attentions or not all(locate.support(a).triu(1).any() for a in attentions):
        return
    if claimed is None:
        inputs, targets = sequences(subject, 3)
        given = predictions(subject, inputs) if targets else []
        if "" not in {_aim(x, ids) for ids in targets.values() for _, x in given}:
            yield NotJudged("future", "whether it predicts the next token", "causal=True")
            return
    done = "observed the weights" + locate.in_module(attentions[0].softmax_node)
    leak = "tokens attend to later ones" + ", the next of which they predict" * (claimed is None)
    cause, right = locate.open_mask(subject, attentions), "to themselves and to earlier ones"
    yield finding(cause, done, leak, right)


def probabilities(subject: Subject) -> Results:
    """A cross-entropy is given logits, and an nll_loss log-probabilities."""
    trace = locate.trace_of(subject)
    for node in trace.of("_log_softmax"):
        x, axis = node.args[:2]
        if x.min() >= 0 and (x.sum(axis) - 1).abs().max() < 1e-4:
            done, found = (
                "observed what the cross-entropy is given",
                "probabilities, which sum to 1",
            )
            yield finding("cross-entropy of probabilities", done, found, "logits")
            return
    if any((node.args[0].logsumexp(1).abs() > 1e-3).any() for node in trace.of(*LOSSES)):
        done, found = "observed what nll_loss is given", "exponentials that do not sum to 1"
        yield finding("nll_loss of logits", done, found, "log-probabilities")


def reshaped(subject: Subject) -> Results:
    """A row of logits that meets a target is one token's."""
    trace, source = locate.trace_of(subject), subject.sources[0]
    for node in trace.of("_log_softmax"):
        head, (x, axis) = back(node.inputs[0][0], MOVES, PRODUCTS), node.args[:2]
        if head is None and of_ids(subject):
            continue
        logits = head.outputs[0] if head is not None else subject.fresh(0)[source]
        rows, logits = (y.reshape(-1, y.shape[-1]) for y in (x.movedim(axis, -1), logits))
        number = torch.arange(len(logits))[:, None]
        if rows.shape[1] == logits.shape[1] and mixed(origins(rows, logits, number)):
            done = "compared the rows of the cross-entropy with the logits of each token"
            cause, found = "logits reshaped across tokens", "a row has logits of several tokens"
            yield finding(cause, done, found, "the logits of one token")
            return


def counted(subject: Subject) -> Results:
    """Each sequence counts, and each target but padding."""
    # The largest losses alone may count: those of other inputs may be of other targets.
    (inputs, targets), (others, _) = sequences(subject, 6), sequences(subject, 7)
    if not targets:
        return
    name, padding, n = list(targets)[-1], subject.claims.padding_id, subject.n_sequences
    real = [t for t in range(min(subject.vocabulary(name), MOST)) if t != padding]

    def loss(inputs: Inputs, place: tuple[int, ...], ids: Tensor | int) -> float:
        """The loss with other ids in a sequence, or at one place of it."""
        changed = inputs[name].clone()
        changed.movedim(subject.batch or 0, 0)[place] = ids
        return float(subject.run({**inputs, name: changed}))

    def like(target: int, inputs: Inputs, candidates: list[int]) -> list[int]:
        """Those of the ids that give the loss of another one at the end, as a target alone."""
        wanted = loss(inputs, (0, -1), target)
        losses = {t: loss(inputs, (0, -1), t) for t in candidates}
        return [t for t, x in losses.items() if abs(x - wanted) <= 1e-6 * abs(wanted)]

    unchanged, ids = float(subject.run(inputs)), others[name].movedim(subject.batch or 0, 0)
    silent = [i for i in range(n) if loss(inputs, (i,), ids[i]) == unchanged]
    cause, right = "real targets are ignored", "another loss"
    if 0 < len(silent) < n and not masked(subject):
        done, found = f"put other ids into {name}", f"sequence {silent[0]} has no effect"
        yield finding(cause, done, found, right)
    elif padding is not None and not silent:
        ignored = like(padding, inputs, real)
        if 0 < len(ignored) < len(real) and like(padding, others, ignored) == ignored:
            done = f"put each id at the end of {name}"
            found = f"{ignored[:5]} give what padding gives: they do not count"
            yield finding(cause, done, found, right)


def order_of_sequences(subject: Subject) -> Results:
    """A loss does not know which of its sequences comes first."""
    axis, n, inputs = subject.batch or 0, subject.n_sequences, subject.fresh(0)
    tensors = {k: x for k, x in inputs.items() if isinstance(x, Tensor) and x.dim()}
    if not of_ids(subject) or any(x.dim() <= axis or x.shape[axis] != n for x in tensors.values()):
        return  # given logits, each sequence may have a weight of its own
    turned = inputs | {k: x.flip(axis) for k, x in tensors.items()}
    calls = ((inputs, 0), (inputs, 1), (turned, 0))
    loss, again, reversed_ = (float(subject.run(x, seed=seed)) for x, seed in calls)
    if loss == again and abs(reversed_ - loss) > 1e-4 * abs(loss):
        cause, done = "depends on the sequence's number", "gave the sequences in reverse order"
        found = f"the loss was {loss:.5g}, is {reversed_:.5g}"
        # Its noise may be the same in each call.
        yield finding(cause, done, found, "the same loss", "warning")


def padding_in_loss(subject: Subject) -> Results:
    """The loss of sequences with padding is that of the sequences."""
    padding, mask, n = subject.claims.padding_id, subject.claims.mask, subject.n_tokens - 2
    assert padding is not None
    if masked(subject):
        why = "another argument may say what is padding"
        yield NotJudged("padding in the loss", why, "mask=…" * of_ids(subject))
        return
    inputs, targets = sequences(subject, 5)
    if n < 2 or not targets or any(inputs[name].shape[-1] != n + 2 for name in targets):
        return
    alone = subject.sliced(inputs, n)
    lowest = {name: int(subject.inputs[name].min()) for name in targets}  # -100, say
    ends = {name: padding if least >= 0 else least for name, least in lowest.items()}
    padded = inputs | {name: F.pad(alone[name], (0, 2), value=ends[name]) for name in targets}
    if mask is not None:
        allowed = (torch.arange(n + 2) < n).expand(subject.n_sequences, -1)
        padded = mask_inputs(subject, padded, allowed, n + 2)
    loss, expected = (float(subject.run(x)) for x in (padded, alone))
    if abs(loss - expected) > 1e-4 * abs(expected):
        done = "put padding at the end of each sequence"
        found = f"the loss is {loss:.4f}, and {expected:.4f} without the padding"
        right = "the same loss: padding is left out of sum and count"
        yield finding("padding counts in the loss", done, found, right)


def first_loss(subject: Subject) -> Results:
    """Before any training the loss is about ln V."""
    if subject.kind == "loss":
        inputs, _ = sequences(subject, 4)
        nodes = subject.trace(inputs).of("_log_softmax")
        if not nodes:
            return
        width = nodes[-1].args[0].shape[int(nodes[-1].args[1])]
        loss = float(subject.run(inputs))
    else:
        logits = subject.by_token(subject.run(subject.fresh(4))).flatten(0, -2).float()
        width = logits.shape[-1]
        if width != subject.vocab_size or not subject.is_ids(subject.target):
            return
        targets = torch.randint(width, (len(logits),), generator=torch.Generator().manual_seed(0))
        loss = float(F.cross_entropy(logits, targets))
    expected = math.log(width)
    if not loss < 1.5 * expected + 0.5 or loss < 0.5 * expected:
        cause, done = "first loss is not ln V", "called it with random ids and targets"
        right = f"about ln {width} = {expected:.2f}, if it is not trained yet"
        yield finding(cause, done, f"the loss is {loss:.2f}", right, "warning")


def training(subject: Subject) -> Results:
    """Random targets can't be learned, unless they are copied; one batch can."""
    trained: list[Tensor] = [p for p in subject.parameters.values() if p.requires_grad]
    if not trained or not of_ids(subject):
        return
    width = subject.vocab_size
    fresh = _trained(subject, trained, range(100, 100 + STEPS)) if _is_causal(subject) else []
    same = _trained(subject, trained, [7] * STEPS)
    if len(same) < STEPS or len(fresh) not in (0, STEPS):
        yield NotJudged("training", f"{STEPS} steps take more than {SECONDS} seconds")
        return
    done = f"trained it for {STEPS} steps on "
    if fresh and (end := sum(fresh[-10:]) / 10) < 0.6 * math.log(width):
        cause, done = "targets are copied", done + "random ids, other ones in each step"
        right = f"it can't fall below ln {width} = {math.log(width):.2f}"
        yield finding(cause, done, f"the loss fell to {end:.2f}", right)
    elif same[-1] > 0.7 * same[0]:
        cause, done = "a batch is not learned", done + "the same ids"
        found = f"the loss went from {same[0]:.2f} to {same[-1]:.2f}"
        yield finding(cause, done, found, "towards 0", "warning")


def _is_causal(subject: Subject) -> bool:
    """True if logits do not depend on the tokens that they are to predict, by claim or by masks."""
    if subject.claims.causal is not None:
        return subject.claims.causal
    (inputs, targets), first = sequences(subject, 7), subject.sources[0]
    masks = {locate.pattern(locate.support(a)) for a in locate.attentions(subject)}
    own_labels = len(targets) > 1 and targets[first] is inputs[first]
    return masks == {"causal"} or (own_labels and "causal" in masks)


def _trained(subject: Subject, parameters: list[Tensor], seeds: Iterable[int]) -> list[float]:
    """The loss in each step of training on these batches, for a few seconds at most."""
    losses: list[float] = []
    end = time.process_time() + SECONDS
    with restored(subject.module), torch.enable_grad(), subject.mode(training=True), no_dropout():
        seed_all(0)
        for step, seed in enumerate(seeds):
            inputs, _ = sequences(subject, seed)
            loss = output_of(subject.call(inputs), has_labels=subject.has_labels)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        parameter.sub_(gradient.sign(), alpha=RATE * (1 - step / STEPS))
            losses.append(float(loss.detach()))
            if time.process_time() > end:
                break
    return losses
