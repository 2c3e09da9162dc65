"""What only the author of a module knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

Position = Literal["none", "learned", "sinusoidal", "rotary", "alibi", "relative"]


@dataclass(frozen=True)
class Mask:
    """How a module takes a mask.

    Args:
        argument: the name of the argument, or its number.
        shape: letters for its axes: ``"bk"`` for (batch, keys), ``"qk"``, ``"bhqk"``, ``"b11k"``;
            ``"b"`` for how many tokens each sequence has.
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

    def __post_init__(self) -> None:
        """Refuse what no mask can be."""
        for name, kind in get_type_hints(Mask).items():
            checked(f"mask's {name}", getattr(self, name), kind)
        if not set(self.shape) <= set("bhqk1"):
            raise ValueError(f"mask's shape must be of b, h, q, k and 1, got {self.shape!r}")


TO_THE_CALL = "; arguments of the call go into keywords={{{!r}: …}}, by the names they have there"
IN_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a tuple of names",
    Callable: "a function",
    Mapping: "a dictionary",
    Mask: "a Mask or a dictionary of what it takes",
}


@dataclass(frozen=True)
class Claims:
    """What the author says about a module; everything may be left out.

    Args:
        causal: no token may depend on a later one.
        n_heads: number of query heads.
        n_kv_heads: number of key and value heads.
        scale: factor on the products of queries and keys: a number, or ``"1/sqrt(d_head)"``.
        mask: how it takes a mask: a :class:`Mask`, or its arguments as a dictionary.
        lengths: the argument that says how many tokens each sequence has, in place of a mask.
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
        tokens: the argument that holds the stream whose tokens attend to each other; if not given,
            the one that the output has a row for.
        batch_first: the batch is the first axis (``True``) or the second.
        shared: projections that are meant to be one, as ``("query", "key")``; ``("heads",)`` if one
            is for all heads.
        residual: what the attentions give is added to a stream.
        same_as: another module that is meant to be the same function: chunked, cached, ported.
        tolerance: by how much the two may differ, relative to the largest number; if not given,
            by 1e-4, and in half precision by eight of its steps.
        known: causes of findings that are known: they are told as notes, and fail nothing.
        half: it is meant to run in float16 and bfloat16.
        keywords: further arguments of the call, by name.
    """

    causal: bool | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    scale: float | Literal["1/sqrt(d_head)"] | None = None
    mask: Mask | None = None
    lengths: str | None = None
    window: int | None = None
    position: Position | None = None
    rotary_base: float | None = None
    norm: Literal["pre", "post"] | None = None
    embedding_scale: float | None = None
    tied: bool | None = None
    dropout: float | None = None
    cache: Callable[..., Any] | bool | None = None
    padding_id: int | None = None
    vocab_size: int | None = None
    tokens: str | None = None
    batch_first: bool | None = None
    shared: tuple[Literal["query", "key", "value", "heads"], ...] = ()
    residual: bool = False
    same_as: Callable[..., Any] | None = None
    tolerance: float | None = None
    known: tuple[str, ...] = ()
    half: bool = False
    keywords: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Claims":
        """The claims, with a mask made from a dictionary.

        Raises:
            TypeError: if one is not known, or not of its type: names those that are.
            ValueError: if a word is not known: names those that are.
        """
        kinds = get_type_hints(cls)
        for name in (name for name in given if name not in kinds):
            known = f"there is no claim {name!r}; there are {', '.join(kinds)}"
            raise TypeError(known + TO_THE_CALL.format(name))
        mask = given.get("mask")
        read = {**given, "mask": Mask(**mask)} if isinstance(mask, Mapping) else given
        claims = cls(**{name: checked(name, value, kinds[name]) for name, value in read.items()})
        if claims.lengths is None:
            return claims
        if claims.mask is not None:
            raise ValueError("claim lengths or a mask, not both")
        return replace(claims, mask=Mask(claims.lengths, "b", "attend", "int"))


def checked(name: str, given: Any, kind: Any) -> Any:
    """A value that is of a field's type, a number of numpy or torch as Python's.

    Raises:
        TypeError: if it is not: names what was given and what is expected.
        ValueError: the same of a word.

    Example:
        >>> checked("n_heads", "four", int | None)
        Traceback (most recent call last):
        TypeError: n_heads must be a whole number, got 'four'
    """
    if isinstance(given, np.generic | Tensor) and given.ndim == 0:
        given = given.item()
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for x in kinds if get_origin(x) is Literal for word in get_args(x)]
    types = [get_origin(x) or x for x in kinds if get_origin(x) is not Literal]
    allowed = (*types, int) if float in types else tuple(types)
    if isinstance(given, tuple) and tuple in types:
        return tuple(checked(name, item, get_args(kind)[0]) for item in given)
    if isinstance(given, str) and given in words:
        return given
    if isinstance(given, allowed) and (bool in types or not isinstance(given, bool)):
        return given
    choices = [*map(repr, words), *(IN_WORDS[x] for x in types if x is not NoneType)]
    expected = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
    error = ValueError if words and isinstance(given, str) else TypeError
    refused = f"{name} must be {expected}, got {given!r}"
    raise error(refused + TO_THE_CALL.format(name) * isinstance(given, Tensor))
