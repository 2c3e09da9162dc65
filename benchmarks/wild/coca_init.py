"""open_clip: which parameters of CoCa does nobody set?"""

import open_clip
import torch

for fill in (False, True):
    # True: torch.empty holds NaN, and not what was in memory.
    torch.use_deterministic_algorithms(fill)
    model = open_clip.create_model("coca_ViT-B-32")
    weight = model.text_decoder.text_projection
    print(tuple(weight.shape), f"{(weight == 0).float().mean():.0%} zeros")
    named = model.named_parameters()
    print("  NaN in", [name for name, p in named if p.isnan().any()])
try:
    model.text_decoder.init_parameters()
except AttributeError as error:
    print(error)
