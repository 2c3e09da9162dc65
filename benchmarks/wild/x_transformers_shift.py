"""x-transformers: does token shift read the padding in front?"""

import torch
from x_transformers import Decoder, Encoder, TransformerWrapper

size = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}
mask = {"mask": torch.tensor([[False] * 3 + [True] * 5])}
start = {"seq_start_pos": torch.tensor([3])}
draw = torch.Generator().manual_seed(0)
ids = torch.randint(1, 50, (1, 8), generator=draw)
other = ids.clone()
other[:, :3] = 0  # only the padding differs
for kind, padding in ((Encoder, mask), (Decoder, start)):
    for shift in (0, 1):
        torch.manual_seed(0)
        wrap = {"attn_layers": kind(**size, shift_tokens=shift)}
        model = TransformerWrapper(num_tokens=50, max_seq_len=64, **wrap)
        logits = model.eval()(ids, **padding)
        change = (logits - model(other, **padding)).abs().amax(-1)[0, 3:]
        print(f"{kind.__name__}, shift {shift}; std {logits.std():.2f}")
        print(" ", *(f"{c:.2f}" for c in change))
