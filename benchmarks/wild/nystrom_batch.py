"""nystrom-attention: does a sequence change with its batch?"""

import torch
from nystrom_attention import NystromAttention

torch.manual_seed(0)
size = {"dim": 64, "dim_head": 16, "heads": 4, "num_landmarks": 16}
for gain, steps in ((1, 6), (4, 6), (4, 20)):
    layer = NystromAttention(**size, pinv_iterations=steps).eval()
    layer.to_qkv.weight.data *= gain  # larger weights, sharper attention
    x, changes = torch.randn(1, 64, 64), []
    for _ in range(20):
        alone = layer(x)
        beside = layer(torch.cat([x, torch.randn(7, 64, 64)]))[:1]
        changes.append(100 * (alone - beside).norm() / alone.norm())
    print(f"weights times {gain}, {steps} iterations")
    print(f"  {sum(changes) / 20:.2f} % on average", end=", ")
    print(f"{max(changes):.2f} % at most")
