"""A registry of planted bugs, each in several styles of code, each with a right twin."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.doctor import formulas, others, styles
from tests.doctor.styles import STYLES, Block, Decoder, Loss, Positioned, Separate

B, T, D = 2, 6, 16


@dataclass(frozen=True)
class Planted:
    """A bug in one style.

    Args:
        family: for the table.
        kind: the bug.
        style: of the code around it.
        make: ``make(bug)`` returns a module; with an empty bug, the right twin.
        example: draws the arguments of one call.
        claims: what its author would say.
        causes: names of the cause that are right.
        source: where people reported it: repository and number.
    """

    family: str
    kind: str
    style: str
    make: Callable[[str], nn.Module]
    example: Callable[[], tuple[Any, ...]]
    claims: dict[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    source: str = ""

    @property
    def name(self) -> str:
        """For a test's name."""
        return f"{self.kind} ({self.style})"


def vectors() -> tuple[Any, ...]:
    return (torch.randn(B, T, D),)


def ids() -> tuple[Any, ...]:
    return (torch.randint(1, 23, (B, T)),)


ROOT = "1/sqrt(d_head)"
MASKS = {
    "separate": {"argument": "mask", "shape": "bk", "true": "attend"},
    "fused": {"argument": "key_padding_mask", "shape": "bk", "true": "blocked"},
    "einsum": {"argument": "mask", "shape": "bk", "true": "add"},
    "per head": {"argument": "mask", "shape": "bk", "true": "attend", "dtype": "float"},
    "functional": {"argument": "mask", "shape": "bk", "true": "attend"},
}
ALL = tuple(STYLES)
CAUSAL = {"causal": True, "n_heads": 2, "scale": ROOT}
FREE = {"causal": False, "n_heads": 2, "scale": ROOT, "position": "none"}

