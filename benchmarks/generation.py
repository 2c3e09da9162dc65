"""Tokens per second of greedy generation, with a cache and without, compared with other people's.

What is timed are the last tokens of a long sequence: a model with a cache has read the others
before the clock starts. The floor is the time in which torch reads as many bytes as a token has to
read at least: all weights and the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from tqdm import tqdm
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from attnbook import LanguageModel
from attnbook.convert import to_nanogpt
from attnbook.convert.transformers import from_gpt2
from attnbook.costs import decoding_bytes
from benchmarks import contenders
from benchmarks.contenders import OURS
from benchmarks.timing import Call, Ratios, Times, race, speed_ratio

VOCAB = 65
N_LAYERS = {128: 4, 512: 8}
"""For each width."""
TOKENS = (72, 512)
BATCHES = (1, 8)
N_NEW = 64
"""So many tokens at the end are timed with a cache."""
FUSED, FLOOR = "fused", "the floor"
LOOP = "the plain loop"
GPT2 = "GPT-2 of transformers"
NANOGPT = "nanoGPT's lines"
WITHOUT = "{}, no cache"

Past = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size(contenders.Size):
    """Sizes of one row: ``tokens`` is the length at the end."""

    @property
    def n_without(self) -> int:
        """Tokens that are timed without a cache, each a full pass."""
        return max(1, 256 // self.tokens)

    def __str__(self) -> str:
        """The row's name."""
        return f"{self.d_model} wide, {self.tokens} tokens, batch {self.batch}"


class NanoAttention(nn.Module):
    """One matrix for Q, K and V; a cache that is concatenated."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """The output; keys and values of all tokens."""
        batch, tokens, width = x.shape
        parts = self.c_attn(x).split(width, dim=-1)
        q, k, v = (p.view(batch, tokens, self.n_heads, -1).transpose(1, 2) for p in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        output = self.c_proj(heads.transpose(1, 2).reshape(batch, tokens, width))
        return self.dropout(output), (k, v)


class NanoBlock(nn.Module):
    """A pre-norm block of the modules that nanoGPT's has."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = NanoAttention(d_model, n_heads)
        inner, outer = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        parts = {"c_fc": inner, "gelu": nn.GELU(), "c_proj": outer, "dropout": nn.Dropout(0.0)}
        self.mlp = nn.Sequential()
        for name, part in parts.items():
            self.mlp.add_module(name, part)

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """Add attention and the feed-forward network; keys and values, too."""
        added, new = self.attn(self.ln_1(x), past)
        x = x + added
        return x + self.mlp(self.ln_2(x)), new


class NanoModel(nn.Module):
    """Embeddings, blocks, and the embedding again."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        d_model, n_heads = size.d_model, size.n_heads
        self.wte, self.wpe = nn.Embedding(VOCAB, d_model), nn.Embedding(max(TOKENS), d_model)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(NanoBlock(d_model, n_heads) for _ in range(N_LAYERS[d_model]))
        self.ln_f = nn.LayerNorm(d_model)

    def forward(self, ids: Tensor, past: list[Past] | None = None) -> tuple[Tensor, list[Past]]:
        """Logits after the last token; keys and values of all."""
        n_before = 0 if past is None else past[0][0].shape[2]
        positions = torch.arange(n_before, n_before + ids.shape[1])
        x, now = self.drop(self.wte(ids) + self.wpe(positions)), []
        for i, block in enumerate(self.h):
            x, new = block(x, None if past is None else past[i])
            now.append(new)
        return F.linear(self.ln_f(x[:, -1]), self.wte.weight), now

    @torch.no_grad()
    def generate(
        self, ids: Tensor, n_tokens: int, past: list[Past] | None, *, cached: bool
    ) -> Tensor:
        """The likeliest token, again and again; without a cache from all tokens each time."""
        for _ in range(n_tokens):
            n_before = 0 if past is None else past[0][0].shape[2]
            logits, now = self(ids[:, n_before:], past)
            past = now if cached else None
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
        return ids


def models(size: Size) -> tuple[LanguageModel, GPT2LMHeadModel, NanoModel]:
    """The three with the same weights, far enough from zero that they write many tokens."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=max(TOKENS),
        n_embd=size.d_model,
        n_head=size.n_heads,
        n_layer=N_LAYERS[size.d_model],
        activation_function="gelu",
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )
    theirs = GPT2LMHeadModel(config).float().eval()  # type: ignore[no-untyped-call]
    ours, nano = from_gpt2(theirs), NanoModel(size).eval()
    assert isinstance(ours, LanguageModel)
    weights = to_nanogpt(ours)
    nano.load_state_dict({name: weights[f"transformer.{name}"] for name in nano.state_dict()})
    return ours, theirs, nano


