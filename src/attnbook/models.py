"""Models of one stack: an encoder with an output layer, and a language model."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Generator, Tensor, nn

from attnbook import files, generation
from attnbook.attention import KeyValueCache
from attnbook.blocks import ACTIVATIONS, Block, make_norm
from attnbook.config import ModelConfig
from attnbook.embedding import TokenEmbedding
from attnbook.initialization import Roles, deepnorm_constants, draw_
from attnbook.masks import checked, combine_masks, known, near_mask
from attnbook.positions import (
    ALiBi,
    LearnedPositions,
    Position,
    Rotary,
    RotaryScaling,
    SinusoidalPositions,
    count_positions,
)

Reduction = Literal["mean", "sum"]
# The mean over targets, or their sum and number.
Loss = Float[Tensor, ""] | tuple[Float[Tensor, ""], Integer[Tensor, ""]]
M = TypeVar("M", bound="Model")


class Model(nn.Module):
    """What the models share: a configuration, and files.

    A file holds the weights and the configuration (safetensors). It is written whole or not at
    all: a save that is interrupted leaves the file that was there.
    """

    config_class: ClassVar[type[ModelConfig]] = ModelConfig
    roles: ClassVar[Roles] = {"output": "unembedding"}
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

        Raises:
            ValueError: if the configuration can't rebuild the model: names the first part that
                differs.

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
        with torch.device("meta"):
            rebuilt = type(self)(self.config)
        dropouts = {
            _clean(name): module.dropout
            for name, module in self.named_modules()
            if isinstance(getattr(module, "dropout", None), float)
        }
        _set_dropouts(rebuilt, dropouts)
        here, there = _description(self), _description(rebuilt)
        for name in [*here, *there]:
            if here.get(name) != there.get(name):
                raise ValueError(
                    f"the configuration can't rebuild {name}: it is {here.get(name, 'absent')}, "
                    f"and would be {there.get(name, 'absent')}"
                )
        if (count := len(list(self.parameters()))) != len(list(rebuilt.parameters())):
            raise ValueError(
                f"the configuration can't rebuild parameters that were made one, got {count} in all"
            )
        weights = {_clean(name): tensor for name, tensor in self.state_dict().items()}
        if on_meta := [name for name, tensor in weights.items() if tensor.is_meta]:
            raise ValueError(f"{on_meta[0]} is on the meta device: there are no numbers to save")
        tables = {
            name: str(module.table.dtype).removeprefix("torch.")
            for name, module in self.named_modules()
            if isinstance(module, SinusoidalPositions)
        }
        metadata = {
            "format": "attnbook",
            "model": type(self).__name__,
            "config": json.dumps(dataclasses.asdict(self.config)),
            "tables": json.dumps(tables),
            "dropouts": json.dumps(dropouts),
        }
        files.write(path, weights, metadata)

    @classmethod
    def load(cls: type[M], path: str | Path) -> M:
        """The model in the file, on the CPU, in evaluation mode, in the type that was saved.

        Raises:
            ValueError: if the file does not hold a whole model of this class.

        Example: as in :meth:`save`.
        """
        weights, metadata = files.read(path)
        held = metadata.get("model") if metadata.get("format") == "attnbook" else "another format"
        if held != cls.__name__:
            raise ValueError(f"expected a {cls.__name__} of attnbook in {path}, got {held}")
        try:
            settings = json.loads(metadata["config"])
            if settings["rotary_scaling"] is not None:
                settings["rotary_scaling"] = RotaryScaling(**settings["rotary_scaling"])
            config = cls.config_class(**settings)
            _check_sizes(config, len(weights))
            with torch.device("meta"):  # compares the others before there is memory taken for them
                cls(config).load_state_dict(weights, assign=True)
            # On the CPU, whatever the default is, and with no draw from the global generator.
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                model = cls(config)
                # Tables of positions are in no file, only their type.
                for name, dtype in json.loads(metadata["tables"]).items():
                    model.get_submodule(name).to(getattr(torch, dtype))
            _set_dropouts(model, json.loads(metadata["dropouts"]))
            model.load_state_dict(weights, assign=True)  # each weight in its own type
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise ValueError(f"{path} does not fit together: {error!r}") from None
        return model.eval()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """In evaluation mode without autograd, and afterwards each part in the mode it was in."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True


def make_embedding(config: ModelConfig, vocab_size: int) -> TokenEmbedding:
    """Token embeddings."""
    return TokenEmbedding(
        vocab_size, config.d_model, scaled=config.scaled, init=config.embedding_init
    )


def make_positions(config: ModelConfig) -> SinusoidalPositions | LearnedPositions | None:
    """What is added to the embeddings."""
    if config.position == "sinusoidal":
        return SinusoidalPositions(config.max_tokens, config.d_model)
    if config.position == "learned":
        return LearnedPositions(config.max_tokens, config.d_model)
    return None