# family, kind, styles, causal, causes, source
IN_ATTENTION: list[tuple[str, str, tuple[str, ...], bool, tuple[str, ...], str]] = [
    (
        "softmax",
        "softmax over queries",
        ("separate", "fused", "einsum", "per head"),
        False,
        ("softmax over the queries",),
        "labmlai/annotated_deep_learning_paper_implementations#146",
    ),
    (
        "softmax",
        "softmax over heads",
        ("separate", "fused", "einsum"),
        False,
        ("softmax over the heads",),
        "PetrochukM/PyTorch-NLP#2",
    ),
    (
        "softmax",
        "softmax over batch",
        ("separate", "fused", "einsum", "per head"),
        False,
        ("softmax over the batch",),
        "",
    ),
    (
        "softmax",
        "mask after",
        ("separate", "fused", "per head"),
        True,
        ("mask after the softmax",),
        "",
    ),
    (
        "scale",
        "scaled after",
        ("separate", "fused", "einsum", "per head"),
        True,
        ("scaled after the softmax",),
        "",
    ),
    (
        "scale",
        "no scale",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("no scale",),
        "lucidrains/vit-pytorch#65",
    ),
    (
        "scale",
        "scale of d_model",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("scale of d_model",),
        "",
    ),
    (
        "scale",
        "scaled twice",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("scaled twice",),
        "huggingface/transformers#38290",
    ),
    (
        "scale",
        "times root",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("multiplied by the root",),
        "",
    ),
    ("scale", "values scaled", ("separate", "einsum"), True, ("scale on the values",), ""),
    (
        "heads",
        "split",
        ("separate", "fused", "functional"),
        False,
        ("split without transposing",),
        "jsbaan/transformer-from-scratch#6",
    ),
    (
        "heads",
        "merge",
        ("separate", "fused", "einsum", "per head", "functional"),
        False,
        ("merge without transposing",),
        "reczoo/FuxiCTR#30",
    ),
    ("heads", "heads attend", ("fused", "functional"), False, ("attention between heads",), ""),
    (
        "projections",
        "key by query projection",
        ALL,
        False,
        ("one projection for two",),
        "MarcoMeter#22",
    ),
    ("projections", "shared query and key", ("separate",), False, ("one projection for two",), ""),
    ("projections", "value is key", ALL, False, ("one projection for two",), ""),
    (
        "projections",
        "no output projection",
        ("separate", "fused", "per head", "functional"),
        False,
        ("parameter not used",),
        "",
    ),
    (
        "projections",
        "not registered",
        ("per head",),
        False,
        ("parameter not registered",),
        "pytorch/pytorch#715",
    ),
    (
        "projections",
        "detached",
        ("separate", "fused", "einsum", "per head"),
        False,
        ("parameter without gradient",),
        "",
    ),
    ("future", "no mask", ALL, True, ("no causal mask",), "keras-team/keras#23038"),
    ("future", "off by one", ALL, True, ("causal mask off by one",), ""),
    ("future", "polarity", ALL, True, ("mask of wrong polarity",), "lucidrains/x-transformers#160"),
    ("future", "transposed mask", ("separate",), True, ("mask of wrong polarity",), ""),
    (
        "future",
        "small fill",
        ("separate", "fused", "einsum", "per head"),
        True,
        ("masked with a finite number", "mask added as a number"),
        "awslabs/gluonts#1401",
    ),
    (
        "future",
        "mask added",
        ("separate", "fused", "functional"),
        True,
        ("mask added as a number",),
        "",
    ),
    (
        "future",
        "transposed weights",
        ("einsum",),
        False,
        ("weights transposed",),
        "",
    ),
    (
        "modes",
        "mask only in training",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("no causal mask", "mask only in training"),
        "",
    ),
    ("modes", "dropout in eval", ALL, True, ("random in evaluation",), "pytorch/pytorch#124464"),
    (
        "modes",
        "dropout on logits",
        ("separate", "fused", "per head"),
        True,
        ("dropout before the softmax",),
        "",
    ),
    (
        "modes",
        "no dropout",
        ("separate", "fused", "einsum", "per head", "functional"),
        True,
        ("no dropout in training",),
        "",
    ),
    ("modes", "keep for drop", ("separate",), True, ("other dropout",), ""),
    ("modes", "remembers keys", ("separate", "fused"), True, ("remembers the last call",), ""),
    (
        "modes",
        "in place",
        ("separate", "fused"),
        True,
        ("changes its arguments",),
        "huggingface/transformers#47741",
    ),
    (
        "batch",
        "mean over batch",
        ("separate", "fused", "einsum"),
        True,
        ("statistic over the batch", "sequences mixed"),
        "",
    ),
    (
        "batch",
        "batch as tokens",
        ("fused",),
        False,
        ("attention over the batch", "batch and tokens exchanged"),
        "IBM/TabFormer#14",
    ),
    (
        "tokens",
        "norm over tokens",
        ("separate", "fused"),
        True,
        ("norm over the tokens",),
        "FuxiCTR#23",
    ),
    (
        "tokens",
        "centred over tokens",
        ("separate", "einsum"),
        True,
        ("norm over the tokens", "tokens mixed elsewhere"),
        "",
    ),
]
PADDING: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = [
    ("mask ignored", ALL, ("mask ignored",), ""),
    (
        "padding polarity",
        ("separate", "fused", "per head", "functional"),
        ("mask of wrong polarity",),
        "",
    ),
    (
        "padding on queries",
        ("separate", "fused", "einsum", "per head", "functional"),
        ("mask on the queries",),
        "",
    ),
    ("padding small fill", ("separate", "fused", "per head"), ("masked with a finite number",), ""),
    (
        "padding of another",
        ("separate", "fused", "einsum", "functional"),
        ("mask of another sequence",),
        "lighthouse#77",
    ),
    ("mask added", ("einsum",), ("mask added as a number",), ""),
]


def registry() -> Iterator[Planted]:
    """All planted bugs."""
    for family, kind, in_styles, causal, causes, source in IN_ATTENTION:
        for style in in_styles:
            p = 0.1 if (family == "modes" and "dropout" in kind) or kind == "keep for drop" else 0.0
            claims = {**(CAUSAL if causal else FREE), **({"dropout": p} if p else {})}
            yield Planted(
                family, kind, style, _maker(style, causal, p), vectors, claims, causes, source
            )
    for kind, in_styles, causes, source in PADDING:
        for style in in_styles:
            claims = {**FREE, "mask": MASKS[style]}
            yield Planted(
                "padding",
                kind,
                style,
                _maker(style, False, 0.0, mask=True),
                vectors,
                claims,
                causes,
                source,
            )
    yield from _grouped()
    yield from _positions()
    yield from _cached()
    yield from _models()
    yield from _losses()
    yield from _others()
    yield from _formulas()


