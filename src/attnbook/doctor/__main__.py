"""Diagnose a module from a shell.

python -m attnbook.doctor my_file.py:make_model --vectors 2,6,64 causal=True n_heads=4
python -m attnbook.doctor my_file.py:make_model --ids 2,6 --vocab 50 causal=True

make_model is a module, a class of modules, or a function that makes one, or that makes all of it,
(module, argument, …, {claim: value, …}).
Exit status: 0 if nothing is wrong, 1 if there are errors, 2 if it, or a claim, was not examined.
"""

import argparse
import ast
import inspect
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.doctor import Claims, diagnose

VECTORS = "an argument of vectors, of this shape; once for each, in order"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m attnbook.doctor",
        description=__doc__,
        epilog=f"What may be claimed:\n{inspect.getdoc(Claims)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    an_input = partial(add, dest="inputs", action="append")
    add("what", help="file.py:name")
    an_input("--vectors", type=vectors, metavar="2,6,64", help=VECTORS)
    an_input("--ids", type=ids, metavar="2,6", help="an argument of ids, of this shape")
    add("--vocab", type=int, default=50, help="how many ids there are (50)")
    add("--seed", type=int, default=0, help="for the weights and inputs (0)")
    add("claims", nargs="*", metavar="name=value", help="name=value, for instance causal=True")
    parsed = parser.parse_intermixed_args(arguments)
    torch.manual_seed(parsed.seed)
    try:
        claims = dict(map(claim, parsed.claims))
        Claims.of(claims)
        module, *example = everything(load(parsed.what))
        claims = (example.pop() if example and isinstance(example[-1], dict) else {}) | claims
        example += [draw(parsed.vocab) for draw in parsed.inputs or ()]
        if not example:
            parser.error("give the shape of an input: --vectors 2,6,64 or --ids 2,6")
        report = diagnose(module, *example, **claims)
    except (LookupError, TypeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        parser.exit(2, f"{parser.prog}: error: {first_line}\n")
    print(report)
    called = not any(error.check == "the call" for error in report.errors)
    if not called and "index out of range" in report.errors[0].found:
        print(f"ids below {parsed.vocab} were drawn; give the number of ids that it has as --vocab")
    return 1 if report.errors and called else 2 if report.untested or not called else 0


def load(what: str) -> Any:
    """The module that ``file.py:name`` is, or makes."""
    path, colon, name = what.rpartition(":")
    if not colon:
        raise LookupError(f"give file.py:name, not {what!r}")
    if not Path(path).is_file():
        raise LookupError(f"there is no file {path!r}; give file.py:name")
    sys.path.insert(0, str(Path(path).resolve().parent))  # for what it imports
    names = runpy.run_path(path)
    if name not in names:
        raise LookupError(f"there is no {name!r} in {path}")
    thing = names[name]
    if isinstance(thing, nn.Module):
        return thing
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(thing).parameters.values()
    needs = any(p.default is p.empty and p.kind not in any_number for p in parameters)
    return thing if needs else thing()


def everything(loaded: Any) -> list[Any]:
    """The module, and what else a factory has made."""
    return list(loaded) if isinstance(loaded, tuple) else [loaded]


def vectors(text: str) -> Callable[[int], Tensor]:
    """A function that draws vectors of a shape such as ``"2,6,64"``."""
    size = shape(text)
    return lambda _: torch.randn(size)


def ids(text: str) -> Callable[[int], Tensor]:
    """A function that draws ids of a shape such as ``"2,6"``."""
    size = shape(text)
    return lambda vocab: torch.randint(vocab, size)


def shape(text: str) -> tuple[int, ...]:
    """The numbers in ``"2,6,64"``."""
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("a shape is numbers with commas: 2,6,64") from None


def claim(text: str) -> tuple[str, Any]:
    """The name and the value in ``"causal=True"``; what is no literal is text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a claim is name=value, not {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


if __name__ == "__main__":
    sys.exit(main())
