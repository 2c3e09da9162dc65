"""The tensor operations of a call, and the attentions among them.

Torch breaks a fused attention into its products and softmax if it is asked to (``plain_kernels``),
so that one kind of observation serves every style of code.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "pointwise")  # the last one: a 1 × 1 convolution
SOFTMAX = ("_softmax", "_safe_softmax")
SOFTMAXES = (*SOFTMAX, "exp")  # exp: of a softmax written by hand
MOVES = (
    *("view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "clone", "alias"),
    *("unsqueeze", "squeeze", "slice", "select", "detach", "_to_copy", "contiguous", "copy_"),
    *("split", "unbind", "chunk", "split_with_sizes", "lift_fresh", "_reshape_alias", "unfold"),
)
ON_LOGITS = (
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "masked_fill", "masked_fill_"),
    *("where", "tanh", "clamp", "maximum", "cat", "stack", "index_put_", "tril", "triu"),
)
ON_WEIGHTS = (
    *("mul", "mul_", "div", "div_", "masked_fill", "masked_fill_", "where", "nan_to_num"),
    *("tril", "triu", "add", "add_"),
)


@dataclass(repr=False)
class Node:
    """One operation."""

    index: int  # in the trace
    name: str  # without its overload: "bmm"
    args: tuple[Any, ...]  # tensors as they were
    inputs: list[tuple["Node | None", Tensor]]  # what made each; None: a parameter, an argument
    outputs: list[Tensor]  # copies
    module: str  # the name of the one that ran
    depends: bool  # its output depends on the call's inputs
    between: bool  # it is a product of two things that both do
    users: list["Node"] = field(default_factory=list)

    @property
    def makers(self) -> list["Node | None"]:
        """The nodes that made its tensors."""
        return [node for node, _ in self.inputs]


Sides = tuple[Tensor, Tensor, Tensor, Node | None]
"""Of the product with the values: weights, values, what it gave, and what made the values."""


@dataclass
class Attention:
    """A softmax, the product before it and the product after it; n is batch × heads."""

    query: Tensor  # (n, queries, d), as it is multiplied
    key: Tensor  # (n, keys, d)
    products: Tensor  # of both, (n, queries, keys)
    logits: Tensor | None  # what the softmax is of, in that layout; None if it can't be matched
    softmax: Tensor  # what it gave, in that layout
    weights: Tensor  # what multiplies the values, (n, queries, keys)
    value: Tensor  # (n, keys, d_value)
    context: Tensor  # (n, queries, d_value)
    score_node: Node
    softmax_node: Node
    context_node: Node
    query_node: Node | None  # what made the query
    key_node: Node | None
    value_node: Node | None


class Trace(TorchDispatchMode):
    """Notes every tensor operation of a call; what those silenced give is replaced by zeros."""

    def __init__(self, sources: list[Tensor], silenced: Collection[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.output: Tensor | None = None
        self._silenced = silenced
        self._producer: dict[int, Node] = {}
        self._sources = {id(x) for x in sources}
        self._held: list[Any] = list(sources)  # no id is used twice
        self._running: list[tuple[nn.Module, str]] = []
        self._names: dict[nn.Module, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, for seconds, to keep it out of the trace."""
        return False

    def __enter__(self) -> "Trace":
        self._hooks = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module: nn.Module, _: Any) -> None:
        if not self._names:
            self._names = {m: n for n, m in module.named_modules()}
        self._running.append((module, self._names.get(module, type(module).__name__)))

    def _end(self, module: nn.Module, *_: Any) -> None:
        while self._running and self._running.pop()[0] is not module:
            pass

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((*args, *kwargs.values())))
        inputs = [(self._producer.get(id(x)), x) for x in given]
        follow = [id(x) in self._sources or bool(n and n.depends) for n, x in inputs]
        name = func._schema.name.split("::")[-1]
        if name == "convolution" and args[1].shape[2:].numel() == args[-1] == 1:  # no groups
            name, inputs, follow = "pointwise", inputs[:2], follow[:2]
        kept = tuple(self._kept(x, name) for x in args)
        result = func(*args, **kwargs)
        outputs = list(_tensors((result,)))
        if len(self.nodes) in self._silenced:
            for x in outputs:
                x.zero_()
        running = self._running[-1][1] if self._running else ""
        between = name in PRODUCTS and all(follow[-2:])
        copies = [x.detach().clone() for x in outputs]
        if name == "pointwise":  # with channels last, as a product of rows and a matrix
            kept, copies = (
                (kept[0].movedim(1, -1), kept[1].flatten(1).mT),
                [copies[0].movedim(1, -1)],
            )
        index, depends = len(self.nodes), any(follow)
        node = Node(index, name, kept, inputs, copies, running, depends, between)
        for producer, _ in inputs:
            if producer is not None:
                producer.users.append(node)
        self._held.append((args, kwargs, result))
        self._producer.update({id(x): node for x in outputs})
        if name.endswith("_") and given and given[0]._base is not None:  # a part is written into
            self._producer[id(given[0]._base)] = node
        self.nodes.append(node)
        return result

    def _kept(self, x: Any, name: str) -> Any:
        """What may be written into later is copied where its values are needed."""
        wanted = name in (*PRODUCTS, *SOFTMAXES, "_log_softmax", "nll_loss_forward")
        return x.detach().clone() if wanted and isinstance(x, Tensor) else x

    def of(self, *names: str) -> list[Node]:
        """The nodes of these operations."""
        return [node for node in self.nodes if node.name in names]

    @cached_property
    def attentions(self) -> list[Attention]:
        """All attentions, in order."""
        found = (_attention(node) for node in self.of(*SOFTMAXES))
        return [x for x in found if x is not None]


