"""Where does a head look that has nothing to say?

One head. Each word is followed by another as a table of chances says, which
the head need not look for. At a quarter of the places the question is asked
which word was marked, and there it has to look. Words are one-hot vectors.
"""

import torch
import torch.nn.functional as F
from torch import nn

from attnbook import causal_mask
from attnbook.tasks import train

WORDS, LENGTH, STEPS = 24, 24, 1000
MARKED, ASKED, START = WORDS, WORDS + 1, WORDS + 2  # columns after the words
CASES = {
    "may look at itself": {"itself": True},
    "start": {},
    "one more": {"softmax": "one more"},
    "no sum": {"softmax": "no sum"},
    "gate": {"gate": True},
}
SEEDS = dict.fromkeys(CASES, 24)


def table(seed):
    """The chance of each next word."""
    draws = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(WORDS, WORDS, generator=draws)).softmax(-1)


def questions(n, generator, chances):
    """Rows of features, and targets; nothing is asked for at the start."""
    words = torch.randint(WORDS, (n, LENGTH), generator=generator)
    asked = torch.rand(n, LENGTH, generator=generator) < 0.25
    asked[:, : LENGTH // 3] = False  # there a word is marked
    mark = torch.randint(LENGTH // 3, (n, 1), generator=generator)
    drawn = chances[words].flatten(0, 1).multinomial(1, generator=generator)
    targets = torch.where(asked, words.gather(1, mark), drawn.view(n, -1))
    x = torch.zeros(n, LENGTH, WORDS + 3)
    x.scatter_(2, words[..., None], 1.0)
    x[asked] = 0.0
    x[..., MARKED] = F.one_hot(mark[:, 0], LENGTH)
    x[..., ASKED] = asked.double()
    x, targets = F.pad(x, (0, 0, 1, 0)), F.pad(targets, (1, 0), value=-100)
    x[:, 0, START] = 1.0
    return x, targets


class Head(nn.Module):
    """What it finds is added to what each word says about the next."""

    def __init__(self, itself=False, softmax="usual", gate=False):
        super().__init__()
        self.itself, self.softmax = itself, softmax
        self.query = nn.Linear(WORDS + 3, 16, bias=False)
        self.key = nn.Linear(WORDS + 3, 16, bias=False)
        self.value = nn.Linear(WORDS + 3, WORDS, bias=False)
        self.bigram = nn.Linear(WORDS + 3, WORDS, bias=False)
        self.gate = nn.Linear(WORDS + 3, 1) if gate else None

    def weights(self, x, allowed):
        S = self.query(x) @ self.key(x).mT / 16**0.5
        S = S.masked_fill(~allowed, -torch.inf)
        if self.softmax == "one more":  # in the denominator: e to the 0
            none = torch.zeros_like(S[..., :1])
            return torch.cat([none, S], -1).softmax(-1)[..., 1:]
        if self.softmax == "no sum":
            return (S - allowed.sum(-1, keepdim=True).log()).sigmoid()
        return S.softmax(-1)

    def allowed(self, n):
        mask = causal_mask(n)
        if not self.itself:
            mask = mask & ~torch.eye(n, dtype=torch.bool)
            mask[0, 0] = True  # the first has no other
        return mask

    def forward(self, x):
        found = self.weights(x, self.allowed(x.shape[1])) @ self.value(x)
        if self.gate is not None:
            found = found * self.gate(x).sigmoid()
        return self.bigram(x) + found

    def loss(self, x, targets, reduction):
        """Sum over the targets, and their number."""
        losses = F.cross_entropy(self(x).mT, targets, reduction=reduction)
        return losses, int((targets >= 0).sum())


@torch.no_grad()
def examined(head, x, targets):
    """Of the second half of a row, where nothing is asked and where it is."""
    late = torch.arange(x.shape[1]) >= x.shape[1] - LENGTH // 2
    asked = x[..., ASKED] > 0
    idle, busy = ~asked & late, asked & late
    A = head.weights(x, head.allowed(x.shape[1]))
    size = head.value(x).norm(dim=-1)
    losses = F.cross_entropy(head(x).mT, targets, reduction="none")
    cut = F.cross_entropy(head(x[:, 1:]).mT, targets[:, 1:], reduction="none")
    return {
        "first, idle": A[..., 0][idle].mean().item(),
        "first, asked": A[..., 0][busy].mean().item(),
        "itself, idle": A.diagonal(0, -2, -1)[idle].mean().item(),
        "sum, idle": A.sum(-1)[idle].mean().item(),
        "marked, asked": (A * x[:, None, :, MARKED])
        .sum(-1)[busy]
        .mean()
        .item(),
        "first value": (size[:, 0].mean() / size[:, 1:].mean()).item(),
        "loss, idle": losses[idle].mean().item(),
        "loss, asked": losses[busy].mean().item(),
        "loss without the first, idle": cut[idle[:, 1:]].mean().item(),
    }


def run(seed, case, steps=None):
    """Where the head looks, and what is lost without the first place."""
    chances = table(seed)
    torch.manual_seed(seed)
    head = Head(**CASES[case])
    record = train(
        head,
        lambda g: questions(32, g, chances),
        steps=steps or STEPS,
        learning_rate=1e-2,
        seed=seed,
    )
    first = {"first losses": record.losses[:20]}
    if steps:
        return first
    draws = torch.Generator().manual_seed(seed + 500)
    return first | examined(head, *questions(400, draws, chances))
