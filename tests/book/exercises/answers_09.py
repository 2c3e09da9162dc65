"""Right answers to the exercises of chapter 09, and typical mistakes."""

import torch
import torch.nn.functional as F

CAUSES = {
    "A": "no causal mask",
    "B": "padding not masked",
    "C": "not shifted",
    "D": "positions restart",
    "E": "wrong start token",
}


def shift(y):
    return y[:, :-1], y[:, 1:]


def end_not_read(y):
    return y.masked_fill(y == 2, 0)[:, :-1], y[:, 1:]


def masks(encoder=lambda m: m, decoder=lambda m: m, cross=lambda m: m):
    def three_masks(source, target, padding_id):
        real = (source != padding_id)[:, None, None]
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        own = causal & (target != padding_id)[:, None, None]
        return encoder(real), decoder(own), cross(real)

    return three_masks


def causal_alone(source, target, padding_id):
    real, own, cross = masks()(source, target, padding_id)
    return real, torch.ones(own.shape[-2:], dtype=torch.bool).tril(), cross


def target_keys(source, target, padding_id):
    return (target != padding_id)[:, None, None]


def not_causal(source, target, padding_id):
    real, _, cross = masks()(source, target, padding_id)
    return real, target_keys(source, target, padding_id), cross


def cross_from_target(source, target, padding_id):
    return *masks()(source, target, padding_id)[:2], target_keys(source, target, padding_id)


def causal(mask):
    return mask & torch.ones(5, 5, dtype=torch.bool).tril()


def parts(written, target, end_id):
    """Which tokens are the same; which stand up to and with the end."""
    n = target.shape[1]
    end = target == end_id
    same = F.pad(written, (0, n), value=-1)[:, :n] == target
    return same, end.cumsum(1) - end.int() == 0


def match(written, target, end_id):
    same, until_end = parts(written, target, end_id)
    return (same | ~until_end).all(1).double().mean()


def tokens(written, target, end_id):
    same, until_end = parts(written, target, end_id)
    return same[until_end].double().mean()


def end_not_compared(written, target, end_id):
    same, until_end = parts(written, target, end_id)
    return (same | ~until_end | (target == end_id)).all(1).double().mean()


def early_end_passes(written, target, end_id):
    right = 0
    for row, answer in zip(written.tolist(), target.tolist(), strict=True):
        n = row.index(end_id) if end_id in row else answer.index(end_id) + 1
        right += row[:n] == answer[:n]
    return right / len(target)


def shorter_width(written, target, end_id):
    n = min(written.shape[1], target.shape[1])
    same, until_end = parts(written[:, :n], target[:, :n], end_id)
    return (same | ~until_end).all(1).double().mean().item()


def same_width_only(written, target, end_id):
    return match(written + 0 * target, target, end_id)


def step(total, log_p, of=torch.add):
    new, index = of(total[:, None], log_p).flatten().topk(len(total))
    return new, index // log_p.shape[1], index % log_p.shape[1]


def per_beam(total, log_p):
    new, token = (total[:, None] + log_p).max(1)
    return new, torch.arange(len(total)), token


def per_beam_sorted(total, log_p):
    new, parent, token = per_beam(total, log_p)
    order = new.argsort(descending=True)
    return new[order], parent[order], token[order]


def total_afterwards(total, log_p):
    new, parent, token = step(0 * total, log_p)
    return new + total[parent], parent, token


def first_beam(total, log_p):
    new, token = (total[0] + log_p[0]).topk(len(total))
    return new, 0 * token, token


def worst(total, log_p):
    index = (total[:, None] + log_p).flatten().argsort()[: len(total)]
    return (total[:, None] + log_p).flatten()[index], index // 4, index % 4


def add_p(total, log_p):
    return total.exp() + log_p.exp()


def changed(change, function=step):
    return lambda *given: change(*function(*given))


RIGHT = [
    ("shift", shift),
    ("shift", end_not_read),
    ("three_masks", masks()),
    ("three_masks", causal_alone),
    ("exact_match", match),
    ("exact_match", lambda *given: match(*given).item()),
    ("beam_step", step),
    ("causes", CAUSES),
]

