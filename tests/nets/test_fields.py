"""Modules with several inputs: by name, by place, as a dictionary or as a tuple."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.fields import Fields
from fedblocks.data import Parts

ROWS, USERS = 40, 4


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Both(nn.Module):
    """Words and numbers of an example; its subclasses differ in how they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.numbers = nn.Linear(6, 4)
        self.out = nn.Linear(8, 3)

    def join(self, tokens: Tensor, signal: Tensor) -> Tensor:
        assert tokens.dtype == torch.int64 and tokens.shape[-1] == 5
        assert signal.shape[-2:] == (2, 3)
        words = self.words(tokens).mean(-2)
        return self.out(torch.cat([words, self.numbers(signal.flatten(-2))], -1).tanh())


class ByName(Both):
    def forward(self, signal: Tensor, tokens: Tensor, scale: float = 1.0) -> Tensor:
        return self.join(tokens, signal) * scale


class ByPlace(Both):
    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first, self.join(first, second)


class ByDictionary(Both):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.join(batch["tokens"], batch["signal"])}


class ByTuple(Both):
    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.join(*batch)


class ByKeywords(Both):
    def forward(self, **inputs: Tensor) -> Tensor:
        return self.join(inputs["tokens"], inputs["signal"])


def arrays() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens, signal = rng.integers(0, 11, (ROWS, 5)), rng.normal(size=(ROWS, 2, 3))
    y = (tokens.sum(1) + (signal.sum((1, 2)) > 0)) % 3
    return {"tokens": tokens, "signal": signal}, y, np.arange(ROWS) % USERS


KINDS: dict[type[Both], Any] = {
    ByName: None,
    ByPlace: 1,
    ByDictionary: "logits",
    ByTuple: None,
    ByKeywords: None,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_is_given_its_inputs_as_it_takes_them(kind: type[Both]) -> None:
    inputs, y, users = arrays()
    x: Any = tuple(inputs.values()) if kind is ByTuple else inputs
    data = fb.Federation.from_users(x, y, users)
    net = fb.Net.of(kind, inputs=data.fields, output=KINDS[kind])
    params = net.init(0)
    module = kind()
    module.load_state_dict(params)
    tokens, signal = torch.from_numpy(inputs["tokens"]), torch.from_numpy(inputs["signal"]).float()
    assert torch.allclose(net(params, data.x), module.join(tokens, signal), atol=1e-6)
    assert fb.check_net(net, data.x).engines == ("sequential", "vectorised")
    assert fb.check_net(net).engines == ("sequential", "vectorised")


def test_rows_of_several_fields_are_cut_into_body_and_head_and_trained() -> None:
    inputs, y, users = arrays()
    data = fb.Federation.from_users(inputs, y, users)
    method = fb.FedPer(fb.Net.of(ByName, inputs=data.fields), lr=0.1)
    assert method.net.head_module == "out"
    first = fb.run(method, data, rounds=2, engine="sequential")
    other = fb.run(method, data, rounds=2, engine="vectorised")
    one, two = dict(first.summary()), dict(other.summary())
    assert one.pop("loss") == pytest.approx(two.pop("loss"), rel=1e-6)  # sums in another order
    assert one == two


def test_whole_numbers_alone_stay_whole_and_beside_fractions_they_come_back_whole() -> None:
    fields = Fields.of({"a": torch.arange(4).reshape(2, 2), "b": torch.ones(2, dtype=torch.long)})
    assert fields.dtype == torch.int64 and fields.sizes == [2, 1]
    mixed = Fields.of((torch.tensor([[2**24]]), torch.tensor([[[0.5]]])))
    rows = mixed.pack((torch.tensor([[2**24]]), torch.tensor([[[0.5]]])))
    whole, half = mixed.unpack(rows)
    assert whole.tolist() == [[2**24]] and whole.dtype == torch.int64
    assert half.tolist() == [[[0.5]]]
    assert Fields.from_table(mixed.table()) == mixed


def test_whole_numbers_that_float32_does_not_hold_are_refused() -> None:
    large = {"id": np.array([2**24 + 1, 0]), "size": np.array([0.5, 1.5])}
    with pytest.raises(fb.DataError, match="id has whole numbers above 16777216"):
        fb.Federation.from_users(large, [0, 1], [0, 1])


def test_fields_of_unlike_length_are_refused() -> None:
    inputs, y, users = arrays()
    inputs["signal"] = inputs["signal"][:-1]
    with pytest.raises(fb.DataError, match="tokens has 40 rows and signal has 39"):
        fb.Federation.from_users(inputs, y, users)


def test_a_module_without_parameters_for_the_fields_is_refused() -> None:
    class Three(Both):
        def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return self.join(a, b)

    inputs, y, users = arrays()
    data = fb.Federation.from_users(inputs, y, users)
    with pytest.raises(fb.NetError, match=r"takes \(a, b, c\), and the inputs are tokens, signal"):
        fb.Net.of(Three, inputs=data.fields)


def test_clients_that_bring_their_own_arrays_may_have_fields() -> None:
    inputs, y, _ = arrays()
    some = lambda rows: ({name: values[rows] for name, values in inputs.items()}, y[rows])
    parts = [Parts(train=some(slice(0, 20))), Parts(train=some(slice(20, 40)))]
    data = fb.Federation.from_parts(parts)
    whole = fb.Federation.from_users(inputs, y, np.arange(ROWS) // 20)
    assert data.fields == whole.fields and torch.equal(data.x, whole.x)
    turned = ({name: inputs[name][20:] for name in ("signal", "tokens")}, y[20:])
    with pytest.raises(fb.DataError, match="the fields of the inputs differ"):
        fb.Federation.from_parts([parts[0], Parts(train=turned)])


def test_fields_survive_saving(tmp_path: Path) -> None:
    inputs, y, users = arrays()
    data = fb.Federation.from_users(inputs, y, users)
    data.save(tmp_path / "data.npz")
    assert fb.Federation.load(tmp_path / "data.npz").fields == data.fields
    assert data.fields is not None and data.fields.names == ("tokens", "signal")


def test_a_net_that_does_not_know_of_the_fields_is_refused_with_what_to_write() -> None:
    inputs, y, users = arrays()
    data = fb.Federation.from_users(inputs, y, users)
    with pytest.raises(fb.UserError) as caught:
        fb.run(fb.FedAvg(fb.Net.of(ByName), lr=0.1), data, rounds=1)
    assert "inputs=data.fields" in caught.value.fix


def test_a_mask_of_bytes_is_ones_and_zeros_and_a_picture_of_bytes_is_scaled() -> None:
    x = {"mask": np.array([[1, 0]], "uint8"), "image": np.full((1, 3, 2, 2), 255, "uint8")}
    data = fb.Federation.from_users(x, [0], [0], allow_empty=True)
    assert data.x.tolist() == [[1.0, 0.0, *[1.0] * 12]]


def test_adapters_fit_a_net_with_fields() -> None:
    inputs, y, users = arrays()
    data = fb.Federation.from_users(inputs, y, users)
    net = fb.lora(fb.Net.of(ByName, inputs=data.fields), rank=2, head="out")
    run = fb.run(fb.FedAvg(net, lr=0.1), data, rounds=1)
    assert run.summary()


@pytest.mark.parametrize("inputs", [("tokens",), "tokens", {"tokens": 3}])
def test_names_alone_are_no_fields(inputs: Any) -> None:
    with pytest.raises(fb.NetError, match=r"inputs= is a .*, not the fields") as error:
        fb.Net.of(ByTuple, inputs=inputs)
    assert "inputs=data.fields" in error.value.fix
