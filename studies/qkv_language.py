"""What is each of W_Q, W_K, W_V worth to a small language model?

One pre-norm layer, one head; the loss on text that it did not train on.
"""

import torch

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import TextTask, python_topics, train, word_tokenizer
from studies.qkv_ring import leave_out, prepare

text = python_topics()
pages = TextTask(text, word_tokenizer(text, 500), length=32)
held_out = pages.validation_windows(100)
same_word = (held_out[0][:, :, None] == held_out[0][:, None, :]).double()
apart = ~torch.eye(32, dtype=torch.bool)
apart[0, 0] = True  # the first word has nothing else


PREPARED = (
    "trained",
    "one matrix for Q and K",
    "identity, fixed",
    "half the identity, fixed",
    "random, fixed",
    "uniform weights",
    "no attention",
    "one matrix, a quarter",
    "two, equal at the start",
    "trained, not itself",
    "one matrix for Q and K, not itself",
)
LEFT_OUT = ("no K, no V", "one for K and V")
SEEDS = dict.fromkeys(PREPARED + LEFT_OUT, 8) | {
    "trained": 12,
    "identity, fixed": 12,
    "half the identity, fixed": 12,
    "no attention": 12,
    "trained, not itself": 12,
}


def run(seed, case, steps=300):
    """Held-out loss after 150 and 300 steps, in nats per word.

    And the mean weight (%) that a word gives itself, and itself and its
    earlier copies.
    """
    variant = case.removesuffix(", not itself")
    mask = None if variant == case else apart
    torch.manual_seed(seed)
    model = LanguageModel(
        ModelConfig(
            vocab_size=500,
            d_model=64,
            n_heads=1,
            n_layers=1,
            d_ff=64,
            norm="pre",
            tied=False,
        )
    )
    block = model.blocks[0].attention
    (leave_out if case in LEFT_OUT else prepare)(block, variant)
    record = train(
        model,
        lambda g: (*pages.batch(8, g), mask),
        steps=steps,
        learning_rate=3e-3,
        seed=seed,
        evaluate_every=150,
        evaluate=lambda model: model.loss(*held_out, mask).item(),
    )
    if steps < 150:
        return {"first losses": record.losses[:20]}
    with torch.no_grad():
        y = model.blocks[0].attention_residual.norm(model.input(held_out[0]))
        A = block(y, mask=mask, causal=True, return_weights=True)[1][:, 0]
    return {
        "first losses": record.losses[:20],
        "early": record.evaluations[150],
        "late": record.evaluations[300],
        "itself": 100 * A.diagonal(dim1=-2, dim2=-1).mean().item(),
        "copies": 100 * (A * same_word).sum(-1).mean().item(),
    }
