"""Exercises of chapter 09."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attnbook.book.exercises.mistakes import MistakeError, compare, passed

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
    "padding not masked": "a phrase alone has no padding, and this patient is no better one by one",
    "wrong start token": {
        "A": "it reads ahead, and a start token does not change who may attend to whom",
        "B": "it is right one by one, though it begins with the same token there",
        "C": "it copies all that it reads, and there the first token is the right one",
        "D": "what it writes begins right, and a wrong start token spoils the first character",
    },
    "positions restart": {
        "A": "it reads ahead, and positions do not change who may attend to whom",
        "B": "it is right one by one, though positions would restart there, too",
        "C": "it copies all that it reads, in a full pass, where no position restarts",
        "E": "what it writes is wrong from the beginning, where the position is 0 in any case",
    },
}


def check_shift(shift: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Check ``shift(target)`` of chapter 09: what the decoder reads, and what it has to predict.

    What is read where padding has to be predicted does not matter.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_shift(lambda target: (target[:, :-1], target[:, 1:]))
        ✓ shift is right
    """
    target = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0], [1, 9, 4, 2, 0]])
    read, labels = _tensors("shift", shift(target.clone()), 2)
    if read.shape != labels.shape:
        raise MistakeError(
            "shift: each token that is read has one to predict, got shapes "
            f"{tuple(read.shape)} and {tuple(labels.shape)}"
        )
    if torch.equal(read, labels):
        raise MistakeError("shift: not shifted, both are the same: the decoder can copy")
    before, after = target[:, :-1], target[:, 1:]

    def pair(read: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([read.masked_fill(labels == PADDING, PADDING), labels]).double()

    without_end = after.masked_fill(after == END, PADDING)
    again = torch.cat([target[:, :1], before], dim=1)
    mistakes = {
        "shifted the wrong way: the decoder reads a token and has to predict the one before": (
            pair(after, before)
        ),
        "the start token is among what has to be predicted": pair(again, target),
        "drops the end token from what has to be predicted: nothing would teach the model to end": (
            pair(before, without_end)
        ),
        "drops the last token of every row; in the longest row that is the end token": pair(
            target[:, :-2], target[:, 1:-1]
        ),
        "shifted by two: a token lies between what is read and what has to be predicted": pair(
            target[:, :-2], target[:, 2:]
        ),
        "rolls: what comes first has to be predicted after the last": pair(
            target, target.roll(-1, dims=1)
        ),
        "shifts the rows of the batch; tokens are the second dimension": pair(
            target[:-1], target[1:]
        ),
    }
    case = "three targets (first index 0: read, 1: to predict)"
    compare("shift", pair(read, labels), pair(before, after), mistakes, case)
    passed("shift")


def check_three_masks(three_masks: Callable[[Tensor, Tensor, int], tuple[Tensor, ...]]) -> None:
    """Check ``three_masks(source, target, padding_id)`` of chapter 09.

    Only the rows of real queries are compared. So a decoder's mask that is causal alone is right,
    too: with the padding at the end, no real query has padding before it.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def three_masks(source, target, padding_id):
        ...     real = (source != padding_id)[:, None, None]
        ...     n = target.shape[1]
        ...     return real, torch.ones(n, n, dtype=torch.bool).tril(), real
        >>> check_three_masks(three_masks)
        ✓ three_masks is right
    """
    padding_id = 9
    source = torch.tensor([[3, 4, 5, 6, 7], [3, 4, 9, 9, 9], [5, 4, 3, 9, 9]])
    target = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 9], [1, 6, 4, 9]])
    real, real_target = source != padding_id, target != padding_id
    keys = real[:, None, None]  # (batch, 1, 1, keys)
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    everything = torch.ones((), dtype=torch.bool)
    padding = "attends to padding: block its columns, the keys; blocking its rows does not help"
    parts: dict[str, tuple[Tensor, Tensor, dict[str, Tensor]]] = {  # queries, right, mistakes
        "the encoder's self-attention": (
            real,
            keys,
            {
                padding: everything,
                "is causal: the whole source is there from the beginning": (
                    keys & torch.ones(5, 5, dtype=torch.bool).tril()
                ),
            },
        ),
        "the decoder's self-attention": (
            real_target,
            triangle,
            {
                "is not causal: a token may attend to later ones": real_target[:, None, None],
                "is not causal, and attends to padding": everything,
                "is causal the wrong way round": triangle.T & real_target[:, None, None],
                "leaves out a token's own position: the first would attend to nothing": (
                    triangle.tril(-1)
                ),
            },
        ),
        "the cross-attention": (
            real_target,
            keys,
            {
                padding: everything,
                "is causal: the decoder may attend to the whole source": (
                    keys & torch.ones(4, 5, dtype=torch.bool).tril()
                ),
            },
        ),
    }
    results = _tensors("three_masks", three_masks(source.clone(), target.clone(), padding_id), 3)
    for result, (which, (queries, right, mistakes)) in zip(results, parts.items(), strict=True):
        shape = len(source), 2, queries.shape[1], right.shape[-1]  # two heads
        if result.dtype != torch.bool:
            raise MistakeError(
                f"three_masks: {which} should be bool, True = may attend, got {result.dtype}"
            )
        try:
            result.broadcast_to(shape)
        except RuntimeError:
            whose = "source" if right is keys else "target"
            raise MistakeError(
                f"three_masks: {which} has shape {tuple(result.shape)}, which does not broadcast "
                f"to (batch, heads, queries, keys) = {shape}; its keys are the {whose}'s tokens"
            ) from None
        mistakes["is False where it should be True: True = may attend"] = ~right
        compared = queries[:, None, :, None]  # what padding attends to does not matter
        compare(
            "three_masks",
            (result & compared).broadcast_to(shape).double(),
            (right & compared).broadcast_to(shape).double(),
            {
                f"{which} {mistake}": (wrong & compared).broadcast_to(shape).double()
                for mistake, wrong in mistakes.items()
            },
            f"{which} (1: may attend)",
        )
    passed("three_masks")


