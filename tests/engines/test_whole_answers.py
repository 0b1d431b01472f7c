"""Small functions of engines, each looked at whole: what is asked, in which order, and said."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks.core
from fedblocks.core.net import Net
from fedblocks.core.state import State
from fedblocks.engines import devices, rehearsal, speculation
from fedblocks.engines.auto.trial import source_digest
from fedblocks.engines.batching import Draw, batches, generator
from fedblocks.engines.job import Job
from fedblocks.engines.lanes.side_by_side import _split_lanes
from fedblocks.engines.net_check import check, properties
from fedblocks.engines.net_check.passes import keeps_outside
from fedblocks.engines.net_check.report import NetReport
from fedblocks.engines.rehearsal import Rehearsal
from fedblocks.engines.replay.program import Program
from fedblocks.engines.replay.reads import Reads, _holds_tensors, _reads, shows_numbers
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.federations import small_federation, small_net

ONE = torch.ones(1)
aten = torch.ops.aten


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "is_read"),
    [
        ("tensor", ([ONE],), {}, True), ("tensor", (ONE,), {}, False),
        ("tensor", ([1],), {}, False),
        ("asarray", (1, [[2], (ONE,)]), {}, True), ("as_tensor", (), {"data": [1, ONE]}, True),
        ("new_tensor", (ONE, [1.0, 2.0]), {"dtype": None}, False),
        ("tensor_split", (ONE, ONE), {}, True), ("tensor_split", (ONE, 2, 0), {}, False),
        ("tensor_split", (ONE,), {"indices": ONE, "dim": 0}, True),
        ("tensor_split", (ONE, 3, ONE), {}, True), ("item", (ONE,), {}, True),
        ("add", (ONE, [ONE]), {}, False), ("", (), {}, False),
    ],
)  # fmt: skip
def test_calls_that_read_numbers_are_known_by_name_and_by_what_they_are_given(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_read: bool
) -> None:
    assert _reads(name, args, kwargs) is is_read


def test_tensors_are_found_in_lists_of_lists_alone() -> None:
    assert _holds_tensors([1, (2, [ONE])]) and _holds_tensors((ONE, 1))
    assert not _holds_tensors(ONE) and not _holds_tensors([]) and not _holds_tensors({"a": ONE})


def test_a_shape_that_numbers_decide_is_seen() -> None:
    index = aten.index.Tensor
    for dtype, shows in ((torch.bool, True), (torch.uint8, True), (torch.long, False)):
        assert shows_numbers(index, (ONE, [None, ONE.to(dtype)])) is shows
    assert not shows_numbers(index, (ONE, [None]))
    assert shows_numbers(aten._pack_padded_sequence.default, ())
    assert shows_numbers(aten.nonzero.default, ()) and shows_numbers(
        aten._local_scalar_dense.default, ()
    )
    assert not shows_numbers(aten.add.Tensor, ())


def test_ways_out_of_torch_are_as_before_when_nobody_looks_any_more() -> None:
    before = torch.to_dlpack
    with Reads() as reads:
        assert torch.to_dlpack is not before and not reads.noticed
        torch.ones(2) + 1
        assert not reads.noticed
        ONE.tolist()
        assert reads.noticed
    assert torch.to_dlpack is before
    ONE.tolist()
    with Reads() as again:
        torch.to_dlpack(ONE)
    assert again.noticed


def program(constants: dict[int, Tensor], version: int = 0, **changes: Any) -> Program:
    versions = dict.fromkeys(constants, version)
    return replace(Program((), (), (0,), 1, constants, versions, (), ()), **changes)


def test_programs_are_the_same_if_their_operations_and_constants_are() -> None:
    own = program({1: ONE})
    assert own.same_as(own) and own.same_as(program({1: ONE.clone()}))
    assert own.same_as(program({1: ONE, 2: ONE})) and program({}).same_as(own)
    others = [
        program({}), program({2: ONE}), program({1: ONE + 1}), program({1: ONE}, version=1),
        program({1: ONE}, inputs=(1,)), program({1: ONE}, first=("view",)),
        program({1: ONE}, operations=("add",)),
    ]  # fmt: skip
    assert not any(own.same_as(other) for other in others)


class Overwriting(nn.Linear):
    """Writes into what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


