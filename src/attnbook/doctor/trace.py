"""The tensor operations of a call, and the attentions among them.

Torch breaks a fused attention into its products and softmax if it is asked to (``plain_kernels``),
so that one kind of observation serves every style of code.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
SOFTMAXES = ("_softmax", "_safe_softmax", "exp")  # exp: of a softmax written by hand
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
    *("tril", "triu"),
)


@dataclass
class Node:
    """One operation.

    Args:
        index: its place in the trace.
        name: of the operation, without its overload: ``"bmm"``.
        args: what it was given: tensors as they were.
        inputs: the nodes that made its tensors; ``None`` for a parameter or an argument.
        outputs: what it gave, copied.
        module: the name of the module that ran.
        depends: whether its output depends on the call's inputs.
        between: whether it is a product of two things that both do.
    """

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[tuple["Node | None", Tensor]]
    outputs: list[Tensor]
    module: str
    depends: bool
    between: bool = False
    users: list["Node"] = field(default_factory=list)

    def __repr__(self) -> str:
        """For looking at a trace."""
        shapes = [tuple(x.shape) for x in self.outputs]
        return f"{self.index} {self.name} {shapes} in {self.module}"


@dataclass
class Attention:
    """A softmax, the product before it and the product after it.

    Args:
        query, key: (n, queries, d) and (n, keys, d), as they are multiplied; n is batch × heads.
        products: their products, (n, queries, keys).
        logits: what the softmax is of, in the same layout; ``None`` if it could not be matched.
        softmax: what it gave, in the same layout.
        weights: what multiplies the values, (n, queries, keys).
        value, context: (n, keys, d_value) and (n, queries, d_value).
        score_node, softmax_node, context_node: where they are in the trace.
        query_node, key_node, value_node: what made them.
    """

    query: Tensor
    key: Tensor
    products: Tensor
    logits: Tensor | None
    softmax: Tensor
    weights: Tensor
    value: Tensor
    context: Tensor
    score_node: Node
    softmax_node: Node
    context_node: Node
    query_node: Node | None
    key_node: Node | None
    value_node: Node | None


class Trace(TorchDispatchMode):
    """Notes every tensor operation of a call.

    Args:
        sources: the tensors that the call is about.
        silenced: what these operations give is replaced by zeros.
    """

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
        kept = tuple(self._kept(x, name) for x in args)
        result = func(*args, **kwargs)
        outputs = list(_tensors((result,)))
        if len(self.nodes) in self._silenced:
            for x in outputs:
                x.zero_()
        running = self._running[-1][1] if self._running else ""
        node = Node(
            len(self.nodes),
            name,
            kept,
            kwargs,
            inputs,
            [x.detach().clone() for x in outputs],
            running,
            any(follow),
            name in PRODUCTS and all(follow[-2:]),
        )
        for producer, _ in inputs:
            if producer is not None:
                producer.users.append(node)
        self._held.append((args, kwargs, result))
        self._producer.update({id(x): node for x in outputs})
        self.nodes.append(node)
        return result

    def _kept(self, x: Any, name: str) -> Any:
        """What may be written into later is copied where its values are needed."""
        wanted = (
            name in PRODUCTS or name in SOFTMAXES or name in ("_log_softmax", "nll_loss_forward")
        )
        return x.detach().clone() if wanted and isinstance(x, Tensor) else x

    def of(self, *names: str) -> list[Node]:
        """The nodes of these operations."""
        return [node for node in self.nodes if node.name in names]

    @property
    def attentions(self) -> list[Attention]:
        """All attentions, in order."""
        found = (_attention(node) for node in self.of(*SOFTMAXES))
        return [x for x in found if x is not None]


def back(node: Node | None, through: tuple[str, ...], until: tuple[str, ...]) -> Node | None:
    """The nearest node before this one of a kind, if all between are of other kinds."""
    queue, seen = [node], set()
    while queue:
        node = queue.pop(0)
        if node is None or node.index in seen:
            continue
        seen.add(node.index)
        if node.name in until:
            return node
        if node.name in through:
            queue += [n for n, _ in node.inputs]
    return None


def ahead(node: Node, through: tuple[str, ...]) -> Iterator[tuple[Node, Node]]:
    """Products that use what comes out of a node, each with the node that it uses."""
    queue, seen = [node], {node.index}
    while queue:
        now = queue.pop(0)
        for user in now.users:
            if user.name in PRODUCTS:
                yield user, now
            elif user.name in through and user.index not in seen:
                seen.add(user.index)
                queue.append(user)


def _attention(softmax: Node) -> Attention | None:
    score = back(softmax.inputs[0][0], (*MOVES, *ON_LOGITS), PRODUCTS)
    if score is None or not score.between:
        return None
    dropout = ("native_dropout", "bernoulli_", "dropout")
    for context, used in ahead(softmax, (*MOVES, *ON_WEIGHTS, *dropout)):
        sides = _sides(context, used) if context.between else None
        if sides is not None and math.prod(sides[0].shape) == softmax.outputs[0].numel():
            return _assemble(softmax, score, context, *sides)
    return None


def _sides(context: Node, used: Node) -> tuple[Tensor, Tensor, Tensor, Node | None] | None:
    """Weights (n, queries, keys), values, context, and what made the values."""
    a, b = factors(context)
    out = _batched(context.outputs[0])
    nodes = [n for n, _ in context.inputs][-2:]
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


def _assemble(
    softmax: Node,
    score: Node,
    context: Node,
    weights: Tensor,
    value: Tensor,
    out: Tensor,
    value_node: Node | None,
) -> Attention | None:
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

        def layout(x: Tensor) -> Tensor:
            return x.reshape(shape)

    soft = layout(gave).reshape(shape) if softmax.name != "exp" else weights
    logits = layout(given).reshape(shape)
    products = a @ b  # baddbmm gives more than that
    query, key = a, b.mT
    nodes = [n for n, _ in score.inputs][-2:]
    if products.numel() == logits.numel():
        flipped = products.shape != shape or _unlike(products.mT, logits) < _unlike(
            products, logits
        )
        if flipped and products.mT.shape == shape:
            products, query, key, nodes = products.mT, key, query, nodes[::-1]
    aligned = products.shape == shape
    return Attention(
        query,
        key,
        products,
        logits if aligned else None,
        soft,
        weights,
        value,
        out,
        score,
        softmax,
        context,
        nodes[0],
        nodes[1],
        value_node,
    )


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
    queue, seen, names = [node], set(), set()
    while queue:
        now = queue.pop()
        if now is None or now is first or now.index in seen or now.index < first.index:
            continue
        seen.add(now.index)
        names.add(now.name)
        queue += [n for n, _ in now.inputs]
    return names


def numbers_before(node: Node | None, stop: tuple[str, ...] = PRODUCTS) -> list[float] | None:
    """The numbers by which what a node gives was multiplied; ``None`` if one is a parameter.

    Walks back to the last matrix product, norm or embedding, the nearest number first.
    """
    numbers = []
    norms = ("native_layer_norm", "_fused_rms_norm", "rsqrt", "linalg_vector_norm", "embedding")
    queue, seen = [node], set()
    while queue:
        node = queue.pop()
        if node is None or node.index in seen or not node.depends or node.name in (*stop, *norms):
            continue
        seen.add(node.index)
        if node.name.rstrip("_") in ("mul", "div"):
            number, fixed = scalar(node)
            if not fixed:
                return None
            if number is not None:
                numbers.append(number)
        queue += [n for n, _ in node.inputs]
    return numbers


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
