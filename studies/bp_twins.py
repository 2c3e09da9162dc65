"""One model in NumPy and in torch, from the same weights: are they the same?

And what arrives at each matrix, and at the two uses of the tied table.
"""

import numpy as np
import torch

from attnbook import LanguageModel, ModelConfig, backprop
from studies.bp_language import pages, small

SEEDS = {"scaled": 8, "not scaled": 6}  # the tokens, by the root of width


def watch(module, note):
    """Call `note` with what a module's backward pass is given."""
    backward = module.backward

    def watched(gradient, saved):
        note(gradient, saved)
        return backward(gradient, saved)

    module.backward = watched


def to_heads(table):  # (batch, tokens, width) to (batch, heads, tokens, ...)
    return table.reshape(*table.shape[:2], 4, -1).swapaxes(1, 2)


def paths(attention, gradient, saved):
    """Size of what reaches the input through Q, K and V, in % of all."""
    d_heads = to_heads(gradient @ attention.output.weight.value)
    back = backprop.scaled_dot_product_attention_backward(
        d_heads, saved.query, saved.key, saved.value, saved.weights
    )
    matrices = (attention.query, attention.key, attention.value)
    sizes = [
        np.sum((d.swapaxes(1, 2).reshape(saved.x.shape) @ m.weight.value) ** 2)
        for d, m in zip(back, matrices, strict=True)
    ]
    return 100 * np.array(sizes) / sum(sizes)


def both(seed, scaled, steps):
    """At each step: both losses; paths, norms, tied parts of the first."""
    ours = backprop.LanguageModel(
        ModelConfig(**small, scaled=scaled), seed=seed
    )
    theirs = LanguageModel(ours.config)
    theirs.load_state_dict(
        {name: torch.tensor(w) for name, w in ours.state_dict().items()}
    )
    adam = backprop.Adam(ours.parameters(), lr=3e-3)
    their_adam = torch.optim.Adam(theirs.parameters(), lr=3e-3)
    seen, table = [], ours.embedding.weight
    attention = ours.blocks[0].attention
    # the output layer's part is there when the look-up's begins
    watch(ours.embedding, lambda *_: seen[-1].update(out=table.grad.copy()))
    watch(
        attention,
        lambda *given: seen[-1].update(paths=paths(attention, *given)),
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids, targets = pages.batch(8, generator)
        seen.append({"words": len(ids.unique())})
        loss = ours.loss_and_gradients(ids.numpy(), targets.numpy())
        their_adam.zero_grad()
        their_loss = theirs.loss(ids, targets)
        their_loss.backward()
        seen[-1] |= {"losses": loss, "torch": their_loss.item()}
        output = seen[-1].pop("out")
        seen[-1] |= tied_parts(output, table.grad - output)
        for name in ("query", "key", "value", "output"):
            matrix = getattr(attention, name).weight
            seen[-1][f"W {name}"] = np.linalg.norm(matrix.grad)
        adam.step()
        their_adam.step()
    return seen


def tied_parts(output, looked_up):
    """Rows reached and sizes of the two."""
    return {
        "output rows": int(output.any(axis=1).sum()),
        "look-up rows": int(looked_up.any(axis=1).sum()),
        "output": np.linalg.norm(output),
        "look-up": np.linalg.norm(looked_up),
    }


def run(seed, case, steps=200):
    """Losses; the rest as means over ten steps, `paths` over the last 50."""
    seen = both(seed, case == "scaled", steps)
    of = {name: np.array([made[name] for made in seen]) for name in seen[0]}
    numbers = {
        "first losses": of["losses"][:10],
        "first of torch": of["torch"][:10],
    }
    if steps >= 200:
        numbers |= {name: of[name] for name in ("losses", "torch")}
        for name in ("words", "output", "look-up"):
            numbers[name] = of[name].reshape(20, 10).mean(axis=1)
        for name in ("query", "key", "value", "output"):
            numbers[f"W {name}"] = of[f"W {name}"].reshape(20, 10).mean(axis=1)
        numbers["paths"] = of["paths"][-50:].mean(axis=0)
        numbers["output rows"] = min(of["output rows"])
        numbers["as many rows as words"] = sum(
            of["look-up rows"] == of["words"]
        )
    return {name: np.asarray(each).tolist() for name, each in numbers.items()}
