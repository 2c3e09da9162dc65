"""Read what the heads of any model attend to, what they write, and what is lost without them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from attnbook.models import Encoder
from attnbook.probes.heads import Attended, HeadProbe
from attnbook.probes.probe import _first_tensor

STACKS = (
    ("transformer.h", "transformer.ln_f", "lm_head"),
    ("model.layers", "model.norm", "lm_head"),
)
"""Blocks, last norm and output layer of GPT-2, of Llama, and of models with their names."""


def attended(model: nn.Module, *inputs: object, **kwargs: object) -> tuple[Attended, ...]:
    r"""Run the model once, without gradients, and return its attentions, the first first.

    Read are ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``, and a softmax over the
    last dimension whose result is then multiplied by values (``@``, not einsum). A warning names
    modules in which others may have run: the place in the tuple is then no layer's number. Whether
    it is tokens that are attended to is not asked: XCiT's weights are of channels.

    Args:
        model: any module, in evaluation mode if it has dropout; it is left as it was.
        inputs: what the model is called with.
        kwargs: likewise, by name.

    Raises:
        ValueError: if no attention could be read.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32, n_layers=2))
        >>> first, second = attended(model, torch.randint(10, (3, 8)))
        >>> second.name, second.weights.shape, second.output.shape
        ('blocks.1.attention', torch.Size([3, 4, 8, 8]), torch.Size([4, 8, 32]))
    """
    probe = HeadProbe(model)
    with probe, torch.no_grad():
        model(*inputs, **kwargs)
    unread = "; ".join(probe.unread)
    if not probe.heads.calls:
        raise ValueError(
            "expected a model that calls F.scaled_dot_product_attention, or a softmax and then a "
            f"product with values, got {unread or type(model).__name__}"
        )
    if unread:
        warnings.warn(f"there may be other attentions than those returned: {unread}", stacklevel=2)
    return tuple(probe.heads.calls)


def contributions(call: Attended) -> Float[Tensor, "batch heads queries keys"]:
    r"""Size of what each key writes into each query's stream, through each head.

    .. math:: c^h_{ij} = a^h_{ij}\, \lVert v^h_j W_O^h \rVert

    A large weight on a small value moves nothing: this is what a weight alone doesn't show. What
    the model does to it before it adds it to the stream, as a norm or LayerScale, is left out.

    Raises:
        ValueError: if the output matrix is not known.

    Source: Kobayashi et al. 2020, section 2.

    Example:
        >>> one = torch.tensor([[[[0.9, 0.1]]]]), torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]])
        >>> contributions(Attended("attention", *one, output=torch.eye(2)[None]))
        tensor([[[[0.0000, 0.5000]]]])
    """
    if call.output is None:
        raise ValueError(f"expected an attention with an output matrix, got none of {call.name!r}")
    sizes: Tensor = torch.linalg.vector_norm(
        call.values @ call.output, dim=-1
    )  # (batch, heads, keys)
    return call.weights * sizes[:, :, None]


@contextmanager
def ablated(
    model: nn.Module,
    name: str,
    heads: SupportsIndex | Sequence[SupportsIndex] | Integer[Tensor, "some"],
    *,
    mean: tuple[object, ...] | Float[Tensor, "heads d_value"] | None = None,
) -> Iterator[None]:
    r"""Let some heads of an attention give zero, or their mean, while the ``with`` block runs.

    .. math:: A^h V^h \to 0 \qquad \text{or} \qquad A^h V^h \to \overline{A^h V^h}

    The heads are replaced before :math:`W_O`, so that its bias stays. Blocks may be nested, to
    ablate heads of several attentions. With activation checkpointing call ``backward`` within the
    block: it computes the heads again.

    Args:
        model: any module whose attentions :func:`attended` reads.
        name: of the attention, as :func:`attended` gives it.
        heads: one or several, counted from 0.
        mean: what the heads give instead of zero: inputs of the model, in a tuple, on which the
            mean over batch and queries is taken, those of padding, too; or the means of all heads.

    Raises:
        ValueError: if there is no such module or head, ``mean`` has another shape, or, at the end
            of the block, the module has not attended, or with heads that could not be told from
            the batch.
        RuntimeError: if the model runs in another thread.

    Source: Michel et al. 2019, section 2 (zero); Wang et al. 2023, section 2 (mean).

    Example:
        >>> from attnbook import MultiHeadAttention
        >>> attention, x = MultiHeadAttention(8, 2), torch.randn(3, 5, 8)
        >>> with ablated(attention, "(model)", [0, 1]):
        ...     attention(x).abs().max().item()
        0.0
    """
    probe = HeadProbe(model)
    if name not in probe.heads.names.values():
        raise ValueError(f"expected the name of an attention, as attended gives it, got {name!r}")
    if isinstance(mean, tuple):
        mean = _head_means(model, name, mean)
    chosen = torch.as_tensor(heads).flatten().tolist()
    if any(isinstance(head, bool | float) for head in chosen):
        raise ValueError(f"expected heads as integers, counted from 0, got {chosen}")
    attentions: set[str] = set()

    def change(attention: str, outputs: Tensor) -> Tensor:
        attentions.add(attention)
        return _without(outputs, name, chosen, mean) if attention == name else outputs

    probe.heads.change = change
    with probe:
        yield
    if name in probe.heads.untold:
        raise ValueError(
            f"expected heads of {name!r} in a dimension of their own, (batch, heads, queries, "
            "width), or side by side before a matrix, got neither: they are as they were"
        )
    if name not in attentions:
        others = ", ".join(sorted(attentions)) or "no module"
        raise ValueError(f"expected an attention to run in {name!r}, got attentions in {others}")


def previous_score(
    weights: Float[Tensor, "batch heads queries keys"],
    *,
    mask: Bool[Tensor, "batch 1 1 keys"] | None = None,
) -> Float[Tensor, "heads"]:
    r"""Mean weight on the token before, over the queries that have one.

    .. math:: \overline{a_{i,i-1}}

    With more keys than queries the last query stands at the last key.

    Args:
        weights: of tokens.
        mask: which tokens are not padding, as :func:`attnbook.masks.token_mask` gives it; if not
            given, all: queries that are padding count.

    Raises:
        ValueError: if no query has a token before it.

    Source: Elhage et al. 2021, "Two-Layer Attention-Only Transformers".

    Example:
        >>> previous_score(torch.eye(3).roll(-1, dims=1)[None, None])
        tensor([1.])
    """
    queries, keys = weights.shape[-2:]
    if keys < max(queries, 2):
        raise ValueError(
            f"expected two keys or more, one a query, got {keys} for {queries} queries"
        )
    before = weights.diagonal(keys - queries - 1, -2, -1)  # (batch, heads, queries that have one)
    if mask is None:
        return before.mean((0, 2))
    pairs = (mask[:, 0, 0, :-1] & mask[:, 0, 0, 1:])[:, -before.shape[-1] :]
    if not pairs.any():
        raise ValueError("expected a mask with two neighbours that are not padding, got none")
    return before.transpose(1, 2)[pairs].mean(0)


def prefix_score(
    weights: Float[Tensor, "batch heads tokens tokens"],
    ids: Integer[Tensor, "batch tokens"],
    *,
    mask: Bool[Tensor, "batch 1 1 tokens"] | None = None,
) -> Float[Tensor, "heads"]:
    r"""Mean weight on what followed earlier occurrences of the query's own token.

    .. math:: \overline{\textstyle\sum_{j < i,\; t_j = t_i} a_{i,j+1}}

    over the queries whose token occurred before: those of an induction head have a sum near one.

    Args:
        weights: of tokens.
        ids: of the same.
        mask: which tokens are not padding, as for :func:`previous_score`; if not given, all:
            padding is a token that occurs again.

    Raises:
        ValueError: if no token occurs again, or the ids are of other tokens than the weights.

    Source: Olsson et al. 2022, "Prefix matching" in the definition of induction heads.

    Example:
        >>> ids = torch.tensor([[5, 7, 5]])  # the last query has the token of the first
        >>> prefix_score(torch.tensor([[[[1, 0, 0], [0, 1, 0], [0.1, 0.7, 0.2]]]]), ids)
        tensor([0.7000])
    """
    batch, tokens = ids.shape
    if weights.dim() != 4 or weights.shape[::2] + weights.shape[3:] != (batch, tokens, tokens):
        raise ValueError(
            f"expected weights of shape (batch, heads, tokens, tokens) for ids of shape "
            f"{tuple(ids.shape)}, got {tuple(weights.shape)}"
        )
    before = (ids[:, :, None] == ids[:, None, :]).tril(-1)  # (batch, queries, keys)
    if mask is not None:
        before = before & mask[:, 0] & mask[:, 0].mT
    again = before.any(-1)
    if not again.any():
        raise ValueError(f"expected ids in which a token occurs again, got {ids.tolist()}")
    sums = (weights * before.roll(1, -1)[:, None]).sum(-1)  # the last key is before nobody
    return sums.transpose(1, 2)[again].mean(0)


def copying_score(
    embedding: Float[Tensor, "vocab d_model"],
    ov: Float[Tensor, "d_model d_model"],
    unembedding: Float[Tensor, "d_model vocab"],
) -> float:
    r"""How a head changes the logits of tokens it attends to: 1 if it copies, −1 if it bars.

    .. math:: \frac{\sum_k \lambda_k}{\sum_k |\lambda_k|}, \qquad
              \lambda_k \text{ the eigenvalues of } W_E\, W_V^h W_O^h\, W_U

    The other eigenvalues of that large matrix, which is not made, are zero: the small matrix
    :math:`W_V^h W_O^h W_U W_E` has the same. Norms are left out.

    Args:
        embedding: :math:`W_E`, a row for each token.
        ov: :math:`W_V^h W_O^h`, of one head, for rows from the left; :func:`attended` gives
            :math:`W_O^h` as ``output[h]``.
        unembedding: :math:`W_U`, a column for each token.

    Source: Elhage et al. 2021, "Detecting Copying Behavior".

    Example:
        >>> copying_score(torch.eye(5, 3), -torch.eye(3), torch.eye(3, 5))
        -1.0
    """
    small = ov.double() @ (unembedding.double() @ embedding.double())
    values = torch.linalg.eigvals(small.detach())
    return float(values.real.sum() / values.abs().sum())


def logit_lens(
    model: nn.Module,
    *inputs: object,
    layers: Sequence[str | nn.Module] | None = None,
    norm: str | Callable[[Tensor], Tensor] | None = None,
    unembedding: str | Callable[[Tensor], Tensor] | None = None,
    **kwargs: object,
) -> Float[Tensor, "layers batch tokens vocab"]:
    r"""Logits that the model would give if each layer were its last.

    .. math:: \operatorname{norm}(X_l)\, W_U

    Args:
        model: any module that keeps one stream, in evaluation mode if it has dropout.
        inputs: what the model is called with.
        layers: modules after which the stream is read, or their names; if not given, all blocks of
            a model of attnbook, or with GPT-2's or Llama's names, as are the next two.
        norm: the model's last norm, its name, or a function.
        unembedding: its output layer, likewise; with what the model then does to its logits, as
            Gemma 2's cap or Granite's scale.
        kwargs: what else the model is called with, by name.

    Raises:
        ValueError: if one of the three is neither given nor known, or if the model's own logits
            are others than those that are known give after its last block.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32, n_layers=3))
        >>> logit_lens(model, torch.randint(10, (2, 8))).shape
        torch.Size([3, 2, 8, 10])
    """
    known = _stack(model)
    last = known[0][-1] if norm is None and unembedding is None and known[0] else None
    given = layers, norm, unembedding
    read, normed, logits = _given_or_known(model, given, known)
    after: dict[nn.Module, Tensor | None] = {}
    with ExitStack() as hooks, torch.no_grad():
        for layer in {*read, last} - {None}:
            hook = layer.register_forward_hook(lambda m, _, y: after.update({m: _first_tensor(y)}))
            hooks.callback(hook.remove)
        output = _first_tensor(model(*inputs, **kwargs))
        if last is not None and not _alike(logits(normed(after[last])), output):
            raise ValueError(
                "expected logits as the output layer gives them, got others from "
                f"{type(model).__name__}: give an unembedding that ends with its scale or cap"
            )
        return torch.stack([logits(normed(after[layer])) for layer in read])


def mean_cosine(x: Float[Tensor, "... tokens width"], *, centred: bool = False) -> float:
    r"""Mean cosine of different rows: 0 if they point everywhere, near 1 if in one direction.

    .. math:: \overline{\cos(x_i, x_j)}_{\,i \ne j}

    Args:
        x: each row is compared with the others of its matrix.
        centred: subtract the matrix's mean row first.

    Raises:
        ValueError: if there is nothing to compare a row with.

    Source: Ethayarajh 2019, section 3; Mu and Viswanath 2018, section 2, for the mean.

    Example:
        >>> x = torch.tensor([[5.0, 1.0], [5.0, -1.0]])
        >>> mean_cosine(x), mean_cosine(x, centred=True)
        (0.923..., -1.0)
    """
    if (n := x.shape[-2]) < 2:
        raise ValueError(f"expected two rows or more, got {n}")
    x = x.detach().double()
    x = F.normalize(x - x.mean(-2, keepdim=True) if centred else x, dim=-1)
    pairs = x.sum(-2).square().sum(-1) - x.square().sum((-2, -1))  # all pairs but of a row itself
    return float((pairs / (n * (n - 1))).mean())


def _alike(x: Tensor, output: Tensor | None) -> bool:
    """Whether a model's output is this; also if it is no tensor of all these logits."""
    if output is None or output.shape != x.shape:
        return True
    return bool((x.double() - output.double()).abs().max() <= 1e-3 * output.double().abs().max())


