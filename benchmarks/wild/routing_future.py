"""routing-transformer: does a causal model see later tokens?"""

import torch
from routing_transformer import RoutingTransformerLM

size = {"num_tokens": 50, "dim": 32, "heads": 4, "depth": 1}
size |= {"max_seq_len": 64, "window_size": 16, "causal": True}
for local in (0, 2, 4):
    torch.manual_seed(0)
    model = RoutingTransformerLM(**size, n_local_attn_heads=local)
    model(torch.randint(50, (4, 64)))  # sets the clusters' means
    ids, changes = torch.randint(50, (1, 64)), []
    logits = model.eval()(ids)[0]
    for last in range(50):  # only the last token differs
        other = torch.cat([ids[:, :-1], torch.tensor([[last]])], 1)
        change = (logits - model(other)[0])[0, :-1]
        changes.append(change.abs().amax(-1))
    change = torch.stack(changes)
    mean = (change > 1e-4).sum() / 50
    print(f"{local} of 4 heads local: {mean:.0f} of 63 change")
    print(f"  by up to {change.max():.2f}; std {logits.std():.2f}")