def _maker(style: str, causal: bool, p: float, **more: Any) -> Callable[[str], nn.Module]:
    return lambda bug: STYLES[style](bug, causal=causal, p=p, **more)


def _grouped() -> Iterator[Planted]:
    claims = {**CAUSAL, "n_heads": 4, "n_kv_heads": 2}
    yield Planted(
        "heads",
        "groups crossed",
        "separate",
        lambda b: Separate(b, heads=4, kv=2),
        vectors,
        claims,
        ("other groups of heads",),
        "onnx/onnx#7274",
    )
    yield Planted(
        "heads",
        "other number of heads",
        "separate",
        lambda b: Separate(heads=2 if b else 4),
        vectors,
        {**CAUSAL, "n_heads": 4},
        ("wrong number of heads",),
    )


def _positions() -> Iterator[Planted]:
    rel = ("positions not relative",)
    for bug, causes in {
        "mixed pairing": rel,
        "one sign": rel,
        "query only": rel,
        "values too": ("values are rotated",),
        "forgotten": ("positions without effect",),
        "over heads": ("positions without effect",),
    }.items():
        for style, causal in (("causal", True), ("both ways", False)):
            yield Planted(
                "positions",
                f"rotary {bug}",
                style,
                lambda b, c=causal: Positioned(b, causal=c),
                vectors,
                {"causal": causal, "n_heads": 2, "scale": ROOT, "position": "rotary"},
                causes,
            )
            if bug in ("query only", "values too", "forgotten"):
                yield Planted(
                    "positions",
                    f"rotary {bug}",
                    f"{style}, neighbours",
                    lambda b, c=causal: Positioned(b, causal=c, pairing="pairs"),
                    vectors,
                    {"causal": causal, "n_heads": 2, "position": "rotary"},
                    causes,
                )
    for bug, causes in {
        "sign": ("bias rises with distance",),
        "one slope": ("one slope for all heads",),
        "forgotten": ("positions without effect",),
    }.items():
        yield Planted(
            "positions",
            f"alibi {bug}",
            "causal",
            lambda b: Positioned(b, kind="alibi"),
            vectors,
            {**CAUSAL, "position": "alibi"},
            causes,
        )
    yield Planted(
        "positions",
        "relative by the sum",
        "causal",
        lambda b: Positioned("sum" if b else "", kind="relative"),
        vectors,
        {**CAUSAL, "position": "relative"},
        rel,
    )
    for bug in ("window + 1", "window - 1"):
        yield Planted(
            "positions",
            bug,
            "causal",
            lambda b: Positioned(b, window=3),
            vectors,
            {**CAUSAL, "window": 3},
            ("other window",),
            "huggingface/transformers#39408",
        )
    for bug in ("sines only", "other exponent", "wrong product"):
        yield Planted(
            "positions",
            f"sinusoids {bug}",
            "decoder",
            lambda b: Decoder(b, position="sinusoidal"),
            ids,
            {"causal": True, "position": "sinusoidal"},
            ("other sinusoids",),
            "zju3dv/LoFTR#41",
        )
    for bug, causes in {
        "no positions": ("positions without effect",),
        "one position": ("positions without effect",),
        "batch positions": ("depends on the sequence's number",),
    }.items():
        for style in ("fused", "functional"):
            yield Planted(
                "positions",
                bug,
                style,
                lambda b, s=style: Decoder(b, s),
                ids,
                {"causal": True, "position": "learned"},
                causes,
            )


def _cached() -> Iterator[Planted]:
    for bug, causes in {
        "restarts": ("positions restart with the cache",),
        "cache ignored": ("the cache is not attended to",),
        "chunk mask": ("chunks see their future",),
        "start mask": ("chunks do not see the cache",),
    }.items():
        for kind in ("rotary", "relative"):
            if (bug, kind) == ("restarts", "relative"):
                continue
            yield Planted(
                "cache",
                bug,
                kind,
                lambda b, k=kind: Positioned(b, kind=k),
                vectors,
                {**CAUSAL, "cache": Positioned.step},
                causes,
            )


