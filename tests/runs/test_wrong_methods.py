"""Own methods with a mistake end in a sentence that names the function and what to write, before
the first round or in it, and never in a traceback or as "a bug".
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.cli import main
from fedblocks.engines import rehearsal
from fedblocks.methods import METHODS
from fedblocks.runs.progress import RunWarning
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS
from tests.runs.wrong_methods import RIGHT, WRONG, Wrong

CONFIG = """
rounds = 1
device = "cpu"
[data]
name = "gaussian"
clients = 4
options = { rows = 80, classes = 2, features = 3 }
[net]
name = "mlp"
hidden = [4]
[method]
name = "odd"
batch_size = 8
"""


@pytest.fixture
def own_method() -> Iterator[None]:
    yield
    METHODS.pop("odd", None)


@pytest.fixture
def fresh_name(own_method: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return "odd"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_method_is_refused_with_its_function_and_what_to_write(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_method: None,
) -> None:
    wrong: Wrong = WRONG[name]
    monkeypatch.chdir(tmp_path)
    body = textwrap.indent(wrong.body, "    ")
    Path("odd.py").write_text(f'{RIGHT}\n{body}\n\nfb.METHODS["odd"] = Odd\n')
    Path("odd.toml").write_text(CONFIG)
    with pytest.raises(SystemExit) as stop:
        main(["run", "odd.toml", "--code", "odd.py", "--out", "run"])
    said = capsys.readouterr().err.replace("\n", " ")
    assert stop.value.code == 2, said
    assert "odd" in said.lower() and wrong.where in said and wrong.said in said.replace("  ", " ")
    assert "fix:" in said
    assert "bug" not in said and "Traceback" not in said


@pytest.mark.parametrize("value", [7, lambda net: fb.FedAvg(net), fb.Net])
def test_what_is_no_method_is_not_taken_for_one(
    value: object,
    fresh_name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fb.METHODS[fresh_name] = value  # type: ignore[assignment]
    with pytest.raises(SystemExit) as stop:
        main(["run", "digits-fedavg", "--set", f"method.name={fresh_name}"])
    assert stop.value.code == 2
    assert 'method "odd" is not a method' in capsys.readouterr().err


def test_the_method_that_they_start_from_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_method: None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(f'{RIGHT}\n\nfb.METHODS["odd"] = Odd\n')
    Path("odd.toml").write_text(CONFIG)
    with pytest.raises(SystemExit) as stop:
        main(["run", "odd.toml", "--code", "odd.py", "--out", "run"])
    assert not stop.value.code


@pytest.mark.parametrize("name", [*EXAMPLES, *ADAPTERS])
def test_no_method_of_the_library_would_be_refused_or_warned_of(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not rehearsed; somebody's method that does what they do is."""
    monkeypatch.setattr(rehearsal, "is_own", lambda method: True)
    example = (EXAMPLES | ADAPTERS)[name]()
    assert rehearsal.rehearse(example.experiment(), list(example.everybody)) == []


@dataclass(frozen=True, eq=False)
class Idle(fb.Method):
    """Says that it trains "more", which nothing uses."""

    def blocks(self) -> dict[str, fb.Block]:
        more = fb.Private(fb.Value(torch.zeros(2)))
        return {"model": fb.Shared(self.net.whole), "more": more}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model", "more"),), self.epochs)]


class Late(Idle):
    """Fails where a client is evaluated."""

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model"),), self.epochs)]

    def prepare(self, blocks: fb.Blocks, client: fb.Client) -> fb.Blocks:
        if not client.training:
            raise LookupError("no such word")
        return blocks


def rows(clients: int = 4) -> fb.Federation:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    return fb.Federation.from_users(x, (x[:, 0] > 0).astype(int), np.arange(80) % clients)


def small() -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))


def test_a_block_that_trains_without_a_gradient_is_named_once(tmp_path: Path) -> None:
    with pytest.warns(RunWarning) as seen:
        fb.run(Idle(small(), batch_size=8), rows(), rounds=3, out=tmp_path / "run")
    texts = [str(one.message) for one in seen if "gradient" in str(one.message)]
    assert texts == [
        'Idle: block "more" gets no gradient in phase 1 of `phases`: leave it out of the step, or '
        "use it in the loss"
    ]


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes"])
def test_an_error_after_the_rehearsal_is_told_with_its_function_and_line(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedblocks.runs.build.rehearse", lambda *rest: [])
    with pytest.raises(fb.UserError) as error:
        fb.run(Late(small(), batch_size=8), rows(), 1, tmp_path / "run", engine=engine)
    assert "Late.prepare failed: LookupError: no such word (test_wrong_methods.py, line" in str(
        error.value
    )


def test_a_net_is_never_called_with_some_of_its_tensors_or_with_others() -> None:
    net, x = small(), torch.zeros(2, 3)
    whole = net.init(0)
    body = {name: whole[name] for name in net.body.names}
    with pytest.raises(fb.UserError, match=r'the net was called without "2.weight", "2.bias"'):
        net(body, x)
    with pytest.raises(fb.UserError, match=r'the net was called without "2.weight", "2.bias"'):
        net.with_features(body, x)
    with pytest.raises(fb.UserError, match=r'the net has no tensor "3.weight"'):
        net({**whole, "3.weight": x}, x)
    assert torch.equal(net.features(body, x), net.with_features(whole, x)[1])
    head = {name: whole[name] for name in net.head.names}
    with pytest.raises(fb.UserError, match=r'the net was called without "0.weight", "0.bias"'):
        net.features(head, x)