MISTAKES = [
    ("shift", lambda y: (y, y), "not shifted"),
    ("shift", lambda y: (y[:, 1:], y[:, 1:]), "not shifted"),
    ("shift", lambda y: (y[:, 1:], y[:, :-1]), "wrong way"),
    (
        "shift",
        lambda y: (torch.cat([y[:, :1], y[:, :-1]], 1), y),
        "start token is among",
    ),
    (
        "shift",
        lambda y: (y[:, :-1], y.masked_fill(y == 2, 0)[:, 1:]),
        "drops the end token",
    ),
    ("shift", lambda y: (y[:, :-2], y[:, 1:-1]), "last token of every row"),
    ("shift", lambda y: (y[:, :-2], y[:, 2:]), "shifted by two"),
    ("shift", lambda y: (y, y.roll(-1, 1)), "rolls"),
    ("shift", lambda y: (y[:-1], y[1:]), "rows of the batch"),
    ("shift", lambda y: (y, y[:, 1:]), "one to predict"),
    ("shift", lambda y: y[:, 1:], "must return 2 tensors"),
    ("shift", lambda y: (y[:, :-1], y[:, 1:] + 1), "should be"),
    ("three_masks", masks(encoder=torch.logical_not), "encoder's .* True = may attend"),
    ("three_masks", masks(decoder=torch.logical_not), "decoder's .* True = may attend"),
    ("three_masks", masks(cross=torch.logical_not), "cross-attention .* True = may attend"),
    ("three_masks", masks(encoder=causal), "encoder's self-attention is causal"),
    ("three_masks", masks(cross=lambda m: causal(m)[:, :, :4]), "cross-attention is causal"),
    ("three_masks", masks(encoder=lambda m: m.mT), "encoder's .* columns"),
    ("three_masks", masks(encoder=lambda m: m | True), "encoder's .* attends to padding"),
    ("three_masks", masks(cross=lambda m: m | True), "cross-attention attends to padding"),
    ("three_masks", not_causal, "decoder's self-attention is not causal:"),
    ("three_masks", masks(decoder=lambda m: m | True), "is not causal, and attends"),
    ("three_masks", masks(decoder=lambda m: m[:1].mT & m[:, :, -1:]), "wrong way round"),
    ("three_masks", masks(decoder=lambda m: m.tril(-1)), "own position"),
    ("three_masks", cross_from_target, "keys are the source's"),
    ("three_masks", masks(decoder=lambda m: m[:, 0]), "decoder's .* does not broadcast"),
    ("three_masks", masks(encoder=lambda m: m.double().log()), "should be bool"),
    ("three_masks", masks(encoder=lambda m: m.roll(1, -1)), "encoder's .* should be"),
    ("exact_match", tokens, "counts tokens;"),
    ("exact_match", lambda *given: parts(*given)[0].double().mean(), "padding among them"),
    ("exact_match", lambda *given: parts(*given)[0].all(1).double().mean(), "follows the end"),
    ("exact_match", end_not_compared, "right beginning"),
    ("exact_match", early_end_passes, "too early"),
    ("exact_match", shorter_width, "shorter width"),
    ("exact_match", same_width_only, "wider, and it stops"),
    ("exact_match", lambda *given: 7 * match(*given), "counts the rows"),
    ("exact_match", lambda *given: 100 * match(*given), "percent"),
    ("exact_match", lambda *given: None, "must return a number"),
    ("exact_match", lambda *given: 0.5, "should be 0.4"),
    ("beam_step", per_beam, "each beginning; two"),
    ("beam_step", per_beam_sorted, "each beginning, sorted"),
    ("beam_step", lambda total, log_p: step(0 * total, log_p), "forgets total"),
    ("beam_step", total_afterwards, "adds it afterwards"),
    ("beam_step", lambda *given: step(*given, of=torch.mul), "multiplies"),
    ("beam_step", lambda *given: step(*given, of=add_p), "adds probabilities;"),
    ("beam_step", lambda *given: step(*given, of=lambda *a: add_p(*a).log()), "the logarithm;"),
    ("beam_step", first_beam, "best beginning alone"),
    ("beam_step", worst, "keeps the worst"),
    ("beam_step", changed(lambda *found: [each.flip(0) for each in found]), "wrong way"),
    ("beam_step", changed(lambda new, *rest: (new.exp(), *rest)), "keep the logarithms"),
    (
        "beam_step",
        lambda total, log_p: changed(lambda new, i, j: (log_p[i, j], i, j))(total, log_p),
        "add the beginning's",
    ),
    ("beam_step", changed(lambda new, i, j: (new, j, i)), "change places"),
    ("beam_step", changed(lambda new, i, j: (new, i, 4 * i + j)), "the remainder"),
    ("beam_step", changed(lambda new, i, j: (new, i)), "must return 3 tensors"),
    ("beam_step", changed(lambda new, i, j: (new[:2], i[:2], j[:2])), "should have shape"),
    ("beam_step", changed(lambda new, i, j: (new, i, j + 1)), "should be"),
    ("causes", {"A": "not shifted"}, "one for each"),
    ("causes", CAUSES | {"A": "no mask"}, "'no mask' is none of"),
] + [
    ("causes", CAUSES | {patient: cause}, f'4 of 5 are right. {patient}, "{cause}": .*{words}')
    for cause, hints in {
        "not shifted": {"ABDE": "copies little"},
        "no causal mask": {"BCDE": "number for that is 0"},
        "padding not masked": {"ACDE": "no better one by one"},
        "wrong start token": {
            "A": "reads ahead", "B": "right one by one", "C": "copies all", "D": "begins right",
        },
        "positions restart": {
            "A": "reads ahead", "B": "right one by one", "C": "copies all", "E": "position is 0",
        },
    }.items()
    for patients, words in hints.items()
    for patient in patients
]  # fmt: skip
