"""What only the author of a module knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Mask:
    """How a module takes a mask.

    Args:
        argument: the name of the argument, or its number.
        shape: letters for its axes: ``"bk"`` for (batch, keys), ``"qk"``, ``"bhqk"``, ``"b11k"``.
        true: what ``True`` (or 1) means: ``"attend"`` or ``"blocked"``; ``"add"`` if it is a
            float that is added to the logits.
        dtype: ``"bool"``, ``"int"`` or ``"float"``.
        source: of two sequences, the argument whose tokens are masked; if not given, the target
            if the mask's name has ``"decoder"``, ``"tgt"`` or ``"target"`` in it, else the other.
    """

    argument: str | int
    shape: str = "bk"
    true: Literal["attend", "blocked", "add"] = "attend"
    dtype: Literal["bool", "int", "float"] = "bool"
    source: str = ""


@dataclass(frozen=True)
class Claims:
    """What the author says about a module; everything may be left out.

    Args:
        causal: no token may depend on a later one.
        n_heads: number of query heads.
        n_kv_heads: number of key and value heads.
        scale: factor on the products of queries and keys: a number, or ``"1/sqrt(d_head)"``.
        mask: how it takes a mask: a :class:`Mask`, or its arguments as a dictionary.
        window: each token attends to so many, itself included.
        position: ``"none"``, ``"learned"``, ``"sinusoidal"``, ``"rotary"``, ``"alibi"`` or
            ``"relative"``.
        rotary_base: frequencies are its powers: 10000 mostly.
        norm: ``"pre"`` for x + branch(norm(x)), ``"post"`` for norm(x + branch(x)).
        embedding_scale: what the embeddings are multiplied by.
        tied: the output layer is the embedding.
        dropout: its probability in training.
        cache: ``cache(module, new_tokens, state) -> (output, state)``, with ``None`` as the first
            state; ``True`` for Hugging Face's ``past_key_values``.
        padding_id: the id that fills up short sequences.
        vocab_size: number of different ids; the largest in the example, or the number of logits,
            if not given.
        batch_first: the batch is the first axis (``True``) or the second.
        shared: projections that are meant to be one, as ``("query", "key")``; ``("heads",)`` if one
            is for all heads.
        residual: what the attentions give is added to a stream.
        half: it is meant to run in float16 and bfloat16.
        keywords: further arguments of the call, by name.
    """

    causal: bool | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    scale: float | str | None = None
    mask: Mask | None = None
    window: int | None = None
    position: str | None = None
    rotary_base: float | None = None
    norm: Literal["pre", "post"] | None = None
    embedding_scale: float | None = None
    tied: bool | None = None
    dropout: float | None = None
    cache: Callable[..., Any] | bool | None = None
    padding_id: int | None = None
    vocab_size: int | None = None
    batch_first: bool | None = None
    shared: tuple[str, ...] = ()
    residual: bool = False
    half: bool = False
    keywords: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Claims":
        """The claims, with a mask made from a dictionary.

        Raises:
            TypeError: if one is not known: names those that are.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"there is no claim {name!r}; there are {', '.join(known)}")
        mask = given.get("mask")
        return cls(**{**given, "mask": Mask(**mask) if isinstance(mask, Mapping) else mask})
