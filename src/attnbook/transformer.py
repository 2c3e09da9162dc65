"""Whole models: encoder with an output layer, language model, encoder-decoder."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Generator, Tensor, nn

from attnbook import checkpoint
from attnbook.attention import KeyValueCache, ProjectionBias, restored_on_error
from attnbook.blocks import Activation, DecoderBlock, DecoderCache, EncoderBlock
from attnbook.checks import (
    check_count,
    check_dropout,
    check_floating,
    check_integer,
    check_sizes,
)
from attnbook.draw import draw_, get_draw
from attnbook.embedding import TokenEmbedding
from attnbook.masks import token_mask
from attnbook.position import ALiBi, LearnedPositions, Rotary, SinusoidalPositions

PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "none"]
NormKind = Literal["pre", "post", "none", "deepnorm"]
M = TypeVar("M", bound="Model")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and choices of a model, checked when made, and frozen.

    Args:
        vocab_size: number of different tokens.
        d_model: width of a token.
        n_heads: attention heads, a divisor of ``d_model``.
        n_layers: blocks.
        d_ff: inner width of the feed-forward networks; ``4 * d_model`` if not given.
        max_tokens: longest sequence.
        norm: ``"post"``, ``"pre"``, ``"none"``, or ``"deepnorm"``: post-norm with a scaled stream;
            its initial values are drawn by ``initialize(model, "deepnorm")``.
        scaled: multiply token embeddings by sqrt(d_model).
        embedding_init: initial values of the embedding, a key of
            :data:`attnbook.draw.DRAWS`.
        tied: use the embedding matrix as the output layer too.
        dropout: on embeddings, attention weights, inside feed-forward networks and on what blocks
            add to the stream.
        n_kv_heads: key and value heads, a divisor of ``n_heads``; as many as there are heads if
            not given.
        position: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` (half-split), ``"alibi"``
            (bidirectional in an encoder) or ``"none"``.
        rotary_base: of rotary positions, as in :class:`attnbook.position.Rotary`.
        activation: ``"relu"``, ``"gelu"`` (exact) or ``"gelu_tanh"``.
        attention_bias: biases of the attentions' projections: ``True`` for all four, ``False``,
            ``"qkv"`` or ``"output"``.
        feed_forward_bias: biases in the feed-forward networks.
        norm_bias: biases in the LayerNorms.

    Raises:
        ValueError: names the first setting that can't be.

    Source: the defaults of ``norm``, ``position``, ``activation``, ``scaled`` and ``tied`` are the
    choices of Vaswani et al. 2017, sections 3.1 to 3.5.

    Example:
        >>> config = ModelConfig(vocab_size=1000, d_model=128, position="rotary")
        >>> ModelConfig(vocab_size=1000, d_model=128, n_heads=5)
        Traceback (most recent call last):
        ValueError: n_heads must divide d_model, got 5 and 128
    """

    vocab_size: int
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 2
    d_ff: int | None = None
    max_tokens: int = 256
    norm: NormKind = "post"
    scaled: bool = True
    embedding_init: str = "inverse_sqrt"
    tied: bool = True
    dropout: float = 0.0
    n_kv_heads: int | None = None
    position: PositionKind = "sinusoidal"
    rotary_base: float = 10000.0
    activation: Activation = "relu"
    attention_bias: ProjectionBias = False
    feed_forward_bias: bool = True
    norm_bias: bool = True

    def __post_init__(self) -> None:
        """Check every setting."""
        for name in ("vocab_size", "d_model", "n_heads", "n_layers", "max_tokens"):
            _check_size(name, getattr(self, name))
        for name in ("d_ff", "n_kv_heads"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model, got {self.n_heads} and {self.d_model}")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads, got {self.n_kv_heads} and {self.n_heads}"
            )
        for name, choices in (
            ("norm", get_args(NormKind)),
            ("position", get_args(PositionKind)),
            ("activation", get_args(Activation)),
            ("attention_bias", (True, False, "qkv", "output")),
            ("scaled", (True, False)),
            ("tied", (True, False)),
            ("feed_forward_bias", (True, False)),
            ("norm_bias", (True, False)),
        ):
            given = getattr(self, name)
            if not isinstance(given, bool | str) or given not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(str, choices))}, got {given!r}"
                )
        base = self.rotary_base
        if type(base) not in (int, float) or not 0 < base < math.inf:
            raise ValueError(f"rotary_base must be a positive finite float, got {base!r}")
        if self.position == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoids, got {self.d_model}")
        if self.position == "rotary" and self.d_model // self.n_heads % 2:
            raise ValueError(
                f"d_model/n_heads must be even for rotary positions, got {self.d_model} and "
                f"{self.n_heads}"
            )
        if not isinstance(self.dropout, int | float):
            raise ValueError(f"dropout must be a float, got {self.dropout!r}")
        check_dropout(self.dropout)
        get_draw(self.embedding_init)

    def positions(self) -> SinusoidalPositions | LearnedPositions | None:
        """What is added to the embeddings."""
        if self.position == "sinusoidal":
            return SinusoidalPositions(self.max_tokens, self.d_model)
        if self.position == "learned":
            return LearnedPositions(self.max_tokens, self.d_model)
        return None

    def block(self, *, causal: bool, residual_scale: float) -> dict[str, Any]:
        """Arguments of every block."""
        by_kind = {
            "rotary": Rotary(base=self.rotary_base),
            "alibi": ALiBi(bidirectional=not causal),
        }
        return {
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "d_ff": 4 * self.d_model if self.d_ff is None else self.d_ff,
            "norm": "post" if self.norm == "deepnorm" else self.norm,
            "n_kv_heads": self.n_kv_heads,
            "position": by_kind.get(self.position),
            "bias": self.attention_bias,
            "activation": self.activation,
            "residual_scale": residual_scale if self.norm == "deepnorm" else 1.0,
            "feed_forward_bias": self.feed_forward_bias,
            "norm_bias": self.norm_bias,
            "dropout": self.dropout,
        }

    def final_norm(self) -> nn.Module:
        """What a stack ends with: pre-norm leaves the stream itself without a norm."""
        if self.norm == "pre":
            return nn.LayerNorm(self.d_model, bias=self.norm_bias)
        return nn.Identity()


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Sizes and choices of an encoder-decoder, checked when made.

    Everything of :class:`ModelConfig`; ``vocab_size`` and ``n_layers`` are the encoder's. And:

    Args:
        target_vocab_size: number of different target tokens, with an embedding of their own; if
            not given, source and target share vocabulary and embedding.
        n_decoder_layers: blocks of the decoder; ``n_layers`` if not given.
        padding_id: id that stands for padding, in source and target; no padding if not given.

    Raises:
        ValueError: names the first setting that can't be.

    Source: Vaswani et al. 2017, section 3; DeepNorm's constants for two stacks are those of Wang et
    al. 2022, figure 2.

    Example:
        >>> config = TransformerConfig(vocab_size=40, n_layers=3, n_decoder_layers=1, padding_id=0)
    """

    target_vocab_size: int | None = None
    n_decoder_layers: int | None = None
    padding_id: int | None = None

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        for name in ("n_decoder_layers", "target_vocab_size"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        smallest = min(self.vocab_size, self.target_vocab_size or self.vocab_size)
        padding = self.padding_id
        if padding is not None and (type(padding) is not int or not 0 <= padding < smallest):
            raise ValueError(
                f"padding_id must be an int in both vocabularies, 0 … {smallest - 1}, got "
                f"{padding!r}"
            )


class Model(nn.Module):
    """What the models share: a configuration, and files.

    A file holds the weights and the configuration (safetensors). It is written whole or not at
    all: a save that is interrupted leaves the file that was there.
    """

    config_class: ClassVar[type[ModelConfig]] = ModelConfig
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if type(config) is not self.config_class:
            raise TypeError(
                f"{type(self).__name__} is made from a {self.config_class.__name__}, got a "
                f"{type(config).__name__}"
            )
        self.config = config

    def save(self, path: str | Path) -> None:
        """Write weights and configuration to ``path``, replacing what is there.

        The state of an optimizer is not part of it. Parameters that were made one by hand, and not
        by the configuration, are several in the model that is loaded.

        Raises:
            IsADirectoryError: if ``path`` is a folder.
            FileNotFoundError: if the folder to write into does not exist.

        Example:
            >>> import tempfile
            >>> model = Encoder(ModelConfig(vocab_size=10, d_model=32))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save(f"{folder}/model.safetensors")
            ...     again = Encoder.load(f"{folder}/model.safetensors")
            >>> again.config == model.config
            True
            >>> torch.equal(again.embedding.weight, model.embedding.weight)
            True
        """
        config = json.dumps(dataclasses.asdict(self.config))
        metadata = {"format": "attnbook", "model": type(self).__name__, "config": config}
        tables = {
            name: str(module.table.dtype).removeprefix("torch.")
            for name, module in self.named_modules()
            if isinstance(module, SinusoidalPositions)
        }
        metadata["tables"] = json.dumps(tables)
        checkpoint.write(path, self.state_dict(), metadata)

    @classmethod
    def load(cls: type[M], path: str | Path) -> M:
        """The model in the file, on the CPU, in training mode, in the type in which it was saved.

        Raises:
            FileNotFoundError: if there is no such file.
            IsADirectoryError: if it is a folder.
            ValueError: if it is not a model of this class, or its parts do not fit together.

        Example: as in :meth:`save`.
        """
        weights, metadata = checkpoint.read(path)
        held = metadata.get("model") if metadata.get("format") == "attnbook" else None
        if held != cls.__name__:
            what = "no model of attnbook" if held is None else f"{held}, not {cls.__name__}"
            raise ValueError(f"{path} holds {what}")
        try:
            # On the CPU, whatever the default is, and with no draw from the global generator.
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                model = cls(cls.config_class(**json.loads(metadata["config"])))
                model.to(weights["embedding.weight"].dtype)
                # Tables of positions are in no file, and an older file does not tell their type.
                for name, dtype in json.loads(metadata.get("tables", "{}")).items():
                    model.get_submodule(name).to(getattr(torch, dtype))
            model.load_state_dict(weights, assign=True)  # each weight in its own type
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} does not fit together: {error!r}") from None
        return model

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """In evaluation mode, and afterwards each part in the mode that it was in."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    @staticmethod
    def _cross_entropy(
        logits: Float[Tensor, "batch tokens vocab"],
        targets: Integer[Tensor, "batch tokens"],
        ignored: int = -100,
    ) -> Float[Tensor, ""]:
        check_integer("targets", targets)
        targets = targets.long()
        if targets.shape != logits.shape[:2]:
            raise ValueError(
                f"there are logits for (batch, tokens) = {tuple(logits.shape[:2])} but targets of "
                f"shape {tuple(targets.shape)}"
            )
        read = targets.device.type == "cpu" and not torch.compiler.is_compiling()
        if read and not (targets != ignored).any():
            raise ValueError(f"no target is left: all {targets.numel()} are {ignored}")
        # A mean over many tokens in half precision would be rounded, or overflow.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        try:
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignored)
        except IndexError:
            left = targets[targets != ignored]
            raise ValueError(
                f"targets must be in 0 … {logits.shape[-1] - 1}, or {ignored} to be left out, got "
                f"{left.min().item()} to {left.max().item()}"
            ) from None


