"""Small bugs in calls: another function, another dimension, something missing."""

from __future__ import annotations

import ast

from mutants.changes import Changes, changed, replaced

PAIRS = (
    ("any", "all"), ("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax"),
    ("mean", "sum"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"),
    ("exp", "log"), ("std", "var"), ("keys", "values"), ("sin", "cos"),
)  # fmt: skip
TWINS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
BUILT_IN = {"any": "all", "all": "any", "min": "max", "max": "min", "sum": "max", "sorted": "list"}
COPIES = {"detach", "clone", "copy", "contiguous", "abs", "sqrt", "double", "clamp", "strip"}
GUARDS = {"strict", "frozen", "help", "encoding", "stacklevel", "daemon"}
ON_GPU = {"device"}  # tests on a CPU cannot judge where a tensor lies
DIMENSIONS = {"dim", "axis", "dims", "in_dims", "out_dims"}
REDUCTIONS = {
    "sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "softmax", "log_softmax",
    "std", "var", "prod", "unsqueeze", "squeeze", "flatten", "cumsum", "stack", "cat", "size",
    "unbind", "repeat_interleave", "index_select",
}  # fmt: skip


def twin(node: ast.AST) -> Changes:
    """`any` becomes `all`, `min` `max`, `mean` `sum`, and the reverse; `sorted(x)` `list(x)`."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in BUILT_IN and not _orders(node):
            yield node.func, BUILT_IN[node.func.id]
        if isinstance(node.func, ast.Attribute) and node.func.attr in TWINS:
            yield node.func, changed(node.func, attr=TWINS[node.func.attr])


def _orders(call: ast.Call) -> bool:
    """Whether `list` could not take the arguments of `sorted`."""
    return isinstance(call.func, ast.Name) and call.func.id == "sorted" and bool(call.keywords)


def dimension(node: ast.AST) -> Changes:
    """`dim=0` becomes `dim=1`, any other becomes 0; `x.sum(1)` becomes `x.sum(0)`."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        places = [k.value for k in node.keywords if k.arg in DIMENSIONS]
        places += [a for a in node.args if name in REDUCTIONS and _integer(a)]
        for place in places:
            if _integer(place):
                yield place, "1" if ast.unparse(place) == "0" else "0"


def _integer(node: ast.AST) -> bool:
    inner = (
        node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    )
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def keyword(node: ast.AST) -> Changes:
    """`f(x, dim=1)` becomes `f(x)`; `strict` and the like only guard, `device` is for GPUs."""
    if isinstance(node, ast.Call):
        for i, argument in enumerate(node.keywords):
            if argument.arg is not None and argument.arg not in GUARDS | ON_GPU:
                yield node, changed(node, keywords=replaced(node.keywords, i))


def dropped(node: ast.AST) -> Changes:
    """`x.detach()` becomes `x`; likewise `.clone()`, `.copy()`, `.clamp(...)` and a few more."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in COPIES
    ):
        yield node, ast.unparse(node.func.value)
