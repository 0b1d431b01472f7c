"""Groups of clients, and who is in none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import DataError, UserError
from fedblocks.runs.members import check_groups, members_table

DATA: Any = SimpleNamespace(clients=9, names=tuple(f"c{number}" for number in range(9)))


def check(methods: list[str], **groups: Any) -> str:
    ingredients: Any = SimpleNamespace(methods=dict.fromkeys(methods), data=DATA)
    try:
        check_groups(ingredients, groups)
    except UserError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("methods", "groups", "said"),
    [
        (["a"], {"a": range(9)}, ""),
        (["a", "b"], {"a": [0, 1, 2, 3], "b": ["c4", "c5", 6, 7, 8]}, ""),
        (["a", "all"], {"a": [0]}, ""),
        (["all"], {}, ""),
        (["a"], {"a": {"tag": "kind", "value": 1}}, ""),  # who that is, is not known yet
        (["a", "b"], {"a": {"tag": "kind", "value": 1}, "b": [0]}, ""),
        (["a"], {"a": [0, 2, 3, 4, 5, 6, 7]}, 'client 1, "c1", is in no group'),
        (["a"], {"a": [0], "b": [1]}, 'the group "b" has no method'),
        (["a", "b", "all"], {"a": [0]}, 'which clients use the method "b"?'),
        (["a"], {"a": "c1"}, "groups[\"a\"]: 'c1' is not a list of clients"),
        (["a"], {"a": 3}, 'groups["a"]: 3 is not a list of clients'),
    ],
)
def test_every_client_has_one_method(methods: list[str], groups: Any, said: str) -> None:
    assert check(methods, **groups) == said


def test_members_are_recorded_by_number_or_by_their_tag() -> None:
    assert members_table("a", ["c3", 1], DATA) == {"clients": [3, 1]}
    tagged = {"tag": "kind", "value": 1}
    assert members_table("a", tagged, DATA) == tagged
    with pytest.raises(DataError, match=r'groups\["a"\]: .*c9'):
        members_table("a", ["c9"], DATA)
