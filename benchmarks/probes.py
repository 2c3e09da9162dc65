"""What it costs to probe a step of a model: ``attnbook.probes`` compared with the plain step."""

import torch

from attnbook import LanguageModel, ModelConfig, Probe
from benchmarks.timing import Call, Ratios, race, speed_ratio

D_MODEL, N_LAYERS, BATCH = 256, 4, 8
LENGTHS = (64, 256)


def measure(*, quick: bool = False) -> Ratios:
    """How many times as long the probed step takes, for each length."""
    ratios: Ratios = {}
    for tokens in LENGTHS[:1] if quick else LENGTHS:
        times = race(calls(tokens), seconds=0 if quick else 30)
        row = f"cost of the probes, {tokens} tokens: time with / without"
        ratios[row] = {f"{D_MODEL} wide": speed_ratio(times, "plain", "probed")}
    return ratios


def calls(tokens: int) -> dict[str, Call]:
    """Forward, loss and backward, with a probe on everything and without one."""
    config = ModelConfig(65, d_model=D_MODEL, n_layers=N_LAYERS, max_tokens=tokens, norm="pre")
    model = LanguageModel(config).float()
    ids, targets = torch.randint(65, (2, BATCH, tokens))

    def plain() -> None:
        model.zero_grad()
        model.loss(ids, targets).backward()

    def probed() -> None:
        with Probe(model):
            plain()

    return {"plain": plain, "probed": probed}
