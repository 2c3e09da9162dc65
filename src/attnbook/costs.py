"""What a model costs, computed from its configuration: operations, parameters, bytes.

A multiply-add counts as two operations. Operations are those of the matrix products: norms,
softmax, activations, biases and the optimizer are not counted. :math:`T`, ``n_tokens``, are the
tokens of each of ``batch`` sequences, ``n_seen`` those before them in the cache, :math:`N` blocks,
:math:`V` the vocabulary. ``itemsize`` is the bytes of a number: 4 in float32, 2 in bfloat16.

>>> gpt2 = ModelConfig(50257, d_model=768, n_heads=12, n_layers=12, max_tokens=1024, norm="pre",
...                    position="learned", activation="gelu_tanh", attention_bias=True)
>>> print(forward_operations(gpt2, 1024))
part              operations    share
embedding                  0    0.0 %
projections   57,982,058,496   19.9 %
attention     38,654,705,664   13.3 %
feed-forward 115,964,116,992   39.8 %
output        79,047,426,048   27.1 %
total        291,648,307,200  100.0 %
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnbook.blocks import GATED
from attnbook.config import ModelConfig, check_choice

Pairs = Literal["all", "causal", "two_sided"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, eq=False)
class Costs(Mapping[str, int]):
    """The count of each part, in operations, parameters or bytes; ``print`` shows a table.

    Example:
        >>> Costs("bytes", {"weights": 300, "cache": 100}).total
        400
    """

    unit: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The sum over the parts."""
        return sum(self.parts.values())

    def __getitem__(self, part: str) -> int:
        return self.parts[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __str__(self) -> str:
        rows = [("part", self.unit, "share")]
        for part, count in (*self.items(), ("total", self.total)):
            rows.append((part, f"{count:,}", f"{100 * count / max(self.total, 1):.1f} %"))
        left, middle, right = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{a.ljust(left)} {b.rjust(middle)}  {c.rjust(right)}" for a, b, c in rows)


class _Sizes(NamedTuple):
    heads: int
    kv_heads: int
    d_head: int
    d_ff: int
    final_norm: bool

    @property
    def queries(self) -> int:
        return self.heads * self.d_head

    @property
    def keys(self) -> int:
        """The width of keys, and of values."""
        return self.kv_heads * self.d_head


def _sizes(config: ModelConfig, *counts: int) -> _Sizes:
    """What the configuration leaves to defaults; refuse numbers of no model."""
    if type(config) is not ModelConfig:
        raise TypeError(f"expected the ModelConfig of one stack, got a {type(config).__name__}")
    if min(counts, default=0) < 0:
        raise ValueError(f"expected numbers of at least 0, got {min(counts)}")
    d_model, heads, kv_heads = config.d_model, config.n_heads, config.n_kv_heads or config.n_heads
    if heads % kv_heads:
        raise ValueError(f"expected n_kv_heads that divides {heads} heads, got {kv_heads}")
    if config.d_head is None and d_model % heads:
        raise ValueError(f"expected n_heads that divides {d_model}, got {heads}")
    d_head = config.d_head or d_model // heads
    final_norm = config.norm == "pre" if config.final_norm is None else config.final_norm
    return _Sizes(heads, kv_heads, d_head, config.d_ff or 4 * d_model, final_norm)


def attention_pairs(
    config: ModelConfig, n_tokens: int, n_seen: int = 0, *, pairs: Pairs = "all"
) -> int:
    r"""Pairs of a query and a key whose logit is computed, in one head of one sequence.

    .. math:: \text{all:}\; T^2, \qquad \text{causal:}\; \tfrac12 T(T+1)

    without a window and with nothing seen before. The definition computes ``"all"``, whatever the
    mask. Those that the masks of a ``LanguageModel`` (``"causal"``) or of an ``Encoder``
    (``"two_sided"``) allow are what a kernel needs that skips all others; real ones skip tiles.

    Source: Dao 2023 (FlashAttention-2), section 3.1, for the skipping.

    Example:
        >>> attention_pairs(ModelConfig(10, window=2), 4, pairs="causal")
        7
    """
    check_choice("pairs", pairs, Pairs)
    _sizes(config, n_tokens, n_seen)
    n_keys = n_seen + n_tokens
    window = config.window or n_keys
    left = sum(min(i, window) for i in range(n_seen + 1, n_keys + 1))  # each itself among them
    right = sum(min(i, window) for i in range(1, n_tokens + 1)) - n_tokens
    return {"all": n_tokens * n_keys, "causal": left, "two_sided": left + right}[pairs]


def forward_operations(
    config: ModelConfig,
    n_tokens: int,
    batch: int = 1,
    *,
    n_seen: int = 0,
    n_logits: int | None = None,
    pairs: Pairs = "all",
) -> Costs:
    r"""Operations of a forward pass: in training, of a prefill, or of decoding (``n_tokens=1``).

    .. math:: N\,(8Td^2 + 4T^2d + 4Td\,d_\text{ff}) + 2TdV

    for projections, attention (logits and weighted sums), feed-forward networks and output matrix.
    Generally, projections are :math:`4Td\,d_\text{head}(n_\text{heads} + n_\text{kv})`, attention
    :math:`4T^2 n_\text{heads}\, d_\text{head}` with :func:`attention_pairs` for :math:`T^2`, and a
    gated network's three matrices have 6 for 4. Looking up an embedding multiplies nothing. The
    logits of ``n_logits`` tokens are computed, of all if not given; ``LanguageModel.generate``
    needs 1.

    Source: Kaplan et al. 2020, table 1, whose total omits the output matrix; Shazeer 2019, 2.4.

    Example:
        >>> forward_operations(ModelConfig(1000, d_model=64), 1, n_seen=99)["attention"]
        51200
    """
    n_logits = n_tokens if n_logits is None else n_logits
    sizes, d_model = _sizes(config, n_tokens, batch, n_logits), config.d_model
    if n_logits > n_tokens:
        raise ValueError(f"expected logits of at most {n_tokens} tokens, got {n_logits}")
    matrices, head = 2 + (config.activation in GATED), d_model * config.prediction_head
    tokens = config.n_layers * batch * n_tokens
    n_pairs = config.n_layers * batch * attention_pairs(config, n_tokens, n_seen, pairs=pairs)
    parts = {
        "embedding": 0,
        "projections": 4 * tokens * d_model * (sizes.queries + sizes.keys),
        "attention": 4 * n_pairs * sizes.queries,
        "feed-forward": 2 * tokens * matrices * d_model * sizes.d_ff,
        "output": 2 * batch * n_logits * d_model * (config.vocab_size + head),
    }
    return Costs("operations", parts)


def training_operations(
    config: ModelConfig,
    n_tokens: int,
    batch: int = 1,
    *,
    pairs: Pairs = "all",
    fused: bool = False,
    checkpointing: bool = False,
) -> Costs:
    """Operations of a training step: three times a forward pass, since backward is two.

    Each product has gradients with respect to both factors. With ``fused`` it is counted that a
    fused kernel's backward pass computes the logits again, and with ``checkpointing`` that every
    block runs forward again. (torch's ends before the last matrix of a pre-norm block.)

    Source: Kaplan et al. 2020, section 2.1; Dao et al. 2022, appendix B, for the logits.

    Example:
        >>> training_operations(ModelConfig(1000, d_model=64), 100)["attention"]   # 3 · 5,120,000
        15360000
    """
    forward = forward_operations(config, n_tokens, batch, pairs=pairs)
    passes = dict.fromkeys(forward, 4 if checkpointing else 3) | {"output": 3}
    parts = {part: passes[part] * count for part, count in forward.items()}
    parts["attention"] += forward["attention"] // 2 if fused else 0
    return Costs("operations", parts)


def crossing(config: ModelConfig) -> dict[str, float]:
    r"""The number of tokens at which attention has as many operations as other parts.

    .. math:: T = \text{operations of the parts for one token} \,/\, 4N n_\text{heads} d_\text{head}

    The parts are the ``"projections"``, all the rest of a ``"block"``, and of the ``"model"``:
    usually :math:`2d`, :math:`6d` and :math:`6d + V/2N`. A kernel that skips gets to it at 2T − 1.

    Source: Kaplan et al. 2020, section 2.1, who compare d with T/12: half the pairs, a block.

    Example:
        >>> crossing(ModelConfig(1000, d_model=64))
        {'projections': 128.0, 'block': 384.0, 'model': 634.0}
    """
    costs = forward_operations(config, 1)  # one pair
    block = costs["projections"] + costs["feed-forward"]
    others = {"projections": costs["projections"], "block": block, "model": block + costs["output"]}
    return {name: count / costs["attention"] for name, count in others.items()}


def parameters(config: ModelConfig) -> Costs:
    """Parameters of each part; a tied output matrix is the embedding and counts there.

    Source: Kaplan et al. 2020, table 1, without biases and norms.

    Example:
        >>> parameters(ModelConfig(1000, d_model=64)).total
        163456
    """
    sizes, d_model, layers = _sizes(config), config.d_model, config.n_layers
    norm = d_model * (2 if config.norm_kind == "layer" and config.norm_bias else 1)
    norms = 2 * layers * (config.norm != "none") + config.embedding_norm + sizes.final_norm
    inner = sizes.queries + 2 * sizes.keys  # outputs of W_Q, W_K and W_V
    attention = inner * (d_model + (config.attention_bias in (True, "qkv")))
    attention += d_model * (sizes.queries + (config.attention_bias in (True, "output")))
    wide = sizes.d_ff * (2 if config.activation in GATED else 1)  # outputs of W_1 and the gate
    feed_forward = d_model * (wide + sizes.d_ff) + (wide + d_model) * config.feed_forward_bias
    head = d_model * (d_model + 1) + norm + config.vocab_size
    in_heads = 2 * layers * config.qk_norm * sizes.d_head
    parts = {
        "embedding": config.vocab_size * d_model,
        "positions": config.max_tokens * d_model * (config.position == "learned"),
        "attention": layers * attention,
        "feed-forward": layers * feed_forward,
        "norms": norms * norm + in_heads,
        "output": head * config.prediction_head + config.vocab_size * d_model * (not config.tied),
    }
    return Costs("parameters", parts)


def state_bytes(config: ModelConfig, *, itemsize: int = 4) -> Costs:
    """Bytes that a training with Adam holds between steps; autocast leaves all in float32.

    Source: Rajbhandari et al. 2020 (ZeRO), section 3.1.

    Example:
        >>> state_bytes(ModelConfig(1000, d_model=64))["gradients"]
        653824
    """
    parts = ("parameters", "gradients", "first moments", "second moments")
    return Costs("bytes", dict.fromkeys(parts, parameters(config).total * itemsize))


def activation_bytes(
    config: ModelConfig,
    n_tokens: int,
    batch: int = 1,
    *,
    causal: bool = True,
    fused: bool = True,
    checkpointing: bool = False,
    itemsize: int = 4,
    device: Device = "cuda",
) -> Costs:
    r"""Bytes that this package's models keep from the forward pass of a loss for the backward pass.

    .. math:: T\,(8d + 2d_\text{ff}) \quad\text{or by definition}\quad {} + 2 n_\text{heads} T^2

    numbers for each block and sequence, usually: the inputs of both norms and of what follows them,
    queries, keys, values, what the heads give, and the inner values before and after GELU. ReLU
    keeps :math:`d_\text{ff}`, a gate :math:`4 d_\text{ff}`. Statistics of norms, masks of dropout,
    ids and logarithms of probabilities are counted, too; autocast is not, and would keep more.
    ``causal`` is a ``LanguageModel``, otherwise an ``Encoder``. A ``fused`` kernel keeps one number
    for each row of weights; but torch's keeps a window's mask and ALiBi's bias. ``checkpointing``
    keeps the inputs of blocks, and one block's activations while it runs again. On a ``"cpu"`` a
    mask of dropout has numbers, not bytes, and RMSNorm keeps its normalized input, too.

    Source: Korthikanti et al. 2022, section 4.1; Chen et al. 2016, section 4, for checkpointing.

    Example:
        >>> activation_bytes(ModelConfig(1000), 100, fused=False)["attention weights"]   # and masks
        660200
    """
    check_choice("device", device, Device)
    sizes, on_cpu = _sizes(config, n_tokens, batch), device == "cpu"
    kept = _Kept(config, sizes, batch * n_tokens, n_tokens, itemsize, on_cpu)
    block = {
        "attention": kept.stream + kept.attention(fused) + kept.dropped,
        "attention weights": kept.weights(causal, fused),
        "feed-forward": kept.stream + kept.inner_values() + kept.dropped,
        "norms": 0 if config.norm == "none" else 2 * kept.norm,
    }
    blocks = {part: config.n_layers * count for part, count in block.items()}
    if checkpointing:
        one_block = sum(block.values()) - kept.stream  # its input is there already
        blocks = {"inputs of blocks": config.n_layers * kept.stream, "one block": one_block}
    return Costs("bytes", {"embedding": kept.embedding(), **blocks, "output": kept.output()})


class _Kept(NamedTuple):
    """Bytes that are kept of ``tokens`` tokens, in sequences of ``n_tokens``."""

    config: ModelConfig
    sizes: _Sizes
    tokens: int
    n_tokens: int
    itemsize: int
    on_cpu: bool

    @property
    def wide(self) -> int:
        """A number in float32 at least, as statistics and probabilities are."""
        return max(self.itemsize, 4)

    @property
    def stream(self) -> int:
        return self.tokens * self.config.d_model * self.itemsize

    @property
    def mask(self) -> int:
        """What dropout keeps of one number: a byte, on a CPU a number."""
        if self.config.dropout == 0:
            return 0
        return self.itemsize if self.on_cpu else 1

    @property
    def dropped(self) -> int:
        """The mask of what is added to the stream."""
        return self.tokens * self.config.d_model * self.mask

    @property
    def norm(self) -> int:
        if self.config.norm_kind == "rms":
            return self.rms_norm(self.tokens, self.config.d_model)
        return self.stream + 2 * self.tokens * self.wide  # mean and deviation

    def rms_norm(self, n_rows: int, width: int) -> int:
        """The input, on a CPU also normalized, and a statistic for each row."""
        number = 2 * self.wide if self.on_cpu else self.itemsize
        return n_rows * (width * number + self.wide)

    def attention(self, fused: bool) -> int:
        """What an attention keeps, but for the weights."""
        sizes = self.sizes
        keys = sizes.keys if fused else sizes.queries  # the definition repeats those of a group
        kept = {
            "queries and outputs": 2 * self.tokens * sizes.queries * self.itemsize,
            "keys and values": 2 * self.tokens * keys * self.itemsize,
        }
        if self.config.qk_norm:
            n_rows = self.tokens * (sizes.heads + sizes.kv_heads)
            kept["norms"] = self.rms_norm(n_rows, sizes.d_head)
        if self.config.position == "rotary":
            turned = int(self.config.rotary_fraction * sizes.d_head)
            kept["cosines and sines"] = 2 * self.n_tokens * turned * self.itemsize
        if fused:
            kept["logsumexp of each row"] = self.tokens * sizes.heads * self.wide
        return sum(kept.values())

    def weights(self, causal: bool, fused: bool) -> int:
        """By definition of each weight; fused, only a mask that is not the kernel's own."""
        alibi, dropout = self.config.position == "alibi", self.config.dropout > 0
        masked = alibi or self.config.window is not None or (causal and not fused)
        mask_rows = self.n_tokens * (self.sizes.heads if alibi else 1) if masked else 0
        if fused:
            return mask_rows * self.n_tokens * self.itemsize
        of_one = self.itemsize + self.mask  # after the softmax, and after the mask or dropout
        if masked or dropout:
            of_one += self.itemsize
        n_weights = self.tokens * self.sizes.heads * self.n_tokens
        return n_weights * of_one + mask_rows * (self.n_tokens + 1)

    def inner_values(self) -> int:
        """Of the feed-forward network: before and after the activation, and its mask."""
        n_values = 4 if self.config.activation in GATED else 2
        if self.config.activation == "relu" and self.config.dropout == 0:
            n_values = 1  # what ReLU gave
        return self.tokens * self.sizes.d_ff * (n_values * self.itemsize + self.mask)

    def embedding(self) -> int:
        ids = 8 * self.tokens
        positions = 8 * self.n_tokens if self.config.position == "learned" else 0
        norm = self.norm if self.config.embedding_norm else 0
        return ids + positions + self.dropped + norm

    def output(self) -> int:
        """What the output matrix takes, logarithms of probabilities, targets and their number."""
        norm = self.norm if self.sizes.final_norm else 0
        head = self.stream + self.norm if self.config.prediction_head else 0
        if self.config.prediction_head and self.config.activation != "relu":
            head += self.stream  # GELU keeps its input; a norm's input is also what ReLU gave
        losses = self.tokens * (self.config.vocab_size * self.wide + 8) + self.wide
        return norm + self.stream + head + losses


def cache_bytes(
    config: ModelConfig, n_tokens: int, batch: int = 1, *, windowed: bool = False, itemsize: int = 4
) -> int:
    r"""Bytes of the keys and values of ``n_tokens`` tokens, in the caches of all blocks.

    .. math:: 2 \, N \, n_\text{kv} \, d_\text{head} \, T \cdot \text{batch} \cdot \text{itemsize}

    ``windowed`` counts the last ``window`` − 1: all that the next token attends to but itself.

    Source: Shazeer 2019, section 2.4; Pope et al. 2022, section 3.3.

    Example:
        >>> cache_bytes(ModelConfig(1000, d_model=64, n_heads=4, n_kv_heads=1), 100)
        25600
    """
    sizes = _sizes(config, n_tokens, batch)
    if windowed and config.window is not None:
        n_tokens = min(n_tokens, config.window - 1)
    return 2 * config.n_layers * sizes.keys * n_tokens * batch * itemsize


def decoding_bytes(
    config: ModelConfig, n_seen: int, batch: int = 1, *, windowed: bool = False, itemsize: int = 4
) -> Costs:
    """Bytes read for one new token of each sequence: all weights once, and the cache.

    Tables of which one row is looked up are not counted: positions, and an embedding not tied.

    Source: Pope et al. 2022, section 2; Shazeer 2019, section 2.4.

    Example:
        >>> decoding_bytes(ModelConfig(1000, d_model=64), 100, batch=8).parts
        {'weights': 653824, 'cache': 819200}
    """
    counts = parameters(config)
    read = counts.total - counts["positions"] - counts["embedding"] * (not config.tied)
    cache = cache_bytes(config, n_seen, batch, windowed=windowed, itemsize=itemsize)
    return Costs("bytes", {"weights": read * itemsize, "cache": cache})