def _models() -> Iterator[Planted]:
    causal = {"causal": True, "n_heads": 2, "scale": ROOT}
    for bug, causes in {
        "norm over tokens": ("norm over the tokens",),
        "looking convolution": ("convolution into the future",),
        "pooled": ("tokens mixed elsewhere",),
        "first layer unmasked": ("mask not everywhere",),
        "shifted input": ("tokens mixed elsewhere",),
        "layer skipped": ("parameter not used",),
        "norm not used": ("parameter not used",),
        "plain list": ("parameter not registered",),
    }.items():
        for style in ("separate", "functional"):
            yield Planted(
                "models", bug, style, lambda b, s=style: Decoder(b, s), ids, causal, causes
            )
    for bug, causes in {"copied": ("copied, not tied",), "not tied": ("not tied",)}.items():
        yield Planted(
            "models",
            bug,
            "decoder",
            lambda b: Decoder(b, tied=True),
            ids,
            {**causal, "tied": True},
            causes,
            "huggingface/transformers#43429",
        )
    for bug in ("no mask", "polarity", "merge", "softmax over queries"):
        causes = {
            "no mask": ("no causal mask",),
            "polarity": ("mask of wrong polarity",),
            "merge": ("merge without transposing",),
            "softmax over queries": ("softmax over the queries",),
        }[bug]
        for style in ("separate", "fused", "einsum", "per head"):
            yield Planted(
                "models",
                f"decoder: {bug}",
                style,
                lambda b, s=style: Decoder("", s, b),
                ids,
                causal,
                causes,
            )
    for bug, causes in {
        "padding attended": ("padding is attended to",),
        "padding inverted": ("mask of wrong polarity",),
    }.items():
        for style in ("separate", "functional"):
            yield Planted(
                "padding",
                bug,
                style,
                lambda b, s=style: Decoder(b, s, causal=False, padding_id=0),
                ids,
                {"causal": False, "padding_id": 0},
                causes,
            )


def _losses() -> Iterator[Planted]:
    for bug, causes in {
        "loss: no mask": ("no causal mask",),
        "loss: off by one": ("causal mask off by one",),
    }.items():
        for style in ("fused", "separate"):
            yield Planted(
                "loss",
                bug,
                style,
                lambda b, s=style: Loss(style=s, attention_bug=b),
                ids,
                {"causal": True},
                causes,
            )

    def pairs() -> tuple[Any, ...]:
        longer = torch.randint(1, 23, (B, T + 1))
        return longer[:, :-1], longer[:, 1:]

    for way, example in (("ids", ids), ("pairs", pairs)):
        for bug, causes in {
            "no shift": ("loss without shift",),
            "twice": ("loss shifted twice",),
            "backwards": ("loss shifted backwards",),
            "softmax first": ("cross-entropy of probabilities",),
            "reshaped": ("logits reshaped across tokens",),
            "nll of logits": ("nll_loss of logits",),
            "padding counts": ("padding counts in the loss",),
        }.items():
            if (way, bug) == ("pairs", "backwards"):
                continue
            yield Planted(
                "loss",
                bug,
                way,
                lambda b, w=way: Loss(b, way=w, padding_id=0),
                example,
                {"causal": True, "padding_id": 0},
                causes,
                "huggingface/transformers#3711",
            )