def test_a_pass_that_is_only_looked_at_writes_to_copies() -> None:
    net = Net.of(lambda: Overwriting(2, 2))
    x = torch.ones(3, 2)
    assert keeps_outside(net, net.init(0), x) == "" and torch.equal(x, torch.ones(3, 2))


def test_the_states_of_lanes_before_are_left_as_they_were() -> None:
    slots = {"model": {"w": ONE}}
    before = State(2, slots, {"model": {"mean": {"w": ONE}}}, {})
    other = State(7, dict(slots), dict(before.memory), {})
    after = replace(
        before,
        server={"model": {"w": torch.tensor([3.0, 4.0])}},
        memory={"model": {"mean": {"w": torch.tensor([5.0, 6.0])}}},
    )
    ends = _split_lanes(after, [before, other])
    assert [own.round for own in ends] == [3, 8]
    assert [own.memory["model"]["mean"]["w"].tolist() for own in ends] == [[5], [6]]
    assert [own.server["model"]["w"].tolist() for own in ends] == [[3], [4]]
    for own in (before, other):
        assert own.server["model"]["w"] is ONE and own.memory["model"]["mean"]["w"] is ONE


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("unclear", ["", "odd numbers"])
def test_a_report_is_required_for_the_engine_that_trains(
    mapped: bool, unclear: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(NetReport, "require", lambda self, engine: asked.append(engine))
    monkeypatch.setattr(NetReport, "why_not", lambda self, engine: f"not {engine}")
    monkeypatch.setattr(check, "_report_on", lambda *given: NetReport(unclear=unclear))
    monkeypatch.setattr(check, "_keep_from_stacks", lambda *given: given)
    net: Any = SimpleNamespace(template=nn.Identity())
    found: Any = check._check_all(net, ONE, mapped)
    assert asked == ["vectorised" if mapped else "sequential"]
    text = "the net Identity could not be checked against plain PyTorch: odd numbers"
    assert found == (text if unclear else (net, "not vectorised", mapped))


def test_blocks_that_are_missing_are_looked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    note = lambda where, blocks, names: asked.append((where, [*names]))
    monkeypatch.setattr(rehearsal, "check_all_blocks", note)
    monkeypatch.setattr(Job, "kept_blocks", ["z", "model", "a"])
    experiment = Experiment.of(FedAvg(small_net()), small_federation())
    assert Rehearsal(experiment, "all", [0, 1], experiment.start(), True).play() == []
    assert ("FedAvg.finish", ["a", "model", "z"]) in asked


def test_to_a_gpu_is_copied_from_pinned_memory_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = lambda name: SimpleNamespace(to=lambda device, **how: (name, device.type, how))
    monkeypatch.setattr(devices, "pinned", lambda given: answer(f"pinned {given.name}"))
    values: Any = SimpleNamespace(name="keys", to=answer("plain").to)
    assert devices.send(values, torch.device("cuda")) == (  # type: ignore[comparison-overlap]
        "pinned keys",
        "cuda",
        {"non_blocking": True},
    )
    assert devices.send(values, torch.device("cpu")) == ("plain", "cpu", {})  # type: ignore[comparison-overlap]


TABLE = torch.arange(12).reshape(3, 4)


@pytest.mark.parametrize(
    "values",
    [
        TABLE,
        TABLE.T,  # not in the order of memory
        TABLE[:, ::2],
        TABLE[:1].expand(5, 4),
        torch.tensor(7.5, dtype=torch.float64),  # no dimension
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([[1.5], [-0.0]], dtype=torch.bfloat16),  # which numpy has not
    ],
    ids=lambda values: f"{values.dtype}{[*values.shape]}",
)
def test_a_pinned_copy_has_all_values_in_memory_of_its_own(
    values: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    plain = torch.empty

    def empty(*shape: Any, pin_memory: bool, **how: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return plain(*shape, **how)

    monkeypatch.setattr(torch, "empty", empty)
    copied = devices.pinned(values)
    assert asked == [True] and copied.is_contiguous()
    assert copied.dtype == values.dtype and torch.equal(copied, values)
    assert copied.data_ptr() != values.data_ptr() or not values.numel()


@pytest.mark.parametrize("error", [None, ValueError("odd")])
def test_an_early_end_holds_what_was_concluded_or_the_error(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(*given: Any) -> str:
        assert given == ("methods", "state", "reduced", "capped", {"a": "cohort"})
        if error is not None:
            raise error
        return "end"

    monkeypatch.setattr(speculation, "conclude", conclude)
    monkeypatch.setattr(
        speculation,
        "cap_groups",
        lambda own, share: (own, share) == ({"a": "up"}, 0.5) and "capped",
    )
    monkeypatch.setattr(speculation, "private_by_client", lambda own, gone: (own, gone))
    own = SimpleNamespace(uploads="up", job=SimpleNamespace(cohort="cohort"))
    given: Any = ("methods", "state", {"a": own}, 0.5, "reduced", "examinations")
    found: Any = speculation.conclude_early(*given)
    assert (found.state, found.error) == ("reduced" if error else "end", error)
    assert found.examinations == "examinations" and found.private == ({"a": own}, set())


def test_what_engines_run_is_known_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of names, without what is no code of an engine."""
    names = ("core/b.py", "core/a/z.py", "engines/e.py", "kernels/k.py", "layers/l.py")
    for name in (*names, "runs/r.py", "core/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(fedblocks.core, "__file__", str(tmp_path / "core" / "__init__.py"))
    wanted = "core/a/z.py" + "".join(names).replace("core/a/z.py", "")
    assert source_digest.__wrapped__() == sha256(wanted.encode()).hexdigest()


def test_the_order_of_rows_is_drawn_for_each_client_phase_and_epoch() -> None:
    draw = Draw(seed=1, round=2, client=3, purpose="adapt")
    method = FedAvg(small_net(), batch_size=4)
    phase = replace(method.phases()[0], epochs=2, steps=None)
    found = [rows.tolist() for rows in batches(method, phase, 5, 6, draw)]
    orders = [generator(1, 2, 3, "adapt", 5, epoch).permutation(6).tolist() for epoch in (0, 1)]
    assert found == [part for own in orders for part in (own[:4], own[4:])]
    assert batches(method, phase, 5, 0, draw) == []


def test_starts_are_compared_by_one_seed() -> None:
    assert properties.unlike_starts(Net.of(lambda: nn.Linear(2, 2))) == ""
    seeds: list[int] = []
    start = lambda seed: seeds.append(seed) or {"w": ONE, "v": torch.full((1,), len(seeds))}
    net: Any = SimpleNamespace(init=start)
    assert properties.unlike_starts(net) == '"v" was drawn otherwise' and len({*seeds}) == 1


class Alone:
    """A net of which an example's answer differs by 0.5 in other company."""

    starts = ("start",)
    x = torch.zeros(9, 1)
    module = nn.Identity()

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def net(self, start: Any, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 1) if len(x) == 4 else torch.full((len(x), 1), 0.5)


@pytest.mark.parametrize(("tolerance", "says"), [(0.5, ""), (0.49, properties.DEPENDS)])
def test_answers_may_differ_by_what_is_tolerated(tolerance: float, says: str) -> None:
    assert properties._answers_each(Alone(tolerance), "vectorised") == says  # type: ignore[arg-type]
    assert properties._answers_each(Alone(tolerance), "sequential") == ""  # type: ignore[arg-type]
