"""Look into a running model: its activations, attentions, gradients and updates.

A probe reads any torch model without a change to its code:

>>> import torch
>>> from attnbook import LanguageModel, ModelConfig
>>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32, n_layers=2))
>>> ids = torch.randint(10, (2, 8))
>>> with Probe(model) as probe:
...     model.loss(ids[:, :-1], ids[:, 1:]).backward()
>>> probe.activations.where(part="block")["rms"].shape  # the stream after each of the two blocks
(2,)
>>> probe.attention.where(layer=0)["keys"]  # causal, 7 tokens: 1 to 7 keys, 4 on average
array([4.])

and its heads are read by functions:

>>> [call.name for call in attended(model, ids)]
['blocks.0.attention', 'blocks.1.attention']
"""

from attnbook.probes.heads import Attended
from attnbook.probes.probe import Probe
from attnbook.probes.reading import (
    ablated,
    attended,
    contributions,
    copying_score,
    logit_lens,
    mean_cosine,
    prefix_score,
    previous_score,
)
from attnbook.probes.table import Table

__all__ = [
    "Attended",
    "Probe",
    "Table",
    "ablated",
    "attended",
    "contributions",
    "copying_score",
    "logit_lens",
    "mean_cosine",
    "prefix_score",
    "previous_score",
]