class Encoder(Model):
    r"""Embedding plus position, a stack of blocks, and an output layer over the vocabulary.

    .. math::
        X_0 = c\,E_\text{ids} + P, \qquad X_l = \operatorname{block}_l(X_{l-1}), \qquad
        \text{logits} = X_N W_\text{out}

    :math:`W_\text{out} = E^\top` when tied; :math:`P` is absent with rotary positions, ALiBi or
    none. A pre-norm stack ends with one more LayerNorm.

    Args:
        config: sizes and choices.

    Raises:
        TypeError: if ``config`` is no ``ModelConfig``.

    Source: Vaswani et al. 2017, sections 3.1 and 3.4.

    Example:
        >>> model = Encoder(ModelConfig(vocab_size=10, d_model=32))
        >>> model(torch.randint(10, (2, 7))).shape
        torch.Size([2, 7, 10])
    """

    causal = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = TokenEmbedding(
            config.vocab_size, config.d_model, scaled=config.scaled, init=config.embedding_init
        )
        self.positions = config.positions()
        self.dropout = config.dropout
        alpha, _ = deepnorm_constants(config.n_layers)
        self.blocks = nn.ModuleList(
            EncoderBlock(**config.block(causal=self.causal, residual_scale=alpha))
            for _ in range(config.n_layers)
        )
        self.final_norm = config.final_norm()
        self.output = None if config.tied else _output_layer(config.d_model, config.vocab_size)

    def forward(
        self, ids: Integer[Tensor, "batch tokens"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch tokens vocab"]:
        """Logits over the vocabulary for each token.

        Args:
            ids: token ids.
            mask: ``True`` = may attend; broadcasts to (batch, heads, tokens, tokens).

        Raises:
            TypeError: if ``ids`` are not integers.
            ValueError: if an id is outside the vocabulary or the sequence is too long.
        """
        return self._logits(self._stack(ids, mask))

    def input(
        self, ids: Integer[Tensor, "batch tokens"], *, offset: int = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """What the first block gets: embedding plus position, from position ``offset`` on.

        Raises:
            TypeError: if ``ids`` are not integers.
            ValueError: as ``forward``.
        """
        _check_ids("ids", ids, offset, self.config.max_tokens)
        x = _embed(self.embedding, self.positions, ids, offset)
        return torch.dropout(x, self.dropout, self.training)

    def loss(
        self,
        ids: Integer[Tensor, "batch tokens"],
        targets: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats per token, in float32 where the model is in half precision.

        Args:
            ids: token ids.
            targets: what each is to be answered with; −100 is left out.
            mask: as in ``forward``.

        Raises:
            TypeError: if ids or targets are not integers.
            ValueError: if the shapes differ, a target is outside the vocabulary, or all are left
                out (on a GPU, where a check would have to wait for the device, torch's own
                assertion speaks of the former, and the loss is NaN for the latter; and so it is
                when compiled).
        """
        return self._cross_entropy(self(ids, mask), targets)

    def _stack(
        self,
        ids: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None,
        cache: list[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """From the ids to the last block's output, normed."""
        x = self.input(ids, offset=0 if cache is None else len(cache[0]))
        for i, block in enumerate(self.blocks):
            own = None if cache is None else cache[i]
            x = block(x, mask, causal=self.causal, cache=own)
        normed: Tensor = self.final_norm(x)
        return normed

    def _logits(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch tokens vocab"]:
        logits: Tensor = self.embedding.logits(x) if self.output is None else self.output(x)
        return logits


class LanguageModel(Encoder):
    r"""The same stack with causal masks: predicts each next token from those before.

    .. math:: \text{logits}_t = \log p(\text{id}_{t+1} \mid \text{id}_1 \dots \text{id}_t) +
              \text{const}

    Args:
        config: sizes and choices.

    Raises:
        TypeError: if ``config`` is no ``ModelConfig``.

    Source: Radford et al. 2019, section 2.3, for the decoder-only form.

    Example:
        >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32))
        >>> ids = torch.randint(10, (2, 8))
        >>> model.loss(ids[:, :-1], ids[:, 1:]).shape
        torch.Size([])
        >>> model.generate(ids, 5, temperature=0).shape
        torch.Size([2, 13])
    """

    causal = True

    def forward(
        self,
        ids: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        cache: list[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch tokens vocab"]:
        """Logits for the token after each.

        Args:
            ids: token ids; with a cache, those after the ones in it.
            mask: besides the causal mask; broadcasts to (batch, heads, tokens, keys).
            cache: from :meth:`new_cache`; filled with the keys and values of ``ids``.

        Raises:
            TypeError: if ``ids`` are not integers.
            ValueError: if an id is outside the vocabulary, the sequence is too long, or the cache
                is of another batch or of a model of other sizes; the cache then is as it was.
        """
        if cache is not None:
            _check_cache(cache, KeyValueCache, len(self.blocks))
        with restored_on_error(cache or []):
            return self._logits(self._stack(ids, mask, cache))

    def new_cache(self) -> list[KeyValueCache]:
        """An empty cache for each block."""
        return [KeyValueCache() for _ in self.blocks]

    @torch.no_grad()
    def generate(
        self,
        ids: Integer[Tensor, "batch tokens"],
        n_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
    ) -> Integer[Tensor, "batch more"]:
        r"""Continue each sequence by ``n_tokens`` tokens, one after another, with a cache.

        Without dropout and without gradients, whatever mode the model is in; it stays in it. (Where
        several threads generate from one model, call ``eval()`` first.)

        .. math:: t \sim \operatorname{softmax}(\text{logits} / \text{temperature})

        Args:
            ids: the beginning, at least one token; padding would be read as tokens.
            n_tokens: how many to add.
            temperature: 0 takes the largest logit (greedy), 1 draws from the model's own
                distribution.
            top_k: draw among the ``top_k`` largest logits; among all if not given.
            generator: source of randomness; torch's global one if none is given.

        Returns:
            The beginning and what was added, (batch, tokens + n_tokens).

        Raises:
            TypeError: if ``ids`` are not integers.
            ValueError: if there is no beginning, ``n_tokens`` or ``temperature`` is negative,
                ``top_k`` is not positive, or the result would be longer than ``max_tokens``.

        Source: Fan et al. 2018, section 5, for top-k.

        Example:
            >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32))
            >>> beginning = torch.randint(10, (2, 3))
            >>> draws = torch.Generator().manual_seed(0)
            >>> model.generate(beginning, 4, temperature=0.8, top_k=5, generator=draws).shape
            torch.Size([2, 7])
        """
        check_integer("ids", ids)
        if ids.dim() != 2 or ids.shape[1] < 1:
            raise ValueError(
                f"ids must have shape (batch, tokens) with a token or more, got {tuple(ids.shape)}"
            )
        check_count("n_tokens", n_tokens)
        if not isinstance(temperature, Real) or not temperature >= 0:
            raise ValueError(f"temperature must be a number, 0 or more, got {temperature!r}")
        if top_k is not None:
            check_sizes(top_k=top_k)
        _check_length(ids.shape[1] + n_tokens, self.config.max_tokens)
        with self._evaluating():
            ids = ids.long()
            cache, new = self.new_cache(), ids
            for _ in range(n_tokens):
                logits = self._logits(self._stack(new, None, cache)[:, -1:])[:, 0]
                new = _pick(logits, temperature, top_k, generator)[:, None]
                ids = torch.cat([ids, new], dim=1)
            return ids


class Transformer(Model):
    r"""Encoder and decoder: reads a source, predicts each next token of a target.

    .. math::
        Y = \operatorname{encoder}(\text{source}), \qquad
        \text{logits} = \operatorname{decoder}(\text{target}, Y)\, W_\text{out}

    The three attentions and their masks: the encoder sees the whole source except padding, the
    decoder its own tokens up to each one, and the memory :math:`Y` except padding. With one
    vocabulary, source and target share the embedding, and tied, the output layer too.

    Padding of the target comes last, where the causal mask hides it from what is before; padding
    of the source may stand anywhere.

    Args:
        config: sizes and choices.

    Raises:
        TypeError: if ``config`` is no ``TransformerConfig``.

    Source: Vaswani et al. 2017, section 3.

    Example:
        >>> model = Transformer(TransformerConfig(vocab_size=10, d_model=32, padding_id=0))
        >>> source, target = torch.randint(10, (2, 7)), torch.randint(10, (2, 5))
        >>> model(source, target).shape
        torch.Size([2, 5, 10])
        >>> model.generate(source, start_id=1, end_id=2, n_tokens=4).shape[0]
        2
    """

    config_class = TransformerConfig
    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        target_vocab = config.target_vocab_size or config.vocab_size
        n_decoder = config.n_decoder_layers or config.n_layers

        def embedding(vocab_size: int) -> TokenEmbedding:
            return TokenEmbedding(
                vocab_size, config.d_model, scaled=config.scaled, init=config.embedding_init
            )

        self.embedding = embedding(config.vocab_size)
        self.target_embedding = embedding(target_vocab) if config.target_vocab_size else None
        self.positions = config.positions()
        self.target_positions = config.positions()
        self.dropout = config.dropout
        (encoder_alpha, _), (decoder_alpha, _) = deepnorm_pair(config.n_layers, n_decoder)
        self.encoder_blocks = nn.ModuleList(
            EncoderBlock(**config.block(causal=False, residual_scale=encoder_alpha))
            for _ in range(config.n_layers)
        )
        self.encoder_norm = config.final_norm()
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(**config.block(causal=True, residual_scale=decoder_alpha))
            for _ in range(n_decoder)
        )
        self.decoder_norm = config.final_norm()
        self.output = None if config.tied else _output_layer(config.d_model, target_vocab)

    def forward(
        self,
        source: Integer[Tensor, "batch source"],
        target: Integer[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Logits for the token after each target token.

        Args:
            source: token ids to read.
            target: token ids so far, beginning with a start token.

        Raises:
            TypeError: if ids are not integers.
            ValueError: if an id is outside its vocabulary, a sequence is too long, or the batches
                differ.
        """
        return self.decode(target, self.encode(source), source)

    def encode(
        self, source: Integer[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: the encoder's output for each source token.

        Raises:
            TypeError: if ``source`` is no integer tensor.
            ValueError: if an id is outside the vocabulary or the sequence is too long.
        """
        _check_ids("source", source, 0, self.config.max_tokens)
        x = _embed(self.embedding, self.positions, source, 0)
        x = torch.dropout(x, self.dropout, self.training)
        for block in self.encoder_blocks:
            x = block(x, self._padding(source))
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self,
        target: Integer[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        source: Integer[Tensor, "batch source"],
        *,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "batch target vocab"]:
        """Logits for the token after each target token.

        Args:
            target: token ids; with a cache, those after the ones in it.
            memory: from :meth:`encode`.
            source: what the memory was made from: its padding is not attended to.
            cache: from :meth:`new_cache`.

        Raises:
            TypeError: if ids are not integers.
            ValueError: as ``forward``, or if ``memory`` is not of ``source``, or the cache is of
                another batch or of a model of other sizes; the cache then is as it was.
        """
        check_integer("source", source)
        check_floating("memory", memory, self.config.d_model)
        if source.shape != memory.shape[:2]:
            raise ValueError(
                f"source has shape {tuple(source.shape)} but memory {tuple(memory.shape)}"
            )
        if cache is not None:
            _check_cache(cache, DecoderCache, len(self.decoder_blocks))
        offset = 0 if cache is None else len(cache[0])
        _check_ids("target", target, offset, self.config.max_tokens)
        if len(target) != len(source):
            raise ValueError(f"target has a batch of {len(target)} but source of {len(source)}")
        embedding = self.embedding if self.target_embedding is None else self.target_embedding
        x = _embed(embedding, self.target_positions, target, offset)
        x = torch.dropout(x, self.dropout, self.training)
        parts = [part for one in cache or [] for part in (one.attention, one.cross_attention)]
        with restored_on_error(parts):
            for i, block in enumerate(self.decoder_blocks):
                # Padding in the target comes last, so the causal mask already hides it.
                own = None if cache is None else cache[i]
                x = block(x, memory, None, self._padding(source), cache=own)
            x = self.decoder_norm(x)
            logits: Tensor = embedding.logits(x) if self.output is None else self.output(x)
            return logits

    def new_cache(self) -> list[DecoderCache]:
        """An empty cache for each block of the decoder."""
        return [DecoderCache() for _ in self.decoder_blocks]

    def loss(
        self, source: Integer[Tensor, "batch source"], target: Integer[Tensor, "batch target"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats of each target token given those before; padding is left out.

        In float32 where the model is in half precision.

        Args:
            source: token ids to read.
            target: token ids with a start token in front, padded at the end.

        Raises:
            TypeError: if ids are not integers.
            ValueError: if nothing of the target is left to predict (on a GPU the loss is NaN then),
                or as ``forward``.
        """
        _check_ids("target", target, 0, self.config.max_tokens + 1)  # the last one is not read
        ignored = -100 if self.config.padding_id is None else self.config.padding_id
        return self._cross_entropy(self(source, target[:, :-1]), target[:, 1:], ignored)

    @torch.no_grad()
    def generate(
        self,
        source: Integer[Tensor, "batch source"],
        *,
        start_id: int,
        end_id: int,
        n_tokens: int,
    ) -> Integer[Tensor, "batch target"]:
        """The most likely next token, again and again (greedy), until each sequence has ended.

        Args:
            source: token ids to read.
            start_id: the target's first token, of the target's vocabulary.
            end_id: of the same; ends a sequence. What follows it is filled with padding, or with
                ``end_id`` where the model has no padding.
            n_tokens: stop after so many.

        Returns:
            The targets without the start token, at most ``n_tokens`` long.

        Raises:
            ValueError: if ``start_id`` or ``end_id`` is no id of the target's vocabulary, or
                ``n_tokens`` is negative or above ``max_tokens``.
        """
        target_vocab = self.config.target_vocab_size or self.config.vocab_size
        for name, given in (("start_id", start_id), ("end_id", end_id)):
            if type(given) is not int or not 0 <= given < target_vocab:
                raise ValueError(f"{name} must be an int in 0 … {target_vocab - 1}, got {given!r}")
        check_count("n_tokens", n_tokens)
        _check_length(n_tokens, self.config.max_tokens)
        filler = end_id if self.config.padding_id is None else self.config.padding_id
        with self._evaluating():
            memory = self.encode(source)
            cache = self.new_cache()
            new = source.new_full((len(source), 1), start_id, dtype=torch.long)
            target, ended = new[:, :0], torch.zeros_like(new, dtype=torch.bool)
            for _ in range(n_tokens):
                if ended.all():
                    break
                logits = self.decode(new, memory, source, cache=cache)
                new = logits.argmax(dim=-1).masked_fill(ended, filler)
                target = torch.cat([target, new], dim=1)
                ended = ended | (new == end_id)
            return target

    def _padding(self, ids: Integer[Tensor, "batch keys"]) -> Bool[Tensor, "batch 1 1 keys"] | None:
        return None if self.config.padding_id is None else token_mask(ids, self.config.padding_id)


def deepnorm_constants(n_layers: int) -> tuple[float, float]:
    r"""DeepNorm's α (scale of the stream) and β (gain of the matrices) for a single stack.

    .. math:: \alpha = (2N)^{1/4}, \qquad \beta = (8N)^{-1/4}

    Raises:
        ValueError: if the number of layers is not positive.

    Source: Wang et al. 2022 (DeepNet), figure 2.

    Example:
        >>> alpha, beta = deepnorm_constants(8)
        >>> round(alpha, 3), round(beta, 3)
        (2.0, 0.354)
    """
    check_sizes(n_layers=n_layers)
    return (2 * n_layers) ** 0.25, (8 * n_layers) ** -0.25


def deepnorm_pair(
    n_encoder: int, n_decoder: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    r"""DeepNorm's (α, β) for the encoder and for the decoder of an encoder-decoder.

    .. math::
        \alpha_e = 0.81\,(N^4 M)^{1/16}, \quad \beta_e = 0.87\,(N^4 M)^{-1/16}, \qquad
        \alpha_d = (3M)^{1/4}, \quad \beta_d = (12M)^{-1/4}

    with :math:`N` encoder and :math:`M` decoder layers.

    Raises:
        ValueError: if one of the two is not positive.

    Source: Wang et al. 2022 (DeepNet), figure 2.

    Example:
        >>> [[round(x, 2) for x in pair] for pair in deepnorm_pair(6, 6)]
        [[1.42, 0.5], [2.06, 0.34]]
    """
    check_sizes(n_encoder=n_encoder, n_decoder=n_decoder)
    both = (n_encoder**4 * n_decoder) ** (1 / 16)
    return (0.81 * both, 0.87 / both), ((3 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25)


def _check_size(name: str, size: object) -> None:
    if type(size) is not int or size < 1:  # True is no size, and no file holds NumPy's integers
        raise ValueError(f"{name} must be a positive int, got {size!r}")


def _embed(
    embedding: TokenEmbedding,
    positions: SinusoidalPositions | LearnedPositions | None,
    ids: Integer[Tensor, "batch tokens"],
    offset: int,
) -> Float[Tensor, "batch tokens d_model"]:
    x: Tensor = embedding(ids)
    if positions is not None:
        x = x + positions(ids.shape[-1], offset=offset)
    return x


def _output_layer(d_model: int, vocab_size: int) -> nn.Linear:
    output = nn.Linear(d_model, vocab_size, bias=False)
    draw_(output.weight, "glorot", fan_in=d_model, fan_out=vocab_size)
    return output


def _check_cache(
    cache: Sequence[KeyValueCache | DecoderCache],
    kind: type[KeyValueCache | DecoderCache],
    blocks: int,
) -> None:
    """One for each block, all as long: a half-filled one would be a wrong answer later."""
    if not isinstance(cache, list) or not all(isinstance(one, kind) for one in cache):
        inside = {type(one).__name__ for one in cache} if isinstance(cache, list) else ()
        given = f"a {type(cache).__name__}" + (f" of {', '.join(sorted(inside))}" if inside else "")
        raise TypeError(
            f"cache must be a list of {kind.__name__}, as new_cache() makes it, got {given}"
        )
    lengths = [len(one) for one in cache]
    # Compared, not collected in a set: compiled, a length stays open only if nobody hashes it.
    unequal = any(length != lengths[0] for length in lengths)
    if len(cache) != blocks or len({id(one) for one in cache}) != blocks or unequal:
        raise ValueError(
            f"the model has {blocks} blocks, and its cache one {kind.__name__} for each, no two of "
            f"them the same, all as long; got {len(cache)} of lengths {sorted(set(lengths))}"
        )


def _check_ids(
    name: str, ids: Integer[Tensor, "batch tokens"], offset: int, max_tokens: int
) -> None:
    check_integer(name, ids)
    if ids.dim() != 2:
        raise ValueError(f"{name} must have shape (batch, tokens), got {tuple(ids.shape)}")
    check_count("offset", offset)
    _check_length(offset + ids.shape[1], max_tokens)


def _check_length(n_tokens: int, max_tokens: int) -> None:
    if n_tokens > max_tokens:
        raise ValueError(f"the model takes at most {max_tokens} tokens, got {n_tokens}")


def _pick(
    logits: Float[Tensor, "batch vocab"],
    temperature: float,
    top_k: int | None,
    generator: Generator | None,
) -> Integer[Tensor, "batch"]:
    """One token for each row."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        values, tokens = logits.topk(top_k)
        return tokens.gather(1, _pick(values, temperature, None, generator)[:, None])[:, 0]
    # Relative to the largest, so that at a low temperature none becomes +inf.
    below = logits - logits.amax(dim=-1, keepdim=True)
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)
    probabilities = (below / temperature).softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
