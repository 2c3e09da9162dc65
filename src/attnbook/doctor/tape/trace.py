"""The tensor operations of a call, and the attentions among them.

Torch breaks a fused attention into its products and softmax if it is asked to (``plain_kernels``),
so that one kind of observation serves every style of code.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
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
NORMS = ("native_layer_norm", "_fused_rms_norm", "rsqrt", "linalg_vector_norm")
MEANS = ("sum", "cumsum", "mean")
"""What a number behind it makes a mean of, and is no scale."""
DROPOUTS = ("native_dropout", "bernoulli_", "dropout")


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
    """Notes every tensor operation of a call; products that are silenced give zeros."""

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
        """Note the name of the module that runs."""
        if not self._names:
            self._names = {m: n for n, m in module.named_modules()}
        self._running.append((module, self._names.get(module, type(module).__name__)))

    def _end(self, module: nn.Module, *_: Any) -> None:
        """Forget a module that has run, and those inside that were interrupted."""
        while self._running and self._running.pop()[0] is not module:
            pass

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, tensors = func._schema.name.split("::")[-1], list(_tensors((*args, *kwargs.values())))
        inputs = [(self._producer.get(id(x)), x) for x in tensors]
        if name == "convolution" and args[1].shape[2:].numel() == args[-1] == 1:  # no groups
            name, inputs = "pointwise", inputs[:2]
        copied = name in (*PRODUCTS, *SOFTMAXES, "_log_softmax", "nll_loss_forward")
        kept = tuple(x.detach().clone() if copied and isinstance(x, Tensor) else x for x in args)
        result = func(*args, **kwargs)
        outputs = list(_tensors((result,)))
        if len(self.nodes) in self._silenced and name in PRODUCTS:  # else it may be a weight's view
            outputs[0].zero_()
        copies = [x.detach().clone() for x in outputs]
        if name == "pointwise":  # with channels last, as a product of rows and a matrix
            kept = (kept[0].movedim(1, -1), kept[1].flatten(1).mT)
            copies = [copies[0].movedim(1, -1)]
        follow = [id(x) in self._sources or bool(maker and maker.depends) for maker, x in inputs]
        running = self._running[-1][1] if self._running else ""
        between = name in PRODUCTS and all(follow[-2:])
        node = Node(len(self.nodes), name, kept, inputs, copies, running, any(follow), between)
        self.nodes.append(node)
        for maker in filter(None, node.makers):
            maker.users.append(node)
        self._held.append((args, kwargs, result))
        self._producer.update({id(x): node for x in outputs})
        if (
            name.endswith("_") and tensors and tensors[0]._base is not None
        ):  # a part is written into
            self._producer[id(tensors[0]._base)] = node
        return result

    def of(self, *names: str) -> list[Node]:
        """The nodes of these operations."""
        return [node for node in self.nodes if node.name in names]

    @cached_property
    def attentions(self) -> list[Attention]:
        """All attentions, in order."""
        return [a for a in map(_attention, self.of(*SOFTMAXES)) if a is not None]


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


def upstream(starts: Iterable[Node | None], through: Collection[str]) -> Iterator[Node]:
    """These nodes and those before them, going on only through operations of these names."""
    return walk(starts, lambda n: n.makers if n.name in through else [])


def downstream(starts: Iterable[Node | None], through: Collection[str]) -> Iterator[Node]:
    """These nodes and those after them, going on only into operations of these names."""
    return walk(starts, lambda n: [user for user in n.users if user.name in through])


def back(node: Node | None, through: Collection[str], until: Collection[str]) -> Node | None:
    """The nearest node before this one of a kind, if all between are of other kinds."""
    return next((n for n in upstream([node], through) if n.name in until), None)


def ahead(node: Node, through: Collection[str]) -> Iterator[tuple[Node, Node]]:
    """Products that use what comes out of a node, each with the node that it uses."""
    for used in downstream([node], through):
        yield from ((user, used) for user in used.users if user.name in PRODUCTS)


def _attention(softmax: Node) -> Attention | None:
    """The attention around a softmax, if there is a product before it and one after it."""
    score = back(softmax.makers[0], (*MOVES, *ON_LOGITS), PRODUCTS)
    if score is None or not score.depends:
        return None
    n, size = len(score.outputs[0]), softmax.outputs[0].numel()
    for context, used in ahead(softmax, (*MOVES, *ON_WEIGHTS, *DROPOUTS)):
        # Learned queries are no input's; a router's matrix is one for the whole batch.
        learned = score.name in ("bmm", "baddbmm") and n == len(context.outputs[0]) > 1
        if not context.between or not (score.between or learned):
            continue
        for side, maker in zip(factors(context), context.makers[-2:], strict=True):
            if maker is used and side.numel() == size:
                values_first = maker is not context.makers[-2]
                return _assembled(softmax, score, context, values_first=values_first)
    return None


def _assembled(softmax: Node, score: Node, context: Node, *, values_first: bool) -> Attention:
    """An attention whose tensors are all in the layout of its weights."""
    (weights, value), out = factors(context), _batched(context.outputs[0])
    value_node = context.makers[-2 if values_first else -1]
    if values_first:
        weights, value, out = value.mT, weights.mT, out.mT
    layout = _layout(softmax.outputs[0], weights)
    logits = layout(softmax.args[0])
    gave = weights if softmax.name == "exp" else layout(softmax.outputs[0])
    query, right = factors(score)
    key, products = right.mT, query @ right  # baddbmm gives more than that
    query_node, key_node = score.makers[-2:]
    turned = products.mT.shape == logits.shape
    if turned and _unlike(products.mT, logits) < _unlike(products, logits):
        query, key, products = key, query, products.mT
        query_node, key_node = key_node, query_node
    matched = logits if products.shape == logits.shape else None
    tensors = (query, key, products, matched, gave, weights, value, out)
    return Attention(*tensors, score, softmax, context, query_node, key_node, value_node)


def _layout(softmax: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
    """How axes are moved so that what a softmax gave is most like the weights."""
    support = weights != 0
    wanted = weights[support].nan_to_num(0).double()

    def unlike(dims: tuple[int, ...]) -> float:
        """One minus the cosine of the angle between them."""
        moved = softmax.permute(dims)
        if moved.shape[-2:] != weights.shape[-2:]:
            return math.inf
        values = moved.reshape(weights.shape)[support].nan_to_num(0).double()
        return 1 - float(torch.cosine_similarity(values, wanted, 0).nan_to_num(-math.inf))

    distances = {dims: unlike(dims) for dims in permutations(range(softmax.dim()))}
    least = min(distances.values())
    best = next((dims for dims, d in distances.items() if d < least + 1e-6), None)
    # A softmax of another shape is not moved.
    return lambda x: (x if best is None else x.permute(best)).reshape(weights.shape)


def factors(product: Node) -> tuple[Tensor, Tensor]:
    """The two sides of a product, as they were multiplied."""
    left, right = [_batched(x) for x in product.args if isinstance(x, Tensor)][-2:]
    return left, right


def _batched(x: Tensor) -> Tensor:
    """A matrix as a batch of one."""
    return x if x.dim() == 3 else x[None]


def _unlike(products: Tensor, logits: Tensor) -> float:
    """One minus the correlation, over what no mask has touched."""
    if products.shape != logits.shape:
        return math.inf
    open_ = (logits > -1e3) & (logits > logits.max() - 50)  # some add -100 to what they close
    both = torch.stack([products, logits])[:, open_].double()
    return 1 - float(both.corrcoef()[0, 1].abs().nan_to_num(0)) if both.shape[1] > 2 else 1.0


def between(node: Node | None, first: Node) -> set[str]:
    """Names of the operations on the way from one node to a later one."""
    nodes = walk([node], lambda n: n.makers if n.index > first.index else [])
    return {n.name for n in nodes if n.index > first.index}


def numbers_before(node: Node | None, stop: tuple[str, ...] = PRODUCTS) -> list[float] | None:
    """The numbers that it was multiplied by since a product or norm; ``None`` if by a parameter."""
    learned = node is not None and not node.depends

    def inside(now: Node) -> bool:
        """True for what lies between."""
        counts = bool(now.outputs) and not now.outputs[0].is_floating_point()  # an index
        return (
            (now.depends or learned) and not counts and now.name not in (*stop, *NORMS, "embedding")
        )

    between = filter(inside, walk([node], lambda n: n.makers if inside(n) else []))
    factors = (n for n in between if n.name.rstrip("_") in ("mul", "div"))
    scalars = [scalar(n) for n in factors if not back(n.makers[0], MOVES, MEANS)]
    return [x for x, _ in scalars if x is not None] if all(fixed for _, fixed in scalars) else None


def scalar(node: Node) -> tuple[float | None, bool]:
    """The number in ``x * number`` or ``x / number``, and ``True`` if it is no parameter."""
    computed = [x for maker, x in node.inputs if maker is not None and maker.depends]
    for x in node.args[:2]:
        tensor = isinstance(x, Tensor)
        if any(x is y for y in computed):
            continue  # as the share of a token's expert
        if (tensor and x.numel() == 1 and x is not node.args[0]) or isinstance(x, int | float):
            number = float(x)
            is_fixed = not (tensor and x.requires_grad)
            return (number if node.name.startswith("mul") else 1 / (number or 1)), is_fixed
        if tensor and x.requires_grad:
            return None, x.dim() > 0 and x.shape[-1] > 1  # a norm's gain is no scale
    return None, True


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
