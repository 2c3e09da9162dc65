"""SpeechBrain: what do rotary and relative attention divide by?"""

from unittest import mock

import torch
import torch.nn.functional as F
from speechbrain.nnet.attention import RelPosMHAXL, RoPEMHA

torch.manual_seed(0)
for kind in (RoPEMHA, RelPosMHAXL):
    root = 1 / kind(512, 8).scale
    print(f"{kind.__name__} divides by sqrt({root**2:.0f})")
rope, x = RoPEMHA(512, 8).eval(), torch.randn(2, 100, 512)
name = "scaled_dot_product_attention"
with mock.patch.object(F, name, wraps=getattr(F, name)) as attend:
    rope(x, x, x)
query, key = (attend.call_args.kwargs[name] for name in ("query", "key"))
for width in (512, 64):
    logits = query @ key.mT / width**0.5
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    print(f"/ sqrt({width}): logits' std {logits.std():.2f}")
    print(f"  {entropy.exp().mean():.0f} of 100 attended to")
