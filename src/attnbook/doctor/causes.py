"""The causes that the doctor tells apart, what each explains, and the line to write."""

from dataclasses import dataclass

from attnbook.doctor.report import Finding, Level


@dataclass(frozen=True)
class Cause:
    """What to write, and which checks fail because of it."""

    remedy: str
    explains: tuple[str, ...] = ()


LEAKS = (
    *("future", "batch", "padding", "order", "prefix", "cache", "mixing", "train = eval"),
    *("order of sequences", "empty rows", "half precision", "training"),
)
ALL = ("*",)
ALL_THAT_FOLLOWS = (*LEAKS, "masks", "finite", "gradients", "residual", "norms")
AT_THE_LOSS = ("padding in the loss", "training", "first loss", "finite", "sequences in the loss")

CAUSES: dict[str, Cause] = {
    "the example can't be called": Cause("diagnose(module, *arguments of one plain call)"),
    # masks
    "no causal mask": Cause(
        "logits = logits.masked_fill(causal.logical_not(), -torch.inf) before the softmax, with "
        "causal = torch.ones(T, T, dtype=torch.bool).tril()",
        ("prefix", "cache", "training", "window"),
    ),
    "causal mask off by one": Cause(
        "torch.ones(T, T, dtype=torch.bool).tril() allows, .triu(diagonal=1) forbids",
        ("prefix", "cache", "training", "window"),
    ),
    "inverted mask": Cause(
        "masked_fill fills where True: masked_fill(may_attend.logical_not(), -torch.inf); "
        "F.scaled_dot_product_attention: True = may attend; nn.MultiheadAttention: True = blocked",
        (*LEAKS, "finite", "gradients", "residual", "masks"),
    ),
    "masked with a finite number": Cause(
        "fill with -torch.inf, not with a small or positive number such as 1e-9 or 0",
        ("future", "prefix", "cache", "padding", "training", "window"),
    ),
    "mask added as a number": Cause(
        "logits.masked_fill(forbidden, -torch.inf): a boolean that is added counts as 0 and 1",
        ("future", "prefix", "cache", "padding", "training", "window", "train = eval"),
    ),
    "causal against the claim": Cause(
        "no causal mask in an encoder; or claim causal=True", ("prefix", "order")
    ),
    "mask after the softmax": Cause(
        "fill the logits with -torch.inf before the softmax: then the rows no longer sum to 1",
        LEAKS,
    ),
    "mask not everywhere": Cause(
        "give the mask to every layer, head and sequence",
        ("prefix", "cache", "padding", "training", "window"),
    ),
    "mask of another shape": Cause(
        "print the mask as it meets the logits, (batch, heads, queries, keys)",
        ("future", "prefix", "cache", "training", "window"),
    ),
    "mask forbids everything": Cause(
        "~mask is never 0 if mask holds whole numbers: mask == 0, or ~mask.bool()",
        ("padding", "gradients", "empty rows", "finite", "masks", "batch", "mixing", "positions"),
    ),
    "mask ignored": Cause("use the argument: combine it with the causal mask", ("padding",)),
    "mask on the queries": Cause(
        "a padding mask forbids keys: mask[:, None, None, :], not mask[:, None, :, None]",
        ("padding", "empty rows"),
    ),
    "mask of another sequence": Cause(
        "a mask for batch × heads is mask.repeat_interleave(n_heads, 0), not mask.repeat(n_heads, "
        "1, 1); or let mask[:, None, None, :] broadcast",
        ("padding", "batch", "empty rows"),
    ),
    "padding is attended to": Cause(
        "make the mask (ids != padding_id)[:, None, None, :] and give it to every attention; "
        "torch's modules take key_padding_mask=(ids == padding_id), True = blocked",
        ("padding",),
    ),
    "NaN where the mask forbids": Cause(
        "fill with -torch.inf, not +inf or 0 * -inf; real tokens need one key that is open",
        ("padding", "empty rows", "finite"),
    ),
    "pooling includes padding": Cause(
        "(x * real[..., None]).sum(1) / real.sum(1, keepdim=True): a mean over real tokens",
        ("padding", "empty rows"),
    ),
    "convolution over padding": Cause(
        "x = x * real[..., None] before the convolution", ("padding",)
    ),
    "a token does not attend to itself": Cause(
        "torch.ones(T, T, dtype=torch.bool).tril(): .tril(-1) forbids the diagonal",
        (*LEAKS, "gradients"),
    ),
    "mask at the upper left": Cause(
        "torch.ones(new, all, dtype=torch.bool).tril(all - new): the last query attends to all",
        ("cache",),
    ),
    "fully masked rows give NaN": Cause(
        "a softmax over nothing is 0/0: give such rows zeros, as attnbook.attention_weights does"
    ),
    # softmax and scale
    "softmax over the queries": Cause("logits.softmax(dim=-1): over the keys", ALL_THAT_FOLLOWS),
    "softmax over the heads": Cause("logits.softmax(dim=-1): over the keys", ALL_THAT_FOLLOWS),
    "softmax over the batch": Cause("logits.softmax(dim=-1): over the keys", ALL_THAT_FOLLOWS),
    "softmax over an axis of one": Cause(
        "scores of (batch, tokens, 1): scores.softmax(dim=1)", ALL_THAT_FOLLOWS
    ),
    "softmax twice": Cause("weights = logits.softmax(dim=-1), once", LEAKS),
    "no softmax": Cause("weights = logits.softmax(dim=-1); weights @ value", ALL_THAT_FOLLOWS),
    "weights transposed": Cause("weights @ value, not weights.mT @ value", LEAKS),
    "weights do not sum to one": Cause(
        "logits.softmax(dim=-1), and nothing after it", (*LEAKS, "positions")
    ),
    "scaled after the softmax": Cause(
        "(query @ key.mT * d_head**-0.5).softmax(dim=-1)", ("scale",)
    ),
    "other scale": Cause(
        "query @ key.mT * d_head**-0.5, once; F.scaled_dot_product_attention does it"
    ),
    "no scale": Cause("query @ key.mT * d_head**-0.5"),
    "scale of d_model": Cause("query @ key.mT * d_head**-0.5, with d_head = d_model / n_heads"),
    "scale of the heads": Cause("query @ key.mT * d_head**-0.5: by the width, not the number"),
    "scale of the tokens": Cause(
        "query @ key.mT * d_head**-0.5, with d_head = query.shape[-1], not shape[-2]",
        ("prefix", "cache", "padding"),
    ),
    "scaled twice": Cause(
        "query @ key.mT * d_head**-0.5, once: F.scaled_dot_product_attention scales by itself"
    ),
    "multiplied by the root": Cause("divide by sqrt(d_head): query @ key.mT * d_head**-0.5"),
    "scale on the values": Cause("scale the logits, not the values"),
    # heads
    "split without transposing": Cause(
        "x.view(batch, tokens, n_heads, d_head).transpose(1, 2), not x.view(batch, n_heads, "
        "tokens, d_head)",
        (*LEAKS, "positions"),
    ),
    "channels not transposed": Cause(
        "x.flatten(2).transpose(1, 2), not x.view(batch, tokens, channels)", ALL_THAT_FOLLOWS
    ),
    "axes not transposed": Cause(
        "a reshape joins neighbouring axes only: x.transpose(1, 2).flatten(0, 1) makes a sequence "
        "of each column",
        LEAKS,
    ),
    "merge without transposing": Cause(
        "heads.transpose(1, 2).reshape(batch, tokens, n_heads * d_head)", ALL_THAT_FOLLOWS
    ),
    "heads and sequences exchanged": Cause(
        "what was made by view(batch * n_heads, …) is taken apart by view(batch, n_heads, …)",
        ALL_THAT_FOLLOWS,
    ),
    "heads not concatenated": Cause(
        "heads.transpose(1, 2).flatten(2), or torch.cat(heads, dim=-1): no sum or mean of heads",
        (*LEAKS, "number of heads"),
    ),
    "sequences in groups": Cause(
        "what was made by view(batch, n, …) is taken apart by view(batch, n, …)", LEAKS
    ),
    "keys not transposed": Cause(
        "query @ key.transpose(-2, -1), not query @ key.reshape(…, d_head, tokens)", LEAKS
    ),
    "attention between heads": Cause(
        "x.view(batch, tokens, n_heads, d_head).transpose(1, 2) before query @ key.mT",
        ("mixing", "order", "padding", "positions"),
    ),
    "attention over the batch": Cause(
        "nn.MultiheadAttention(..., batch_first=True), or give it (tokens, batch, d_model)", LEAKS
    ),
    "wrong number of heads": Cause(
        "split the width into n_heads parts of d_head = d_model / n_heads"
    ),
    "other groups of heads": Cause(
        "key.repeat_interleave(n_heads // n_kv_heads, dim=1), not key.repeat(1, groups, 1, 1)"
    ),
    "heads overlap": Cause(
        "query[..., h * d_head : (h + 1) * d_head] for the head h, not [..., h : h + d_head]",
        ("gradients", "heads"),
    ),
    "one projection for two": Cause(
        "self.query(x), self.key(x), self.value(x): three projections", ("gradients",)
    ),
    "identical heads": Cause(
        "make each head anew: nn.ModuleList(Head() for _ in range(n)), and draw its weights",
        ("gradients",),
    ),
    "input has no effect": Cause(
        "queries come from x, keys and values from the memory", (*LEAKS, "gradients")
    ),
    "causal mask on the memory": Cause(
        "the causal mask is for self-attention alone",
        ("padding", "empty rows", "finite", "order", "prefix", "cache", "mixing"),
    ),
    "missing residual connection": Cause(
        "x = x + attention(norm1(x)); x = x + mlp(norm2(x)), not x = mlp(norm2(x))"
    ),
    "residual adds a stale input": Cause(
        "x = x + attention(norm1(x)); x = x + mlp(norm2(x)): both add to the newest x"
    ),
    "no activation": Cause("down(F.gelu(up(x))), not down(up(x)), and keep what F.gelu returns"),
    "norm not before the branch": Cause("x = x + attention(norm(x)), not of or to norm(x) alone"),
    "norm not after the sum": Cause("x = norm(x + attention(x)), not x + attention(norm(x))"),
    "other embedding scale": Cause("x = embedding(ids) * d_model**0.5 + positions"),
    "norm that does not normalise": Cause(
        "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), or divide by the root of the "
        "variance",
        ("positions", "gradients", "first loss", "finite", "half precision", "training"),
    ),
    "layers start alike": Cause(
        "nn.TransformerEncoder copies one layer: draw the matrices of each anew"
    ),
    "one layer many times": Cause("nn.ModuleList(Layer() for _ in range(n)), not [Layer()] * n"),
    "heads share one projection": Cause(
        "project first, then split: nn.Linear(d_model, d_model), .view(…, n_heads, d_head)"
    ),
    # tokens and batch
    "norm over the tokens": Cause(
        "nn.LayerNorm(d_model): over the last axis alone", (*LEAKS, "norms", "gradients")
    ),
    "statistic over the batch": Cause("normalise each token: nn.LayerNorm(d_model)", LEAKS),
    "non-causal convolution": Cause(
        "pad on the left alone: F.pad(x, (kernel_size - 1, 0)) and no padding=", LEAKS
    ),
    "tokens mix outside the attention": Cause(
        "print (one - other).abs().amax(-1) after each module, with one token changed: the first "
        "that differs at another token mixes them",
        LEAKS,
    ),
    "sequences mixed": Cause(
        "print (one - other).abs().flatten(1).amax(1) after each module, with sequence 0 changed: "
        "the first that differs at another sequence mixes them",
        LEAKS,
    ),
    "batch and tokens exchanged": Cause(
        "x.transpose(0, 1), not a reshape; or make it batch-first throughout, or claim "
        "batch_first=False",
        (*ALL_THAT_FOLLOWS, "targets", "shift", "sequences in the loss"),
    ),
    "no token attends to another": Cause("look at the axes of query @ key.mT: (…, tokens, tokens)"),
    "depends on the sequence's number": Cause(
        "positions count along the tokens: torch.arange(x.shape[1])",
        ("positions", "prefix", "order", "mixing", "batch"),
    ),
    "depends on the order": Cause("claim position=…, or find what counts the tokens"),
    # positions
    "a logit depends on a third token": Cause(
        "padding and viewing shifts rows correctly under a causal mask alone: gather by i - j",
        ("padding", "batch"),
    ),
    "positions have no effect": Cause(
        "add positions to the tokens, or rotate queries and keys by torch.arange(tokens)",
        ("prefix", "order", "mixing", "gradients"),
    ),
    "positions not relative": Cause(
        "rotate queries and keys alike, with pairs (x[i], x[i + d/2]) and cos, sin of the same "
        "frequency for both halves",
        ("cache", "prefix"),
    ),
    "rotary angles of d_model": Cause(
        "base ** (-torch.arange(0, d_head, 2) / d_head): d_head in both, not d_model"
    ),
    "other rotary base": Cause("base ** (-torch.arange(0, d_head, 2) / d_head), with that base"),
    "queries turned ahead of keys": Cause(
        "rotate queries and keys by the same positions, torch.arange(tokens)", ("cache",)
    ),
    "angles in half precision": Cause(
        "torch.outer(positions.float(), frequencies.float()), and only then .to(x.dtype)"
    ),
    "values are rotated": Cause("rotate queries and keys only"),
    "bias rises with distance": Cause(
        "bias = -slope * (query position - key position)", ("order",)
    ),
    "one slope for all heads": Cause("slopes 2**(-8 * (h + 1) / n_heads), one for each head"),
    "slopes begin at one": Cause("slopes 2**(-8 * (h + 1) / n_heads) for h = 0, 1, …"),
    "other slopes": Cause("slopes 2**(-8 * (h + 1) / n_heads), added to logits that are scaled"),
    "other window": Cause(
        "a window of w allows 0 ≤ query position - key position < w",
        ("prefix", "cache", "training", "window"),
    ),
    "other sinusoids": Cause(
        "angle = t / 10000**(2 * i / d_model); table[:, 0::2] = sin(angle), [:, 1::2] = cos(angle)"
    ),
    # cache
    "positions restart with the cache": Cause("positions = n_cached + torch.arange(new tokens)"),
    "the cache is not attended to": Cause(
        "key = torch.cat([cache.key, key], dim=-2); so the values"
    ),
    "chunks see their future": Cause(
        "with n cached keys the mask is torch.ones(T, n + T, dtype=torch.bool).tril(n)"
    ),
    "chunks do not see the cache": Cause(
        "is_causal=True aligns the mask to the start: with n cached keys it is tril(n), and none "
        "for one token"
    ),
    "slots of the cache exchanged": Cause(
        "token n is written into slot n % window, over the oldest; slot s then holds the token "
        "that is (n - s) % window before n"
    ),
    "cache in another order": Cause(
        "torch.cat([cache.key, key], dim=-2), the cache first; so the values", ("prefix",)
    ),
    "cached keys turned again": Cause(
        "rotate new keys by n_cached + torch.arange(new tokens) and put them into the cache; or "
        "cache them as they are, and rotate all of them in each call"
    ),
    "free slots are attended to": Cause(
        "a cache of fixed size needs a mask: torch.arange(size) <= position of the query",
        ("prefix", "cache"),
    ),
    "layers share one cache": Cause("layer(x, caches[i]) for the layer i, not caches[0]"),
    "cached differs from full": Cause(
        "compare the cache's keys and values with the full pass's, layer by layer: in the first "
        "layer, a wrong key or value; if they agree, positions of the queries, or the mask"
    ),
    # modes
    "random in evaluation": Cause(
        "F.dropout(x, p, training=self.training); dropout_p=self.p if self.training else 0.0", ALL
    ),
    "layer made in forward": Cause("make it in __init__, as self.layer: it is drawn once", ALL),
    "changes modes": Cause(
        "no eval(), train() or set_grad_enabled() in forward: with torch.no_grad(): ends by itself",
        ("dropout", "train = eval", "gradients"),
    ),
    "seeds the generator": Cause(
        "no torch.manual_seed in forward: all dropout after it is the same in every step"
    ),
    "mask only in training": Cause("the mask belongs in both modes", LEAKS),
    "mask only in evaluation": Cause("the mask belongs in both modes", LEAKS),
    "training differs from evaluation": Cause("nothing but dropout may differ"),
    "no dropout in training": Cause("nn.Dropout(p) on the weights and branches, as claimed"),
    "other dropout": Cause("p is the probability to drop, not to keep"),
    "dropout without rescaling": Cause(
        "F.dropout(x, p, self.training), which divides what it keeps by 1 - p"
    ),
    "dropout before the softmax": Cause("drop weights: F.dropout(logits.softmax(-1), p)"),
    "remembers the last call": Cause(
        "keep nothing in self between calls: pass the cache in and out", ALL
    ),
    "changes its arguments": Cause("x = x + y, not x += y", ALL),
    "depends on the length": Cause("slice tables by the tokens that there are", ("cache",)),
    # gradients
    "parameter gets no gradient": Cause("no .detach(), .data, no_grad() or argmax on its way"),
    "weights all equal": Cause("draw them: nn.init.normal_(weight, std=0.02)", ALL),
    "zeros that stay zeros": Cause(
        "of two matrices that are multiplied, one may begin with zeros: the output's, say",
        ("gradients", "mixing"),
    ),
    "parameter not used": Cause(
        "call it in forward, and use what it returns: x = x.add(y), not x.add(y); or remove it"
    ),
    "part of a matrix not used": Cause(
        'two letters for two axes in einsum: "btd,de->bte", not "btd,dd->btd", which takes the '
        "diagonal"
    ),
    "parameter not registered": Cause("nn.ModuleList(layers), not a list"),
    "copied, not tied": Cause("self.output.weight = self.embedding.weight", ("gradients",)),
    "not tied": Cause("self.output.weight = self.embedding.weight"),
    # numbers
    "NaN or infinity": Cause(
        "softmax of logits minus their largest; -torch.inf only in rows with an open key", ALL
    ),
    "overflow": Cause("logits - logits.amax(-1, keepdim=True) before exp, or torch.softmax"),
    "not in half precision": Cause(
        "torch.finfo(x.dtype).min or -torch.inf instead of -1e9; x.dtype"
    ),
    # loss
    "loss without shift": Cause(
        "F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())",
        AT_THE_LOSS,
    ),
    "loss shifted twice": Cause(
        "shift in the data or in the loss, not in both",
        AT_THE_LOSS,
    ),
    "loss shifted backwards": Cause("logits[:, :-1] predict ids[:, 1:]", AT_THE_LOSS),
    "targets are copied": Cause(
        "position t may see ids[: t + 1] and predicts ids[t + 1]: check the shift and the mask",
        ("future",),
    ),
    "a batch is not learned": Cause(
        "look at the gradients, the learning rate (1e-2 here), and what the loss compares"
    ),
    "logits reshaped across tokens": Cause(
        "logits.transpose(1, 2), or logits.flatten(0, 1)", AT_THE_LOSS
    ),
    "cross-entropy of probabilities": Cause(
        "F.cross_entropy takes logits: no softmax before it",
        AT_THE_LOSS,
    ),
    "nll_loss of logits": Cause(
        "F.cross_entropy(logits, targets), or log_softmax before nll_loss",
        AT_THE_LOSS,
    ),
    "padding counts in the loss": Cause(
        "F.cross_entropy(..., ignore_index=padding_id), or (losses * real).sum() / real.sum()",
        AT_THE_LOSS,
    ),
    "real targets are ignored": Cause(
        "ignore_index=padding_id, and nothing else: an end of text with the id of padding is none",
        ("training", "targets", "sequences in the loss"),
    ),
    "differs from the other": Cause(
        "compare the stage that is named, with equal inputs and weights, one head and two tokens"
    ),
    "first loss is not ln V": Cause(
        "draw the output layer small (0.02), scale a tied embedding by d_model**-0.5"
    ),
}


def finding(cause: str, done: str, found: str, right: str, level: Level = "error") -> Finding:
    """A finding with the remedy of its cause; the registry of checks names its check."""
    return Finding(level, "", cause, done, found, right, CAUSES[cause].remedy)
