"""Transformers, Nystromformer: does a sequence change with its batch?"""

import torch
from transformers import NystromformerConfig, NystromformerModel

size = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 1}
size |= {"num_attention_heads": 4, "intermediate_size": 64}
size |= {"max_position_embeddings": 64, "segment_means_seq_len": 64}
size |= {"num_landmarks": 16, "conv_kernel_size": 3}
for spread in (0.02, 0.3):
    torch.manual_seed(0)
    config = NystromformerConfig(**size, initializer_range=spread)
    model = NystromformerModel(config).eval()
    ids, changes = torch.randint(5, 50, (1, 64)), []
    for _ in range(20):
        others = torch.randint(5, 50, (7, 64))
        alone, beside = model(ids)[0], model(torch.cat([ids, others]))[0]
        changes.append(100 * (alone - beside[:1]).norm() / alone.norm())
    print(f"weights of {spread}: {sum(changes) / 20:.2g} %", end=", ")
    print(f"{max(changes):.2g} % at most")
