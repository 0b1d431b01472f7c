"""Arrays are shared with a federation: what is written to them later is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.nets import mlp

METHOD = fb.FedAvg(mlp((6,), 2, hidden=(4,)), lr=0.1)


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(300, 6)).astype("float32")
    return x, (x[:, 0] > 0) * 1, np.arange(300) % 6


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_hash_follows_an_array_that_was_changed(kind: str) -> None:
    x, y, users = arrays()
    given = torch.from_numpy(x) if kind == "tensor" else x
    data = fb.Federation.from_users(given, y, users)
    hashes = [data.hash()]
    for change in (lambda: x.__imul__(2), lambda: np.random.default_rng(1).shuffle(x)):
        change()
        hashes.append(data.hash())
        assert hashes[-1] == fb.Federation.from_users(x, y, users).hash()
    y[0] = 1 - y[0]
    assert len({*hashes, data.hash()}) == 4 - (not np.shares_memory(data.y.numpy(), y))


def test_a_run_does_not_go_on_with_arrays_that_were_changed(tmp_path: Path) -> None:
    x, y, users = arrays()
    data = fb.Federation.from_users(x, y, users)
    fb.run(METHOD, data, 2, tmp_path / "run")
    x -= x.mean(0)
    with pytest.raises(fb.DataError, match=r"data\.hash was SHA-256"):
        fb.resume(tmp_path / "run", METHOD, data, rounds="+1")


def test_a_change_during_a_run_is_told_at_its_end(tmp_path: Path) -> None:
    x, y, users = arrays()
    data = fb.Federation.from_users(x, y, users)
    with pytest.warns(UserWarning, match="were changed while it went on"):
        run = fb.run(METHOD, data, 3, tmp_path / "run", on_round=lambda done: x.__imul__(1.1))
    assert "were changed while it went on" in run.notes[-1]["text"]
    with pytest.raises(fb.DataError, match=r"data\.hash was SHA-256"):
        fb.resume(tmp_path / "run", METHOD, data, rounds="+1")


def test_a_saved_federation_is_what_its_arrays_are_now(tmp_path: Path) -> None:
    x, y, users = arrays()
    data = fb.Federation.from_users(x, y, users)
    data.hash()
    x *= -1
    data.save(tmp_path / "d.npz")
    assert fb.Federation.load(tmp_path / "d.npz").hash() == data.hash()
