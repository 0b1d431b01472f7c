"""What a method's functions may return, and what is said of everything else; and plans in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core import requirements
from fedblocks.core.blocks import (
    Generated,
    Mixture,
    PerClient,
    Pool,
    Private,
    Selection,
    ServerOnly,
    Shared,
)
from fedblocks.core.errors import (
    CheckpointError,
    DataError,
    RunFolderError,
    UserError,
    error_of,
)
from fedblocks.core.hook_results import (
    check_all_blocks,
    check_like,
    check_numbers,
    check_outputs,
    check_reads,
    check_tree,
    check_weights,
)
from fedblocks.core.net import Net
from fedblocks.core.optimizers import Adam
from fedblocks.core.own_code import takes
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.core.plan import _brief, _phase
from fedblocks.core.rules import MovingAverage
from fedblocks.core.task import Task

PART = Net.of(lambda: nn.Linear(1, 1)).whole
LAYOUT: Any = {
    "model": Shared(PART),
    "models": Pool(PART, 3),
    "own": PerClient(PART, "model"),
    "kept": Private(PART),
    "hidden": ServerOnly(PART),
}
SLOTS = {
    "model": {"w": torch.zeros(1, 2)},
    "models": {"w": torch.zeros(3, 2)},
    "own": {"w": torch.zeros(4, 2)},
}
W = {"w": torch.zeros(2)}


def reads(name: str, read: Any) -> Callable[[], None]:
    return lambda: check_reads("m.reads", {name: read}, LAYOUT, SLOTS, 4)


def weights(name: str, value: Any) -> Callable[[], None]:
    return lambda: check_weights("m.writes", {name: value}, LAYOUT)


def like(**tensors: Tensor) -> Callable[[], None]:
    return lambda: check_like("m.finish", "model", tensors, {"w": torch.zeros(2)})


RIGHT = {
    "blocks": lambda: check_tree("m.prepare", {"model": W, "empty": {}}),
    "no blocks": lambda: check_tree("m.prepare", {}),
    "all that is kept": lambda: check_all_blocks("m.finish", {"model": W, "more": W}, ["model"]),
    "the same tensors": like(w=torch.ones(2)),
    "a weight for each slot": weights("models", torch.ones(3)),
    "one weight": weights("own", torch.ones(())),
    "the last slot": reads("models", Selection(torch.tensor([[0], [1], [2], [2]]))),
    "shares of slots": reads("models", Mixture(torch.zeros(4, 3))),
    "rows for clients": reads("model", Generated({"w": torch.zeros(4, 2)})),
    "nothing to read": lambda: check_reads("m.reads", {}, LAYOUT, SLOTS, 4),
    "logits": lambda: check_outputs("m.predict", torch.zeros(2, 3), [2, 3]),
    "numbers": lambda: check_numbers("m.portrait", {"a": torch.zeros(1)}),
}
WRONG: dict[str, tuple[Callable[[], None], str]] = {
    "no dictionary": (lambda: check_tree("m.prepare", [W]), "a dictionary of blocks"),
    "no block": (
        lambda: check_tree("m.prepare", {"model": [1]}),
        'a dictionary of tensors as block "model"',
    ),
    "no tensor": (
        lambda: check_tree("m.prepare", {"model": {"w": 3}}),
        'a tensor as "w" of block "model"',
    ),
    "a block too few": (
        lambda: check_all_blocks("m.finish", {"more": W}, ["model"]),
        'm.finish leaves out block "model", which is kept or sent',
    ),
    "a tensor too few": (like(), 'm.finish returns block "model" without "w"'),
    "a tensor too many": (
        like(w=torch.zeros(2), v=torch.zeros(1)),
        'returns block "model" with "v", which it does not have',
    ),
    "another shape": (like(w=torch.zeros(3)), 'with a "w" of shape [3], not [2]'),
    "another type": (like(w=torch.zeros(2).double()), 'a "w" of type float64, not float32'),
    "another device": (
        like(w=torch.zeros(2, device="meta")),
        'a "w" of device meta, not cpu',
    ),
    "no weights": (lambda: check_weights("m.writes", 3, LAYOUT), "a dictionary of weights"),
    "weights of a private block": (
        weights("kept", torch.ones(1)),
        'm.writes names "kept", which is not sent',
    ),
    "weights of no block": (
        weights("modell", torch.ones(1)),
        'm.writes names "modell", which is not there',
    ),
    "a weight that is no tensor": (weights("model", 1.0), 'a tensor as the weights of "model"'),
    "too many weights": (
        weights("models", torch.ones(4)),
        'm.writes returns weights [4] for "models", which has 3 slots',
    ),
    "no reads": (lambda: check_reads("m.reads", 3, LAYOUT, SLOTS, 4), "a dictionary"),
    "reads of a hidden block": (
        reads("hidden", Mixture(torch.zeros(4, 1))),
        'm.reads names "hidden", which is not sent',
    ),
    "a read that is none": (reads("model", torch.zeros(4)), 'something to send of "model"'),
    "slots of three clients": (
        reads("models", Selection(torch.zeros(3, 1, dtype=torch.long))),
        'm.reads: block "models" is sent by slots [3, 1] of int64',
    ),
    "slots that are fractions": (
        reads("models", Selection(torch.zeros(4, 1))),
        'm.reads: block "models" is sent by slots [4, 1] of float32',
    ),
    "a slot too far": (
        reads("models", Selection(torch.tensor([[0], [3], [1], [1]]))),
        'm.reads: block "models" has no slot 3',
    ),
    "a slot before the first": (
        reads("models", Selection(torch.tensor([[0], [-1], [1], [1]]))),
        'm.reads: block "models" has no slot -1',
    ),
    "shares of other slots": (
        reads("models", Mixture(torch.zeros(3, 4))),
        'm.reads: block "models" is mixed by weights [3, 4]',
    ),
    "rows for three clients": (
        reads("model", Generated({"w": torch.zeros(3, 2)})),
        'm.reads: block "model" is sent 3 rows of "w" to 4 clients',
    ),
    "outputs that are no tensor": (
        lambda: check_outputs("m.predict", [1.0], [2, 3]),
        "a tensor of logits",
    ),
    "outputs of another shape": (
        lambda: check_outputs("m.predict", torch.zeros(3, 2), [2, 3]),
        "logits [2, 3] of 2 examples",
    ),
    "outputs that are whole numbers": (
        lambda: check_outputs("m.predict", torch.zeros(2, 3, dtype=torch.long), [2, 3]),
        "logits [2, 3] of 2 examples",
    ),
    "a portrait that is none": (
        lambda: check_numbers("m.portrait", [1.0]),
        "a dictionary of tensors",
    ),
    "a portrait of numbers": (
        lambda: check_numbers("m.portrait", {"a": 1.0}),
        'm.portrait returns a float as "a", not a tensor',
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_engines_count_on_passes(case: str) -> None:
    RIGHT[case]()


@pytest.mark.parametrize("case", WRONG)
def test_anything_else_is_refused_with_its_place_and_what_to_return(case: str) -> None:
    check, said = WRONG[case]
    with pytest.raises(UserError) as error:
        check()
    assert said in error.value.message and error.value.fix


def test_an_error_of_another_process_is_of_the_same_kind_here() -> None:
    for kind in (UserError, DataError, RunFolderError, CheckpointError):
        error = error_of(kind.exit_code, "wrong", "mend")
        assert type(error) is kind and (error.message, error.fix) == ("wrong", "mend")
        assert error.args == ("wrong",) and str(error) == "wrong\n  fix: mend"
    assert type(error_of(99, "wrong")) is UserError and str(error_of(99, "wrong")) == "wrong"


def test_folders_and_packages_are_asked_for_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements.require_folder(tmp_path)
    file = tmp_path / "file"
    with pytest.raises(RunFolderError, match="does not exist"):
        requirements.require_folder(file)
    file.touch()
    with pytest.raises(RunFolderError, match="is not a folder"):
        requirements.require_folder(file)
    requirements.require_packages("this", "x", "torch", "numpy")
    with pytest.raises(UserError, match="this needs the package nothing_here") as error:
        requirements.require_packages("this", "x", "torch", "nothing_here", otherwise=", or not")
    assert error.value.fix == 'pip install "fedblocks[x]", or not'
    for missing, extra in (
        ("uvicorn", "dashboard"),
        ("starlette", "dashboard"),
        ("plotly", "report"),
    ):
        absent = lambda name, missing=missing: None if name == missing else object()
        monkeypatch.setattr(requirements, "find_spec", absent)
        with pytest.raises(UserError, match=f"a browser needs the package {missing}") as error:
            requirements.require_for_watching()
        assert error.value.fix == f'pip install "fedblocks[{extra}]", or use --terminal'


def test_a_phase_is_described_by_what_differs_from_the_usual() -> None:
    loss = lambda blocks, batch: batch.loss(batch.x)
    plain = Update(("model",), loss, 0.5)
    pulled = Update(
        ("model", "head"),
        None,
        0.25,
        Adam(eps=0.5),
        Pull("model", "start", 0.125),
        repeat=2,
        project=lambda blocks: blocks,
    )
    live = replace(plain, pull=Pull("model", "other", 2.0, live=True))
    assert _phase(Phase((plain,), epochs=1)) == "on all for 1 epoch: model, lr 0.5, SGD"
    assert _phase(Phase((live,), epochs=2)).endswith("model pulled to other as it is by 2.0")
    assert _phase(Phase((plain, pulled), steps=3, on="query")) == (
        "on query for 3 steps: model, lr 0.5, SGD; then model + head, lr 0.25, Adam(eps=0.5), "
        "model pulled to start as it began by 0.125, 2 times, projected"
    )
    assert _brief(MovingAverage(0.5)) == "MovingAverage(beta=0.5)" and _brief(3) == "3"


def test_arguments_of_functions_and_objects_are_counted() -> None:
    class Called:
        def __init__(self, one: int, two: int) -> None: ...

        def __call__(self, x: int) -> None: ...

    assert takes(lambda x, y: None, 2) and not takes(lambda x, y: None, 1)
    assert takes(Called(1, 2), 1) and not takes(Called(1, 2), 2)
    assert takes(Called, 2) and not takes(Called, 1)
    assert takes(type("Odd", (), {"__signature__": "none"}), 7)  # it does not say


def test_targets_become_numbers_that_a_layer_can_read() -> None:
    classes = Task().encode(torch.tensor([2, 0, -100]), 3, torch.float64)
    assert classes.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]] and classes.dtype == torch.float64
    numbers = torch.tensor([[0.5, torch.nan]])
    assert Task("regression").encode(numbers, 2, torch.float64).tolist() == [[0.5, 0.0]]


def test_the_rest_of_a_net_is_what_no_linear_layer_has() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    assert {*net.rest.names} == {name for name in net.names if name.startswith("1.")}
