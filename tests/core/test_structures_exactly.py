"""Blocks, phases and views of a method: what is of a wrong kind is named, what is at the edge of
the right ones is taken.
"""

from __future__ import annotations

from typing import Any

import pytest

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.core.plan import plan
from fedblocks.core.structure import check_structure

NET = fb.small_net()


def said(call: Any, *given: Any) -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        call(*given)
    return refused.value.message, refused.value.fix


def structured(**changes: Any) -> fb.Method:
    """A method some of whose functions return something else."""
    functions = {name: lambda self, value=value: value for name, value in changes.items()}
    return type("Odd", (fb.FedPer,), functions)(NET)


SHARED = {"body": fb.Shared(NET.body), "head": fb.Private(NET.head)}
STEP = fb.FedPer(NET).step("body")


def phase(**changes: Any) -> list[fb.Phase]:
    made = fb.Phase((STEP,), 1)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return [made]


def step(**changes: Any) -> list[fb.Phase]:
    update = fb.FedPer(NET).step("body")
    for name, value in changes.items():
        object.__setattr__(update, name, value)
    return phase(updates=(update,))


WRONG = [
    ({"blocks": [1]}, "Odd.blocks returns a list, not a dictionary of blocks"),
    ({"blocks": None}, "Odd.blocks returns None, not a dictionary of blocks"),
    ({"blocks": {}}, "Odd.blocks returns no block"),
    ({"blocks": {1: SHARED["body"]}}, "Odd.blocks returns an int, not a text as the name of a"),
    ({"blocks": {"body": NET.body}}, 'block "body" is a Piece, which is no home'),
    ({"blocks": {"body": fb.Shared}}, 'block "body" is Shared, which is no home'),
    ({"blocks": {"body": fb.Shared(3)}}, "is fb.Shared of an int, which has no `init(seed)`"),
    ({"blocks": {"body": fb.Private(None)}}, "is fb.Private of a NoneType, which has no"),
    ({"blocks": {"body": fb.Pool(NET.body, 0)}}, 'block "body" is a Pool of 0 slots'),
    ({"blocks": {"body": fb.Pool(NET.body, True)}}, 'block "body" is a Pool of True slots'),
    ({"blocks": {"body": fb.Pool(NET.body, 1.0)}}, 'block "body" is a Pool of 1.0 slots'),
    (
        {"blocks": {**SHARED, "more": fb.Shared(NET.body, of="bodi")}},
        '"more" is uploaded from block "bodi", which is not there',
    ),
    ({"phases": None}, "Odd.phases returns None, not a list of phases"),
    ({"phases": [STEP]}, "Odd.phases returns an Update, not phases in its list"),
    ({"adaptation": "none"}, "Odd.adaptation returns a str, not a list of phases"),
    ({"joining": 3}, "Odd.joining returns an int, not a list of phases"),
    ({"phases": phase(updates=STEP)}, "the updates of a phase are an Update, not a tuple"),
    ({"phases": phase(updates=(STEP, 3))}, "the updates of a phase are a tuple, not a tuple"),
    ({"phases": phase(epochs=-1)}, "a phase has epochs = -1"),
    ({"phases": phase(epochs=0.5)}, "a phase has epochs = 0.5"),
    ({"phases": phase(steps=True)}, "a phase has steps = True"),
    ({"phases": phase(on="half")}, "a phase is on 'half'"),
    ({"phases": step(lr="0.1")}, "a step has the learning rate '0.1'"),
    ({"phases": step(train=("body", "hed"))}, 'Odd has no block "hed", which a phase of Odd.ph'),
    ({"phases": step(pull=fb.Pull("body", "start", 1.0))}, 'Odd has no block "start"'),
    ({"phases": step(pull=fb.Pull("end", "body", 1.0))}, 'Odd has no block "end"'),
    ({"views": None}, "Odd.views returns None, not a dictionary of functions"),
    ({"views": {"shared": len}}, 'Odd.views returns no "personal" view'),
    ({"views": {"personal": len, "shared": 3}}, "an int, not a function of (blocks, x) as the"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=range(len(WRONG)))
def test_a_structure_that_engines_cannot_use_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    assert message in said(check_structure, structured(**changes))[0]


RIGHT = [
    {"blocks": {**SHARED, "more": fb.Shared(NET.body, of="body")}},
    {"blocks": {**SHARED, "made": fb.Fresh()}},
    {"blocks": {**SHARED, "pool": fb.Pool(NET.body, 1)}},
    {"phases": []},
    {"phases": tuple(phase())},
    {"phases": phase(epochs=0)},
    {"phases": phase(steps=0)},
    {"phases": step(lr=1)},
    {"phases": step(lr=lambda round: 0.1)},
    {"phases": step(pull=fb.Pull("body", "body", 1.0))},
    {"views": {"personal": len, "shared": len}},
]


@pytest.mark.parametrize("changes", RIGHT, ids=range(len(RIGHT)))
def test_a_structure_at_the_edge_is_taken(changes: dict[str, Any]) -> None:
    check_structure(structured(**changes))


def test_a_method_says_its_functions_and_names_of_tags() -> None:
    for missing in ("blocks", "predict", "phases"):
        own = {name: fb.FedPer.__dict__[name] for name in ("blocks", "predict", "phases")}
        del own[missing]
        method = type("Half", (fb.Method,), own)(NET)
        assert said(check_structure, method)[0] == (
            f"Half has no function {missing}, which it must have"
        )
    tagged = type("Tagged", (fb.FedPer,), {"tags": "cohort"})(NET)
    message, fix = said(check_structure, tagged)
    assert (message, fix) == (
        "Tagged.tags is a str, not a tuple of names", 'write tags = ("cohort",)',
    )  # fmt: skip


def test_functions_that_cannot_be_called_as_a_run_calls_them_are_refused() -> None:
    short = type("Short", (fb.FedPer,), {"predict": lambda self, blocks: blocks})(NET)
    message, fix = said(check_structure, short)
    assert message == "Short.predict(blocks) is called as predict(blocks, x)"
    assert fix == "write `def predict(self, blocks, x):`"
    none = type("Odd", (fb.FedPer,), {"loss": 3})(NET)
    assert said(check_structure, none)[0] == "Odd.loss is an int, not a function"


def test_a_plan_is_made_of_a_sound_structure_alone() -> None:
    odd = structured(blocks={})
    message, fix = said(check_structure, odd)
    assert said(plan, odd) == (message, fix)
