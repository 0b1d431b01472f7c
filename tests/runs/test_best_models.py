"""The models of the round that did best on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.cli import main
from fedblocks.nets import mlp


def some_data() -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype("float32")
    y = (x[:, 0] > 0) ^ (rng.random(200) < 0.3)
    return fb.Federation.from_users(x, y * 1, np.arange(200) % 4, split=(0.3, 0.4, 0.3))


def method() -> fb.FedAvg:
    return fb.FedAvg(mlp((6,), 2, hidden=(32,)), lr=1.0, epochs=3, batch_size=4)


def played(out: Path, **settings: Any) -> tuple[fb.RunResult, dict[int, torch.Tensor]]:
    """A run that gets worse again, and a tensor of the model after every round."""
    weights: dict[int, torch.Tensor] = {}

    def note(done: fb.EvaluationDone) -> None:
        weights[done.round] = next(iter(done.state.server["model"].values())).clone()

    return fb.run(method(), some_data(), 8, out, on_evaluation=note, **settings), weights


def test_the_best_models_are_those_of_the_best_round(tmp_path: Path) -> None:
    run, weights = played(tmp_path / "run")
    assert run.best is not None and run.best.round < 8
    best = next(iter(run.state("best").server["model"].values()))
    assert torch.equal(best, weights[run.best.round]) and run.state("best").round == run.best.round
    assert torch.equal(next(iter(run.state().server["model"].values())), weights[8])
    model = fb.personal(run, 0, method(), some_data(), which="best")
    assert model.round == run.best.round
    with pytest.raises(fb.UserError, match="there is no checkpoint 'first'"):
        run.state("first")  # type: ignore[arg-type]


def test_a_best_round_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    run, _ = played(tmp_path / "run", checkpoint=8)
    assert run.best is not None
    with pytest.raises(fb.CheckpointError, match=r"no models of round .*: checkpoints are of") as e:
        run.state("best")
    assert "checkpoint.every = evaluation.every" in e.value.fix


def test_a_run_without_validation_has_no_best_models(tmp_path: Path) -> None:
    run, _ = played(tmp_path / "run", evaluation={"parts": ["test"]})
    with pytest.raises(fb.UserError, match="was not evaluated on validation data"):
        run.state("best")


def test_the_command_exports_the_best_model(tmp_path: Path) -> None:
    config = fb.read_config("digits-fedavg", ["rounds=6", "data.clients=4", "method.lr=3.0"])
    run = fb.run(config, tmp_path / "run")
    assert run.best is not None
    out = tmp_path / "m.safetensors"
    with pytest.raises(SystemExit) as end:
        main(["export", str(run.folder), "--client", "0", "--best", "--out", str(out)])
    assert not end.value.code
    card = out.with_name("m.safetensors.md").read_text()
    assert f"| rounds of training | {run.best.round} |" in card and "--best" in card


def test_adapters_for_peft_are_of_the_last_round_or_the_best(tmp_path: Path) -> None:
    torch.manual_seed(0)  # of the base
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    tuned = fb.FedAvgLoRA(fb.lora(module, rank=2), lr=1.0)
    data = fb.small_federation(dtype=torch.float32)
    run = fb.run(tuned, data, 6, tmp_path / "run")
    assert run.best is not None and run.best.round < 6
    for which in ("last", "best"):
        folder = fb.export_peft(run, 0, tmp_path / which, tuned, data, which=which)  # type: ignore[arg-type]
        written = fb.read_peft(tuned.net, folder)
        server = run.state(which).server  # type: ignore[arg-type]
        ours = {name: value for block in server.values() for name, value in block.items()}
        assert ours and all(torch.equal(written[name], ours[name][0]) for name in ours)