def _others() -> Iterator[Planted]:
    def memory() -> tuple[Any, ...]:
        return torch.randn(B, T, D), torch.randn(B, T - 1, D)

    def two() -> tuple[Any, ...]:
        return torch.randint(1, 23, (B, T + 1)), torch.randint(1, 23, (B, T))

    def make(module: Any, **more: Any) -> Callable[[str], nn.Module]:
        return lambda bug: module(bug, **more)

    def model(bug: str) -> nn.Module:
        return others.Model(bug)

    def norm(bug: str) -> nn.Module:
        return others.Model(block=lambda: others.TorchBlock("", norm=bug))

    free, causal = (
        {"causal": False, "n_heads": 2, "position": "none"},
        {"causal": True, "n_heads": 2},
    )
    slices, masked = make(others.PerHeadSlices), make(others.Masked)
    cached = {**causal, "cache": others.StaticCache.step}
    padding = {"padding_id": 0}
    key_mask = {**free, "mask": {"argument": "mask", "shape": "bk", "true": "attend"}}
    leak = ("norm over the tokens",)
    for family, kind, style, maker, example, claims, causes in (
        (
            "projections",
            "heads share",
            "lesson",
            slices,
            vectors,
            free,
            ("heads share one projection",),
        ),
        (
            "softmax",
            "flat softmax",
            "lesson",
            slices,
            vectors,
            free,
            ("weights do not sum to one",),
        ),
        (
            "softmax",
            "wrong index",
            "lesson",
            slices,
            vectors,
            free,
            ("no token attends to another",),
        ),
        (
            "heads",
            "one head repeated",
            "list",
            make(others.ListOfHeads),
            vectors,
            free,
            ("heads all alike",),
        ),
        ("tokens", "over tokens", "by hand", norm, ids, causal, leak),
        ("tokens", "layer over tokens", "by hand", norm, ids, causal, leak),
        ("models", "no root", "by hand", norm, ids, causal, ("norm that does not normalise",)),
        ("batch", "batch norm", "torch", model, ids, causal, ("statistic over the batch",)),
        (
            "batch",
            "sequence first",
            "torch",
            model,
            ids,
            causal,
            ("attention over the batch", "batch and tokens exchanged"),
        ),
        (
            "batch",
            "viewed",
            "torch",
            model,
            ids,
            causal,
            ("sequences mixed", "split without transposing", "batch and tokens exchanged"),
        ),
        ("future", "torch polarity", "torch", model, ids, causal, ("mask of wrong polarity",)),
        ("future", "hint only", "torch", model, ids, causal, ("no causal mask",)),
        ("modes", "dropout in the branch", "torch", model, ids, causal, ("random in evaluation",)),
        ("modes", "ids in place", "torch", model, ids, causal, ("changes its arguments",)),
        ("positions", "from the end", "torch", model, ids, causal, ("depends on the length",)),
        ("future", "multiplied", "view", masked, vectors, causal, ("masked with a finite number",)),
        (
            "future",
            "filled with zero",
            "view",
            masked,
            vectors,
            causal,
            ("masked with a finite number",),
        ),
        (
            "future",
            "positive infinity",
            "view",
            masked,
            vectors,
            causal,
            ("masked with a finite number", "mask of wrong polarity"),
        ),
        ("future", "both sides", "view", masked, vectors, causal, ("other window",)),
        (
            "scale",
            "root of the heads",
            "view",
            masked,
            vectors,
            {**causal, "scale": ROOT},
            ("scale of the heads",),
        ),
        (
            "future",
            "sum for cumsum",
            "linear",
            make(others.LinearAttention),
            vectors,
            causal,
            ("tokens mixed elsewhere",),
        ),
        (
            "padding",
            "mask by head",
            "functional",
            make(others.MaskedByHead),
            vectors,
            key_mask,
            ("mask of another sequence",),
        ),
        (
            "memory",
            "memory ignored",
            "functional",
            make(others.Cross),
            memory,
            {"n_heads": 2},
            ("input without effect",),
        ),
        (
            "memory",
            "causal on memory",
            "functional",
            make(others.Cross),
            memory,
            {"n_heads": 2},
            ("causal mask on the memory",),
        ),
        (
            "memory",
            "source ignored",
            "torch",
            make(others.Seq2Seq),
            two,
            causal,
            ("input without effect",),
        ),
        (
            "memory",
            "decoder without mask",
            "torch",
            make(others.Seq2Seq),
            two,
            causal,
            ("no causal mask",),
        ),
        (
            "loss",
            "not shifted",
            "seq2seq",
            make(others.Seq2Seq, loss=True),
            two,
            causal,
            ("loss without shift",),
        ),
        (
            "padding",
            "pools padding",
            "torch",
            make(others.Classifier),
            ids,
            padding,
            ("padding is attended to", "tokens mixed elsewhere", "padding is pooled"),
        ),
        (
            "padding",
            "attends to padding",
            "torch",
            make(others.Classifier),
            ids,
            padding,
            ("padding is attended to",),
        ),
        (
            "models",
            "overwritten stream",
            "torch",
            model,
            ids,
            {**causal, "residual": True},
            ("no way around the attention",),
        ),
        (
            "loss",
            "divided by all",
            "gather",
            make(others.GatherLoss),
            ids,
            {**causal, **padding},
            ("padding counts in the loss",),
        ),
        (
            "loss",
            "all counted",
            "gather",
            make(others.GatherLoss),
            ids,
            {**causal, **padding},
            ("padding counts in the loss",),
        ),
        (
            "cache",
            "overwrites",
            "static",
            make(others.StaticCache),
            vectors,
            cached,
            ("the cache is not attended to", "cached differs from full"),
        ),
        (
            "cache",
            "values not kept",
            "static",
            make(others.StaticCache),
            vectors,
            cached,
            ("the cache is not attended to", "cached differs from full"),
        ),
    ):
        yield Planted(family, kind, style, maker, example, claims, causes)


