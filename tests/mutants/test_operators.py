"""Each operator makes the change that its documentation names, and only where it should."""

from __future__ import annotations

import ast

import pytest

from mutants.operators import OPERATORS
from mutants.sites import sites


def mutated(line: str, operator: str) -> list[str]:
    """What an operator makes of one line inside a function."""
    source = f"def f(a, b, x):\n    {line}\n".encode()
    every = [s.planted(source).decode() for s in sites("a.py", source) if s.operator == operator]
    return [ast.unparse(ast.parse(text)).split("\n", 1)[1].strip() for text in every]


@pytest.mark.parametrize(
    ("operator", "line", "after"),
    [
        ("compare", "return a < b", ["return a <= b"]),
        ("compare", "return a >= b", ["return a > b"]),
        ("compare", "return a is None", ["return a is not None"]),
        ("compare", "return 0 < a == b", ["return 0 <= a == b", "return 0 < a != b"]),
        ("arithmetic", "return (a + b) * 2", ["return (a + b) / 2", "return (a - b) * 2"]),
        ("arithmetic", "x += a", ["x -= a"]),
        ("arithmetic", "return a + 'text'", []),
        ("number", "return x[3]", ["return x[4]"]),
        ("number", "return 0.5", ["return 1.0"]),
        ("number", "return 0.0", ["return 1.0"]),
        ("number", "return True", ["return False"]),
        ("twin", "return any(x)", ["return all(x)"]),
        ("twin", "return x.mean(0)", ["return x.sum(0)"]),
        ("twin", "return sorted(x)", ["return list(x)"]),
        ("twin", "return sorted(x, key=a)", []),
        ("dimension", "return x.sum(0)", ["return x.sum(1)"]),
        ("dimension", "return x.softmax(dim=-1)", ["return x.softmax(dim=0)"]),
        ("dimension", "return x.view(0)", []),
        ("keyword", "return a(x, dim=1, b=2)", ["return a(x, b=2)", "return a(x, dim=1)"]),
        ("keyword", "return a(x, strict=True)", []),
        ("keyword", "return a(x, device=b)", []),
        ("number", "return a(x, strict=True)", []),
        ("number", "return a(x, dim=1)", ["return a(x, dim=2)"]),
        (
            "dropped",
            "return x.detach() + x.clone()",
            ["return x + x.clone()", "return x.detach() + x"],
        ),
        ("call", "a.append(x)", ["pass"]),
        ("call", "print(x)", []),
        ("call", "time.sleep(x)", []),
        ("condition", "return a and b", ["return a or b"]),
        ("condition", "return not a", ["return a"]),
        ("condition", "return [i for i in x if i]", ["return [i for i in x if True]"]),
        ("condition", "return a if b else x", ["return a if not b else x"]),
        ("names", "return x(a, b)", ["return x(b, a)"]),
        ("names", "return a, b", ["return (b, a)"]),
        ("names", "return x(a, a)", []),
        ("names", "return min(a, b)", []),
    ],
)
def test_an_operator_makes_the_documented_change(
    operator: str, line: str, after: list[str]
) -> None:
    assert sorted(mutated(line, operator)) == sorted(after)


def test_every_operator_says_what_it_does() -> None:
    assert all(operator.__doc__ for operator in OPERATORS.values())


@pytest.mark.parametrize(
    "line",
    [
        "raise ValueError(a + b)",
        "return f'{a + 1}'",
        "a: list[3] = b",
        "return UserError(a + b, fix=x)",
        "return a + b  # no mutant: the sum is never read",
        "assert a < b",
    ],
)
def test_messages_annotations_and_exempt_lines_are_left_alone(line: str) -> None:
    assert sites("a.py", f"def f(a, b, x):\n    {line}\n".encode()) == []


LAYOUTS = (
    b"def f(a, b):\n    return g(a, b, dim=1) + 1\n",
    b"# moved\n\n\ndef f(a, b):\n    return g(\n        a,  # why\n        b, dim=1,\n    ) + 1\n",
)


def test_a_mutant_keeps_its_identity_when_its_line_is_moved_and_formatted() -> None:
    one, other = ([s.key for s in sites("a.py", source)] for source in LAYOUTS)
    assert one == other
    assert len(set(one)) == len(one) > 3


def test_a_mutant_leaves_every_other_line_where_it_was() -> None:
    for site in sites("a.py", LAYOUTS[1]):
        assert site.planted(LAYOUTS[1]).count(b"\n") == LAYOUTS[1].count(b"\n")
        ast.parse(site.planted(LAYOUTS[1]))


def test_equal_lines_of_a_function_are_told_apart() -> None:
    source = b"def f(a):\n    a += 1\n    a += 1\n"
    plus = [s for s in sites("a.py", source) if s.operator == "arithmetic"]
    assert [s.ordinal for s in plus] == [0, 1]
    assert plus[0].key != plus[1].key


def test_what_runs_at_import_is_known() -> None:
    source = (
        b"A = 1 + 1\nclass C:\n    b = 2\n    def f(self, c=3):\n        return 4\ng = lambda: 5\n"
    )
    numbers = {s.before: s.at_import for s in sites("a.py", source) if s.operator == "number"}
    assert numbers == {"1": True, "2": True, "3": True, "4": False, "5": True}
