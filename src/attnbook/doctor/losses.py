"""What a loss compares with what."""

import math
import time
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbook.doctor import given_logits, locate
from attnbook.doctor.causes import finding
from attnbook.doctor.masking import mask_inputs
from attnbook.doctor.modes import no_dropout
from attnbook.doctor.observed import Results
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Inputs, Subject, output_of
from attnbook.doctor.trace import MOVES, PRODUCTS, Node, Trace, back

STEPS, SECONDS, RATE = 60, 4.0, 1e-2
MOST = 60
"""Ids that are tried as targets."""
LOSSES = ("nll_loss_forward", "nll_loss2d_forward")


def sequences(subject: Subject, seed: int) -> tuple[Inputs, Tensor]:
    """Inputs of a loss whose ids go on: (inputs, all ids), with targets as the example has them."""
    inputs, ids = subject.fresh(seed), subject.inputs[subject.sources[0]]
    if len(subject.sources) == 1:
        return inputs, inputs[subject.sources[0]]
    first, last = subject.sources[0], subject.sources[-1]
    targets = subject.inputs[last]
    drawn = torch.Generator().manual_seed(seed)
    longer = ids.new_empty(*ids.shape[:-1], ids.shape[-1] + 1)
    longer = subject.random_ids(longer, drawn)
    if ids.shape == targets.shape and torch.equal(ids[..., 1:], targets[..., :-1]):
        return {**inputs, first: longer[..., :-1], last: longer[..., 1:]}, longer
    if ids.shape == targets.shape and torch.equal(ids, targets):
        return {**inputs, first: longer[..., :-1], last: longer[..., :-1]}, longer[..., :-1]
    return inputs, inputs[first]


def shift(subject: Subject) -> Results:
    """Each position's logits are compared with the next token."""
    if not subject.is_ids(subject.sources[0]):
        yield from given_logits.shift(subject)
        return
    causal = subject.claims.causal
    if causal is False:
        return
    inputs, ids = sequences(subject, 3)
    trace = subject.trace(inputs)
    candidates = {subject.sources[0]: ids, **{n: inputs[n] for n in subject.sources[1:]}}
    if causal is None:  # a decoder may attend to an encoder
        causal_sizes, others = set[int](), set[int]()
        for a in trace.attentions:
            is_causal = locate.pattern(locate.support(a)) == "causal"
            (causal_sizes if is_causal else others).add(a.weights.shape[-1])
        lengths = {n: {x.shape[-1], x.shape[-1] - 1} for n, x in candidates.items()}
        if others:
            candidates = {n: candidates[n] for n in lengths if lengths[n] & (causal_sizes - others)}
        if others and not candidates:
            yield NotJudged("shift", "whether it predicts the next token", "causal=True")
            return
    tried = {n: _compared(trace, one) for n, one in candidates.items()}
    seen = {n: max(x, key=lambda o: x[o]) for n, x in tried.items() if x and max(x.values()) > 0.99}
    following = _compared(trace, ids.roll(-1, 0)) or {}
    if not seen and following.get(0, 0.0) > 0.99:
        done = "observed what the cross-entropy compares, for random ids"
        found = "each position's logits are compared with the next sequence's token"
        cause, right = "batch and tokens exchanged", "the next token of the same sequence"
        yield finding(cause, done, found, right)
        return
    if not seen:
        yield NotJudged("shift", "no cross-entropy of logits for each token was observed")
        return
    name, offset = next(iter(seen.items()))
    delay = _delay(subject, inputs, name, trace)
    if delay is None:
        yield NotJudged("shift", f"{name} have no effect on the logits")
        return
    best = offset + delay
    if best not in (-1, 0, 2):
        return
    done = "observed what the cross-entropy compares, for random ids"
    found = f"each position's logits are compared with {given_logits.WHAT[best]}"
    yield finding(given_logits.SHIFTS[best], done, found, "the next token")


