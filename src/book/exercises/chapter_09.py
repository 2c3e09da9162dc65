"""Exercises of chapter 09."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from book.exercises.mistakes import Exercise, Function, MistakeError, kind, tensors, verdict

PADDING, START, END = range(3)

PATIENTS = {
    "A": "no causal mask",
    "B": "padding not masked",
    "C": "not shifted",
    "D": "positions restart",
    "E": "wrong start token",
}
HINTS: dict[str, str | dict[str, str]] = {  # which of the patient's numbers rules a cause out
    "not shifted": "it would copy all that it reads, and this patient copies little",
    "no causal mask": "it would read ahead, and this patient's number for that is 0",
    "padding not masked": {
        "A": "it reads ahead, and padding does not change who may attend to later tokens",
        "C": "it copies all that it reads, and padding does not bring a token's label into sight",
        "D": "a phrase alone has no padding, and this patient is no better one by one",
        "E": "a phrase alone has no padding, and this patient is no better one by one",
    },
    "wrong start token": {
        "A": "it reads ahead, and a start token does not change who may attend to whom",
        "B": "it is mostly correct one by one, though it begins with the same token there",
        "C": "it copies all that it reads, and there the first token is the correct one",
        "D": "what it writes begins correctly, and a wrong start token spoils the first character",
    },
    "positions restart": {
        "A": "it reads ahead, and positions do not change who may attend to whom",
        "B": "it is mostly correct one by one, though positions would restart there, too",
        "C": "it copies all that it reads, in a full pass, where no position restarts",
        "E": "what it writes is wrong from the beginning, where the position is 0 in any case",
    },
}


def _run_shift(shift: Function, target: Tensor) -> Tensor:
    read, labels = tensors("shift", shift(target), 2)
    if read.shape != labels.shape:
        raise MistakeError(
            "shift: each token that is read has one to predict, got shapes "
            f"{tuple(read.shape)} and {tuple(labels.shape)}"
        )
    if torch.equal(read, labels):
        raise MistakeError("shift: not shifted, both are the same: the decoder can copy")
    return torch.stack([read.masked_fill(labels == PADDING, PADDING), labels]).double()


check_shift = Exercise(
    "shift",
    "Check ``shift(target)`` of chapter 09: what the decoder reads, and what it has to predict. "
    "What is read where padding has to be predicted does not matter.",
    lambda y: (y[:, :-1], y[:, 1:]),
    {
        "shifted the wrong way: the decoder reads a token and has to predict the one before": (
            lambda y: (y[:, 1:], y[:, :-1])
        ),
        "the start token is among what has to be predicted": (
            lambda y: (torch.cat([y[:, :1], y[:, :-1]], dim=1), y)
        ),
        "drops the end token from what has to be predicted: nothing would teach the model to end": (
            lambda y: (y[:, :-1], y[:, 1:].masked_fill(y[:, 1:] == END, PADDING))
        ),
        "drops the last token of every row; in the longest row that is the end token": (
            lambda y: (y[:, :-2], y[:, 1:-1])
        ),
        "shifted by two: a token lies between what is read and what has to be predicted": (
            lambda y: (y[:, :-2], y[:, 2:])
        ),
        "rolls: what comes first has to be predicted after the last": (
            lambda y: (y, y.roll(-1, dims=1))
        ),
        "shifts the rows of the batch; tokens are the second dimension": lambda y: (y[:-1], y[1:]),
    },
    lambda: {
        f"targets of {n} tokens (first index 0: read, 1: to predict)": (
            torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0], [1, 9, 4, 2, 0]])[-rows:, :n],
        )
        for rows, n in ((3, 5), (2, 4))
    },
    _run_shift,
)


ENCODER, DECODER, CROSS = (
    "the encoder's self-attention",
    "the decoder's self-attention",
    "the cross-attention",
)
PADDED = "attends to padding: block its columns, the keys; blocking its rows does not help"
NEGATED = "is False where it should be True: True = may attend"


def _three_masks(which: str = "", change: Function | None = None) -> Function:
    """Changes one of the masks, which ``change`` gets with what masks padding alone, and n."""

    def three_masks(source: Tensor, target: Tensor, padding_id: int) -> tuple[Tensor, ...]:
        real, own = ((ids != padding_id)[:, None, None] for ids in (source, target))
        n = target.shape[1]
        masks = {ENCODER: (real, real), DECODER: (_lower(own, n), own), CROSS: (real, real)}
        return tuple(
            change(*each, n) if change and name == which else each[0]
            for name, each in masks.items()
        )

    return three_masks


def _lower(mask: Tensor, queries: int, diagonal: int = 0) -> Tensor:
    return mask.expand(-1, -1, queries, -1).tril(diagonal)


def _upper(mask: Tensor, queries: int) -> Tensor:
    return mask.expand(-1, -1, queries, -1).triu()


def _three_masks_cases() -> dict[str, tuple[Tensor, Tensor, int]]:
    source = torch.tensor([[3, 4, 5, 6, 7], [3, 4, 9, 9, 9], [5, 4, 3, 9, 9]])
    target = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 9], [1, 6, 4, 9]])
    return {
        f"{n} source and {m} target tokens (1: may attend)": (source[:, :n], target[:, :m], 9)
        for n, m in ((5, 4), (3, 2))
    }


def _run_three_masks(
    three_masks: Function, source: Tensor, target: Tensor, padding_id: int
) -> dict[str, Tensor]:
    real, own = source != padding_id, target != padding_id
    results = tensors("three_masks", three_masks(source, target, padding_id), 3)
    parts = {}
    for which, queries, keys, result in zip(
        (ENCODER, DECODER, CROSS), (real, own, own), (real, own, real), results, strict=True
    ):
        shape = len(source), 2, queries.shape[1], keys.shape[1]  # two heads
        if result.dtype != torch.bool:
            raise MistakeError(
                f"three_masks: {which} should be bool, True = may attend, got {result.dtype}"
            )
        try:
            result.broadcast_to(shape)
        except RuntimeError:
            raise MistakeError(
                f"three_masks: {which} has shape {tuple(result.shape)}, which does not broadcast "
                f"to (batch, heads, queries, keys) = {shape}; its keys are the "
                f"{'source' if keys is real else 'target'}'s tokens"
            ) from None
        compared = queries[:, None, :, None]  # what padding attends to does not matter
        parts[which] = (result & compared).broadcast_to(shape).double()
    return parts


check_three_masks = Exercise(
    "three_masks",
    "Check ``three_masks(source, target, padding_id)`` of chapter 09. "
    "Only the rows of real queries are compared. So a decoder's mask that is causal alone is "
    "correct, too: with the padding at the end, no real query has padding before it.",
    _three_masks(),
    {
        f"{ENCODER} {PADDED}": _three_masks(ENCODER, lambda mask, own, n: mask | True),
        f"{ENCODER} is causal: the whole source is there from the beginning": (
            _three_masks(ENCODER, lambda mask, own, n: _lower(mask, mask.shape[-1]))
        ),
        f"{DECODER} is not causal: a token may attend to later ones": (
            _three_masks(DECODER, lambda mask, own, n: own)
        ),
        f"{DECODER} is not causal, and attends to padding": (
            _three_masks(DECODER, lambda mask, own, n: mask | True)
        ),
        f"{DECODER} is causal the wrong way round: each token looks to the right": (
            _three_masks(DECODER, lambda mask, own, n: _upper(own, n))
        ),
        f"{DECODER} looks to the right, and attends to padding": (
            _three_masks(DECODER, lambda mask, own, n: _upper(own | True, n))
        ),
        f"{DECODER} lets a token attend to the one after it": (
            _three_masks(DECODER, lambda mask, own, n: _lower(own, n, 1))
        ),
        f"{DECODER} lets a token attend to the one after it, also where that is padding": (
            _three_masks(DECODER, lambda mask, own, n: _lower(own | True, n, 1))
        ),
        f"{DECODER} leaves out a token's own position: the first would attend to nothing": (
            _three_masks(DECODER, lambda mask, own, n: _lower(own, n, -1))
        ),
        f"{CROSS} {PADDED}": _three_masks(CROSS, lambda mask, own, n: mask | True),
        f"{CROSS} is causal: the decoder may attend to the whole source": (
            _three_masks(CROSS, lambda mask, own, n: _lower(mask, n))
        ),
    }
    | {
        f"{which} {NEGATED}": _three_masks(which, lambda mask, own, n: ~mask)
        for which in (ENCODER, DECODER, CROSS)
    },
    _three_masks_cases,
    _run_three_masks,
)


def _exact_match_cases() -> dict[str, tuple[Tensor, Tensor, int]]:
    target = torch.tensor(
        [
            [5, 6, 7, 2, 0, 0],
            [5, 6, 2, 0, 0, 0],
            [8, 9, 7, 2, 0, 0],
            [8, 9, 7, 5, 2, 0],
            [5, 5, 5, 2, 0, 0],
            [6, 7, 8, 9, 5, 2],
            [7, 2, 0, 0, 0, 0],
        ]
    )
    wide = torch.tensor(
        [
            [5, 6, 7, 2, 0, 0, 0, 0],  # right
            [5, 6, 2, 9, 2, 0, 0, 0],  # right, and something after the end
            [8, 9, 7, 5, 2, 0, 0, 0],  # does not end where it should
            [8, 9, 2, 0, 0, 0, 0, 0],  # ends too early
            [5, 6, 5, 2, 0, 0, 0, 0],  # one wrong
            [6, 7, 8, 9, 5, 2, 0, 0],  # right
            [7, 7, 7, 7, 7, 7, 7, 7],  # never ends
        ]
    )
    another = torch.tensor([0, 1, 7, 3, 4, 5, 6, 2, 8, 9])  # 2 and 7 change places
    return {
        "seven rows, as wide as the target": (wide[:, :6], target, END),
        "seven rows, wider": (wide, target, END),
        "seven rows, narrower": (wide[:, :5], target, END),
        "another end token": (another[wide], another[target], 7),
    }


def _compared(written: Tensor, target: Tensor, end_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of a target's tokens: the same ones, those up to its end, those after an end written."""
    n_more = target.shape[1] - written.shape[1]
    written = torch.nn.functional.pad(written, (0, n_more), value=-1)
    end = target == end_id
    early = (written == end_id).cumsum(1) > 0
    return written == target, end.cumsum(1) - end.int() == 0, early


