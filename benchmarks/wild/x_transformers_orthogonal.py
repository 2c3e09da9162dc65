"""x-transformers: does a causal decoder see later tokens?"""

import torch
from x_transformers import Decoder, TransformerWrapper

size = {"dim": 32, "depth": 1, "heads": 4, "attn_dim_head": 8}
values = "attn_orthog_projected_values"
for option in ("", values, f"{values}_per_head", "orthog_residual"):
    torch.manual_seed(0)
    layers = Decoder(**size, **({option: True} if option else {}))
    wrap = {"num_tokens": 50, "max_seq_len": 32, "attn_layers": layers}
    model = TransformerWrapper(**wrap).eval()
    ids = torch.randint(50, (1, 12))
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 50  # only the last token differs
    logits, moved = model(ids)[0, :-1], model(other)[0, :-1]
    change = (logits - moved).abs().amax(-1)
    print(option or "none of them")
    print(f"  {(change > 0).sum()} of 11 change", end=", ")
    print(f"by up to {change.max():.3f}; std {logits.std():.2f}")
