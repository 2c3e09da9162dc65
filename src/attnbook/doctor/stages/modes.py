"""Training without its dropout, and where randomness comes from."""

from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.tape.trace import Trace

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
DROPPED, COMPARES = ("native_dropout", "bernoulli_", "bernoulli"), ("gt", "ge", "lt", "le")
RANDOM = ("native_dropout", "bernoulli_", "bernoulli", "rand", "randn", "rand_like", "randn_like")


class no_dropout(TorchFunctionMode):  # noqa: N801 (used as torch.no_grad is)
    """Dropout gives what it was given."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "").rstrip("_") in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if function is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs = {k: v for k, v in kwargs.items() if k != "dropout_p"}
        if function is F.multi_head_attention_forward:
            args = (*args[:10], 0.0, *args[11:])
        return function(*args, **kwargs)


def random_operations(trace: Trace) -> str:
    """The operations of a call that are random, and their modules."""
    nodes = trace.of(*RANDOM, "uniform_", "normal_", "randperm")
    named = dict.fromkeys(f"{node.name} in {node.module or 'the module'}" for node in nodes)
    return ", ".join(list(named)[:3]) or "where is not known"


def drops(trace: Trace) -> bool:
    """True if a call has dropout: torch's, or by hand, as numbers that are drawn and compared."""
    drawn = trace.of("rand", "rand_like", "uniform_")
    compared = (user.name.rstrip("_") in COMPARES for node in drawn for user in node.users)
    return bool(trace.of(*DROPPED)) or any(compared)


def foreign(subject: Subject, trace: Trace) -> list[nn.Parameter]:
    """Parameters that a call uses and that its modules do not have."""
    own = {id(x) for m in subject.modules for x in (*m.parameters(), *m.buffers())}
    given = {id(x): x for node in trace.nodes for _, x in node.inputs}
    return [x for i, x in given.items() if isinstance(x, nn.Parameter) and i not in own]