def position_inside(config: ModelConfig, *, causal: bool) -> Position | None:
    """What tells the self-attentions where tokens are."""
    if config.position == "rotary":
        return Rotary(
            "half_split", config.rotary_base, config.rotary_fraction, config.rotary_scaling
        )
    return ALiBi(bidirectional=not causal) if config.position == "alibi" else None


def norm_outside(config: ModelConfig) -> nn.Module:
    """A norm outside the blocks."""
    return make_norm(config.norm_kind, config.d_model, config.norm_eps, config.norm_bias)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """What a stack ends with: pre-norm leaves the stream itself without a norm."""
    wanted = config.norm == "pre" if config.final_norm is None else config.final_norm
    return norm_outside(config) if wanted else nn.Identity()


def make_output(config: ModelConfig, vocab_size: int) -> nn.Linear | None:
    """The output layer, if it is not the embedding."""
    if config.tied:
        return None
    output = nn.Linear(config.d_model, vocab_size, bias=False)
    draw_(output.weight, "glorot", fan_in=config.d_model, fan_out=vocab_size)
    return output


class PredictionHead(nn.Module):
    r"""BERT's way from the last block to the output layer.

    .. math:: \operatorname{LN}(\phi(x W + b))

    Source: Devlin et al. 2019; transformers 5.23.0, ``models/bert/modeling_bert.py``
    (``BertPredictionHeadTransform``).

    Example:
        >>> PredictionHead(ModelConfig(10, activation="gelu"))(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    roles: ClassVar[Roles] = {"dense": "unembedding"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = config.activation
        self.norm = norm_outside(config)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply it to each token alone."""
        output: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(x)))
        return output