def _part(model: nn.Module, part: Any) -> Any:
    """The part itself, also if it is given by its name."""
    return model.get_submodule(part) if isinstance(part, str) else part


def _given_or_known(
    model: nn.Module, given: tuple[Any, ...], known: tuple[Any, ...]
) -> tuple[list[Any], Any, Any]:
    """Layers, norm and unembedding; modules for those that are given by their names."""
    parts = [b if a is None else a for a, b in zip(given, known, strict=True)]
    if any(part is None for part in parts):
        raise ValueError(
            "expected layers, norm and unembedding, or a model of attnbook or with the names of "
            f"GPT-2 or Llama, got a {type(model).__name__} without them"
        )
    layers = [_part(model, layer) for layer in parts[0]]
    if wrong := [layer for layer in layers if not isinstance(layer, nn.Module)]:
        raise TypeError(f"expected modules or their names as layers, got {wrong}")
    return layers, _part(model, parts[1]), _part(model, parts[2])


def _stack(model: nn.Module) -> tuple[Any, ...]:
    """Blocks, last norm, and what gives logits, where they are known."""
    if isinstance(model, Encoder):
        return model.blocks, model.final_norm, model._logits
    modules = dict(model.named_modules())
    known = next((names for names in STACKS if modules.keys() >= {*names}), ())
    return tuple(modules[name] for name in known) or (None, None, None)


