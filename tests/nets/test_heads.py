"""The head of a net is the layer that its forward pass uses last, whatever the order of
declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.cuts import last_layer


class Auxiliary(nn.Module):
    """A layer that only another training would use is declared last."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out, self.aux = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x)))  # type: ignore[no-any-return]


class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.inp = nn.Linear(8, 2), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x)))  # type: ignore[no-any-return]


class Several(Auxiliary):
    """Returns what the auxiliary layer says beside the logits."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        h = torch.relu(self.inp(x))
        return {"logits": self.out(h), "aux": self.aux(h)}


class Branching(Reversed):
    """Its code depends on numbers, so that it cannot be followed without an input."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        return self.out(torch.relu(h) if float(h.detach().sum()) > 0 else h)  # type: ignore[no-any-return]


class Functional(Auxiliary):
    """Uses the weights of its last layer without calling it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inp(x)) @ self.out.weight.T + self.out.bias


def some_data() -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    users = np.repeat(np.arange(4), 20)
    return fb.Federation.from_users(x, np.where(users % 2, y, 1 - y), users)


@pytest.mark.parametrize("module", [Auxiliary, Reversed, Functional])
def test_the_head_is_the_layer_that_is_used_last(module: type[nn.Module]) -> None:
    net = fb.Net.of(module)
    assert last_layer(net.template) != "out"
    assert net.head.names == ("out.weight", "out.bias")


def test_only_what_the_logits_depend_on_can_be_the_head() -> None:
    assert fb.Net.of(Several, output="logits").head_module == "out"
    assert fb.Net.of(Several, output="aux").head_module == "aux"


def test_finding_the_head_changes_neither_the_module_nor_torchs_randomness() -> None:
    net = fb.Net.of(Auxiliary)
    state, before = torch.get_rng_state(), {**net.template.state_dict()}
    assert net.head_module == "out"
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in net.template.state_dict().items())


def test_a_named_head_that_the_logits_do_not_depend_on_is_refused_with_another() -> None:
    net = fb.Net.of(Auxiliary, head="aux")
    with pytest.raises(fb.NetError, match='do not depend on the head of the net, "aux"') as error:
        fb.FedPer(net, lr=0.1).blocks()
    assert error.value.fix.endswith('Net.of(..., head="out")')


@pytest.mark.parametrize("method", [fb.FedPer, fb.FedRep])
def test_a_layer_that_nobody_uses_does_not_make_a_method_another_one(
    method: type[fb.Method], tmp_path: Path
) -> None:
    data = some_data()
    scores = [
        fb.run(method(fb.Net.of(Auxiliary, head=head), lr=0.1), data, 2, tmp_path / str(head))
        for head in (None, "out")
    ]
    assert scores[0].accuracies() == scores[1].accuracies()


def test_a_run_says_which_layer_is_the_head_if_its_method_cuts_there(tmp_path: Path) -> None:
    texts: dict[str, list[str]] = {"per": [], "avg": []}
    for name, method in (("per", fb.FedPer), ("avg", fb.FedAvg)):
        hear = lambda note, own=texts[name]: own.append(note.text)
        own = method(fb.Net.of(Auxiliary), lr=0.1)
        fb.run(own, some_data(), 1, tmp_path / name, on_note=hear)
    assert 'head of the net: "out"' in texts["per"]
    assert not any("head of the net" in text for text in texts["avg"])


def test_a_net_whose_code_cannot_be_followed_warns_if_another_layer_runs_last(
    tmp_path: Path,
) -> None:
    warned: list[str] = []
    hear = lambda note: warned.append(note.text) if note.level == "warning" else None
    fb.run(fb.FedPer(fb.Net.of(Branching), lr=0.1), some_data(), 1, tmp_path / "run", on_note=hear)
    assert any('"out" runs last: name it, Net.of(..., head="out")' in text for text in warned)


def test_a_step_whose_loss_does_not_depend_on_its_blocks_is_refused(tmp_path: Path) -> None:
    class Unused(Branching):
        def __init__(self) -> None:
            super().__init__()
            self.aux = nn.Linear(8, 3)

    with pytest.raises(fb.NetError, match='a step trains "head", on which its loss does not'):
        fb.run(fb.FedRep(fb.Net.of(Unused), lr=0.1), some_data(), 1, tmp_path / "run")


class Tied(nn.Module):
    """Its output layer has the weights of its first, and no tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.mid, self.out = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.out.weight = self.inp.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))  # type: ignore[no-any-return]


MIXED = [  # net -> what one layer from the output on, and what two hold
    (Reversed, {"out"}, {"out", "inp"}),
    (Auxiliary, {"out"}, {"out", "inp"}),  # the auxiliary layer is used by nobody
    (Functional, {"out"}, {"out", "inp"}),
    (Tied, {"inp"}, {"inp", "mid"}),
    (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), {"2"}, {*"012"}),
]


@pytest.mark.parametrize(("make", "one", "two"), MIXED)
def test_layers_are_counted_from_the_output_in_the_order_of_use(
    make: Callable[[], nn.Module], one: set[str], two: set[str]
) -> None:
    for top, wanted in ((1, one), (2, two)):
        mixed = fb.FedALA(fb.Net.of(make), lr=0.1, top=top).mixed
        assert {name.rpartition(".")[0] for name in mixed.names} == wanted


def test_where_the_code_shows_no_order_a_named_head_is_counted_first(tmp_path: Path) -> None:
    named = fb.FedALA(fb.Net.of(Branching, head="out"), lr=0.1)
    assert named.mixed.names == ("out.weight", "out.bias")
    with pytest.warns(UserWarning, match='but "out" runs last: name it'):
        fb.run(fb.FedALA(fb.Net.of(Branching), lr=0.1), some_data(), 1, tmp_path / "run")


def test_only_layers_in_use_can_be_mixed() -> None:
    with pytest.raises(fb.UserError, match="the net uses 2 linear layers"):
        fb.FedALA(fb.Net.of(Auxiliary), lr=0.1, top=3)


def test_fedala_is_the_same_whatever_the_order_of_declaration(tmp_path: Path) -> None:
    class Straight(Reversed):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = self._modules.pop("inp"), self._modules.pop("out")  # type: ignore[assignment]

    torch.manual_seed(0)
    straight, other = Straight(), Reversed()
    other.load_state_dict(straight.state_dict())
    losses = []
    for number, module in enumerate((straight, other)):
        method = fb.FedALA(fb.Net.of(module, keep_weights=True), lr=0.5, mixing_lr=50.0)
        run = fb.run(method, some_data(), 4, tmp_path / str(number), engine="sequential")
        losses.append(run.summary()["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