def future(subject: Subject) -> Results:
    """What predicts the next token does not attend to it (an encoder beside it may)."""
    found, claimed = locate.own(subject), subject.claims.causal
    if claimed is False or len(set(map(subject.length, subject.sources))) > 1:
        return  # two stacks, and which is which is not known
    if not found or not all(locate.support(a).triu(1).any() for a in found):
        return
    if claimed is None:
        inputs, ids = sequences(subject, 3)
        compared = _compared(subject.trace(inputs), ids)
        if compared is None or compared[1] < 0.99:
            yield NotJudged("future", "whether it predicts the next token", "causal=True")
            return
    done = "observed the weights" + locate.in_module(found[0].softmax_node)
    leak = "tokens attend to later ones" + ", the next of which they predict" * (claimed is None)
    cause, right = locate.open_mask(subject, found), "to themselves and to earlier ones"
    yield finding(cause, done, leak, right)


def _delay(subject: Subject, inputs: Inputs, name: str, trace: Trace) -> int | None:
    """After how many tokens an id shows in the logits: one, if the model shifts its input."""
    token = 2 if subject.length(name) > 3 else 0
    other = subject.trace(subject.replaced(inputs, name, 0, token))
    node = _head(trace)
    if node is None or len(other.nodes) != len(trace.nodes):
        return 0
    one, two = (x.nodes[node.index].outputs[0] for x in (trace, other))
    rows = (one != two).reshape(-1, one.shape[-1]).any(-1)
    length = len(rows) // subject.n_sequences
    found = torch.nonzero(rows[:length]).flatten().tolist()
    return None if not found else 1 if found[0] == token + 1 else 0


def _head(trace: Trace) -> Node | None:
    """The product that gives the logits of a cross-entropy."""
    through = (*MOVES, "_log_softmax", "mul", "div", "add", "tanh")
    heads = (back(node.inputs[0][0], through, PRODUCTS) for node in trace.of(*LOSSES))
    return next((node for node in heads if node is not None), None)


def _compared(trace: Trace, ids: Tensor) -> dict[int, float] | None:
    """For each offset, the share of positions t whose target is the id at t + offset."""
    for node in trace.of(*LOSSES):
        targets = node.args[1].flatten()
        logits = _head(trace)
        if logits is None:
            continue
        places = _places(trace, node, logits, ids)
        if places is None or len(places) != len(targets):
            continue
        found: dict[int, float] = {}
        for offset in (-1, 0, 1, 2):
            hits = [
                int(ids[b, t + offset]) == int(y)
                for (b, t), y in zip(places, targets.tolist(), strict=True)
                if 0 <= t + offset < ids.shape[1] and y >= 0
            ]
            found[offset] = sum(hits) / len(hits) if hits else 0.0
        return found
    return None


