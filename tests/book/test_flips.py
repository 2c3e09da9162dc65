"""Turn round what a claim compares: would it hold for the opposite as well?

A difference changes its sign; a ratio of two things is turned over. A claim that holds either way
shows no direction, and its sentence must not have one: it says "no more", "hardly", "as much".
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from built import CHAPTERS, code_cells

from book.evidence.claims import METADATA_KEY

Names = dict[str, ast.AST]
"""What a chapter's names were last bound to."""

# The last step of these keeps what was compared.
KEEP = {"double", "float", "item", "list", "max", "mean", "median", "min", "tolist"}
ROUNDING = 1e-6  # what is held to less is the same but for that
MODULES = {"math", "np", "statistics", "torch"}
COMPARES = re.compile(r"\b(ratio|times|against|compared|over (that|those)|multiples|divided)\b")
NO_DIRECTION = re.compile(
    r"\b(as \w+ (as|with)|as (fast|many)|at most|about (as|that|the same)|close|equal|hardly|little"
    r"|less than|nearly (as|the same)|not much|nothing|the same"
    r"|no (better|difference|further|later|more|slower|worse))\b",
    re.IGNORECASE,
)


def compared(expression: ast.AST | None, names: Names, depth: int = 0) -> str:
    """Is a value the "difference" of two things or their "ratio"? Else nothing."""
    if depth > 9:
        return ""
    match expression:
        case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.UnaryOp(operand=inner):
            pass
        case ast.List(elts=[inner, *_]) | ast.IfExp(body=inner):
            pass
        case ast.BinOp(left, ast.Sub(), right):
            constant = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
            return "" if constant else "difference"
        case ast.BinOp(ast.Constant(), ast.Mult(), inner):
            pass
        case ast.BinOp(inner, ast.Div() | ast.Mult(), ast.Constant()):
            pass
        case ast.BinOp(left, ast.Div(), _):
            return compared(left, names, depth + 1) or "ratio"
        case ast.Name(name):
            inner = names.get(name)
            return "" if inner is expression else compared(inner, names, depth + 1)
        case ast.Call(ast.Name(name)) if name in names:
            return of_function(names[name], names, depth)
        case ast.Call(ast.Attribute(ast.Name(of)), [inner, *_]) if of in MODULES:
            pass
        case ast.Call(ast.Attribute(inner, name)) if name in KEEP:
            pass
        case ast.Call(ast.Name(name), [inner, *_]) if name in KEEP:
            pass
        case _:
            return ""
    return compared(inner, names, depth + 1)


def of_function(function: ast.AST, names: Names, depth: int) -> str:
    """What a helper returns."""
    if not isinstance(function, ast.FunctionDef):
        return ""
    inside = names | dict(bound(function))
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    kinds = {compared(each, inside, depth + 1) for each in returned}
    return kinds.pop() if len(kinds) == 1 else ""


def bound(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names that code binds, each with its expression or function."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name):
                yield name, node
            case ast.Assign([ast.Name(name)], value):
                yield name, value
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                for target, value in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name):
                        yield target.id, value


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The claims that code states: a pattern of the label, and what is measured."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("claim"), [_, measured, *_], keywords):
                label = next(each.value for each in keywords if each.arg == "label")
                yield pattern(label), measured


def pattern(label: ast.expr) -> str:
    parts = label.values if isinstance(label, ast.JoinedStr) else [label]
    return "".join(
        re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts
    )


def opposite(kind: str, claim: dict[str, Any]) -> float | None:
    """What would have been measured if the two things changed places."""
    value, bound = claim["numbers"][:2]
    if kind == "difference" or min(value, bound) < 0:
        return -value
    ratio = kind == "ratio" and value and COMPARES.search(claim["statement"])
    return 1 / value if ratio else None


def holds_either_way(kind: str, claim: dict[str, Any]) -> bool:
    """Would the claim hold for the opposite, or does its bound lie beyond "no difference"?"""
    if claim["form"] not in ("at_most", "at_least", "close_to"):
        return False  # "exceeds" can't hold both ways, "equals" has none
    value, bound, *tolerance = claim["numbers"]
    turned = opposite(kind, claim)
    if turned is None or 0 < abs(bound) < ROUNDING:
        return False
    if claim["form"] == "close_to":
        return bool(tolerance) and abs(turned - bound) <= tolerance[-1]
    return value * bound < 0 or (turned <= bound if claim["form"] == "at_most" else turned >= bound)


def says_no_direction(claim: dict[str, Any]) -> bool:
    return bool(NO_DIRECTION.search(claim["statement"]))


def stated(path: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The claims of a chapter, each with the kind of what it compares."""
    names: Names = {}
    known: dict[str, ast.expr] = {}
    for cell in code_cells(path):
        tree = ast.parse(cell.source)
        names |= dict(bound(tree))
        known |= dict(calls(tree))
        for output in cell.outputs:
            claim = output.get("metadata", {}).get(METADATA_KEY)
            if claim and claim["numbers"]:
                fits = [each for each in known if re.fullmatch(each, claim["label"])]
                closest = max(fits, key=lambda each: len(each.replace(".+", "")), default="")
                yield compared(known.get(closest), names), claim


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_claim_that_would_hold_for_the_opposite_says_no_direction(path):
    wrong = [
        f"{claim['label']}: {claim['statement']}: {claim['measured']}; {claim['expected']}"
        for kind, claim in stated(path)
        if holds_either_way(kind, claim) and not says_no_direction(claim)
    ]
    assert not wrong, "\n".join(wrong)
