"""conformer: does padding behind change real tokens?"""

import inspect

import torch
from conformer import Conformer, ConformerBlock

draw = torch.Generator().manual_seed(0)
x = torch.randn(1, 40, 32, generator=draw)
padded = torch.cat([x, torch.zeros(1, 20, 32)], 1)
mask = torch.tensor([[True] * 40 + [False] * 20])
size = {"dim": 32, "dim_head": 8, "heads": 4}
for kernel in (1, 31):
    torch.manual_seed(0)
    block = ConformerBlock(**size, conv_kernel_size=kernel).eval()
    bias = block.ff1.fn.fn.net[3].bias
    torch.nn.init.normal_(bias, std=0.5)  # not small, as after training
    alone, beside = block(x), block(padded, mask=mask)[:, :40]
    change = (beside - alone).abs().amax(-1)
    print(f"kernel {kernel}: {(change > 1e-5).sum()} of 40 change")
    print(f"  by up to {change.max():.2f}; std {alone.std():.2f}")
print("Conformer.forward", inspect.signature(Conformer.forward))
