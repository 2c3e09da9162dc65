"""The encoder-decoder: all that needs a memory."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Generator, Tensor, nn

from attnbook import generation
from attnbook.attention import KeyValueCache
from attnbook.blocks import Block, make_attention, make_residual
from attnbook.config import BlockConfig, ModelConfig, check_sizes
from attnbook.embedding import TokenEmbedding
from attnbook.initialization import deepnorm_pair
from attnbook.masks import token_mask
from attnbook.models import (
    Loss,
    Model,
    Reduction,
    cross_entropy,
    make_embedding,
    make_final_norm,
    make_output,
    make_positions,
    position_inside,
)
from attnbook.positions import Position, count_positions


class DecoderCache:
    """What a :class:`DecoderBlock` has seen: its own tokens, and the memory.

    Two :class:`attnbook.attention.KeyValueCache`, ``attention`` and ``cross_attention``.

    Args:
        max_tokens: of its own tokens, as there.

    Source: as :class:`attnbook.attention.KeyValueCache`.

    Example:
        >>> len(DecoderCache())
        0
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.attention = KeyValueCache(max_tokens)
        self.cross_attention = KeyValueCache()

    def __len__(self) -> int:
        """Number of the decoder's own tokens in the cache."""
        return len(self.attention)

    def reorder(self, index: Integer[Tensor, "new_batch"]) -> None:
        """Keep these sequences of the batch, in this order."""
        self.attention.reorder(index)
        self.cross_attention.reorder(index)


class DecoderBlock(Block):
    r"""A :class:`attnbook.blocks.Block` that attends to a memory, too.

    .. math::
        x \leftarrow x \oplus \operatorname{MHA}(x), \qquad
        x \leftarrow x \oplus \operatorname{MHA}(x, Y), \qquad
        x \leftarrow x \oplus \operatorname{FFN}(x)

    with the memory :math:`Y`. Its self-attention is causal.

    Args:
        config: sizes and choices; both attentions are alike.
        d_memory: width of the memory; ``d_model`` if not given.
        position: of the self-attention, as in :class:`attnbook.blocks.Block`.
        residual_scale: as there.

    Source: Vaswani et al. 2017, section 3.1 and figure 1.

    Example:
        >>> x, memory = torch.randn(2, 10, 64), torch.randn(2, 7, 64)
        >>> DecoderBlock(BlockConfig(d_model=64, n_heads=4))(x, memory).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        d_memory: int | None = None,
        position: Position | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__(config, position=position, residual_scale=residual_scale)
        self.cross_attention = make_attention(config, d_memory=d_memory)
        self.cross_attention_residual = make_residual(config, residual_scale)
        for name in ("feed_forward", "feed_forward_residual"):  # listed in the order they run in
            self._modules[name] = self._modules.pop(name)

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "batch tokens d_model"],
        memory: Float[Tensor, "batch keys d_memory"],
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Integer[Tensor, "*batch seen"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Run the block on ``x``.

        Args:
            x: the decoder's tokens; none sees a later one.
            memory: the encoder's output.
            mask: which tokens of ``x`` may be attended to, besides the causal mask.
            memory_mask: which tokens of the memory may be attended to.
            positions: of all the decoder's tokens, the cached ones too.
            cache: see :class:`DecoderCache`; ``x`` then are the tokens after those in it.
        """
        own, cross = (None, None) if cache is None else (cache.attention, cache.cross_attention)
        where = {} if positions is None else {"positions": positions}
        x = self.attention_residual(
            x, lambda y: self.attention(y, mask=mask, causal=True, cache=own, **where)
        )
        x = self.cross_attention_residual(
            x, lambda y: self.cross_attention(y, memory, memory_mask, cache=cross)
        )
        stream: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return stream


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes and choices of an encoder-decoder.

    Everything of :class:`attnbook.config.ModelConfig`; ``vocab_size`` and ``n_layers`` are the
    encoder's. And:

    Args:
        target_vocab_size: number of different target tokens, with an embedding of their own; if
            not given, source and target share vocabulary and embedding.
        n_decoder_layers: blocks of the decoder; ``n_layers`` if not given.
        padding_id: id that stands for padding, in source and target; no padding if not given.

    Source: Vaswani et al. 2017, section 3; DeepNorm's constants for two stacks are those of Wang et
    al. 2022, figure 2.

    Example:
        >>> config = TransformerConfig(vocab_size=40, n_layers=3, n_decoder_layers=1, padding_id=0)
    """

    target_vocab_size: int | None = None
    n_decoder_layers: int | None = None
    padding_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse what only models of one stack have, and tokens and stacks that can't be."""
        super().__post_init__()
        check_sizes(
            target_vocab_size=self.target_vocab_size, n_decoder_layers=self.n_decoder_layers
        )
        if self.padding_id is not None:  # it is of both vocabularies
            smaller = min(self.vocab_size, self.target_vocab_size or self.vocab_size)
            generation.check_id("padding_id", self.padding_id, smaller)
        if self.window is not None or self.embedding_norm or self.prediction_head:
            raise ValueError(
                "an encoder-decoder has no window, embedding_norm or prediction_head, got "
                f"{self.window}, {self.embedding_norm} and {self.prediction_head}"
            )