def _head_means(
    model: nn.Module, name: str, inputs: tuple[object, ...]
) -> Float[Tensor, "heads d_value"] | None:
    """What the heads of an attention give on the mean; None if it does not run."""
    calls = [call for call in attended(model, *inputs) if call.name == name]
    tokens = [(call.weights @ call.values).transpose(1, 2).flatten(0, 1) for call in calls]
    return torch.cat(tokens).mean(0) if calls else None


def _without(
    outputs: Float[Tensor, "batch heads queries d_value"],
    name: str,
    heads: Sequence[int],
    mean: Float[Tensor, "heads d_value"] | None,
) -> Float[Tensor, "batch heads queries d_value"]:
    """What the heads give, with zero or the mean instead for some."""
    n_heads, d_value = outputs.shape[1], outputs.shape[3]
    if not all(0 <= head < n_heads for head in heads):
        raise ValueError(
            f"expected heads below {n_heads}, counted from 0, in {name!r}, got {list(heads)}"
        )
    mean = outputs.new_zeros(n_heads, d_value) if mean is None else mean.to(outputs)
    if mean.shape != (n_heads, d_value):
        raise ValueError(
            f"expected a mean of shape {n_heads, d_value}, or the model's inputs in a tuple, "
            f"got a tensor of shape {tuple(mean.shape)}"
        )
    chosen = torch.zeros(n_heads, 1, 1, dtype=torch.bool, device=outputs.device)
    chosen[list(heads)] = True
    return torch.where(chosen, mean[:, None], outputs)
