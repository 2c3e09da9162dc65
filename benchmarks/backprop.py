"""A step of the hand-derived NumPy model compared with the same model in torch."""

import numpy as np
import torch

from attnbook import LanguageModel, ModelConfig, backprop
from benchmarks.timing import Call, Ratios, race, speed_ratio

D_MODELS = (64, 128)
BATCH, TOKENS, VOCAB = 12, 64, 65
TOLERANCE = 1e-10


def measure(*, quick: bool = False) -> Ratios:
    """NumPy's speed divided by torch's, for each width."""
    ratios = {}
    for d_model in D_MODELS[:1] if quick else D_MODELS:
        times = race(calls(d_model), seconds=0 if quick else 6)
        ratios[f"{d_model} wide, {TOKENS} tokens"] = speed_ratio(times, "NumPy", "torch")
    return {"gradients in NumPy / torch, float64": ratios}


def calls(d_model: int) -> dict[str, Call]:
    """A step of each in float64, after checking that both have the same loss and gradients.

    Raises:
        ValueError: if they differ.
    """
    config = ModelConfig(vocab_size=VOCAB, d_model=d_model, max_tokens=TOKENS)
    ids, targets = np.random.default_rng(0).integers(VOCAB, size=(2, BATCH, TOKENS))
    ours = backprop.LanguageModel(config)
    torch.set_default_dtype(torch.float64)  # the sinusoids are made in it
    theirs = LanguageModel(config)
    theirs.load_state_dict({k: torch.from_numpy(w) for k, w in ours.state_dict().items()})
    batch = torch.from_numpy(ids), torch.from_numpy(targets)

    def torch_step() -> float:
        theirs.zero_grad()
        loss = theirs.loss(*batch)
        loss.backward()
        return float(loss.item())

    apart = [abs(ours.loss_and_gradients(ids, targets) - torch_step())]
    for own, parameter in zip(ours.gradients().values(), theirs.parameters(), strict=True):
        assert parameter.grad is not None
        apart.append(float(np.abs(own - parameter.grad.numpy()).max()))
    if not max(apart) <= TOLERANCE:
        raise ValueError(f"loss or gradients of NumPy and torch differ by {max(apart)}")
    return {"NumPy": lambda: ours.loss_and_gradients(ids, targets), "torch": torch_step}
