"""What chapter 09's checks say beside naming typical mistakes, and other right answers."""

import torch

from book.exercises.chapter_09 import check_beam_step, check_exact_match, check_three_masks

CAUSES = {
    "A": "no causal mask",
    "B": "padding not masked",
    "C": "not shifted",
    "D": "positions restart",
    "E": "wrong start token",
}

match, step = check_exact_match.correct, check_beam_step.correct


def end_not_read(y):
    return y.masked_fill(y == 2, 0)[:, :-1], y[:, 1:]


def masks(encoder=lambda m: m, decoder=lambda m: m, cross=lambda m: m):
    def three_masks(*given):
        changes = encoder, decoder, cross
        return [
            change(m) for change, m in zip(changes, check_three_masks.correct(*given), strict=True)
        ]

    return three_masks


def causal_alone(source, target, padding_id):
    real, own, cross = check_three_masks.correct(source, target, padding_id)
    return real, torch.ones(own.shape[-2:], dtype=torch.bool).tril(), cross


def causal_to(diagonal, upper=False):
    """A decoder's mask that leaves padding alone."""

    def three_masks(source, target, padding_id):
        real, own, cross = check_three_masks.correct(source, target, padding_id)
        table = torch.ones(own.shape[-2:], dtype=torch.bool)
        return real, table.triu(diagonal) if upper else table.tril(diagonal), cross

    return three_masks


def up_to_written_end(written, target, end_id):
    right = 0
    for row, answer in zip(written.tolist(), target.tolist(), strict=True):
        n = row.index(end_id) + 1 if end_id in row else min(len(row), len(answer))
        right += row[:n] == answer[:n]
    return right / len(target)


def cross_from_target(source, target, padding_id):
    real, own, _ = check_three_masks.correct(source, target, padding_id)
    return real, own, (target != padding_id)[:, None, None]


def early_end_passes(written, target, end_id):
    right = 0
    for row, answer in zip(written.tolist(), target.tolist(), strict=True):
        n = row.index(end_id) if end_id in row else answer.index(end_id) + 1
        right += row[:n] == answer[:n]
    return right / len(target)


def same_width_only(written, target, end_id):
    return match(written + 0 * target, target, end_id)


def changed(change):
    return lambda *given: change(*step(*given))


RIGHT = [
    ("beam_step", changed(lambda *each: list(each))),
    ("shift", end_not_read),
    ("three_masks", causal_alone),
    ("exact_match", lambda *given: match(*given).item()),
    ("causes", CAUSES),
]

MISTAKES = [
    ("shift", lambda y: (y, y), "not shifted"),
    ("shift", lambda y: (y[:, 1:], y[:, 1:]), "not shifted"),
    ("shift", lambda y: (y, y[:, 1:]), "one to predict"),
    ("shift", lambda y: y[:, 1:], "must return 2 tensors"),
    ("shift", lambda y: (y[:, :-1], y[:, 1:] + 1), "should be"),
    ("three_masks", masks(encoder=lambda m: m.mT), "encoder's .* columns"),
    ("three_masks", cross_from_target, "keys are the source's"),
    ("three_masks", masks(decoder=lambda m: m[:, 0]), "decoder's .* does not broadcast"),
    ("three_masks", masks(encoder=lambda m: m.double().log()), "should be bool"),
    ("three_masks", masks(encoder=lambda m: m.roll(1, -1)), "of the encoder's .* should be 1"),
    ("three_masks", causal_to(1), "attend to the one after it"),
    ("three_masks", causal_to(0, upper=True), "looks to the right"),
    ("exact_match", up_to_written_end, "at an end that is written"),
    ("exact_match", early_end_passes, "too early"),
    ("exact_match", same_width_only, "wider, raises RuntimeError: "),
    ("exact_match", lambda *given: None, "must return a number"),
    ("exact_match", lambda *given: 0.5, "should be 0.4"),
    ("beam_step", changed(lambda new, i, j: (new, i)), "must return 3 tensors"),
    ("beam_step", changed(lambda new, i, j: (new[:2], i[:2], j[:2])), "should have shape"),
    ("beam_step", changed(lambda new, i, j: (new, i, j + 1)), "should be"),
    ("beam_step", changed(lambda *each: [one.tolist() for one in each]), r"list of 3 \(list\)"),
    ("beam_step", changed(lambda new, i, j: (new, i, j.double())), "tokens are integers"),
    ("causes", {"A": "not shifted"}, "one for each"),
    ("causes", CAUSES | {"A": "no mask"}, "'no mask' is none of"),
] + [
    ("causes", CAUSES | {patient: cause}, f'4 of 5 are correct. {patient}, "{cause}": .*{words}')
    for cause, hints in {
        "not shifted": {"ABDE": "copies little"},
        "no causal mask": {"BCDE": "number for that is 0"},
        "padding not masked": {
            "A": "reads ahead", "C": "copies all", "DE": "no better one by one",
        },
        "wrong start token": {
            "A": "reads ahead", "B": "correct one by one",
            "C": "copies all", "D": "begins correctly",
        },
        "positions restart": {
            "A": "reads ahead", "B": "correct one by one", "C": "copies all", "E": "position is 0",
        },
    }.items()
    for patients, words in hints.items()
    for patient in patients
]  # fmt: skip
