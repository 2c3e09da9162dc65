"""Transformers, ConvBERT: does padding behind change real tokens?"""

import torch
import transformers

draw = torch.Generator().manual_seed(0)
ids = torch.randint(5, 50, (1, 10), generator=draw)
padded = torch.cat([ids, torch.zeros(1, 6).long()], 1)
mask = {"attention_mask": (padded != 0).long()}
size = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
size |= {"num_attention_heads": 4, "intermediate_size": 64}
size |= {"embedding_size": 32, "max_position_embeddings": 32}
for name, spread in ("Bert", 0.2), ("ConvBert", 0.02), ("ConvBert", 0.2):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")
    model = getattr(transformers, f"{name}Model")
    model = model(config(**size, initializer_range=spread)).eval()
    alone, beside = model(ids)[0], model(padded, **mask)[0][:, :10]
    print(f"{name}, weights of {spread}; std {alone.std():.2f}")
    print(" ", *(f"{c:.2f}" for c in (beside - alone).abs().amax(-1)[0]))