class Encoder(Model):
    r"""Embedding plus position, a stack of blocks, and an output layer over the vocabulary.

    .. math::
        X_0 = c\,E_\text{ids} + P, \qquad X_l = \operatorname{block}_l(X_{l-1}), \qquad
        \text{logits} = X_N W_\text{out}

    :math:`W_\text{out} = E^\top` when tied; :math:`P` is absent with rotary positions, ALiBi or
    none. A pre-norm stack ends with one more norm.

    Source: Vaswani et al. 2017, sections 3.1 and 3.4.

    Example:
        >>> model = Encoder(ModelConfig(vocab_size=10, d_model=32))
        >>> model(torch.randint(10, (2, 7))).shape
        torch.Size([2, 7, 10])
    """

    causal = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = make_embedding(config, config.vocab_size)
        self.positions = make_positions(config)
        self.embedding_norm = norm_outside(config) if config.embedding_norm else None
        self.dropout = config.dropout
        alpha = deepnorm_constants(config.n_layers)[0] if config.norm == "deepnorm" else 1.0
        position = position_inside(config, causal=self.causal)
        self.blocks = nn.ModuleList(
            Block(config, position=position, residual_scale=alpha) for _ in range(config.n_layers)
        )
        self.final_norm = make_final_norm(config)
        self.head: nn.Module | None = PredictionHead(config) if config.prediction_head else None
        self.output = make_output(config, config.vocab_size)
        self.output_bias: Tensor | None = (
            nn.Parameter(torch.zeros(config.vocab_size)) if config.prediction_head else None
        )

    def forward(
        self,
        ids: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        targets: Integer[Tensor, "batch tokens"] | None = None,
        reduction: Reduction = "mean",
        padding_mask: Bool[Tensor, "batch ... keys"] | None = None,
        cache: list[KeyValueCache] | None = None,
        at: Integer[Tensor, "batch"] | int | None = None,
    ) -> Float[Tensor, "batch *tokens vocab"] | Loss:
        """Logits over the vocabulary for each token; or the loss, if there are targets.

        Args:
            ids: token ids; with a cache, those after the ones in it.
            mask: ``True`` = may attend; broadcasts to (batch, heads, tokens, keys). Two dimensions
                are (tokens, keys), never (batch, keys): that is ``padding_mask``.
            targets: the right answers: what is returned is :meth:`loss`, so that wrappers of the
                model's call, such as ``DistributedDataParallel``, see the training.
            reduction: as in :meth:`loss`.
            padding_mask: ``True`` for real tokens, from :func:`attnbook.masks.padding_mask`,
                :func:`attnbook.masks.token_mask`, or of shape (batch, keys). Nobody attends to the
                others, and positions count real tokens: padding may come first.
            cache: from :meth:`LanguageModel.new_cache`.
            at: index of the one token of each sequence whose logits are computed, (batch, vocab):
                −1 for the last. All tokens', (batch, tokens, vocab), if not given.

        Raises:
            ValueError: if an id is outside the vocabulary or the sequence is too long.
        """
        x = self._stack(ids, mask, padding_mask, cache)
        if at is not None:
            x = x[:, at] if isinstance(at, int) else x[torch.arange(len(x), device=x.device), at]
        logits = self._logits(x)
        return logits if targets is None else cross_entropy(logits, targets, reduction=reduction)

    def loss(
        self,
        ids: Integer[Tensor, "batch tokens"],
        targets: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        padding_mask: Bool[Tensor, "batch ... tokens"] | None = None,
        reduction: Reduction = "mean",
    ) -> Any:
        """Mean cross-entropy in nats per target, in float32 where the model is in half precision.

        Args:
            ids: token ids.
            targets: the right answer of each; −100 is left out.
            mask: as in :meth:`forward`.
            padding_mask: as there.
            reduction: ``"sum"`` gives (sum, number of targets): divided at the end, batches of
                different padding add up exactly.

        Raises:
            ValueError: if the shapes differ, or all targets are left out.
        """
        return self(ids, mask, targets=targets, padding_mask=padding_mask, reduction=reduction)

    def input(
        self,
        ids: Integer[Tensor, "batch tokens"],
        positions: Integer[Tensor, "*batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """What the first block gets: embedding plus position, 0, 1, 2, … if none are given."""
        x: Tensor = self.embedding(ids)  # (batch, tokens, d_model)
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(ids.shape[1], device=ids.device)
            x = x + self.positions(positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return torch.dropout(x, self.dropout, self.training)

    def _stack(
        self,
        ids: Integer[Tensor, "batch tokens"],
        mask: Bool[Tensor, "..."] | None,
        padding_mask: Bool[Tensor, "batch ... keys"] | None,
        cache: list[KeyValueCache] | None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """From the ids to the last block's output, normed."""
        padding_mask = checked(padding_mask)
        if padding_mask is not None and len(padding_mask) not in (1, len(ids)):
            raise ValueError(
                f"padding_mask must be of {len(ids)} sequences, got {tuple(padding_mask.shape)}"
            )
        n_before = 0 if cache is None else len(cache[0])
        n_keys = n_before + ids.shape[1]
        generation.check_length(n_keys, self.config.max_tokens)
        positions = count_positions(padding_mask, n_keys, ids.device)  # (keys,) or (batch, keys)
        if padding_mask is not None:
            mask = combine_masks(mask, padding_mask.flatten(1)[:, None, None])
        mask = combine_masks(mask, near_mask(positions, n_before, self.config.window))
        x = self.input(ids, positions[..., n_before:])
        where = {} if padding_mask is None else {"positions": positions}
        for i, block in enumerate(self.blocks):
            seen = None if cache is None else cache[i]
            x = block(x, mask, causal=self.causal, cache=seen, **where)
        normed: Tensor = self.final_norm(x)
        return normed

    def _logits(
        self, x: Float[Tensor, "batch *tokens d_model"]
    ) -> Float[Tensor, "batch *tokens vocab"]:
        x = x if self.head is None else self.head(x)
        logits: Tensor = self.embedding.logits(x) if self.output is None else self.output(x)
        return logits if self.output_bias is None else logits + self.output_bias


class LanguageModel(Encoder):
    r"""The same stack with causal masks: predicts each next token from those before.

    .. math:: \text{logits}_t = \log p(\text{id}_{t+1} \mid \text{id}_1 \dots \text{id}_t) +
              \text{const}

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

    def new_cache(self, max_tokens: int | None = None) -> list[KeyValueCache]:
        """An empty :class:`attnbook.attention.KeyValueCache` for each block."""
        return [KeyValueCache(max_tokens) for _ in self.blocks]

    def generate(
        self,
        ids: Integer[Tensor, "batch tokens"],
        n_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_ids: Collection[int] = (),
        padding_mask: Bool[Tensor, "batch ... tokens"] | None = None,
        cache: list[KeyValueCache] | None = None,
        generator: Generator | None = None,
        fused: bool = False,
    ) -> Integer[Tensor, "batch more"]:
        r"""Continue each sequence by at most ``n_tokens`` tokens, one after another, with a cache.

        Without dropout and without gradients, whatever mode the model is in; it stays in it.

        Args:
            ids: the beginning, at least one token.
            n_tokens: how many to add.
            temperature: 0 is greedy; this, the next two and ``generator`` as in
                :func:`attnbook.generation.sample`.
            top_k: draw among so many.
            top_p: draw among the likeliest that have this probability together.
            stop_ids: a sequence ends with one of these, and is filled with it until all have ended.
            padding_mask: ``True`` for real tokens, as in :meth:`Encoder.forward`: beginnings of
                different lengths, padded on either side.
            cache: what the model has read of ``ids`` already, not all; the rest is added to it, and
                what is generated but its last token.
            generator: source of randomness.
            fused: decode with a :class:`attnbook.decoding.Step`: the same to rounding, and faster.
                On a CPU the weights are laid out as is fastest there, which may take a copy of
                them; it is timed once in a process, so another process may round differently. On a
                GPU the step is captured in a CUDA graph, unless a ``cache`` is given (this has not
                been run on one yet). Where it can't be, a warning says why.

        Returns:
            The beginning, with its padding, and what was added from column ``ids.shape[1]`` on.

        Raises:
            ValueError: if the result could be longer than ``max_tokens``, nothing of ``ids`` is new
                to the cache, a sequence is padding only, a stop id is outside the vocabulary, or
                logits are not finite.

        Example:
            >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32))
            >>> beginning = torch.randint(10, (2, 3))
            >>> draws = torch.Generator().manual_seed(0)
            >>> model.generate(beginning, 4, temperature=0.8, top_k=5, generator=draws).shape
            torch.Size([2, 7])
        """
        draw = generation.Draw(temperature, top_k, top_p, generator)
        generation.check_new_tokens(n_tokens)
        generation.check_length(ids.shape[1] + n_tokens, self.config.max_tokens)
        stop_ids = [int(stop_id) for stop_id in stop_ids]
        for stop_id in stop_ids:
            generation.check_id("stop_ids", stop_id, self.config.vocab_size)
        real = generation.real_tokens(padding_mask)
        with self._evaluating():
            longer = generation.write(self, ids, n_tokens, draw, stop_ids, real, cache, fused)
        return longer.clone()  # not one of inference mode: it may be changed


def cross_entropy(
    logits: Float[Tensor, "batch tokens vocab"],
    targets: Integer[Tensor, "batch tokens"],
    *,
    ignored: int = -100,
    reduction: Reduction = "mean",
) -> Loss:
    """Cross-entropy in nats: the mean over targets, or (sum, number of targets).

    Args:
        logits: for each token.
        targets: the right answers.
        ignored: the target that is left out.
        reduction: ``"mean"`` or ``"sum"``.

    Raises:
        ValueError: if the shapes differ, the reduction is unknown, or it is a mean of no target
            (where values can be read: not on a GPU, compiled, traced or vectorized; it is NaN
            there).

    Example:
        >>> cross_entropy(torch.zeros(1, 2, 8), torch.tensor([[3, -100]]))   # ln 8
        tensor(2.0794)
    """
    if targets.shape != logits.shape[:2]:
        raise ValueError(
            f"there are logits for (batch, tokens) = {tuple(logits.shape[:2])} but targets of "
            f"shape {tuple(targets.shape)}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    count = (targets != ignored).sum()
    if reduction == "mean" and known(count[None]) == [0]:  # a sum may be one of several
        raise ValueError(f"no target is left: all {targets.numel()} are {ignored}")
    # F.cross_entropy but for the type: a GPU then sums in float32 without a copy of the logits.
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probabilities = F.log_softmax(logits.flatten(0, 1), dim=-1, dtype=wide)
    loss = F.nll_loss(
        log_probabilities, targets.flatten(), ignore_index=ignored, reduction=reduction
    )
    return loss if reduction == "mean" else (loss, count)


def _clean(name: str) -> str:
    """The name as it is without ``torch.compile``."""
    return ".".join(word for word in name.split(".") if word != "_orig_mod")


# Numbers in a table of positions that a file may ask for: it is in no file, and takes 2 GB.
_LARGEST_TABLE = 2**28


def _check_sizes(config: ModelConfig, n_tensors: int) -> None:
    """Refuse what a file's tensors do not show to be too large."""
    n_layers = config.n_layers + (getattr(config, "n_decoder_layers", None) or 0)
    if n_layers > n_tensors:
        raise ValueError(f"n_layers={n_layers} are more than the {n_tensors} tensors")
    if config.position == "sinusoidal" and config.max_tokens * config.d_model > _LARGEST_TABLE:
        raise ValueError(
            f"max_tokens={config.max_tokens} of width {config.d_model} are more than "
            f"{_LARGEST_TABLE} numbers"
        )


def _set_dropouts(model: Model, dropouts: Mapping[str, float]) -> None:
    for name, module in model.named_modules():
        if name in dropouts:
            module.dropout = dropouts[name]


def _description(model: Model) -> dict[str, str]:
    """What a configuration has to say: class and settings of each part, shape of each tensor."""
    parts = {
        _clean(name): f"a {type(module).__name__}({module.extra_repr()})"
        for name, module in model.named_modules(remove_duplicate=False)
        if name and "_orig_mod" not in module._modules
    }
    tensors = {
        _clean(name): f"of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else "odd"
        for name, tensor in model.state_dict().items()
    }
    return parts | tensors
