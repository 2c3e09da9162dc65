"""Diagnose a module from a shell.

python -m attnbook.doctor my_file.py:make_model --vectors 2,6,64 causal=True n_heads=4
python -m attnbook.doctor my_file.py:make_model --ids 2,6 --vocab 50 causal=True

``make_model`` is a module, or a function that makes one. Exits with 1 if there is an error.
"""

import argparse
import ast
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from attnbook.doctor import diagnose


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(prog="python -m attnbook.doctor", description=__doc__)
    parser.add_argument("what", help="file.py:name")
    parser.add_argument("--vectors", action="append", default=[], help="shape of an input, 2,6,64")
    parser.add_argument("--ids", action="append", default=[], help="shape of an input of ids, 2,6")
    parser.add_argument("--vocab", type=int, default=50, help="number of different ids")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("claims", nargs="*", help="name=value")
    given = parser.parse_intermixed_args(arguments)
    torch.manual_seed(given.seed)
    module = load(given.what)
    example = [torch.randn(shape(x)) for x in given.vectors]
    example += [torch.randint(given.vocab, shape(x)) for x in given.ids]
    if not example:
        parser.error("give the shape of an input: --vectors 2,6,64 or --ids 2,6")
    report = diagnose(module, *example, **dict(map(claim, given.claims)))
    print(report)
    return 0 if report.healthy else 1


def load(what: str) -> Any:
    """The module that ``file.py:name`` is, or makes."""
    path, _, name = what.rpartition(":")
    made = runpy.run_path(path)[name]
    return made if isinstance(made, nn.Module) else made()


def shape(text: str) -> tuple[int, ...]:
    """The numbers in ``"2,6,64"``."""
    return tuple(int(x) for x in text.split(","))


def claim(text: str) -> tuple[str, Any]:
    """The name and the value in ``"causal=True"``; what is no literal is text."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


if __name__ == "__main__":
    sys.exit(main())
