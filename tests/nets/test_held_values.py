"""What can be reached from the attributes of a module, and by what it is known again."""

from __future__ import annotations

from argparse import Namespace
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.engines.net_check.held_values import held_values


class Tally:
    def __init__(self) -> None:
        self.passes = 0


def closing() -> Any:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    return count


class Held(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(2)
        vars(self).update(attributes)


def test_held_values_have_their_path_and_registered_ones_are_not_among_them() -> None:
    one = Held(a=1, b=[True, {"c": "d"}], c={(1, "x"): 1j, object(): 2.5}, t=torch.zeros(2, 1))
    one.b.append(one.layer.weight)
    one.b.append(one.layer)
    held = dict(held_values(nn.Sequential(one)))
    tensor = held.pop("0.t")
    layer = {f"0.layer.{name}" for name in vars(one.layer)}
    assert {name: value for name, value in held.items() if name not in layer} == {
        "0.a": ("int", "1"),
        "0.b": 4,
        "0.b[0]": ("bool", "True"),
        "0.b[1]['c']": ("str", "'d'"),
        "0.c[(1, 'x')]": ("complex", "1j"),
        "0.c[key 1]": ("float", "2.5"),
    }
    assert [name for name in held if name not in layer][:3] == ["0.a", "0.b", "0.b[0]"]
    assert tensor[:2] == ("torch.float32", (2, 1))  # type: ignore[index]


KINDS = {
    "numbers of a tensor": (torch.zeros(2), torch.ones(2)),
    "the shape of a tensor": (torch.zeros(2), torch.zeros(2, 1)),
    "the type of a tensor": (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
    "a conjugate": (torch.ones(1) * 1j, (torch.ones(1) * 1j).conj()),
    "numbers of an array": (np.zeros(1), np.ones(1)),
    "the type of an array": (np.zeros(1, "f4"), np.zeros(1, "i4")),
    "the shape of an array": (np.zeros(2), np.zeros((2, 1))),
    "a true and a one": (True, 1),
    "the members of a set": ({1}, {2}),
    "a byte": (bytearray(b"a"), bytearray(b"b")),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_that_differ_are_told_apart_and_equal_ones_are_not(name: str) -> None:
    one, other = KINDS[name]
    print_ = lambda value: held_values(Held(v=value))["v"]
    assert print_(one) == print_(one) != print_(other)


class Blank:
    __slots__ = "one"


def test_classes_objects_of_packages_and_what_is_not_filled_are_not_looked_into() -> None:
    open_ended = contextmanager(closing())  # type: ignore[arg-type]
    values = {"a": Tally, "b": Namespace(n=1), "c": Blank(), "d": open_ended, "e": Event()}
    of_file = type("OfFile", (Tally,), {"__module__": "a file that nobody has imported"})
    normal = torch.distributions.Normal(0.0, 1.0)
    held = held_values(Held(**values, f=Tally(), g=normal, h=of_file()))
    assert [name for name in held if name[0] in "abcdefgh"] == ["f.passes", "h.passes"]


def test_what_has_no_numbers_to_compare_is_left_out() -> None:
    sparse = torch.eye(2).to_sparse()
    held = held_values(Held(a=sparse, b=torch.zeros(1, device="meta"), c=nn.Linear, d=torch, e=len))
    assert not {*"abcde"} & held.keys()
