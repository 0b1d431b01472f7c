"""Clients are compared by number with those of a reference: of the same data, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.nets import mlp
from fedblocks.runs.storage.folder import RunFolder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 6)).astype("float32")
Y, USERS = RNG.integers(0, 3, 200), np.arange(200) % 5
NET = mlp((6,), 3, hidden=(4,))
SAME = fb.Federation.from_users(X, Y, USERS)
NAMED = fb.Federation.from_users(X, Y, np.array([*"abcde"])[USERS])  # the same rows by number
OTHERS = {
    "another split": fb.Federation.from_users(X, Y, USERS, seed=5),
    "other rows": fb.Federation.from_users(-X[::-1].copy(), Y, np.array([*"vwxyz"])[USERS]),
}


def trained(kind: type[fb.Method], data: fb.Federation, out: Path, seed: int = 0) -> fb.RunResult:
    return fb.run(kind(NET, lr=0.1), data, rounds=1, out=out, seed=seed)


def test_a_reference_on_the_same_data_is_taken_whatever_its_seed(tmp_path: Path) -> None:
    local = trained(fb.Local, SAME, tmp_path / "local", seed=3)
    for name, data in (("same", SAME), ("named", NAMED)):
        run = trained(fb.FedAvg, data, tmp_path / name)
        below = np.mean([run.accuracies()[c] < local.accuracies()[c] for c in range(5)])
        assert run.summary(reference=local)["share_below_reference"] == below


def test_models_are_compared_with_those_of_the_same_name_in_the_reference(tmp_path: Path) -> None:
    options = {"lr": 0.01, "personal_lr": 3.0, "personal_epochs": 5}
    run, other = (
        fb.run(fb.Ditto(NET, **options), SAME, rounds=2, out=tmp_path / str(seed), seed=seed)
        for seed in (0, 3)
    )
    for view in ("personal", "shared"):
        ours, theirs = run.accuracies(view=view), other.accuracies(view=view)
        below = np.mean([ours[c] < theirs[c] for c in range(5)])
        assert run.summary(view=view, reference=other)["share_below_reference"] == below
    crossed = np.mean([run.accuracies(view="shared")[c] < other.accuracies()[c] for c in range(5)])
    assert crossed != below


@pytest.mark.parametrize("name", OTHERS)
def test_a_reference_on_other_data_is_refused(name: str, tmp_path: Path) -> None:
    local = trained(fb.Local, SAME, tmp_path / "local")
    run = trained(fb.FedAvg, OTHERS[name], tmp_path / "run")
    with pytest.raises(fb.DataError, match="local was not trained on the data of"):
        run.summary(reference=local)
    with pytest.raises(fb.DataError, match="have the same seed but not the same data"):
        fb.leaderboard({"local": local, "fedavg": run})


def test_runs_of_several_seeds_with_data_of_their_own_share_a_leaderboard(tmp_path: Path) -> None:
    first = trained(fb.FedAvg, SAME, tmp_path / "a")
    second = trained(fb.FedAvg, OTHERS["another split"], tmp_path / "b", seed=1)
    assert len(fb.leaderboard({"a": first, "b": second})) == 2
    with pytest.raises(fb.DataError, match="was not trained on the data of"):
        fb.leaderboard({"a": first, "b": second}, reference="a")


def test_a_record_that_does_not_say_its_data_is_taken_as_a_reference(tmp_path: Path) -> None:
    local = trained(fb.Local, OTHERS["other rows"], tmp_path / "local")
    with RunFolder.open(local.folder) as folder:
        folder.store.set_meta("federation", "")
    run = trained(fb.FedAvg, SAME, tmp_path / "run")
    assert run.summary(reference=local)["share_below_reference"] is not None


def test_a_view_that_only_the_reference_lacks_is_said_to_be_lacking_there(tmp_path: Path) -> None:
    local = trained(fb.Local, SAME, tmp_path / "local")
    run = trained(fb.Ditto, SAME, tmp_path / "run")
    with pytest.raises(fb.UserError, match='the reference run: view = "shared": ') as caught:
        run.summary(view="shared", reference=local)
    assert "those of the reference that it has" in caught.value.fix
    other = trained(fb.Ditto, SAME, tmp_path / "other")
    assert run.summary(view="shared", reference=other)["share_below_reference"] == 0