def walk(
    start: Iterable[Node | None], onward: Callable[[Node], Iterable[Node | None]]
) -> Iterator[Node]:
    """Each node once, the nearest first; ``onward`` says which come after one."""
    queue, seen = list(start), set()
    while queue:
        node = queue.pop(0)
        if node is not None and node.index not in seen:
            seen.add(node.index)
            yield node
            queue += onward(node)


def back(node: Node | None, through: tuple[str, ...], until: tuple[str, ...]) -> Node | None:
    """The nearest node before this one of a kind, if all between are of other kinds."""
    before = walk([node], lambda n: n.makers if n.name in through else [])
    return next((n for n in before if n.name in until), None)


def ahead(node: Node, through: tuple[str, ...]) -> Iterator[tuple[Node, Node]]:
    """Products that use what comes out of a node, each with the node that it uses."""
    for now in walk([node], lambda n: [user for user in n.users if user.name in through]):
        yield from ((user, now) for user in now.users if user.name in PRODUCTS)


def _attention(softmax: Node) -> Attention | None:
    score = back(softmax.inputs[0][0], (*MOVES, *ON_LOGITS), PRODUCTS)
    if score is None or not score.depends:
        return None
    dropout = ("native_dropout", "bernoulli_", "dropout")
    for context, used in ahead(softmax, (*MOVES, *ON_WEIGHTS, *dropout)):
        sides = _sides(context, used) if context.between else None
        # Learned queries are no input's; a router's matrix is one for the whole batch.
        learned = score.name in ("bmm", "baddbmm") and len(score.outputs[0]) == len(
            context.outputs[0]
        )
        if not (score.between or (learned and len(score.outputs[0]) > 1)):
            continue
        if sides is not None and math.prod(sides[0].shape) == softmax.outputs[0].numel():
            return _assemble(softmax, score, context, sides)
    return None


def _sides(context: Node, used: Node) -> Sides | None:
    a, b = factors(context)
    out = _batched(context.outputs[0])
    nodes = context.makers[-2:]
    if nodes[0] is used:
        return a, b, out, nodes[1]
    if nodes[1] is used:
        return b.mT, a.mT, out.mT, nodes[0]
    return None


