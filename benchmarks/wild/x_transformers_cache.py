"""x-transformers: does token shift write the same with a cache?"""

import torch
from x_transformers import Decoder, TransformerWrapper

size = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}
draw = torch.Generator().manual_seed(0)
ids = torch.randint(1, 50, (1, 8), generator=draw)
for shift in (0, 1):
    torch.manual_seed(0)
    wrap = {"attn_layers": Decoder(**size, shift_tokens=shift)}
    model = TransformerWrapper(num_tokens=50, max_seq_len=64, **wrap)
    _, cache = model.eval()(ids[:, :7], return_intermediates=True)
    step, logits = model(ids, cache=cache), model(ids)
    change = (step[:, -1] - logits[:, -1]).abs().max()
    print(f"shift {shift}: new token changes by {change:.2f}", end="; ")
    print(f"std {logits.std():.2f}")