def _places(trace: Trace, loss: Node, logits: Node, ids: Tensor) -> list[tuple[int, int]] | None:
    """The sequence and token of each row of the loss, found by their values."""
    rows = loss.args[0]
    if rows.dim() != 2:
        return None
    given = next(
        (n.args[0] for n in trace.of("_log_softmax") if n.outputs[0].shape == rows.shape), None
    )
    head = logits.outputs[0].reshape(-1, logits.outputs[0].shape[-1])
    if given is None or head.shape[-1] != rows.shape[-1] or len(head) % len(ids):
        return None
    length = len(head) // len(ids)
    keys = {tuple(row[:3].tolist()): i for i, row in enumerate(head)}
    places = []
    for row in given:
        i = keys.get(tuple(row[:3].tolist()))
        if i is None:
            return None
        places.append((i // length, i % length))
    return places


def probabilities(subject: Subject) -> Results:
    """A cross-entropy is given logits, and an nll_loss log-probabilities."""
    trace = locate.trace_of(subject)
    for node in trace.of("_log_softmax"):
        x, axis = node.args[0], int(node.args[1])
        if x.min() >= 0 and (x.sum(axis) - 1).abs().max() < 1e-4:
            cause, done = "cross-entropy of probabilities", "observed what the cross-entropy gets"
            found = "numbers that sum to 1: a softmax was applied already"
            yield finding(cause, done, found, "logits")
            return
    for node in trace.of(*LOSSES):
        if (node.args[0].logsumexp(1).abs() > 1e-3).any():
            cause, done = "nll_loss of logits", "observed what nll_loss is given"
            found = "numbers whose exponentials do not sum to 1"
            yield finding(cause, done, found, "log-probabilities")
            return


def reshaped(subject: Subject) -> Results:
    """A row of logits that meets a target is what the output layer gave for one token."""
    trace = locate.trace_of(subject)
    for node in trace.of("_log_softmax"):
        head = back(node.inputs[0][0], MOVES, PRODUCTS)
        if head is None:
            continue
        x, axis = node.args[0], int(node.args[1]) % node.args[0].dim()
        rows = x.movedim(axis, -1)
        rows = rows.reshape(-1, rows.shape[-1])
        # With a bias added later the values differ: only moved numbers are judged.
        width = head.outputs[0].shape[-1]
        known = {tuple(r.tolist()) for r in head.outputs[0].reshape(-1, width)}
        values = set(head.outputs[0].flatten().tolist())
        moved = all(v in values for v in rows[0].tolist())
        inner = rows[1:-1]  # of the first and last, a part may be right
        if moved and len(inner) and not any(tuple(r.tolist()) in known for r in inner):
            done = "compared the rows of the cross-entropy with those of the output layer"
            cause, found = "logits reshaped across tokens", "a row has logits of several tokens"
            yield finding(cause, done, found, "the logits of one token")
            return


def counted(subject: Subject) -> Results:
    """Each sequence counts, and each target but padding."""
    if subject.is_ids(subject.sources[0]):
        name, inputs = subject.sources[-1], sequences(subject, 6)[0]
        size, others = subject.vocabulary(name), sequences(subject, 7)[0]
    else:
        given = given_logits.logits_and_ids(subject)
        if given is None:
            return
        logits, name, ids = given
        inputs, size = {**subject.fresh(6), name: ids}, subject.inputs[logits].shape[-1]
        others = {**subject.fresh(7), name: ids}

    def loss(sequence: int, target: int, *, other: bool = False) -> float:
        """With this id at the end of a sequence, where it is a target alone."""
        given = {**inputs, **others} if other else inputs
        ids = given[name].clone()
        ids[(-1, sequence) if subject.batch == 1 else (sequence, -1)] = target
        return float(subject.run({**given, name: ids}))

    known, padding = range(min(size, MOST)), subject.claims.padding_id
    real = [target for target in known if target != padding]
    done, right = f"put ids at the end of {name}", "another loss for each"
    cause, sequences_ = "real targets are ignored", range(subject.n_sequences)
    without = [i for i in sequences_ if len({loss(i, target) for target in real[:3]}) == 1]
    # The largest losses alone may count: those of other logits may be of other targets.
    without = [i for i in without if len({loss(i, x, other=True) for x in real[:3]}) == 1]
    if 0 < len(without) < subject.n_sequences and not given_logits.masked(subject):
        found = f"that of sequence {without[0]} has no effect"
        yield finding(cause, done, found, right)
    elif padding is not None and not without:
        filled = loss(0, padding)
        same = [target for target in real if abs(loss(0, target) - filled) <= 1e-6 * abs(filled)]
        filled = loss(0, padding, other=True)
        again = [abs(loss(0, x, other=True) - filled) <= 1e-6 * abs(filled) for x in same]
        if same and all(again):
            found = f"{same[:5]} give what padding gives: they do not count"
            yield finding(cause, done, found, right)


def order_of_sequences(subject: Subject) -> Results:
    """A loss does not know which of its sequences comes first."""
    axis, n, inputs = subject.batch or 0, subject.n_sequences, subject.fresh(0)
    tensors = {k: x for k, x in inputs.items() if isinstance(x, Tensor) and x.dim()}
    if n < 2 or any(x.dim() <= axis or x.shape[axis] != n for x in tensors.values()):
        return
    turned = {**inputs, **{k: x.flip(axis) for k, x in tensors.items()}}
    calls = ((inputs, 0), (inputs, 1), (turned, 0))
    one, again, other = (float(subject.run(x, seed=seed)) for x, seed in calls)
    if one != again or not abs(other - one) > 1e-4 * abs(one):
        return
    of_ids = subject.is_ids(subject.sources[0])
    if not of_ids and not given_logits.crosses(subject):
        return  # each has a weight of its own
    cause = "depends on the sequence's number" if of_ids else "batch and tokens exchanged"
    level: Level = "warning" if of_ids else "error"  # its noise may be the same in each call
    done, found = "gave the sequences in reverse order", f"the loss was {one:.5g}, is {other:.5g}"
    yield finding(cause, done, found, "the same loss", level)


def padding_in_loss(subject: Subject) -> Results:
    """The loss of sequences with padding is that of the sequences."""
    padding, n = subject.claims.padding_id, subject.n_tokens - 2
    assert padding is not None
    of_ids, mask = subject.is_ids(subject.sources[0]), subject.claims.mask
    if given_logits.masked(subject, but=str(mask.argument) if mask and of_ids else ""):
        why = "another argument may say what is padding"
        yield NotJudged("padding in the loss", why, "mask=…" * of_ids)
        return
    if not of_ids:
        yield from given_logits.padding(subject, padding)
        return
    inputs, _ = sequences(subject, 5)
    if n < 2 or not all(inputs[name].shape[-1] == n + 2 for name in subject.sources):
        return
    alone = subject.sliced(inputs, n)
    padded = {name: F.pad(alone[name], (0, 2), value=padding) for name in subject.sources}
    padded = {**inputs, **padded}
    if mask is not None:
        allowed = (torch.arange(n + 2) < n).expand(subject.n_sequences, -1)
        padded = mask_inputs(subject, padded, allowed, n + 2)
    one, other = (float(subject.run(x)) for x in (padded, alone))
    if abs(one - other) > 1e-4 * abs(other):
        cause, found = "padding counts in the loss", f"{one:.4f} and {other:.4f}"
        done = "compared the loss of padded sequences with that of the same without padding"
        yield finding(cause, done, found, "the same loss")


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
    if not subject.parameters or not subject.is_ids(subject.sources[0]):
        return
    causal = subject.claims.causal
    if causal is None:
        inputs, ids = sequences(subject, 7)
        masks = {locate.pattern(locate.support(a)) for a in locate.attentions(subject)}
        pair = len(subject.sources) > 1 and ids is inputs[subject.sources[0]]  # labels of their own
        causal = locate.inside(subject) == "causal" or (pair and "causal" in masks)
    width = subject.vocab_size
    before = {p: p.detach().clone() for p in subject.parameters.values()}

    def trained(seeds: Iterable[int]) -> list[float] | None:
        with torch.no_grad():
            for parameter, values in before.items():
                parameter.copy_(values)
        torch.manual_seed(0)
        losses, end = [], time.perf_counter() + SECONDS
        for step, seed in enumerate(seeds):
            inputs, _ = sequences(subject, seed)
            loss = output_of(subject.call(inputs), has_labels=subject.has_labels)
            for parameter in before:
                parameter.grad = None
            loss.backward()
            with torch.no_grad():
                for parameter in before:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad.sign(), alpha=RATE * (1 - step / STEPS))
            losses.append(float(loss.detach()))
            if time.perf_counter() > end:
                return None
        return losses

    with torch.enable_grad(), subject.mode(training=True), no_dropout():
        fresh = trained(range(100, 100 + STEPS)) if causal else []
        same = trained([7] * STEPS)
    if fresh is None or same is None:
        yield NotJudged("training", f"{STEPS} steps take more than {SECONDS} seconds")
        return
    done = f"trained it for {STEPS} steps on "
    if fresh and (end := sum(fresh[-10:]) / 10) < 0.6 * math.log(width):
        cause, done = "targets are copied", done + "random ids, other ones in each step"
        right = f"it can't fall below ln {width} = {math.log(width):.2f}"
        yield finding(cause, done, f"the loss fell to {end:.2f}", right)
    elif same[-1] > 0.7 * same[0]:
        cause, found = (
            "a batch is not learned",
            f"the loss went from {same[0]:.2f} to {same[-1]:.2f}",
        )
        yield finding(cause, done + "the same ids", found, "towards 0", "warning")