def _exact_match(
    written: Tensor, target: Tensor, end_id: int, passes: Function = lambda early, end: False
) -> Tensor:
    same, until_end, early = _compared(written, target, end_id)
    rows: Tensor = (same | ~until_end | passes(early, target == end_id)).all(1)
    return rows.double().mean()


def _cut(written: Tensor, target: Tensor, end_id: int) -> Tensor:
    n = min(written.shape[1], target.shape[1])
    return _exact_match(written[:, :n], target[:, :n], end_id)


check_exact_match = Exercise(
    "exact_match",
    "Check ``exact_match(written, target, end_id)`` of chapter 09.",
    _exact_match,
    {
        "takes 2 for the end token; end_id is given": (
            lambda written, target, end_id: _exact_match(written, target, END)
        ),
        "counts the rows; divide by their number": (
            lambda written, *a: len(written) * _exact_match(written, *a)
        ),
        "is in percent; a share is from 0 to 1": lambda *a: 100 * _exact_match(*a),
        "lets a row pass whose end is not written: it is wrong, so cut neither to the shorter "
        "width nor at an end that is written": _cut,
        "counts tokens; a row is correct or wrong as a whole": (
            lambda *a: (_compared(*a)[0][_compared(*a)[1]]).double().mean()
        ),
        "counts tokens, and the padding among them": lambda *a: _compared(*a)[0].double().mean(),
        "compares what follows the end, too": lambda *a: _compared(*a)[0].all(1).double().mean(),
        "does not compare the end token: a correct beginning is not enough": (
            partial(_exact_match, passes=lambda early, end: end)
        ),
        "lets a row pass that ends too early: compare up to the target's end": (
            partial(_exact_match, passes=lambda early, end: early)
        ),
    },
    _exact_match_cases,
)


