"""Transformers, YOSO: does the attention mask change anything?"""

import torch
from transformers import YosoConfig, YosoModel

torch.manual_seed(0)
ids, real = torch.randint(5, 50, (1, 8)), torch.tensor([[1] * 5 + [0] * 3])
size = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
size |= {"num_attention_heads": 2, "intermediate_size": 64}
size |= {"max_position_embeddings": 16}
for spread in (0.02, 0.2):
    torch.manual_seed(0)
    model = YosoModel(YosoConfig(**size, initializer_range=spread)).eval()
    masked = model(ids, attention_mask=real)[0][:, :5]
    unmasked, alone = model(ids)[0][:, :5], model(ids[:, :5])[0]
    print(f"weights of {spread}; std {alone.std():.2f}")
    print(f"  mask or none {(masked - unmasked).abs().max():.2f}", end=", ")
    print(f"padded or alone {(masked - alone).abs().max():.2f}")