def check_exact_match(exact_match: Callable[[Tensor, Tensor, int], Tensor | float]) -> None:
    """Check ``exact_match(written, target, end_id)`` of chapter 09.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def exact_match(written, target, end_id):
        ...     rows = zip(written.tolist(), target.tolist(), strict=True)
        ...     ends = [(row, answer, answer.index(end_id) + 1) for row, answer in rows]
        ...     return sum(row[:n] == answer[:n] for row, answer, n in ends) / len(ends)
        >>> check_exact_match(exact_match)
        ✓ exact_match is right
    """
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
    cases = {"as wide as the target": wide[:, :6], "wider": wide, "narrower": wide[:, :5]}
    for case, written in cases.items():
        n = min(written.shape[1], target.shape[1])
        same = torch.zeros_like(target, dtype=torch.bool)
        same[:, :n] = written[:, :n] == target[:, :n]
        end = target == END
        until_end = end.cumsum(1) - end.int() == 0  # and with it
        right_rows = (same | ~until_end).all(1)
        early = torch.zeros_like(same)
        early[:, :n] = (written[:, :n] == END).cumsum(1) > 0
        shares = {
            "cuts to the shorter width: a row whose end is not written is wrong": (
                (same | ~until_end)[:, :n].all(1)
            ),
            "counts tokens; a row is right or wrong as a whole": same[until_end],
            "counts tokens, and the padding among them": same,
            "compares what follows the end, too": same.all(1),
            "does not compare the end token: a right beginning is not enough": (
                (same | ~until_end | end).all(1)
            ),
            "lets a row pass that ends too early: compare up to the target's end": (
                (same | ~until_end | early).all(1)
            ),
        }
        right = right_rows.double().mean()
        mistakes = {
            "counts the rows; divide by their number": right_rows.sum().double(),
            "is in percent; a share is from 0 to 1": 100 * right,
        } | {
            mistake: wrong.double().mean()
            for mistake, wrong in shares.items()
            if wrong.double().mean() != right
        }
        try:
            result = exact_match(written.clone(), target.clone(), END)
        except (RuntimeError, ValueError) as error:
            raise MistakeError(f"exact_match: written is {case}, and it stops: {error}") from error
        if isinstance(result, int | float):
            result = torch.tensor(result, dtype=torch.float64)
        compare("exact_match", result, right, mistakes, f"seven rows, {case}")
    passed("exact_match")