def _beam_step_cases() -> dict[str, tuple[Tensor, Tensor]]:
    p = torch.tensor(
        [[0.02, 0.45, 0.40, 0.13], [0.05, 0.60, 0.15, 0.20], [0.95, 0.01, 0.01, 0.03]],
        dtype=torch.float64,
    )
    total = torch.tensor([0.5, 0.2, 0.25], dtype=torch.float64).log()
    more = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    return {
        f"{beams} beginnings, {n} tokens (first index 0: totals, 1: parents, 2: tokens)": (
            total[:beams],
            log_p,
        )
        for beams, n, log_p in (
            (3, 4, p.log()),
            (2, 7, torch.cat([0.4 * p[:2], more.expand(2, -1)], dim=1).log()),
        )
    }


def _run_beam_step(beam_step: Function, total: Tensor, log_p: Tensor) -> Tensor:
    beams = len(total)
    results = tensors("beam_step", beam_step(total, log_p), 3)
    for name, result in zip(("totals", "parents", "tokens"), results, strict=True):
        if result.shape != (beams,):
            raise MistakeError(
                f"beam_step: {name} should have shape ({beams},), got {tuple(result.shape)}"
            )
        if name != "totals" and result.is_floating_point():
            raise MistakeError(f"beam_step: {name} are integers, got {result.dtype}")
    return torch.stack([each.double() for each in results])