def _formulas() -> Iterator[Planted]:
    def put(
        family: str, bug: str, style: str, claims: dict[str, Any], *causes: str, **more: Any
    ) -> Planted:
        make = {**CAUSAL, **claims}
        return Planted(
            family,
            bug,
            style,
            lambda b: formulas.Formula(b, **more),
            lambda: (torch.randn(B, T, more.get("d", D)),),
            make,
            causes,
        )

    free = {"causal": False, "scale": ROOT}
    for style, more in (("causal", {}), ("both ways", {"causal": False})):
        for bug in ("no softmax", "no softmax, unscaled", "no softmax, by length"):
            yield put("softmax", bug, style, free if more else {}, "no softmax", **more)
        for bug in ("averaged", "summed", "einsum over heads"):
            claims = free if more else {}
            yield put("heads", bug, style, claims, "heads not concatenated", **more)
    yield put("scale", "per token", "causal", {}, "scale of the tokens")
    wide = {"d": 24, "heads": 3}
    yield put("scale", "per head", "wide", {"n_heads": 3}, "scale of the heads", **wide)
    rotary = {"position": "rotary"}
    for style, n_heads in (("two heads", 2), ("four heads", 4)):
        more = {"heads": n_heads, "d": 8 * n_heads, "position": "rotary"}
        for bug, cause in (
            ("angles of d_model", "rotary angles of d_model"),
            ("query ahead", "queries turned ahead of keys"),
        ):
            base = {"rotary_base": 1e4} if n_heads == 2 else {}
            claims = {**rotary, "n_heads": n_heads, **base}
            yield put("positions", bug, style, claims, cause, **more)
    claims = {**rotary, "rotary_base": 1e4}
    causes = "other rotary base", "rotary angles of d_model"
    yield put("positions", "half the exponent", "causal", claims, *causes, **rotary)
    more = {"d": 32, "heads": 4, "position": "alibi"}
    claims = {"n_heads": 4, "position": "alibi"}
    yield put("positions", "slopes from one", "causal", claims, "slopes begin at one", **more)
    one, cause = {"causal": False, "n_heads": 2}, ("heads not concatenated",)
    yield Planted("heads", "averaged", "list", formulas.ListOfHeads, vectors, one, cause)
    before, after = "norm not before the branch", "norm not after the sum"
    for bug, norm, cause in (
        ("other norm order", "pre", before),
        ("other norm order", "post", after),
        ("stream normed", "pre", before),
        ("embedding not scaled", "pre", "other embedding scale"),
        ("scaled after adding", "post", "other embedding scale"),
    ):
        claims = {"causal": True, "norm": norm, "embedding_scale": 4.0}
        make = lambda b, n=norm: formulas.Stack(b, norm=n)  # noqa: E731
        yield Planted("models", bug, norm, make, ids, claims, (cause,))


REGISTRY = tuple(registry())


def bare(claims: dict[str, Any]) -> dict[str, Any]:
    """What can't be left out: how to call it."""
    return {k: v for k, v in claims.items() if k == "keywords"}


def instance(case: Planted, *, planted: bool, seed: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module, with the bug or without, and an example."""
    torch.manual_seed(seed)
    bug = case.kind.removeprefix("decoder: ") if planted else ""
    for prefix in ("loss: ", "rotary ", "alibi ", "sinusoids "):
        bug = bug.removeprefix(prefix)
    return case.make(bug), case.example()


__all__ = ["REGISTRY", "Block", "Planted", "bare", "instance", "styles"]
