"""A small language model whose every gradient is written by hand."""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer
from numpy.random import Generator

from attnbook.backprop.blocks import Block
from attnbook.backprop.checks import check_integers
from attnbook.backprop.embedding import embedding, embedding_backward, sinusoidal_positions
from attnbook.backprop.layers import LayerNorm, Linear, linear, linear_backward
from attnbook.backprop.module import Array, Module, Parameter


def cross_entropy(
    logits: Float[np.ndarray, "... vocab"],
    targets: Integer[np.ndarray, "..."],
    *,
    ignored: int = -100,
) -> tuple[float, Float[np.ndarray, "... vocab"]]:
    r"""Mean of :math:`-\ln p_\text{target}` over the targets that count, in nats.

    Args:
        logits: one row for each target.
        targets: ids; those equal to ``ignored`` are left out.
        ignored: stands for no target.

    Returns:
        The loss, and the probabilities, which the backward pass needs.

    Raises:
        TypeError: if the targets are not integers.
        ValueError: if the shapes differ, a target is outside the vocabulary, or none is left.

    Example:
        >>> loss, _ = cross_entropy(np.zeros((1, 2, 10)), np.array([[3, -100]]))
        >>> loss                                                        # ln 10
        2.302...
    """
    counts = _check_targets(logits.shape, targets, ignored)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    probabilities = np.exp(shifted)
    total = probabilities.sum(axis=-1, keepdims=True)
    probabilities /= total
    chosen = np.take_along_axis(shifted, np.where(counts, targets, 0)[..., None], axis=-1)
    log_probability = (chosen - np.log(total))[..., 0]
    return float(-log_probability[counts].mean()), probabilities


def cross_entropy_backward(
    probabilities: Float[np.ndarray, "... vocab"],
    targets: Integer[np.ndarray, "..."],
    *,
    ignored: int = -100,
) -> Float[np.ndarray, "... vocab"]:
    r"""The gradient of the logits: what was predicted minus what was right.

    .. math:: dL_{tv} = \frac1n \big(p_{tv} - [v = \text{target}_t]\big)

    for the :math:`n` targets that count, zero for the others.

    Example:
        >>> _, p = cross_entropy(np.zeros((2, 2)), np.array([0, -100]))
        >>> cross_entropy_backward(p, np.array([0, -100]))
        array([[-0.5,  0.5],
               [ 0. ,  0. ]])
    """
    counts = _check_targets(probabilities.shape, targets, ignored)
    gradient = np.where(counts[..., None], probabilities, 0.0)
    where = np.nonzero(counts)
    gradient[(*where, targets[where])] -= 1.0
    gradient /= len(where[0])
    return gradient


def _check_targets(shape: tuple[int, ...], targets: np.ndarray, ignored: int) -> np.ndarray:
    """Which targets count."""
    check_integers("targets", targets)
    if targets.shape != shape[:-1]:
        raise ValueError(
            f"there are logits for {shape[:-1]} targets but targets of shape {targets.shape}"
        )
    counts: np.ndarray = targets != ignored
    if not counts.any():
        raise ValueError(f"no target is left: all {targets.size} are {ignored}")
    used = targets[counts]
    if used.min() < 0 or used.max() >= shape[-1]:
        raise ValueError(
            f"targets must be in 0 … {shape[-1] - 1}, or {ignored} to be left out, got "
            f"{used.min()} to {used.max()}"
        )
    return counts