def check_beam_step(
    beam_step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> None:
    """Check ``beam_step(total, log_p)`` of chapter 09: new totals, parents and tokens, best first.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def beam_step(total, log_p):
        ...     new, index = (total[:, None] + log_p).flatten().topk(len(total))
        ...     return new, index // log_p.shape[1], index % log_p.shape[1]
        >>> check_beam_step(beam_step)
        ✓ beam_step is right
    """
    p = torch.tensor(
        [[0.02, 0.45, 0.40, 0.13], [0.05, 0.60, 0.15, 0.20], [0.95, 0.01, 0.01, 0.03]],
        dtype=torch.float64,
    )
    total, log_p = torch.tensor([0.5, 0.2, 0.25], dtype=torch.float64).log(), p.log()
    beams, n_vocab = log_p.shape
    each = total[:, None] + log_p

    def best(scores: Tensor, shown: Tensor | None = None, largest: bool = True) -> Tensor:
        """Totals, parents and tokens of the best, as three rows."""
        index = scores.flatten().topk(beams, largest=largest).indices
        shown = scores if shown is None else shown
        return torch.stack([shown.flatten()[index], index // n_vocab, index % n_vocab])

    new, parent, token = right = best(each)
    own, own_token = each.max(dim=1)
    per_beam = torch.stack([own, torch.arange(beams), own_token])
    by_one_step = best(log_p)
    mistakes = {
        "keeps the best token of each beginning; two may come from the same one": per_beam,
        "keeps the best token of each beginning, sorted; two may come from the same one": (
            per_beam[:, own.argsort(descending=True)]
        ),
        "forgets total: a beginning's own log-probability is added": by_one_step,
        "chooses without total, and adds it afterwards": best(log_p, each),
        "multiplies log-probabilities; their sum is the logarithm of the product": best(
            total[:, None] * log_p
        ),
        "adds probabilities; they are multiplied, so their logarithms are added": best(
            total.exp()[:, None] + p
        ),
        "adds probabilities and takes the logarithm; their logarithms are added": best(
            (total.exp()[:, None] + p).log()
        ),
        "goes on with the best beginning alone": torch.stack(
            [(total[0] + log_p[0]).topk(beams)[0], 0 * parent, log_p[0].topk(beams)[1]]
        ),
        "keeps the worst": best(each, largest=False),
        "is sorted the wrong way: best first": right.flip(1),
        "returns probabilities as totals; keep the logarithms": torch.stack(
            [new.exp(), parent, token]
        ),
        "returns the step's log-probabilities as totals: add the beginning's": best(
            each, log_p.expand_as(each)
        ),
        "tokens and parents change places": torch.stack([new, token, parent]),
        "numbers the tokens through all beginnings: take the remainder by the vocabulary": (
            torch.stack([new, parent, parent * n_vocab + token])
        ),
    }
    results = _tensors("beam_step", beam_step(total.clone(), log_p.clone()), 3)
    for name, result in zip(("totals", "parents", "tokens"), results, strict=True):
        if result.shape != (beams,):
            raise MistakeError(
                f"beam_step: {name} should have shape ({beams},), got {tuple(result.shape)}"
            )
    case = f"{beams} beginnings, {n_vocab} tokens (first index 0: totals, 1: parents, 2: tokens)"
    stacked = torch.stack([each.double() for each in results])
    compare("beam_step", stacked, right, mistakes, case)
    passed("beam_step")


def check_causes(causes: Mapping[str, str]) -> None:
    """Check the causes that the reader of chapter 09 gives to five patients.

    Raises:
        MistakeError: names a patient whose numbers speak against the cause, and which.

    Example:
        >>> check_causes({"A": "not shifted"} | dict.fromkeys("BCDE", "wrong start token"))
        Traceback (most recent call last):
        attnbook.book.exercises.mistakes.MistakeError: causes: 1 of 5 are right. A, "not shifted":
        it would copy all that it reads, and this patient copies little
    """
    if set(causes) != set(PATIENTS):
        raise MistakeError(f"causes: one for each of A, B, C, D and E, got {sorted(causes)}")
    for cause in causes.values():
        if cause not in HINTS:
            raise MistakeError(f"causes: {cause!r} is none of {', '.join(map(repr, HINTS))}")
    wrong = [patient for patient in PATIENTS if causes[patient] != PATIENTS[patient]]
    if wrong:
        patient = wrong[0]
        hint = HINTS[causes[patient]]
        raise MistakeError(
            f'causes: {5 - len(wrong)} of 5 are right. {patient}, "{causes[patient]}": '
            f"{hint if isinstance(hint, str) else hint[patient]}"
        )
    passed("causes")


def _tensors(name: str, results: object, n: int) -> tuple[Tensor, ...]:
    """What a function returns, if it is so many tensors."""
    if (
        isinstance(results, tuple | list)
        and len(results) == n
        and all(isinstance(each, Tensor) for each in results)
    ):
        return tuple(results)
    raise MistakeError(f"{name} must return {n} tensors, got {type(results).__name__}")