@torch.no_grad()
def calls(size: Size) -> dict[str, Call]:
    """Who writes the last tokens, by name; each call begins from the same cache.

    Raises:
        ValueError: if not all write the same, or the cache is not as large as its formula.
    """
    ours, theirs, nano = models(size)
    shape = (size.batch, size.tokens - N_NEW)
    ids = torch.randint(VOCAB, shape, generator=Generator().manual_seed(1))
    n_read = ids.shape[1] - 1  # all but the last, which gives the first logits
    cache, past = ours.new_cache(size.tokens - 1), DynamicCache(config=theirs.config)
    ours(ids[:, :-1], cache=cache, at=-1)
    theirs(ids[:, :-1], past_key_values=past, logits_to_keep=1)
    nano_past = nano(ids[:, :-1])[1]

    def with_cache(*, fused: bool = False) -> Tensor:
        for block in cache:
            block.cut(n_read)
        return ours.generate(ids, N_NEW, temperature=0, cache=cache, fused=fused)

    def theirs_with_cache() -> Tensor:
        written = greedy(theirs, ids, N_NEW, past_key_values=past)
        past.crop(-N_NEW)
        return written

    def without_cache() -> Tensor:
        written = long
        with torch.no_grad():
            for _ in range(size.n_without):
                new = ours(written, at=-1).argmax(dim=-1, keepdim=True)
                written = torch.cat([written, new], dim=1)
        return written

    read = sum(decoding_bytes(ours.config, t, size.batch).total for t in range(n_read, size.tokens))
    as_many = torch.zeros(read // N_NEW // 4)

    def floor() -> None:
        for _ in range(N_NEW):
            as_many.sum()

    whole = with_cache()
    long = whole[:, : size.tokens - size.n_without]
    made: dict[str, Callable[[], Tensor]] = {
        OURS: with_cache,
        FUSED: partial(with_cache, fused=True),
        GPT2: theirs_with_cache,
        NANOGPT: partial(nano.generate, ids, N_NEW, nano_past, cached=True),
    }
    if size.batch == 1:
        made |= {
            WITHOUT.format(OURS): without_cache,
            WITHOUT.format(GPT2): partial(greedy, theirs, long, size.n_without, use_cache=False),
            WITHOUT.format(NANOGPT): partial(
                nano.generate, long, size.n_without, None, cached=False
            ),
        }
    for name, call in made.items():
        if not torch.equal(call(), whole):
            raise ValueError(f"{name} writes other tokens than ours")
    bytes_held = sum(block.nbytes for block in cache)
    formula = 2 * N_LAYERS[size.d_model] * size.d_model * (size.tokens - 1) * size.batch * 4
    if bytes_held != formula:
        raise ValueError(f"the cache has {bytes_held} bytes, and should have {formula}")
    return made | {FLOOR: floor}


def measure(*, quick: bool = False) -> Ratios:
    """Our tokens per second divided by each peer's; and with a cache divided by without one."""
    sizes = [Size(d, t, b) for d in N_LAYERS for t in TOKENS for b in BATCHES]
    ratios: Ratios = {}
    for size in tqdm(sizes[:1] if quick else sizes, "generation", unit="size"):
        made = calls(size)
        times = per_token(race(made, seconds=0 if quick else 4), size)
        pairs = {
            f"generation, fused / {name}": (FUSED, peer)
            for name, peer in ((GPT2, GPT2), (NANOGPT, NANOGPT), (LOOP, OURS), (FLOOR, FLOOR))
        }
        pairs |= {f"generation / {peer}": (OURS, peer) for peer in (GPT2, NANOGPT)}
        if size.batch == 1:
            bare = WITHOUT.format(OURS)
            for peer in (GPT2, NANOGPT):
                pairs[f"generation without a cache / {peer}"] = (bare, WITHOUT.format(peer))
            pairs["generation with a cache / without"] = (OURS, bare)
        for row, pair in pairs.items():
            ratios.setdefault(row, {})[str(size)] = speed_ratio(times, *pair)
    return ratios


def per_token(times: Times, size: Size) -> Times:
    """Seconds for each token that was written."""
    return {
        name: seconds / (size.n_without if "no cache" in name else N_NEW)
        for name, seconds in times.items()
    }


def greedy(model: GPT2LMHeadModel, ids: Tensor, n_tokens: int, **settings: Any) -> Tensor:
    """What a model of transformers writes after ``ids``, with them."""
    written: Tensor = model.generate(  # type: ignore[misc, assignment]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_tokens,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )
    return written
