"""The small bugs: each operator looks at one node and yields what it may become."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from mutants.call_operators import dimension, dropped, keyword, twin
from mutants.changes import Changes, changed, replaced

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


def compare(node: ast.AST) -> Changes:
    """`a < b` becomes `a <= b`, `==` becomes `!=`, `is` becomes `is not`, `in` becomes `not in`."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield node, changed(node, ops=replaced(node.ops, i, COMPARISONS[type(op)]()))


def arithmetic(node: ast.AST) -> Changes:
    """`a + b` becomes `a - b`, `a * b` `a / b`, `a ** b` `a * b`; not of texts and lists."""
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        sides = (node.left, node.right)
        if not any(
            isinstance(s, texts) or isinstance(getattr(s, "value", None), str) for s in sides
        ):
            yield node, changed(node, op=ARITHMETIC[type(node.op)]())
    if (
        isinstance(node, ast.AugAssign)
        and type(node.op) in ARITHMETIC
        and not isinstance(node.value, texts)
    ):
        yield node, changed(node, op=ARITHMETIC[type(node.op)]())


def number(node: ast.AST) -> Changes:
    """`3` becomes `4`, `0.5` becomes `1.0`, `0.0` becomes `1.0`, `True` becomes `False`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, str(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield node, repr(2 * node.value or 1.0)


def call(node: ast.AST) -> Changes:
    """A statement that is a call becomes `pass`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield node, "pass"


def condition(node: ast.AST) -> Changes:
    """`if c` becomes `if not c`, `a and b` `a or b`, `not a` `a`; `[... if c]` loses its filter."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.BoolOp):
        yield node, changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, ast.unparse(node.operand)
    if isinstance(node, ast.comprehension):
        yield from ((test, "True") for test in node.ifs)


def names(node: ast.AST) -> Changes:
    """`f(a, b)` becomes `f(b, a)`, `return a, b` `return b, a`: plain names; not `min`, `max`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in ("min", "max"):
        yield from ((node, changed(node, args=items)) for items in _swapped(node.args))
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        pair = node.value
        yield from ((pair, changed(pair, elts=items)) for items in _swapped(pair.elts))


def _swapped(items: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """The list with two neighbours in each other's place."""
    for i, (a, b) in enumerate(pairwise(items)):
        if isinstance(a, ast.Name | ast.Attribute) and isinstance(b, ast.Name | ast.Attribute):
            yield [*items[:i], b, a, *items[i + 2 :]]


Operator = Callable[[ast.AST], Changes]
OPERATORS: dict[str, Operator] = {
    f.__name__: f
    for f in (
        compare,
        arithmetic,
        number,
        twin,
        dimension,
        keyword,
        dropped,
        call,
        condition,
        names,
    )
}
