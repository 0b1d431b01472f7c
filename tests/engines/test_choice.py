"""Which engine suits a net, a device and a cohort: the borders, and what is handed on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedblocks import Net
from fedblocks.engines.auto import choose as module
from fedblocks.engines.auto.choose import choose
from fedblocks.engines.net_check.check import check_net
from fedblocks.engines.processes.shared_memory import put
from fedblocks.engines.replay.rewriting import _bits
from fedblocks.engines.sequential import Sequential, _put
from fedblocks.engines.vectorised import Vectorised

CPU = torch.device("cpu")


def dense(wide: int) -> Net:
    return Net.of(lambda: nn.Sequential(nn.Linear(9, wide), nn.Linear(wide, 2)))


def convolutional(wide: int) -> Net:
    layers = (nn.Conv1d(1, wide, 3), nn.Flatten(), nn.Linear(7 * wide, 2))
    return Net.of(lambda: nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("cohort", "is_stacked"), [(1, False), (3, False), (4, True), (5, True), (100, True)]
)
def test_from_four_clients_on_a_stack_is_worth_it(cohort: int, is_stacked: bool) -> None:
    engine, why = choose(dense(4), CPU, cohort, chunk=7)
    assert isinstance(engine, Vectorised if is_stacked else Sequential)
    if isinstance(engine, Vectorised):
        assert engine.chunk == 7
        assert why == f"a small net (50 parameters): a stack of {cohort} clients is faster"
    else:
        assert why == f"on a CPU {cohort} clients are too few to gain from a stack"


@pytest.mark.parametrize(("make", "kind"), [(dense, "dense"), (convolutional, "convolutional")])
def test_nets_up_to_a_size_of_their_kind_are_stacked(
    make: type, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = make(4)
    name = "MOST_DENSE" if kind == "dense" else "MOST_CONVOLUTIONAL"
    monkeypatch.setattr(module, name, net.size())
    assert isinstance(choose(net, CPU, 10)[0], Vectorised)
    monkeypatch.setattr(module, name, net.size() - 1)
    engine, why = choose(net, CPU, 10)
    assert isinstance(engine, Sequential)
    said = f"a {kind} net of {net.size():,} parameters"
    assert why == f"on a CPU {said} is faster one client at a time"


def test_a_gpu_takes_a_whole_cohort_and_keeps_the_chunk() -> None:
    engine, why = choose(dense(4), torch.device("cuda"), 1, chunk=5)
    assert isinstance(engine, Vectorised) and engine.chunk == 5
    assert why == "a GPU trains a whole cohort at once (cuda)"


def test_what_a_client_hands_back_is_kept_without_its_history() -> None:
    learned = torch.ones(2, requires_grad=True) * 3
    for count in (1, 2):
        stack: dict[str, dict[str, torch.Tensor]] = {}
        for member in range(count):
            _put(stack, {"model": {"w": learned + member}}, member, count)
        kept = stack["model"]["w"]
        assert kept.tolist() == [[3.0, 3.0], [4.0, 4.0]][:count] and not kept.requires_grad
    tree = {"model": {"w": torch.zeros(2, 2)}}
    put(tree, 1, {"model": {"w": learned[None]}})
    assert tree["model"]["w"].tolist() == [[0.0, 0.0], [3.0, 3.0]]
    assert not tree["model"]["w"].requires_grad


def test_a_module_that_cannot_take_its_inputs_is_refused_with_what_to_do() -> None:
    report = check_net(Net.of(lambda: nn.Linear(5, 3)), torch.ones(21, 4))
    assert report.refusal.startswith("the module cannot take inputs of shape [4]: mat1 and mat2")
    assert report.fix == "try it on a few examples in plain PyTorch" and report.engines == ()


def test_bits_are_those_of_the_numbers_in_their_order() -> None:
    turned = torch.arange(6.0).view(2, 3).T
    assert torch.equal(
        _bits(turned),
        turned.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8),
    )
    assert not torch.equal(_bits(torch.tensor([0.0])), _bits(torch.tensor([-0.0])))
