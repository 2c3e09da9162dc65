"""What every right module keeps, tried by changing its inputs.

Each check takes a :class:`Subject` and yields findings, or what it could not judge.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.claims import Mask
from attnbook.doctor.masking import block, mask_inputs
from attnbook.doctor.modes import no_dropout, random_operations
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import (
    DIFFERENT,
    Inputs,
    Subject,
    changed,
    copied,
    output_of,
    tensors_in,
)

Results = Iterator[Finding | NotJudged]
SEEDS = (0, 1)
MASKS = ("mask", "attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask")
AT_MOST = 8
"""Tokens of a sequence that are changed, one after the other."""


def influence(subject: Subject, inputs: Inputs, name: str, sequence: int = 0) -> Tensor:
    """How far each token of a sequence reaches: (tokens in, batch out, tokens out).

    Of long sequences, only some tokens are changed; the rows of the others are NaN.
    """
    base = subject.by_token(subject.run(inputs))
    length = subject.length(name)
    rows = torch.full((length, *base.shape[:2]), torch.nan)
    for token in some(length):
        other = subject.replaced(inputs, name, sequence, token)
        rows[token] = changed(base, subject.by_token(subject.run(other)))
    return rows


def some(length: int) -> list[int]:
    """Some tokens, the first and the last among them."""
    step = max(1, -(-length // AT_MOST))
    return sorted({*range(0, length, step), *([1] if length > 1 else []), length - 1})


def finite(subject: Subject) -> Results:
    """No NaN or infinity for ordinary inputs, or long vectors."""
    for scale, cause in ((1.0, "NaN or infinity"), (40.0, "overflow")):
        if scale > 1 and subject.is_ids(subject.target):
            return
        output = subject.run(subject.fresh(0, scale))
        if not output.isfinite().all():
            bad = int((~output.isfinite()).sum())
            later = any(locate.pattern(s) == "strictly later" for s in locate.supports(subject))
            if later or locate.all_closed(subject):
                cause = "mask of wrong polarity"
            yield finding(
                "error" if scale == 1 else "warning",
                "finite",
                cause,
                f"called with normal vectors{' 40 times as long' if scale > 1 else ''}",
                f"{bad} of {output.numel()} numbers are NaN or infinite",
                "numbers",
            )
            return


def batch(subject: Subject) -> Results:
    """A sequence does not depend on the others of its batch."""
    if subject.batch is None or subject.n_sequences < 2:
        yield NotJudged("batch", "the example has one sequence", "an example of two")
        return
    for seed, name in itertools.product(SEEDS, subject.sources[:3]):
        inputs = subject.fresh(seed)
        reach = influence(subject, inputs, name).nan_to_num(0)
        if reach[:, 1:].max() <= DIFFERENT:
            continue
        token = int(reach[:, 1:].amax((1, 2)).argmax())
        cause, where = locate.batch_leak(subject, inputs, name, token)
        yield finding(
            "error",
            "batch",
            cause,
            f"changed token {token} of sequence 0 of {name}",
            f"sequence 1 changed by {float(reach[:, 1:].max()):.1e} of its size{where}",
            "sequence 1 stays the same",
        )
        return


def order_of_sequences(subject: Subject) -> Results:
    """Sequences in another order give outputs in that order."""
    if subject.batch is None or subject.n_sequences < 2:
        return
    inputs = subject.fresh(0)
    if any(
        isinstance(v, Tensor) and v.dim() and k not in subject.sources for k, v in inputs.items()
    ):
        return
    flipped = {k: v.flip(subject.batch) if k in subject.sources else v for k, v in inputs.items()}
    if subject.same:
        flipped.update(dict.fromkeys(subject.same, flipped[subject.same[0]]))
    one, other = (subject.by_token(subject.run(x)) for x in (inputs, flipped))
    off = float(changed(one, other.flip(0)).max())
    if off > 10 * DIFFERENT:
        yield finding(
            "error",
            "order of sequences",
            "depends on the sequence's number",
            "gave the sequences in reverse order",
            f"their outputs differ by {off:.1e}",
            "the same outputs in reverse order",
        )


def mixing(subject: Subject) -> Results:
    """Some token attends to another."""
    yield from _without_effect(subject)
    if subject.kind == "pooled" or max(map(subject.length, subject.attended)) < 2:
        return
    for name in subject.attended:
        reach = influence(subject, subject.fresh(0), name).nan_to_num(0)[:, 0]  # (in, out)
        if subject.is_self and reach.shape[0] == reach.shape[1]:
            reach = reach - torch.diag(reach.diag())
        if reach.max() > DIFFERENT / 10:
            continue
        attentions = locate.attentions(subject)
        tokens = {subject.length(n) for n in subject.attended}
        if any(a.weights.shape[-1] not in tokens and a.weights.shape[-1] > 1 for a in attentions):
            continue  # structure says over what it attends
        if not attentions and not locate.softmaxes(subject):
            yield NotJudged("mixing", "no token depends on another, and no softmax was observed")
            return
        yield finding(
            "error" if subject.is_self else "warning",
            "mixing",
            "no token attends to another",
            f"changed each token of {name}",
            "no other token's output changed",
            "attention lets tokens depend on each other",
        )
        return


def _without_effect(subject: Subject) -> Results:
    """Each of several inputs has an effect."""
    for name in subject.sources:
        if name in subject.same or len(subject.sources) < 2:
            continue
        if influence(subject, subject.fresh(0), name).nan_to_num(0).max() == 0:
            yield finding(
                "error",
                "mixing",
                "input without effect",
                f"changed each token of {name}",
                "no output changed",
                "outputs depend on it",
            )


def future(subject: Subject) -> Results:
    """In a causal module, no token depends on a later one."""
    if not subject.is_self:
        return
    if subject.claims.causal is False:
        return
    inside = locate.inside(subject)
    if not subject.claims.causal and inside not in ("causal", "later by one", "strictly later"):
        if inside == "later":
            yield finding(
                "warning",
                "future",
                "mask of wrong polarity",
                "observed the weights",
                "each token attends to itself and to later ones only",
                "to earlier ones, if it is meant to be causal",
            )
        yield NotJudged("future", "whether it is causal", "causal=True")
        return
    for seed in SEEDS:
        inputs, sequence = subject.fresh(seed), seed % subject.n_sequences
        reach = influence(subject, inputs, subject.target, sequence)
        if reach.shape[0] != reach.shape[2]:
            yield NotJudged("future", "the output has other tokens than the input")
            return
        reach = reach.nan_to_num(0)[:, sequence]  # (token in, token out)
        early = reach.tril(-1)  # out before in
        if early.max() <= DIFFERENT:
            continue
        token, earlier = divmod(int(early.argmax()), early.shape[1])
        cause, where = locate.future_leak(subject, inputs, sequence, token)
        n = int((early > DIFFERENT).sum())
        claim = "" if subject.claims.causal else " (all its masks are causal)"
        yield finding(
            "error",
            "future",
            cause,
            f"changed each token, and watched those before it{claim}",
            f"token {earlier} changed by {float(early.max()):.1e} with token {token}; "
            f"{n} such pairs{where}",
            "no token changes with a later one",
        )
        return


def prefix(subject: Subject) -> Results:
    """In a causal module, the first tokens alone give what they give in a longer sequence."""
    causal = subject.claims.causal or locate.inside(subject) == "causal"
    if not causal or not subject.is_self or subject.n_tokens < 3:
        return
    if any(isinstance(v, Tensor) and k not in subject.sources for k, v in subject.inputs.items()):
        return
    inputs = subject.fresh(0)
    full = subject.by_token(subject.run(inputs))
    cut = subject.n_tokens - 1
    if subject.kind == "encoder-decoder":
        shorter = {**inputs, subject.target: inputs[subject.target].narrow(subject.tokens, 0, cut)}
    else:
        shorter = subject.sliced(inputs, cut)
    try:
        part = subject.by_token(subject.run(shorter))
    except Exception as error:  # it takes one length only
        yield NotJudged("prefix", f"a sequence one token shorter raised {type(error).__name__}")
        return
    off = float(changed(full[:, :cut], part).max()) if part.shape[1] == cut else 0.0
    if off > 10 * DIFFERENT:
        yield finding(
            "error",
            "prefix",
            "depends on the length",
            f"called with the first {cut} tokens",
            f"their outputs differ by {off:.1e} from those in {cut + 1} tokens",
            "the same outputs",
        )


def padding(subject: Subject) -> Results:
    """Padding and masked tokens change nothing, and the rest does."""
    length = subject.length(subject.attended[0])
    if length < 4:
        yield NotJudged("padding", "the example is shorter than four tokens")
    elif subject.claims.mask is not None or subject.claims.padding_id is not None:
        yield from _padding(subject)
    else:
        yield from _guessed(subject)


def _guessed(subject: Subject) -> Results:
    """A mask of a usual name closes under one of the meanings that a mask has."""
    name = next((n for n in subject.optional if n in MASKS), None)
    found: list[list[Finding]] = []
    meanings = (("attend", "bool"), ("blocked", "bool"), ("add", "float"))
    for (true, dtype), shape in itertools.product(meanings, ("bk", "b1k", "b11k", "bqk")):
        if name is None:
            break
        claims = replace(subject.claims, mask=Mask(name, shape, true, dtype))  # type: ignore[arg-type]
        try:
            judged = list(_padding(replace(subject, claims=claims, traces={})))
        except Exception:  # it takes another kind
            continue
        found.append([x for x in judged if isinstance(x, Finding)])
    if not found or not all(found):
        yield NotJudged("padding", "how it knows what is padding", "mask=… or padding_id=…")
        return
    # Of the meanings, the one that fails by no mistake of ours.
    one = next(
        (x for one in found for x in one if x.cause != "mask of wrong polarity"), found[0][0]
    )
    done = f"{one.done}, with {name} as a boolean, inverted, and added"
    level: Any = "warning" if one.cause == "mask ignored" else "error"  # it may be for others' sake
    yield replace(one, level=level, done=done)


def _padding(subject: Subject) -> Results:
    name = subject.attended[0]
    length = subject.length(name)
    allowed = torch.ones(subject.n_sequences, length, dtype=torch.bool)
    for sequence in range(subject.n_sequences):
        allowed[sequence, length - 1 - sequence % 2 :] = False  # the last one, the last two
    inputs = block(subject, subject.fresh(0), name, allowed)
    base = subject.by_token(subject.run(inputs))
    plain = subject.by_token(subject.run(subject.fresh(0)))
    real = (
        allowed
        if subject.is_self and subject.kind != "pooled"
        else torch.ones(base.shape[:2], dtype=torch.bool)
    )
    for sequence in range(min(2, subject.n_sequences)):
        n_real = int(allowed[sequence].sum())
        off, done = 0.0, ""
        if subject.claims.mask is not None:
            done = f"masked the last {length - n_real} tokens of sequence {sequence}, changed them"
            noisy = inputs
            for token in range(n_real, length):
                noisy = subject.replaced(noisy, name, sequence, token)
            if subject.claims.padding_id is None:
                moved = changed(base, subject.by_token(subject.run(noisy)))[sequence]
                off = float(moved[real[sequence]].max())
        if off <= DIFFERENT and name == subject.target:
            alone = _alone(subject, inputs, allowed, sequence, n_real)
            if alone is not None:
                ours = base[sequence : sequence + 1, : alone.shape[1]]
                off = float(changed(ours, alone).max())
                done = f"compared sequence {sequence} padded with the same without padding"
        if off > 10 * DIFFERENT or off != off:
            same = float(changed(base, plain).max()) == 0 and subject.claims.padding_id is None
            cause, where = locate.padding_leak(subject, inputs, allowed, ignored=same)
            yield finding(
                "error",
                "padding",
                cause,
                done,
                f"the outputs of its real tokens changed by {off:.1e}{where}",
                "the outputs of real tokens stay the same",
            )
            return


def _alone(
    subject: Subject, inputs: Inputs, allowed: Tensor, sequence: int, n_real: int
) -> Tensor | None:
    """The outputs of one sequence without its padding."""
    cut = subject.sliced(inputs, n_real)
    if subject.claims.mask is not None:
        short = torch.ones(subject.n_sequences, n_real, dtype=torch.bool)
        try:
            cut = mask_inputs(subject, cut, short, n_real)
        except (RuntimeError, ValueError):
            return None
    try:
        return subject.by_token(subject.run(cut))[sequence : sequence + 1]
    except Exception:  # it takes one length only
        return None


def empty_rows(subject: Subject) -> Results:
    """A sequence of which everything is masked spoils no other, and is not NaN."""
    if subject.claims.mask is None or subject.n_sequences < 2:
        return
    name = subject.attended[0]
    allowed = torch.ones(subject.n_sequences, subject.length(name), dtype=torch.bool)
    inputs = subject.fresh(0)
    whole = subject.by_token(subject.run(mask_inputs(subject, inputs, allowed, allowed.shape[1])))
    allowed[0] = False
    output = subject.by_token(subject.run(mask_inputs(subject, inputs, allowed, allowed.shape[1])))
    if (
        subject.claims.mask.shape.startswith("b")
        and float(changed(whole[1:], output[1:]).max()) > DIFFERENT
    ):
        yield finding(
            "error",
            "empty rows",
            "mask of another sequence",
            "masked all of sequence 0",
            "sequence 1 changed",
            "sequence 1 stays the same",
        )
    elif not output.isfinite().all():
        yield finding(
            "warning",
            "empty rows",
            "empty rows are NaN",
            "masked all of sequence 0",
            "its outputs are NaN",
            "zeros, or anything finite that nobody uses",
        )


def order(subject: Subject) -> Results:
    """Attention without positions does not know the order of what is attended to."""
    inside = locate.inside(subject)
    causal = subject.claims.causal or inside != "all"
    names = subject.attended
    extra = [
        k for k, v in subject.inputs.items() if isinstance(v, Tensor) and k not in subject.sources
    ]
    if causal or extra or subject.claims.window:
        return
    if subject.claims.position != "none" and subject.is_self:
        if not subject.claims.position:
            yield NotJudged("order", "whether it counts the tokens", 'position="none"')
        return
    inputs = subject.fresh(0)
    turned = torch.arange(subject.length(names[0])).roll(1).flip(0)
    moved = {k: inputs[k].index_select(subject.tokens, turned) for k in names}
    if subject.same:
        moved = dict.fromkeys(subject.same, moved[names[0]])
    one, other = (subject.by_token(subject.run(x)) for x in (inputs, {**inputs, **moved}))
    expected = one[:, turned] if subject.is_self else one
    off = float(changed(expected, other).max())
    if off > 10 * DIFFERENT:
        level: Any = "error" if subject.claims.position == "none" else "warning"
        yield finding(
            level,
            "order",
            "depends on the order",
            f"gave the tokens of {', '.join(names)} in another order",
            f"the outputs differ by {off:.1e}",
            "the same outputs, in that order" if subject.is_self else "the same outputs",
        )


def deterministic(subject: Subject) -> Results:
    """In evaluation, two calls give the same."""
    inputs = subject.fresh(0)
    one, again, other = (subject.run(inputs, seed=seed) for seed in (0, 0, 1))
    if not _differ(one, again) and _differ(one, other):
        yield finding(
            "error",
            "evaluation is deterministic",
            "random in evaluation",
            "called it twice in evaluation",
            f"outputs differ; {random_operations(subject)}",
            "the same outputs",
        )


def memory(subject: Subject) -> Results:
    """A call leaves nothing behind that changes the next."""
    inputs = [subject.fresh(seed) for seed in (0, 1)]
    first = subject.run(inputs[0])
    subject.run(inputs[1])
    again = subject.run(inputs[0])
    if _differ(first, again):
        yield finding(
            "error",
            "calls are independent",
            "remembers the last call",
            "called it with one input, another one, and the first again",
            "the third call differs from the first",
            "the same outputs",
        )


def untouched(subject: Subject) -> Results:
    """Arguments and buffers are as before."""
    for inputs in (subject.fresh(0), *_all_ids(subject)):
        yield from _touched(subject, inputs)


def _all_ids(subject: Subject) -> Iterator[Inputs]:
    """Inputs with one id after the other, the first of a large vocabulary."""
    name = subject.target
    if not subject.is_ids(name):
        return
    ids, size = subject.inputs[name], subject.vocab_size
    for start in range(0, min(size, 10 * ids.numel()), ids.numel()):
        new = (start + torch.arange(ids.numel())) % size
        yield {**subject.fresh(0), name: new.view_as(ids).to(ids)}


def _touched(subject: Subject, inputs: Inputs) -> Results:
    given = {k: v for k, v in copied(inputs).items() if isinstance(v, Tensor)}
    copies = {k: v.clone() for k, v in given.items()}
    buffers = {n: b for m in subject.modules for n, b in m.named_buffers()}
    before = {n: b.clone() for n, b in buffers.items()}
    values = list({**subject.inputs, **given}.items())
    with torch.no_grad():
        subject.module(
            *[v for _, v in values[: subject.n_positional]], **dict(values[subject.n_positional :])
        )
    for name, value in given.items():
        if _differ(value, copies[name]):
            yield finding(
                "error",
                "arguments untouched",
                "changes its arguments",
                "called it, and compared its arguments with those before",
                f"{name} was changed",
                "arguments stay the same",
            )
    for name, value in buffers.items():
        if value.shape != before[name].shape or _differ(value, before[name]):
            yield finding(
                "warning",
                "arguments untouched",
                "changes its buffers",
                "called it in evaluation",
                f"the buffer {name} was changed",
                "buffers stay the same",
            )


def train_and_eval(subject: Subject) -> Results:
    """Training and evaluation differ by dropout only."""
    inputs = subject.fresh(0)
    evaluated = subject.run(inputs)
    with subject.mode(training=True), no_dropout():
        trained, again = subject.run(inputs, seed=0), subject.run(inputs, seed=1)
        patterns = locate.inside(subject)
    if trained.shape != evaluated.shape or _differ(trained, again):
        yield NotJudged("train = eval", "training is random without dropout, too")
        return
    off = float(_relative(evaluated, trained))
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
    rates = [
        m.p
        for part in subject.modules
        for m in part.modules()
        if isinstance(m, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.AlphaDropout)
    ]
    claimed = subject.claims.dropout
    inputs = subject.fresh(0)
    with subject.mode(training=True):
        outputs = [subject.run(inputs, seed=seed) for seed in (0, 1)]
        seen = locate.dropouts(subject, inputs)
    if not _differ(*outputs):
        if claimed or (any(rates) and max(rates) > 0):
            yield finding(
                "error" if claimed else "warning",
                "dropout",
                "no dropout in training",
                "called it twice in training",
                "the same outputs",
                f"different outputs, with dropout of {claimed or max(rates)}",
            )
        elif claimed is None:
            yield NotJudged("dropout", "whether it should have any", "dropout=0.1")
        return
    if claimed is not None and claimed > 0 and any(abs(p - claimed) > 1e-6 for p, _ in seen):
        others = sorted({round(p, 4) for p, _ in seen if abs(p - claimed) > 1e-6})
        yield finding(
            "error" if abs(others[0] - (1 - claimed)) < 1e-6 else "warning",
            "dropout",
            "other dropout",
            "observed dropout in training",
            f"it drops with probability {others}",
            f"{claimed}",
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


def gradients(subject: Subject) -> Results:
    """Every parameter gets a gradient."""
    inputs = subject.fresh(0)
    parameters = {n: p for n, p in subject.parameters.items() if p.requires_grad}
    used, running, foreign = locate.used_parameters(subject, inputs)
    for names in foreign:
        yield finding(
            "error",
            "gradients",
            "parameter not registered",
            "observed which parameters the call uses",
            f"one of shape {names} is not among module.parameters()",
            "an optimizer is given every parameter",
        )
        break
    if not parameters:
        return
    torch.manual_seed(0)
    with torch.enable_grad(), subject.mode(training=True), no_dropout():
        outputs = [x for x in tensors_in(subject.call(inputs)) if x.requires_grad]
        for parameter in parameters.values():
            parameter.grad = None
        if outputs:
            drawn = torch.Generator().manual_seed(0)
            total = sum(
                (torch.nan_to_num(x.float()) * torch.randn(x.shape, generator=drawn)).sum()
                for x in outputs
            )
            assert isinstance(total, Tensor)
            total.backward()
    without = [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().max() > 0]
    without += [n for n, p in parameters.items() if n not in without and _part_without(p)]
    if not without:
        return
    dead = [n for n in without if n in used and not n.endswith("bias")]
    unused = [n for n in without if n not in used]
    if dead:
        yield finding(
            "error",
            "gradients",
            "parameter without gradient",
            "backpropagated a random mixture of the outputs",
            f"{_listed(dead)} computed something and got no gradient",
            "a gradient, other than for key biases",
        )
    inside = [n for n in unused if locate.should_run(n, running)]
    if inside:
        yield finding(
            "error",
            "gradients",
            "parameter not used",
            "observed which parameters the call uses",
            f"{_listed(inside)} took no part, though what it belongs to did",
            "every parameter takes part",
        )
    elif unused:
        yield finding(
            "warning",
            "gradients",
            "parameter not used",
            "observed which parameters the call uses",
            f"{_listed(unused)} took no part",
            "every parameter takes part, unless it is for another task",
        )


def _part_without(parameter: nn.Parameter) -> bool:
    """Whether queries, keys or values, or a head, have no gradient in what holds all of them."""
    if parameter.grad is None or parameter.dim() not in (2, 3):
        return False
    if parameter.dim() == 3:
        return len(parameter) < 9 and any(not part.any() for part in parameter.grad)
    wide = parameter.grad if parameter.shape[0] > parameter.shape[1] else parameter.grad.T
    if len(wide) != 3 * wide.shape[1]:
        return False
    return any(not part.any() for part in wide.chunk(3))


def half_precision(subject: Subject) -> Results:
    """In bfloat16 and float16 it gives nearly the same."""
    if len(subject.modules) != 1 or subject.modules[0] is not subject.module:
        return
    inputs = subject.fresh(0)
    full = subject.run(inputs)
    for dtype in (torch.bfloat16, torch.float16):
        try:
            twin: Any = copy.deepcopy(subject.module).to(dtype)
            low = {
                k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
                for k, v in inputs.items()
            }
            values = list(low.items())
            with torch.no_grad():
                torch.manual_seed(0)
                result = twin(
                    *[v for _, v in values[: subject.n_positional]],
                    **dict(values[subject.n_positional :]),
                )
            half = output_of(result)
        except Exception as error:  # whatever it can't do
            if "overflow" in str(error):
                yield _not_in_half(subject, dtype, f"it raised {error}")
                return
            yield NotJudged(
                "half precision", f"in {dtype} it raised {type(error).__name__}: {error}"
            )
            return
        if full.isfinite().all() and not half.isfinite().all():
            yield _not_in_half(subject, dtype, "outputs are NaN or infinite")
            return


def _not_in_half(subject: Subject, dtype: torch.dtype, found: str) -> Finding:
    return finding(
        "error" if subject.claims.half else "warning",
        "half precision",
        "not in half precision",
        f"called it in {dtype}",
        found,
        "nearly the same outputs",
    )


def cache(subject: Subject) -> Results:
    """With a cache, token after token and in chunks, it gives what it gives at once."""
    step = subject.claims.cache
    if step is True:
        step = _past_key_values
    assert callable(step)
    inputs = subject.fresh(0)
    x = inputs[subject.target]
    full = subject.by_token(subject.run(inputs))
    n = subject.n_tokens
    plans = {
        "one": [1] * n,
        "after": [n - 2, 1, 1],
        "chunks": [2, n - 4, 2] if n > 4 else [1, n - 1],
    }
    off, outs = {}, {}
    for name, sizes in plans.items():
        state, parts = None, []
        with torch.no_grad():
            for piece in x.split(sizes, subject.tokens):
                torch.manual_seed(0)
                output, state = step(subject.module, piece.clone(), state)
                parts.append(subject.by_token(output_of(output)))
        outs[name] = torch.cat(parts, 1)
        off[name] = float(changed(full, outs[name]).max())
    wrong = [name for name in plans if off[name] > 20 * DIFFERENT]
    if not wrong:
        return
    cause = "cached differs from full"
    last = x.narrow(subject.tokens, n - 1, 1)
    single = subject.by_token(
        subject.run({**inputs, **dict.fromkeys(subject.same or [subject.target], last)})
    )
    if "one" not in wrong:
        reach = _chunk_reach(subject, step, inputs)
        cause = {"future": "chunks see their future", "short": "chunks do not see the cache"}.get(
            reach, cause
        )
    elif float(changed(outs["one"][:, -1:], single).max()) <= 20 * DIFFERENT:
        cause = "the cache is not attended to"
    elif _depends_on_past(subject, step, inputs):
        cause = "positions restart with the cache" if _restarts(subject) else cause
    else:
        cause = "the cache is not attended to"
    yield finding(
        "error",
        "cache",
        cause,
        "called it with a cache: token after token, one token after many, and in chunks",
        "outputs differ from the full pass by "
        + ", ".join(f"{v:.1e} ({k})" for k, v in off.items()),
        "the same outputs",
    )


def _past_key_values(module: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    result = module(new, past_key_values=state, use_cache=True)
    return output_of(result), result.past_key_values


def _chunk_reach(subject: Subject, step: Any, inputs: Inputs) -> str:
    """Whether, in a chunk after others, a token depends on a later one, or not on earlier ones."""
    n = subject.n_tokens

    def last_chunk(given: Inputs) -> Tensor:
        x = given[subject.target]
        with torch.no_grad():
            _, state = step(subject.module, x.narrow(subject.tokens, 0, n - 3).clone(), None)
            output, _ = step(subject.module, x.narrow(subject.tokens, n - 3, 3).clone(), state)
        return subject.by_token(output_of(output))

    base = last_chunk(inputs)
    later = changed(base, last_chunk(subject.replaced(inputs, subject.target, 0, n - 1)))
    if float(later[0, 0]) > DIFFERENT:
        return "future"
    first = changed(base, last_chunk(subject.replaced(inputs, subject.target, 0, n - 4)))
    return "short" if float(first[0, 0]) <= DIFFERENT else ""


def _depends_on_past(subject: Subject, step: Any, inputs: Inputs) -> bool:
    def last(given: Inputs) -> Tensor:
        state, output = None, None
        with torch.no_grad():
            for piece in given[subject.target].split(1, subject.tokens):
                output, state = step(subject.module, piece.clone(), state)
        return subject.by_token(output_of(output))

    other = subject.replaced(inputs, subject.target, 0, 0)
    return float(changed(last(inputs), last(other))[0, -1]) > DIFFERENT


def _restarts(subject: Subject) -> bool:
    """Whether it has positions at all: of equal tokens, the outputs differ or the logits do."""
    return locate.has_positions(subject)


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or bool(_relative(one, other) > DIFFERENT)


def _relative(one: Tensor, other: Tensor) -> Tensor:
    if not one.is_floating_point():
        return (one != other).float().max()
    return changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