def _beam_step(
    scores: Function = torch.add,
    *,
    shown: Function | None = None,
    largest: bool = True,
    change: Function = lambda new, parent, token: (new, parent, token),
) -> Function:
    """Chooses by scores, from total[:, None] and log_p; returns what is shown of those chosen."""

    def beam_step(total: Tensor, log_p: Tensor) -> tuple[Tensor, ...]:
        by = scores(total[:, None], log_p)
        index = by.flatten().topk(len(total), largest=largest).indices
        new = by if shown is None else shown(total[:, None], log_p)
        n = log_p.shape[1]
        found: tuple[Tensor, ...] = change(new.flatten()[index], index // n, index % n)
        return found

    return beam_step


def _best_of_each(total: Tensor, log_p: Tensor) -> tuple[Tensor, ...]:
    new, token = (total[:, None] + log_p).max(dim=1)
    return new, torch.arange(len(total)), token


def _best_of_each_sorted(total: Tensor, log_p: Tensor) -> tuple[Tensor, ...]:
    results = _best_of_each(total, log_p)
    return tuple(each[results[0].argsort(descending=True)] for each in results)


def _first_alone(total: Tensor, log_p: Tensor) -> tuple[Tensor, ...]:
    new, token = (total[0] + log_p[0]).topk(len(total))
    return new, 0 * token, token


check_beam_step = Exercise(
    "beam_step",
    "Check ``beam_step(total, log_p)`` of chapter 09: new totals, parents and tokens, best first.",
    _beam_step(),
    {
        "keeps the best token of each beginning; two may come from the same one": _best_of_each,
        "keeps the best token of each beginning, sorted; two may come from the same one": (
            _best_of_each_sorted
        ),
        "forgets total: a beginning's own log-probability is added": (
            _beam_step(lambda total, log_p: log_p)
        ),
        "chooses without total, and adds it afterwards": (
            _beam_step(lambda total, log_p: log_p, shown=torch.add)
        ),
        "multiplies log-probabilities; their sum is the logarithm of the product": (
            _beam_step(torch.mul)
        ),
        "adds probabilities; they are multiplied, so their logarithms are added": (
            _beam_step(lambda total, log_p: total.exp() + log_p.exp())
        ),
        "adds probabilities and takes the logarithm; their logarithms are added": (
            _beam_step(lambda total, log_p: (total.exp() + log_p.exp()).log())
        ),
        "goes on with the best beginning alone": _first_alone,
        "keeps the worst": _beam_step(largest=False),
        "is sorted the wrong way: best first": (
            _beam_step(change=lambda *found: tuple(each.flip(0) for each in found))
        ),
        "returns probabilities as totals; keep the logarithms": (
            _beam_step(shown=lambda total, log_p: (total + log_p).exp())
        ),
        "returns the step's log-probabilities as totals: add the beginning's": (
            _beam_step(shown=lambda total, log_p: log_p)
        ),
        "tokens and parents change places": (
            _beam_step(change=lambda new, parent, token: (new, token, parent))
        ),
        "divides by the number of beginnings; a row of log_p has as many as the vocabulary": (
            _beam_step(
                change=lambda new, parent, token: (
                    new,
                    (4 * parent + token) // 3,
                    (4 * parent + token) % 3,
                )
            )
        ),
        "numbers the tokens through all beginnings: take the remainder by the vocabulary": (
            _beam_step(change=lambda new, parent, token: (new, parent, 4 * parent + token))
        ),
    },
    _beam_step_cases,
    _run_beam_step,
)


def check_causes(causes: Mapping[str, str]) -> None:
    """Check the causes that the reader of chapter 09 gives to five patients.

    Raises:
        MistakeError: names a patient whose numbers speak against the cause, and which.

    Example:
        >>> check_causes({"A": "not shifted"} | dict.fromkeys("BCDE", "wrong start token"))
        Traceback (most recent call last):
        book.exercises.mistakes.MistakeError: causes: 1 of 5 are correct. A, "not shifted":
        it would copy all that it reads, and this patient copies little
    """
    with verdict("causes"):
        if not isinstance(causes, Mapping) or set(causes) != set(PATIENTS):
            given = list(causes) if isinstance(causes, Mapping) else kind(causes)
            raise MistakeError(f"causes: one for each of A, B, C, D and E, got {given}")
        for cause in causes.values():
            if cause not in tuple(HINTS):
                raise MistakeError(f"causes: {cause!r} is none of {', '.join(map(repr, HINTS))}")
        wrong = [patient for patient in PATIENTS if causes[patient] != PATIENTS[patient]]
        if wrong:
            patient = wrong[0]
            hint = HINTS[causes[patient]]
            raise MistakeError(
                f'causes: {5 - len(wrong)} of 5 are correct. {patient}, "{causes[patient]}": '
                f"{hint if isinstance(hint, str) else hint[patient]}"
            )