def factors(product: Node) -> tuple[Tensor, Tensor]:
    """The two sides of a product, as they were multiplied."""
    tensors = [x for x in product.args if isinstance(x, Tensor)]
    a, b = tensors[-2:]
    return _batched(a), _batched(b)


def _batched(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x[None]


def _assemble(softmax: Node, score: Node, context: Node, sides: Sides) -> Attention:
    weights, value, out, value_node = sides
    given, gave = softmax.args[0], softmax.outputs[0]
    shape = weights.shape
    a, b = factors(score)
    # Which layout of the softmax is the layout of the weights?
    layouts: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: x.mT]
    if gave.dim() == 4:
        layouts = [partial(torch.permute, dims=dims) for dims in permutations(range(4))]
    support = weights != 0
    best, layout = math.inf, layouts[0]
    for move in layouts:
        moved = move(gave)
        if moved.numel() != weights.numel() or moved.shape[-2:] != shape[-2:]:
            continue
        one, other = moved.reshape(shape)[support], weights[support]
        off = 1 - float(torch.cosine_similarity(_flat(one), _flat(other), 0))
        if off < best - 1e-6:
            best, layout = off, move
    if best == math.inf:  # a softmax of another shape
        layout = partial(torch.reshape, shape=shape)
    soft = layout(gave).reshape(shape) if softmax.name != "exp" else weights
    logits = layout(given).reshape(shape)
    products = a @ b  # baddbmm gives more than that
    query, key = a, b.mT
    nodes = score.makers[-2:]
    if products.mT.shape == shape and _unlike(products.mT, logits) < _unlike(products, logits):
        products, query, key, nodes = products.mT, key, query, nodes[::-1]
    matched = logits if products.shape == shape else None
    tensors = (query, key, products, matched, soft, weights, value, out)
    return Attention(*tensors, score, softmax, context, nodes[0], nodes[1], value_node)


def _flat(x: Tensor) -> Tensor:
    return x.nan_to_num(0).flatten().double()


def _unlike(products: Tensor, logits: Tensor) -> float:
    """One minus the correlation, over what no mask has touched."""
    if products.shape != logits.shape:
        return math.inf
    open_ = logits > -1e3
    x, y = products[open_].double(), logits[open_].double()
    if x.numel() < 3:
        return 1.0
    x, y = x - x.mean(), y - y.mean()
    return 1.0 - float((x @ y).abs() / (x.norm() * y.norm()).clamp(min=1e-30))


def between(node: Node | None, first: Node) -> set[str]:
    """Names of the operations on the way from one node to a later one."""
    nodes = walk([node], lambda n: n.makers if n.index > first.index else [])
    return {n.name for n in nodes if n.index > first.index}


def numbers_before(node: Node | None, stop: tuple[str, ...] = PRODUCTS) -> list[float] | None:
    """The numbers that it was multiplied by since a product or norm; ``None`` if by a parameter."""
    norms = ("native_layer_norm", "_fused_rms_norm", "rsqrt", "linalg_vector_norm", "embedding")

    def inside(now: Node) -> bool:
        of_input = now.depends or (node is not None and not node.depends)  # it is learned
        return of_input and now.name not in (*stop, *norms)

    found = [
        scalar(n)
        for n in walk([node], lambda n: n.makers if inside(n) else [])
        if inside(n) and n.name.rstrip("_") in ("mul", "div")
    ]
    return [x for x, _ in found if x is not None] if all(fixed for _, fixed in found) else None


def scalar(node: Node) -> tuple[float | None, bool]:
    """The number in ``x * number`` or ``x / number``, and whether it is no parameter."""
    for x in node.args[:2]:
        tensor = isinstance(x, Tensor)
        if (tensor and x.numel() == 1 and x is not node.args[0]) or isinstance(x, int | float):
            number = float(x)
            is_fixed = not (tensor and x.requires_grad)
            return (number if node.name.startswith("mul") else 1 / (number or 1)), is_fixed
        if tensor and x.requires_grad:
            return None, x.dim() > 0 and x.shape[-1] > 1  # a norm's gain is no scale
    return None, True


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