class Transformer(Model):
    r"""Encoder and decoder: reads a source, predicts each next token of a target.

    .. math::
        Y = \operatorname{encoder}(\text{source}), \qquad
        \text{logits} = \operatorname{decoder}(\text{target}, Y)\, W_\text{out}

    The three attentions and their masks: the encoder sees the whole source except padding, the
    decoder its own tokens up to each one, and the memory :math:`Y` except padding. With one
    vocabulary, source and target share the embedding, and tied, the output layer too. Padding may
    come first or last, and positions count real tokens.

    Source: Vaswani et al. 2017, section 3.

    Example:
        >>> model = Transformer(TransformerConfig(vocab_size=10, d_model=32, padding_id=0))
        >>> source, target = torch.randint(10, (2, 7)), torch.randint(10, (2, 5))
        >>> model(source, target).shape
        torch.Size([2, 5, 10])
        >>> model.generate(source, start_id=1, end_id=2, n_tokens=4, beams=3).shape[0]
        2
    """

    config_class = TransformerConfig
    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        target_vocab = config.target_vocab_size or config.vocab_size
        n_decoder = config.n_decoder_layers or config.n_layers
        self.embedding = make_embedding(config, config.vocab_size)
        self.target_embedding = (
            make_embedding(config, target_vocab) if config.target_vocab_size else None
        )
        self.positions = make_positions(config)
        self.target_positions = make_positions(config)
        self.dropout = config.dropout
        alphas = [alpha for alpha, _ in deepnorm_pair(config.n_layers, n_decoder)]
        encoder_alpha, decoder_alpha = alphas if config.norm == "deepnorm" else (1.0, 1.0)
        position = position_inside(config, causal=False)
        self.encoder_blocks = nn.ModuleList(
            Block(config, position=position, residual_scale=encoder_alpha)
            for _ in range(config.n_layers)
        )
        self.encoder_norm = make_final_norm(config)
        position = position_inside(config, causal=True)
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(config, position=position, residual_scale=decoder_alpha)
            for _ in range(n_decoder)
        )
        self.decoder_norm = make_final_norm(config)
        self.output = make_output(config, target_vocab)

    def forward(
        self,
        source: Integer[Tensor, "batch source"],
        target: Integer[Tensor, "batch target"],
        *,
        reduction: Reduction | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "batch target vocab"] | Loss:
        """Logits for the token after each target token; or the loss, if there is a reduction.

        Args:
            source: token ids to read.
            target: token ids so far, beginning with a start token.
            reduction: ``"mean"`` or ``"sum"``: what is returned is :meth:`loss`, so that wrappers
                of the model's call, such as ``DistributedDataParallel``, see the training.
            memory: from :meth:`encode`, if it is known already.
            cache: as in :meth:`decode`.

        Raises:
            ValueError: if an id is outside its vocabulary, or a sequence is too long.
        """
        memory = self.encode(source) if memory is None else memory
        if reduction is None:
            return self.decode(target, memory, source, cache=cache)
        padding = self.config.padding_id
        logits = self.decode(target[:, :-1], memory, source)
        return cross_entropy(
            logits,
            target[:, 1:],
            ignored=-100 if padding is None else padding,
            reduction=reduction,
        )

    def encode(
        self, source: Integer[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: the encoder's output for each source token."""
        real = self._real(source)
        positions = count_positions(real, source.shape[1], source.device)
        x = self._embed(self.embedding, self.positions, source, positions)
        return self.encode_vectors(x, real, positions=positions)

    def encode_vectors(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Integer[Tensor, "*batch source"] | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """The encoder from the embeddings on."""
        for block in self.encoder_blocks:
            x = block(x, mask, positions=positions)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self,
        target: Integer[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        source: Integer[Tensor, "batch source"],
        *,
        padding_mask: Bool[Tensor, "batch ... keys"] | None = None,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "batch target vocab"]:
        """Logits for the token after each target token.

        Args:
            target: token ids; with a cache, those after the ones in it.
            memory: from :meth:`encode`.
            source: what the memory was made from: its padding is not attended to.
            padding_mask: ``True`` for the target's real tokens, the cached ones too; if not given,
                made from ``padding_id`` where there is no cache.
            cache: from :meth:`new_cache`.
        """
        n_before = 0 if cache is None else len(cache[0])
        n_keys = n_before + target.shape[1]
        generation.check_length(n_keys, self.config.max_tokens)
        real = self._real(target) if padding_mask is None and n_before == 0 else padding_mask
        real = None if real is None else real.flatten(1)[:, None, None]  # (batch, 1, 1, keys)
        positions = count_positions(real, n_keys, target.device)
        embedding = self.embedding if self.target_embedding is None else self.target_embedding
        x = self._embed(embedding, self.target_positions, target, positions[..., n_before:])
        x = self.decode_vectors(
            x, memory, real, self._real(source), positions=positions, cache=cache
        )
        logits: Tensor = embedding.logits(x) if self.output is None else self.output(x)
        return logits

    def decode_vectors(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Integer[Tensor, "*batch keys"] | None = None,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """The decoder from the embeddings on, up to its last norm."""
        for i, block in enumerate(self.decoder_blocks):
            seen = None if cache is None else cache[i]
            x = block(x, memory, mask, memory_mask, positions=positions, cache=seen)
        normed: Tensor = self.decoder_norm(x)
        return normed

    def new_cache(self, max_tokens: int | None = None) -> list[DecoderCache]:
        """An empty :class:`DecoderCache` for each block of the decoder."""
        return [DecoderCache(max_tokens) for _ in self.decoder_blocks]

    def loss(
        self,
        source: Integer[Tensor, "batch source"],
        target: Integer[Tensor, "batch target"],
        *,
        reduction: Reduction = "mean",
    ) -> Any:
        """Mean cross-entropy in nats of each target token given those before; padding is left out.

        In float32 where the model is in half precision.

        Args:
            source: token ids to read.
            target: token ids with a start token in front.
            reduction: ``"sum"`` gives (sum, number of target tokens): divided at the end, batches
                of different padding add up exactly.

        Raises:
            ValueError: if nothing of the target is left to predict.
        """
        return self(source, target, reduction=reduction)

    def generate(
        self,
        source: Integer[Tensor, "batch source"],
        *,
        start_id: int,
        end_id: int,
        n_tokens: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: Generator | None = None,
        beams: int = 1,
        length_penalty: float = 0.0,
    ) -> Integer[Tensor, "batch target"]:
        r"""One token after another, until each sequence has ended: greedy, drawn, or beam search.

        Without dropout and without gradients, whatever mode the model is in; it stays in it.

        Beam search goes on with the ``beams`` likeliest beginnings at once, until none of them can
        overtake the best that has ended, the one with the largest

        .. math:: \frac{\log p(Y \mid \text{source})}{\big((5 + |Y|) / 6\big)^{\alpha}}

        Greedy is one beam. What has not ended after ``n_tokens`` counts as it is.

        Args:
            source: token ids to read.
            start_id: the target's first token.
            end_id: ends a sequence. What follows it is filled with padding, or with ``end_id``
                where the model has no padding.
            n_tokens: stop after so many.
            temperature: as in :func:`attnbook.generation.sample`, and so are the others.
            top_k: draw among so many.
            top_p: draw among the likeliest that have this probability together.
            generator: source of randomness.
            beams: how many beginnings are kept; more than one only at temperature 0.
            length_penalty: α; 0 compares probabilities, 1 nearly the mean per token.

        Returns:
            The targets without the start token, at most ``n_tokens`` long.

        Raises:
            ValueError: if ``end_id`` is the padding, which the loss leaves out: no model learns to
                end so; if a token is outside the vocabulary; a source is padding only; or logits
                are not finite.

        Source: Wu et al. 2016 (GNMT), eq. 14, for the penalty, :math:`|Y|` with the end token.
        """
        draw = generation.Draw(temperature, top_k, top_p, generator)
        for name, token_id in (("start_id", start_id), ("end_id", end_id)):
            vocab_size = self.config.target_vocab_size or self.config.vocab_size
            generation.check_id(name, token_id, vocab_size)
        if end_id == self.config.padding_id:
            raise ValueError(f"end_id {end_id} is padding_id: the loss leaves it out")
        if beams < 1 or (beams > 1 and temperature != 0):
            raise ValueError(
                "beams must be positive, and beam search does not draw: got "
                f"beams={beams} and temperature={temperature}"
            )
        generation.check_new_tokens(n_tokens)
        generation.check_length(n_tokens, self.config.max_tokens)
        real = self._real(source)
        if real is not None and (empty := (~real.any(dim=-1)).flatten().nonzero()).numel():
            raise ValueError(
                f"each source needs a real token, got padding only in {empty.flatten().tolist()}"
            )
        target = generation.Target(start_id, end_id, self.config.padding_id, n_tokens)
        with self._evaluating():
            if beams > 1:
                found = generation.beam_search(self, source, target, beams, length_penalty)
            else:
                found = generation.translate(self, source, target, draw)
        return found.clone()  # not one of inference mode: it may be changed

    def _embed(
        self,
        embedding: TokenEmbedding,
        table: nn.Module | None,
        ids: Integer[Tensor, "batch tokens"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> Float[Tensor, "batch tokens d_model"]:
        generation.check_length(ids.shape[1], self.config.max_tokens)
        x: Tensor = embedding(ids)
        x = x if table is None else x + table(positions)
        return torch.dropout(x, self.dropout, self.training)

    def _real(self, ids: Integer[Tensor, "batch keys"]) -> Bool[Tensor, "batch 1 1 keys"] | None:
        return None if self.config.padding_id is None else token_mask(ids, self.config.padding_id)
