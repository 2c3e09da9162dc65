"""DeepSpeed's flops profiler: are four profiles of a layer the same?

Its log is quiet with DS_ACCELERATOR=cpu.
"""

import torch
import torch.nn.functional as F
from deepspeed.profiling.flops_profiler import get_model_profile

from attnbook import ModelConfig
from attnbook.costs import forward_operations


class Attention(torch.nn.Linear):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


size, options = (1, 4, 16, 8), {"print_profile": False, "as_string": False}
model = Attention(1, 1)
print(*(get_model_profile(model, size, **options)[0] for _ in range(4)))
config = ModelConfig(50, d_model=32, n_heads=4, n_layers=1, max_tokens=16)
print("attnbook.costs:", forward_operations(config, 16)["attention"])