class TokenEmbedding(Module):
    """One vector for each token; the same matrix may be the output layer.

    Example:
        >>> TokenEmbedding(10, 4).forward(np.array([[3, 1]]))[0].shape
        (1, 2, 4)
    """

    def __init__(
        self, vocab_size: int, d_model: int, *, scaled: bool = False, seed: int | Generator = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.weight = Parameter(rng.normal(0.0, d_model**-0.5, (vocab_size, d_model)))
        self.factor = math.sqrt(d_model) if scaled else 1.0

    def forward(
        self, ids: Integer[np.ndarray, "batch tokens"]
    ) -> tuple[Float[np.ndarray, "batch tokens d_model"], Integer[np.ndarray, "batch tokens"]]:
        """The vectors, and the ids."""
        return embedding(ids, self.weight.value, factor=self.factor), ids

    def backward(
        self,
        gradient: Float[np.ndarray, "batch tokens d_model"],
        saved: Integer[np.ndarray, "batch tokens"],
    ) -> None:
        """Ids have no gradient: nothing is returned."""
        self.weight.grad += embedding_backward(
            gradient, saved, len(self.weight.value), factor=self.factor
        )


class LearnedPositions(Module):
    """One trained vector for each position; the model adds the first rows of ``table``.

    Example:
        >>> LearnedPositions(10, 4).table.value.shape
        (10, 4)
    """

    def __init__(self, max_tokens: int, d_model: int, *, seed: int | Generator = 0) -> None:
        self.table = Parameter(np.random.default_rng(seed).normal(0.0, 0.02, (max_tokens, d_model)))


_ANY = (
    *("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_tokens", "n_kv_heads"),
    *("scaled", "tied", "attention_bias"),
)
_KNOWN = {
    "position": ("sinusoidal", "learned", "none"),
    "norm": ("pre", "post", "none"),
    "activation": ("relu", "gelu", "gelu_tanh"),
}


class LanguageModel(Module):
    r"""The decoder-only model of :class:`attnbook.models.LanguageModel`.

    It is made from the same configuration, has parameters of the same names and shapes, and
    computes the same loss and the same gradients, without torch and without automatic
    differentiation. Tied, the embedding gets two gradients: one for each place it is used.

    Args:
        config: a :class:`attnbook.config.ModelConfig` with positions ``"sinusoidal"``,
            ``"learned"`` or ``"none"``, norm ``"pre"``, ``"post"`` or ``"none"``, and the defaults
            of what came after the original Transformer (RMSNorm, SwiGLU, windows, …).
        seed: of the initial weights, all drawn in turn from one generator.

    Raises:
        ValueError: if it asks for something else; the message names the setting.

    Example:
        >>> from attnbook import ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32))
        >>> ids = np.random.default_rng(0).integers(10, size=(2, 8))
        >>> loss = model.loss_and_gradients(ids[:, :-1], ids[:, 1:])
        >>> model.embedding.weight.grad.shape
        (10, 32)
    """

    def __init__(self, config: Any, *, seed: int = 0) -> None:
        for field in dataclasses.fields(config):
            given = getattr(config, field.name)
            known = _KNOWN.get(field.name, (field.default,))
            if field.name not in _ANY and given not in known:
                raise ValueError(
                    f"{field.name} must be {' or '.join(map(repr, known))} in NumPy, got {given!r}"
                )
        self.config = config
        rng = np.random.default_rng(seed)
        self.embedding = TokenEmbedding(
            config.vocab_size, config.d_model, scaled=config.scaled, seed=rng
        )
        self.positions: LearnedPositions | None = None
        self.sinusoids: Array | None = None
        if config.position == "learned":
            self.positions = LearnedPositions(config.max_tokens, config.d_model, seed=rng)
        if config.position == "sinusoidal":
            self.sinusoids = sinusoidal_positions(config.max_tokens, config.d_model)
        self.blocks = [
            Block(
                config.d_model,
                config.n_heads,
                4 * config.d_model if config.d_ff is None else config.d_ff,
                norm=config.norm,
                n_kv_heads=config.n_kv_heads,
                bias=config.attention_bias,
                activation=config.activation,
                seed=rng,
            )
            for _ in range(config.n_layers)
        ]
        self.final_norm = LayerNorm(config.d_model) if config.norm == "pre" else None
        self.output: Linear | None = None
        if not config.tied:
            self.output = Linear(config.d_model, config.vocab_size, bias=False, rng=rng)

    def forward(
        self,
        ids: Integer[np.ndarray, "batch tokens"],
        mask: Bool[np.ndarray, "..."] | None = None,
    ) -> tuple[Float[np.ndarray, "batch tokens vocab"], tuple[Any, ...]]:
        """Logits for the token after each; and what the backward pass needs.

        Raises:
            TypeError: if ``ids`` is not an array of integers.
            ValueError: if it is not of shape (batch, tokens), has more tokens than the model takes,
                or an id is outside the vocabulary.
        """
        check_integers("ids", ids)
        if ids.ndim != 2:
            raise ValueError(f"ids must have shape (batch, tokens), got {ids.shape}")
        n_tokens = ids.shape[-1]
        if n_tokens > self.config.max_tokens:
            raise ValueError(
                f"the model takes {self.config.max_tokens} tokens at most, got {n_tokens}"
            )
        x, _ = self.embedding.forward(ids)
        if self.positions is not None:
            x = x + self.positions.table.value[:n_tokens]
        if self.sinusoids is not None:
            x = x + self.sinusoids[:n_tokens]
        of_blocks = []
        for block in self.blocks:
            x, saved = block.forward(x, mask, causal=True)
            of_blocks.append(saved)
        of_norm = None
        if self.final_norm is not None:
            x, of_norm = self.final_norm.forward(x)
        if self.output is None:
            logits = linear(x, self.embedding.weight.value)
        else:
            logits, _ = self.output.forward(x)
        return logits, (ids, of_blocks, of_norm, x)

    def backward(
        self, gradient: Float[np.ndarray, "batch tokens vocab"], saved: tuple[Any, ...]
    ) -> None:
        """Add to the gradient of every parameter, given the gradient of the logits."""
        ids, of_blocks, of_norm, x = saved
        if self.output is None:
            table = self.embedding.weight
            gradient, d_table, _ = linear_backward(gradient, x, table.value)
            table.grad += d_table
        else:
            gradient = self.output.backward(gradient, x)
        if self.final_norm is not None:
            gradient = self.final_norm.backward(gradient, of_norm)
        for block, of_block in zip(reversed(self.blocks), reversed(of_blocks), strict=True):
            gradient = block.backward(gradient, of_block)
        if self.positions is not None:
            self.positions.table.grad[: ids.shape[-1]] += gradient.sum(axis=0)
        self.embedding.backward(gradient, ids)

    def loss_and_gradients(
        self,
        ids: Integer[np.ndarray, "batch tokens"],
        targets: Integer[np.ndarray, "batch tokens"],
        mask: Bool[np.ndarray, "..."] | None = None,
    ) -> float:
        """Mean cross-entropy in nats per token; every parameter's ``grad`` is set.

        Raises:
            ValueError: as :func:`cross_entropy`, and if an id is outside the vocabulary.
        """
        logits, saved = self.forward(ids, mask)
        loss, probabilities = cross_entropy(logits, targets)
        self.zero_grad()
        self.backward(cross_entropy_backward(probabilities, targets), saved)
        return loss
